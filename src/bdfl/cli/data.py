"""`bdfl data`: show data and their distribution over clients."""

from typing import Any

import typer

from bdfl.cli.options import (
    DataOption,
    JsonOption,
    JsonOrFilesOption,
    OutOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    can_draw,
    open_scenario,
    save_result,
)
from bdfl.cli.terminal import print_json, print_out

data_app = typer.Typer(no_args_is_help=True, help="Show data sources and the distribution of data over clients.")


@data_app.command("show")
def show_data(
    scenario: ScenarioArgument,
    data: DataOption = None,
    changes: SetOption = None,
    seed: SeedOption = None,
    out: OutOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Show each client's share of the data and its participation rate.

    Examples:
      bdfl data show quickstart
      bdfl data show paper-cifar10 --data cifar10 --set partition.dirichlet=0.1
      bdfl data show quickstart --set partition.method=shards
    """
    from bdfl.learning.data import load_data
    from bdfl.learning.holdings import draw_holdings

    chosen = open_scenario(scenario, changes, seed=seed, data=data)
    holdings = draw_holdings(chosen, load_data(chosen.data))
    if as_json:
        import msgspec

        print_json(msgspec.json.encode(holdings, enc_hook=_to_list))
    else:
        from bdfl.report.data_table import tabulate_holdings

        print_out(*tabulate_holdings(holdings))
    if (out is not None or not as_json) and can_draw():
        from bdfl.report.data_figure import draw_holdings as draw_picture

        save_result(draw_picture(holdings), f"data-{holdings.scenario}", out, quiet=as_json)


@data_app.command("sources")
def list_sources(as_json: JsonOption = False) -> None:
    """List the sources of data that --data and data.source accept.

    Example:
      bdfl data sources
    """
    from bdfl.learning.data import SOURCES

    if as_json:
        print_json(SOURCES)
        return
    from bdfl.report.tables import new_table

    table = new_table("Sources of data", ("source", "what it is"), text_columns=2)
    for source, meaning in SOURCES.items():
        table.add_row(source, meaning)
    print_out(table)


def _to_list(array: Any) -> Any:
    """Return an array as nested lists, for JSON."""
    return array.tolist()
