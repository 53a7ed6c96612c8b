"""`python -m campaigns selfish`: members that break no rule but profit at the expense of others."""

import time
from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.options import JsonOption, WorkersOption
from bdfl.cli.terminal import OneLineErrors, print_files, print_json, print_out, progress, writing_to
from bdfl.errors import require_extra
from campaigns.faults.attacks import Attack

app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", invoke_without_command=True)

OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the tables as Markdown.")]


@app.callback()
def selfish(
    context: typer.Context,
    networks: Annotated[int, typer.Option("--networks", min=0, help="Networks of withholding members.")] = 12,
    grid: Annotated[int, typer.Option("--grid", min=0, help="Networks of each attack, scheduler and m.")] = 0,
    blocks: Annotated[int, typer.Option("--blocks", min=20, help="Blocks of each network.")] = 60,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    attack: Annotated[list[Attack] | None, typer.Option("--attack", help="Only this one. Repeatable.")] = None,
    workers: WorkersOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run networks of 4 to 9 members with a selfish one: exit code 1 if it gains, slows others down, or stays.

    Examples:

      python -m campaigns selfish --networks 1000 --grid 2 --out docs/results/selfish

      python -m campaigns selfish live --out docs/results/selfish
    """
    if context.invoked_subcommand is not None:
        return
    from campaigns.selfish.judging import draw_settings, run_campaign
    from campaigns.selfish.tables import simulated_markdown, tabulate_leads, tabulate_rows

    started = time.monotonic()
    settings = draw_settings(networks, grid, blocks, first, tuple(attack or Attack))
    with progress("playing networks", "networks") as on_progress:
        result = run_campaign(settings, workers=workers, on_progress=on_progress)
    elapsed_s = time.monotonic() - started
    if as_json:
        print_json(result)
    else:
        print_out(tabulate_rows(result), tabulate_leads(result))
        for case in result.failures:
            typer.echo(f"broken: {', '.join(case.broken)}: {case}")
        typer.echo(f"{len(settings)} networks in {elapsed_s:.1f} s, {len(result.failures)} of them broke a law")
    if out is not None:
        options = f"--networks {networks} --grid {grid} --blocks {blocks} --first {first}"
        path = out / "README.md"
        with writing_to(out):
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(simulated_markdown(result, f"python -m campaigns selfish {options}"), encoding="utf-8")
        if not as_json:
            print_files([path])
    if not result.is_good:
        raise typer.Exit(1)


@app.command("live")
def live(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Networks with a withholding member.")] = 3,
    controls: Annotated[int, typer.Option("--controls", min=0, help="The same with all members honest.")] = 1,
    unguarded: Annotated[
        int, typer.Option("--unguarded", min=0, help="The same without the rules; its share is told, not judged.")
    ] = 1,
    blocks: Annotated[int, typer.Option("--blocks", min=5, help="Blocks of each before the removal.")] = 60,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run real processes with a withholding member: exit code 1 if it wins too much, or is not removed.

    Four nodes on this machine; the last one withholds its report and update until it has mined. After so many blocks
    the three others sign its removal.

    Examples:

      python -m campaigns selfish live --runs 3 --out docs/results/selfish
    """
    require_extra("a live network", "learn", "live")
    from campaigns.selfish.live import LiveKind, run_live
    from campaigns.selfish.tables import live_markdown, tabulate_live

    amounts = {LiveKind.WITHHOLD: runs, LiveKind.HONEST: controls, LiveKind.UNGUARDED: unguarded}
    found = []
    for kind, seed in [(kind, first + place) for kind, amount in amounts.items() for place in range(amount)]:
        with progress(f"live network, {kind}, seed {seed}", "blocks") as on_progress:
            found.append(run_live(seed, blocks, kind=kind, on_progress=on_progress))
    if as_json:
        print_json(found)
    else:
        print_out(tabulate_live(found))
    if out is not None:
        options = f"--runs {runs} --controls {controls} --unguarded {unguarded} --blocks {blocks} --first {first}"
        path = out / "live.md"
        with writing_to(out):
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(live_markdown(found, f"python -m campaigns selfish live {options}"), encoding="utf-8")
        if not as_json:
            print_files([path])
    if any(run.broken for run in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
