"""`python -m campaigns soak`: many rounds of a network of real processes, to find leaks."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import OneLineErrors, describe_machine, print_files, print_json, print_out, progress, writing_to
from bdfl.errors import require_extra

FAILED_EXIT = 1


app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", invoke_without_command=True)


@app.callback()
def soak(
    nodes: Annotated[int, typer.Option("--nodes", min=3, help="Number of nodes.")] = 4,
    access_points: Annotated[int, typer.Option("--aps", min=0, help="Number of access points.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", min=10, help="Number of blocks.")] = 500,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for README.md, soak.svg, .png, .csv.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a network of real processes for many blocks to find leaks.

    Trains a small model on digits, as fast as possible. Chains are verified and compared at the end. Exit code 1 if
    memory, open files or threads grow.

    Examples:
      python -m campaigns soak --rounds 50
      python -m campaigns soak --nodes 8 --aps 2 --rounds 500 --out results/soak
    """
    require_extra("a live network", "learn", "live")
    from bdfl.federation.genesis_file import load_live_scenario
    from bdfl.scenario.files import find_scenario
    from campaigns.soak.measurement import run_soak

    changes = [f"clients.count={nodes}", "clients.min_selected=2", f"rounds={rounds}", "live.time_scale=0"]
    scenario = load_live_scenario(find_scenario("live"), changes)
    with ExitStack() as resources:
        where = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="bdfl-soak-"))) / "network"
        on_progress = resources.enter_context(progress("soaking", "rounds"))
        result = run_soak(where, scenario, num_access_points=access_points, rounds=rounds, on_progress=on_progress)
    if as_json:
        print_json(result)
    else:
        from campaigns.soak.tables import tabulate_soak

        print_out(tabulate_soak(result))
        for failure in result.failures:
            typer.echo(f"NOT GOOD: {failure}")
    if out is not None:
        from bdfl.report.style import save_picture
        from campaigns.soak.tables import draw_soak, soak_markdown

        command = f"python -m campaigns soak --nodes {nodes} --aps {access_points} --rounds {rounds}"
        with writing_to(out):
            paths = save_picture(draw_soak(result), out, "soak")
            page = out / "README.md"
            page.write_text(soak_markdown(result, command, describe_machine()), encoding="utf-8")
        if not as_json:
            print_files([page, *paths])
    if not result.is_good:
        raise typer.Exit(FAILED_EXIT)


if __name__ == "__main__":
    app()
