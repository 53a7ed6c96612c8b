"""Dispatch of one run to several trackers: one that fails is dropped, without effect on the run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bdfl.errors import one_line
from bdfl.learning.own_function import show_exception
from bdfl.records import LearningRound, RoundRecord
from bdfl.tracking.scalars import RoundScalars
from bdfl.tracking.tracker import Outcome, TrackedRun, Tracker

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
