"""The protocol of an experiment tracker, trackers by name, and the metrics of a run or chain that they receive.

A tracker is an entry point of `bdfl.trackers`, or a user's function: NAME:WHERE or module:function[:WHERE]. The named
function is called with WHERE.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError, one_line, require
from bdfl.experiment.network_run import delivered_by
from bdfl.experiment.run_folder import read_journal
from bdfl.ledger.block import Block, chain_id
from bdfl.ledger.costs import NANO, PICOJOULE
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.plugins import BadFunction, find_function, show_exception
from bdfl.records import LearningRound, RoundRecord
from bdfl.records.learning import JOURNAL_FILE, SCENARIO_FILE
from bdfl.scenario import Scenario, describe_scenario, dump_scenario, scenario_digest
from bdfl.scenario.files import load_foreign_scenario
from bdfl.scenario.schema_learning import MICRO

# The tracker protocol and the data passed to it.

Parameter: TypeAlias = bool | int | float | str


class Outcome(StrEnum):
    """Outcome of a run, as far as its process knows."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run before its first round."""

    name: str  # among the runs of its experiment
    experiment: str  # the scenario's name, shared by related runs
    identity: str  # digest of its inputs: a run and its continuation have the same
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # by key of the scenario
    description: str = ""
    document: str = ""  # the whole scenario in TOML; empty: unknown
    is_continued: bool = False  # all rounds are reported again, including those a tracker may have already


class Tracker(Protocol):
    """A tracker of runs. Any method may raise: the run then continues without this tracker."""

    def begin(self, run: TrackedRun) -> None:
        """Start a run, before its first round."""

    def round(self, round: int, values: Mapping[str, float]) -> None:
        """Record round 1, 2, ...: its finite metrics by name, such as `learning/accuracy`; others are left out."""

    def finish(self, outcome: Outcome, files: Sequence[Path]) -> None:
        """End the run; `files` are its output files."""


ENTRY_POINT_GROUP = "bdfl.trackers"
_METHODS = ("begin", "round", "finish")


class UnknownTracker(BdflError):
    """A tracker that does not exist, that several packages have, or that is not told where to write."""


def tracker_names() -> list[str]:
    """Names of all installed trackers, in alphabetical order."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP).names)


def open_tracker(choice: str) -> Tracker:
    """Open the named tracker; it writes nothing before a run begins. Raises `BdflError` with the reason."""
    name, _, where = choice.partition(":")
    found = {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if len(found) > 1:
        raise UnknownTracker(f"tracker {name!r} is claimed by several packages: {', '.join(sorted(found))}")
    function: Callable[..., object]
    if found:
        [point] = found.values()
        function = point.load()
    else:
        attribute, _, where = where.partition(":")
        if not attribute:
            names = ", ".join(tracker_names())
            raise UnknownTracker(f"tracker {choice!r}: NAME:WHERE with a NAME of {names}, or module:function expected")
        name = f"{name}:{attribute}"
        function = find_function(name)
    try:
        tracker = function(where)
    except BdflError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise BadFunction(name, show_exception(error), "a tracker") from error
    missing = [method for method in _METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise BadFunction(name, f"what it returns has no {' and no '.join(missing)}", "a tracker")
    opened: Tracker = tracker  # type: ignore[assignment]  # checked above
    return opened


# Metrics and parameters of a run for trackers.

DELAY = "time/delay_s"  # every round has one
_ALWAYS = ("seed", "rounds", "scheduler.name")  # parameters, even if default
_NEVER = ("name", "description")


def tracked_run(scenario: Scenario, name: str = "", *, is_continued: bool = False) -> TrackedRun:
    """Describe a run of the scenario; by default it is named after scenario, scheduler and seed."""
    return TrackedRun(
        name=name or f"{scenario.name}-{scenario.scheduler.name}-{scenario.seed}",
        experiment=scenario.name,
        identity=scenario_digest(scenario),
        parameters=parameters_of(scenario),
        description=scenario.description,
        document=dump_scenario(scenario),
        is_continued=is_continued,
    )


def parameters_of(scenario: Scenario) -> dict[str, Parameter]:
    """Parameters of the run: non-default keys, and always scheduler, rounds and seed; lists and tables as TOML."""
    return {
        row.key: row.value if isinstance(row.value, Parameter) else row.value_text
        for row in describe_scenario(scenario)
        if row.key not in _NEVER and (row.key in _ALWAYS or not row.is_default)
    }


class RoundScalars:
    """Computes the metrics of consecutive rounds; some are over all rounds so far."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._num_rounds = 0
        self._num_delivered: NDArray[np.int64] | int = 0  # (clients,)
        self._epsilon = 0.0  # greatest of any client

    def of_round(self, record: RoundRecord, learning: LearningRound | None) -> dict[str, float]:
        """Metrics of the next round from its record; `learning` is None for a run without learning and chain."""
        self._time_s += record.delay_s
        self._num_rounds += 1
        self._num_delivered = self._num_delivered + record.delivered
        energy_j, budget_j = record.energy_j, record.energy_budget_j
        share = np.divide(energy_j, budget_j, out=np.zeros_like(energy_j), where=budget_j > 0)
        return _finite(
            {
                DELAY: record.delay_s,
                "time/training_s": record.training_s,
                "time/upload_s": record.upload_s,
                "time/mining_s": record.mining_s,
                "time/total_s": self._time_s,
                "energy/total_j": np.sum(energy_j),
                "energy/highest_share": np.max(share),
                "queue/mean": np.mean(record.next_queue),
                "queue/longest": np.max(record.next_queue),
                "participation/selected": np.count_nonzero(record.selected),
                "participation/delivered": np.count_nonzero(record.delivered),
                "participation/least_share": np.min(self._num_delivered) / self._num_rounds,
                "schedule/objective": record.objective,
                "schedule/gap": record.gap,
                "schedule/iterations": record.iterations,
            }
        ) | ({} if learning is None else {"chain/height": float(record.round)} | self._learned(learning))

    def of_block(self, block: Block, learning: LearningRound | None) -> dict[str, float]:
        """Metrics of the next round from its block, which contains fewer than a record."""
        body = block.body
        stated = [signed.update.epsilon_micro / MICRO for signed in body.updates]
        delay_s = body.modelled.delay_ns / NANO
        self._time_s += delay_s
        return _finite(
            {
                DELAY: delay_s,
                "time/mining_s": body.modelled.mining_ns / NANO,
                "time/total_s": self._time_s,
                "energy/total_j": sum(body.modelled.energy_pj) / PICOJOULE,
                "queue/mean": sum(body.queue_nano) / NANO / max(len(body.queue_nano), 1),
                "queue/longest": max(body.queue_nano, default=0) / NANO,
                "participation/selected": len(body.schedule.selected),
                "participation/delivered": np.count_nonzero(delivered_by(block)),
                "schedule/objective": body.schedule.objective_nano / NANO if body.schedule.is_feasible else None,
                "chain/height": block.header.height,
            }
        ) | (self._spent(stated) if learning is None else self._learned(learning))

    def _learned(self, row: LearningRound) -> dict[str, float]:
        local_losses = _known(row.local_loss)
        return _finite(
            {
                "learning/accuracy": row.accuracy,
                "learning/loss": row.loss,
                "learning/local_loss": np.mean(local_losses) if local_losses else None,
                "learning/update_norm": row.update_norm,
            }
        ) | self._spent(_known(row.epsilon))

    def _spent(self, epsilon: Sequence[float]) -> dict[str, float]:
        self._epsilon = max(self._epsilon, *epsilon, 0.0)
        return {"privacy/epsilon": self._epsilon} if self._epsilon else {}


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _finite(values: Mapping[str, float | np.floating | np.integer | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and np.isfinite(value)}


# Replay of runs and chains in folders to trackers, after they end or while another process writes them.

Told = tuple[int, dict[str, float]]  # a round and its numbers


class NothingToTrack(BdflError):
    """A folder without rounds."""


def read_records(folder: Path) -> Iterator[Told]:
    """Yield every round of `rounds.parquet` and `clients.parquet` in a folder, with the journal beside them."""
    require(f"{folder}: reading its tables", "pyarrow")
    from bdfl.records.parquet import read_run

    run, learned, scalars = read_run(folder), _read_learning(folder), RoundScalars()
    for record in run.rounds:
        yield record.round, scalars.of_round(record, learned.get(record.round))


class ChainRounds:
    """Rounds of a chain, which may grow; those of a run include the data of its journal."""

    def __init__(self, chain: ChainStore, folder: Path) -> None:
        self._chain = chain
        self._folder = folder
        self._scalars = RoundScalars()
        self._done = 0

    def news(self) -> Iterator[Told]:
        """Yield the rounds since the last call; if a journal exists, only those it contains."""
        learned = _read_learning(self._folder)
        known = max(learned) if learned else self._chain.height
        for block in self._chain.blocks(self._done + 1):
            if block.header.height > known:
                return
            self._done = block.header.height
            yield self._done, self._scalars.of_block(block, learned.get(self._done))


def describe_folder(folder: Path, chain: ChainStore | None) -> TrackedRun:
    """Describe the run in a folder from its scenario, or else from the chain's genesis."""
    name = folder.resolve().name
    if (folder / SCENARIO_FILE).is_file():
        return tracked_run(load_foreign_scenario(folder / SCENARIO_FILE), name, is_continued=True)
    if chain is None:
        raise NothingToTrack(f"{folder}: no {SCENARIO_FILE} and no chain in it, the folder of a run or chain expected")
    genesis = chain.genesis
    return TrackedRun(
        name=name,
        experiment=genesis.name or name,
        identity=chain_id(genesis).hex(),
        parameters={
            "scheduler.name": genesis.scheduler.name,
            "seed": genesis.scheduler.seed,
            "clients.count": len(genesis.members),
            "ledger.quorum": genesis.law.quorum.value,
            "ledger.work": genesis.law.work.value,
            "learning.aggregation.rule": genesis.law.aggregation,
        },
        is_continued=True,
    )


def _read_learning(folder: Path) -> Mapping[int, LearningRound]:
    path = folder / JOURNAL_FILE
    return {row.round: row for row in read_journal(path)[1]} if path.is_file() else {}


# Dispatch of one run to several trackers: one that fails is dropped, without effect on the run.

_LONGEST_REASON = 200  # characters of a tracker's error message


class Tracking:
    """The working trackers of a run, by their specification."""

    def __init__(self, trackers: Mapping[str, Tracker], on_failure: Callable[[str], None]) -> None:
        self.outcome: Outcome | None = None  # None: determined by how `track_run` ends
        self.files: Sequence[Path] = ()  # output files of the run
        self._trackers = dict(trackers)
        self._on_failure = on_failure
        self._scalars = RoundScalars()

    def begin(self, run: TrackedRun) -> None:
        self._tell(lambda tracker: tracker.begin(run))

    def settle(self, record: RoundRecord, learning: LearningRound | None = None) -> None:
        """Report a completed round; fits `on_round` of `simulate` and `on_settled` of `train_run`."""
        if self._trackers:
            self.tell(record.round, self._scalars.of_round(record, learning))

    def tell(self, round: int, values: Mapping[str, float]) -> None:
        """Report the metrics of a round."""
        self._tell(lambda tracker: tracker.round(round, values))

    def finish(self, outcome: Outcome) -> None:
        self._tell(lambda tracker: tracker.finish(outcome, self.files))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for choice, tracker in list(self._trackers.items()):
            try:
                what(tracker)
            except Exception as error:  # a tracker must never stop the run
                del self._trackers[choice]
                reason = one_line(show_exception(error))[:_LONGEST_REASON]
                self._on_failure(f"{choice}: {reason}; going on without it")


@contextmanager
def track_run(
    trackers: Mapping[str, Tracker], run: TrackedRun, on_failure: Callable[[str], None]
) -> Iterator[Tracking]:
    """Report the run to the trackers inside, and its outcome at the end. `on_failure` receives one line per failure."""
    tracking = Tracking(trackers, on_failure)
    tracking.begin(run)
    try:
        yield tracking
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        tracking.finish(tracking.outcome or (Outcome.INTERRUPTED if interrupted else Outcome.FAILED))
        raise
    tracking.finish(tracking.outcome or Outcome.FINISHED)
