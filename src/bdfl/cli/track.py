"""Experiment trackers: the option `--track`, and `bdfl track` for finished or running runs."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import print_json, progress, say
from bdfl.errors import BdflError

if TYPE_CHECKING:
    from bdfl.experiment.run_folder import RunFolder
    from bdfl.ledger.store import ChainStore
    from bdfl.scenario import Scenario
    from bdfl.tracking import TrackedRun, Tracker, Tracking

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


@contextmanager
def tracking_run(
    trackers: "Mapping[str, Tracker]", folder: "RunFolder", *, is_continued: bool = False
) -> "Iterator[Tracking]":
    """Track the run in a folder inside the block; a failing tracker is a warning with the way to catch up."""
    from bdfl.tracking import tracked_run

    run = tracked_run(folder.scenario, folder.path.resolve().name, is_continued=is_continued)
    with _tracking(trackers, run, f"; catch up with: bdfl track {folder.path} --to ...") as tracking:
        yield tracking


@contextmanager
def tracking_scenario(trackers: "Mapping[str, Tracker]", scenario: "Scenario") -> "Iterator[Tracking]":
    """Track a run without a folder inside the block."""
    from bdfl.tracking import tracked_run

    with _tracking(trackers, tracked_run(scenario), "") as tracking:
        yield tracking


@contextmanager
def _tracking(trackers: "Mapping[str, Tracker]", run: "TrackedRun", way: str) -> "Iterator[Tracking]":
    from bdfl.tracking import track_run

    with track_run(trackers, run, lambda line: say(f"warning: {line}{way}", err=True)) as tracking:
        yield tracking


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
    from bdfl.tracking.finished import ChainRounds, describe_folder, read_records

    trackers = open_trackers(to)
    failures: list[str] = []
    rounds = 0
    with ExitStack() as opened:
        has_records = (folder / "rounds.parquet").is_file() and not follow
        chain = None if has_records else opened.enter_context(_open_chain(folder))
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


@contextmanager
def _open_chain(folder: Path) -> "Iterator[ChainStore]":
    from bdfl.cli.chain import find_chain
    from bdfl.ledger.store import ChainStore

    with ChainStore.open(find_chain(folder), read_only=True) as chain:
        yield chain
