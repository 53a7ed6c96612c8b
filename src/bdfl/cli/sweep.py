"""`bdfl sweep` and `bdfl plot`: many runs from one file, and their figure."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import (
    AddressOption,
    AllowOption,
    Engine,
    EngineOption,
    JsonOption,
    JsonOrFilesOption,
    can_draw,
    save_result,
    validate_address,
)
from bdfl.cli.terminal import (
    FAILED_EXIT,
    INTERRUPTED_EXIT,
    BadUsage,
    print_json,
    progress,
    say,
    show_result,
    writing_to,
)
from bdfl.errors import require

if TYPE_CHECKING:
    from bdfl.sweeps.plan import Sweep
    from bdfl.sweeps.runner import SweepOutcome

SWEEPS = Path("sweeps")


def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="[SWEEP.toml]", help="Sweep file: varied values, seeds and schedulers.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Resume the sweep in this folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder.", show_default="sweeps/NAME")] = None,
    engine: EngineOption = Engine.LOCAL,
    address: AddressOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Number of processes.", show_default="one per core")
    ] = None,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Retries of a failed point.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only describe the sweep and count its points.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario with many settings, schedulers and seeds into one table.

    The table is Parquet. A stopped sweep continues with the same command and ends in the same bytes, with either
    engine and any number of workers. Failed points are retried; exit code 1 if some still fail.

    Examples:
      bdfl sweep sweep.toml
      bdfl sweep sweep.toml --engine ray --address 10.0.0.1:6379
      bdfl sweep --resume sweeps/sweep
    """
    from bdfl.sweeps.executors import open_local_executor, open_ray_executor
    from bdfl.sweeps.plan import Mode, load_sweep
    from bdfl.sweeps.results import load_begun, open_sweep_folder
    from bdfl.sweeps.runner import run_sweep

    validate_address(engine, address)
    if (file is None) == (resume is None) or (resume is not None and out is not None):
        raise BadUsage("sweep: a SWEEP.toml expected, or --resume FOLDER without one and without --out")
    if file is None and resume is not None:
        planned = load_begun(resume, frozenset(allow or ()))
    else:
        planned = load_sweep(file or Path())
    if dry_run:
        _describe(planned, as_json=as_json)
        return
    require("the table of a sweep", "pyarrow")
    path = resume or out or SWEEPS / planned.name
    if engine is Engine.RAY:
        executing = open_ray_executor(address, workers, with_torch=planned.mode is Mode.RUN)
    else:
        executing = open_local_executor(workers)
    with writing_to(path), open_sweep_folder(path, planned) as folder:
        try:
            with (
                executing as executor,
                progress(f"sweeping {planned.name}", "points") as on_progress,
            ):
                outcome = run_sweep(planned, folder, executor, retries=retries, on_progress=on_progress)
        except KeyboardInterrupt:
            num_done = sum(row.error is None for row in folder.done.values())
            say(f"stopped with {num_done} points done; go on: bdfl sweep --resume {path}", err=True)
            raise typer.Exit(INTERRUPTED_EXIT) from None
    _show(outcome, path, as_json=as_json)


def plot(
    table: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a finished sweep, or its points.parquet.")],
    x: Annotated[
        str | None, typer.Option("--x", help="Key of the x axis.", show_default="the key with most values")
    ] = None,
    y: Annotated[list[str] | None, typer.Option("--y", help="Measure to draw, in its own panel. Repeatable.")] = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", help="Key of the lines, such as scheduler. Repeatable.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Draw only these points. Repeatable.")
    ] = None,
    log_x: Annotated[
        bool | None,
        typer.Option("--log-x/--no-log-x", help="Logarithmic x axis.", show_default="if values span a factor of 20"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for figure and CSV.", show_default="that of the table")
    ] = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Draw the results of a sweep: means with 95 % intervals over seeds.

    Examples:
      bdfl plot sweeps/sweep
      bdfl plot sweeps/sweep --x energy.budget_j --y mean_delay_s --by scheduler
      bdfl plot sweeps/sweep --where clients.count=8
    """
    from bdfl.report.sweep import draw_sweep, tabulate_summary
    from bdfl.sweeps.results import read_points, summarise_points

    pairs = [text.partition("=") for text in where or []]
    if any(not equals for _, equals, _ in pairs):
        raise BadUsage("--where: KEY=VALUE expected, such as clients.count=8")
    summary = summarise_points(
        read_points(table),
        x=x,
        by=by,
        measures=y,
        where={key.strip(): value.strip() for key, _, value in pairs},
        logarithmic=log_x,
    )
    show_result(summary, lambda: tabulate_summary(summary), as_json=as_json)
    if (out is not None or not as_json) and can_draw():
        save_result(draw_sweep(summary), "plot", out or (table if table.is_dir() else table.parent), quiet=as_json)


def _describe(planned: "Sweep", *, as_json: bool) -> None:
    from bdfl.sweeps.points import list_points

    points = list_points(planned)
    found = {
        "name": planned.name,
        "digest": planned.digest(),
        "points": len(points),
        "varied": list(planned.varied),
        "schedulers": list(planned.schedulers),
        "seeds": len(planned.seeds),
        "rounds": planned.base.rounds,
        "measures": list(planned.measures),
    }
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        say(f"{key:11}{', '.join(map(str, value)) if isinstance(value, list) else value}")


def _show(outcome: "SweepOutcome", path: Path, *, as_json: bool) -> None:
    import hashlib

    from bdfl.sweeps.results import POINTS_FILE

    table = path / POINTS_FILE
    if as_json:
        document = {
            "folder": str(path),
            "table": str(table),
            "sha256": hashlib.sha256(table.read_bytes()).hexdigest(),
            "points": outcome.num_points,
            "computed": outcome.num_computed,
            "failed": [{"point": row.point, "error": row.error} for row in outcome.failed],
            "engine": outcome.engine,
            "workers": outcome.num_workers,
            "wall_s": outcome.wall_s,
            "busy_share": outcome.busy_share if outcome.num_computed else None,
        }
        print_json(document)
    else:
        from bdfl.report.sweep import describe_outcome

        for line in describe_outcome(outcome):
            say(line)
        say(f"table {table}")
        say(f"look  bdfl plot {path}")
    if outcome.failed:
        raise typer.Exit(FAILED_EXIT)
