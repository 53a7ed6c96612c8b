"""`bdfl data`, `bdfl export` and `bdfl track`: data sets, tables of a run, experiment trackers."""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from bdfl.audit.export import Format
from bdfl.cli.options import (
    RESULTS,
    DataOption,
    JsonOption,
    JsonOrFilesOption,
    NoChain,
    OutOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    can_draw,
    open_chain,
    open_scenario,
    save_result,
)
from bdfl.cli.terminal import print_json, print_out, progress, say, show_result, writing_to
from bdfl.errors import BdflError, require

if TYPE_CHECKING:
    from bdfl.audit.tables import Table
    from bdfl.experiment.run_folder import RunFolder
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.scenario import Scenario
    from bdfl.tracking import Tracker, Tracking


# `bdfl data`: show data and their distribution over clients.

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
    from bdfl.learning.participation import summarise_data

    chosen = open_scenario(scenario, changes, seed=seed, data=data)
    holdings = summarise_data(chosen, load_data(chosen.data))
    if as_json:
        print_json(msgspec.json.encode(holdings, enc_hook=_to_list))
    else:
        from bdfl.report.data import tabulate_holdings

        print_out(*tabulate_holdings(holdings))
    if (out is not None or not as_json) and can_draw():
        from bdfl.report.data import summarise_data as draw_picture

        save_result(draw_picture(holdings), f"data-{holdings.scenario}", out, quiet=as_json)


@data_app.command("sources")
def list_sources(as_json: JsonOption = False) -> None:
    """List the sources of data that --data and data.source accept.

    Example:
      bdfl data sources
    """
    from bdfl.learning.data import SOURCES
    from bdfl.report.tables import new_table

    table = new_table("Sources of data", ("source", "what it is"), SOURCES.items(), text_columns=2)
    show_result(SOURCES, lambda: [table], as_json=as_json)


def _to_list(array: Any) -> Any:
    """Return an array as nested lists, for JSON."""
    return array.tolist()


# `bdfl export`: tables of a run, a record, a sweep or a chain for other programs.

_STANDARD_OUTPUT = Path("-")


class NoTable(BdflError):
    """A folder without tables, a table that is not there, or an output that cannot hold it."""


def export(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, records, a sweep, a node or a chain.")
    ],
    format: Annotated[Format, typer.Option("--format", help="File format.")] = Format.CSV,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Table to write, such as rounds or blocks. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the files, or - for standard output.", show_default="results/NAME-tables"
        ),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the tables and their columns.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tables of a run, sweep or chain as CSV, Parquet or JSON.

    A run has tables of rounds and clients, a chain of blocks and updates.

    Examples:
      bdfl export runs/quickstart-drc-0
      bdfl export runs/quickstart-drc-0 --table updates --format json --out -
      bdfl export runs/quickstart-drc-0/chain --format parquet --out tables
    """
    with ExitStack() as opened:
        if not path.is_dir():
            raise NoTable(f"{path}: not a folder, that of a run, records, a sweep, a node or a chain expected")
        chain = None
        with suppress(NoChain):
            chain = opened.enter_context(open_chain(path))
        tables = _choose(path, chain, table)
        if only_list:
            _show(tables, as_json=as_json)
        elif out == _STANDARD_OUTPUT:
            _print(tables, format)
        else:
            folder = out or RESULTS / f"{path.resolve().name}-tables"
            if folder.resolve() == path.resolve():
                raise NoTable(f"--out {folder}: where the tables are read from, another folder expected")
            _write(tables, format, folder, as_json=as_json)


def _choose(path: Path, chain: "ChainStore | None", names: list[str] | None) -> "list[Table]":
    require("exporting tables", "pyarrow")
    from bdfl.audit.tables import find_tables

    found = find_tables(path, chain)
    if not found:
        raise NoTable(f"{path}: no table and no chain in it, the folder of a run, records, a sweep or a chain expected")
    for name in names or ():
        if name not in found:
            hint = f"; bdfl report {path} writes those of its rounds" if (path / "journal.jsonl").is_file() else ""
            raise NoTable(f"{path}: no table {name!r} in it, there are {', '.join(found)}{hint}")
    return [found[name] for name in names or found]


def _show(tables: "list[Table]", *, as_json: bool) -> None:
    if as_json:
        print_json({table.name: {field.name: str(field.type) for field in table.schema} for table in tables})
        return
    for table in tables:
        say(f"{table.name}: {', '.join(table.schema.names)}")


def _print(tables: "list[Table]", format: Format) -> None:
    from bdfl.audit.tables import write_table

    if len(tables) != 1 or format is Format.PARQUET:
        raise NoTable("--out -: standard output takes one --table, as csv or json")
    write_table(tables[0], format, sys.stdout.buffer)


def _write(tables: "list[Table]", format: Format, folder: Path, *, as_json: bool) -> None:
    from bdfl.audit.tables import write_table

    written: dict[str, int] = {}
    with writing_to(folder), progress(f"writing {folder}", "tables") as on_progress:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            path = folder / f"{table.name}.{format.value}"
            with path.open("wb") as file:
                rows = write_table(table, format, file, lambda _: on_progress(len(written), len(tables)))
            written[str(path)] = rows
    if as_json:
        print_json(written)
        return
    for name, rows in written.items():
        say(f"wrote {name}: {rows} rows")


# Experiment trackers: the option `--track`, and `bdfl track` for finished or running runs.

_EVERY_S = 2.0  # between polls of a growing chain

TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="TRACKER", help="Track with tensorboard:FOLDER, mlflow:URI or module:function. Repeatable."
    ),
]


class TrackingFailed(BdflError):
    """A tracker that failed."""


def open_trackers(choices: list[str] | None) -> "Mapping[str, Tracker]":
    """Open the given trackers; errors are raised before any work."""
    if not choices:
        return {}
    from bdfl.tracking import open_tracker

    return {choice: open_tracker(choice) for choice in choices}


def tracking_run(
    trackers: "Mapping[str, Tracker]", folder: "RunFolder", *, is_continued: bool
) -> "AbstractContextManager[Tracking]":
    """Track the run in a folder inside the context; a failing tracker is a warning with the way to catch up."""
    from bdfl.tracking import track_run, tracked_run

    run = tracked_run(folder.scenario, folder.path.resolve().name, is_continued=is_continued)
    way = f"catch up with: bdfl track {folder.path} --to ..."
    return track_run(trackers, run, lambda line: say(f"warning: {line}; {way}", err=True))


def tracking_scenario(trackers: "Mapping[str, Tracker]", scenario: "Scenario") -> "AbstractContextManager[Tracking]":
    """Track a run without a folder inside the context."""
    from bdfl.tracking import track_run, tracked_run

    return track_run(trackers, tracked_run(scenario), lambda line: say(f"warning: {line}", err=True))


def track(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, a simulated run's records, a node or a chain.")
    ],
    to: Annotated[
        list[str],
        typer.Option("--to", metavar="TRACKER", help="tensorboard:FOLDER, mlflow:URI or module:function. Repeatable."),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow a growing chain, such as a live node's, until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a finished or running run to experiment trackers.

    Rounds that a tracker already has are not uploaded twice.

    Examples:
      bdfl track runs/quickstart-drc-0 --to tensorboard:results/board
      bdfl track runs/network/node-0 --to mlflow:results/mlflow --follow
    """
    from bdfl.tracking import Outcome, track_run
    from bdfl.tracking.tracker import ChainRounds, describe_folder, read_records

    trackers = open_trackers(to)
    failures: list[str] = []
    rounds = 0
    with ExitStack() as opened:
        has_records = (folder / "rounds.parquet").is_file() and not follow
        chain = None if has_records else opened.enter_context(open_chain(folder))
        run = describe_folder(folder, chain)
        tracking = opened.enter_context(track_run(trackers, run, failures.append))
        told = opened.enter_context(progress(f"telling of {folder}", "rounds"))
        source = None if chain is None else ChainRounds(chain, folder)
        total = len(trackers)
        try:
            while True:
                for number, values in read_records(folder) if source is None else source.news():
                    tracking.tell(number, values)
                    rounds = number
                    told(rounds, rounds if chain is None else max(chain.height, rounds))
                if not follow or len(failures) == total:
                    break
                time.sleep(_EVERY_S)
        except KeyboardInterrupt:
            tracking.outcome = Outcome.INTERRUPTED
        report = folder / "report.html"
        tracking.files = [report] if report.is_file() else []
    if failures:
        raise TrackingFailed(failures[0])
    if as_json:
        print_json({"run": run.name, "identity": run.identity, "rounds": rounds, "trackers": to})
    else:
        say(f"told {', '.join(to)} of {rounds} rounds of {run.name}")
