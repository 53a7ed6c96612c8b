"""`bdfl data`: look at what is learned from, and at who holds what of it."""

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

data_app = typer.Typer(no_args_is_help=True, help="Look at data: where they come from, and who holds what.")


@data_app.command("show")
def show_data(
    scenario: ScenarioArgument,
    data: DataOption = None,
    changes: SetOption = None,
    seed: SeedOption = None,
    out: OutOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Load the data, deal them out and show who holds what, with the participation rates that follow.

    Examples:

      bdfl data show quickstart

      bdfl data show paper-cifar10 --data path/to/cifar10 --set partition.dirichlet=0.1

      bdfl data show quickstart --set partition.method=shards --set clients.count=30 --set clients.samples=40
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
    """List where data can come from, as --data or data.source takes it.

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
    """An array as nested lists, which JSON has."""
    return array.tolist()
