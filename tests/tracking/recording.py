"""Trackers for tests: one that remembers, one that fails, and how to read back what the others wrote."""

from pathlib import Path

from bdfl.tracking import Outcome, TrackedRun


class Remembering:
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ends: list[tuple[Outcome, list[Path]]] = []

    def begin(self, run):
        self.runs.append(run)

    def round(self, round, values):
        self.rounds.append((round, dict(values)))

    def finish(self, outcome, files):
        self.ends.append((outcome, list(files)))


class Failing(Remembering):
    """Raises when it is told of one of these: `begin`, `finish` or a round."""

    def __init__(self, when, error=None) -> None:
        super().__init__()
        self.when = when
        self.error = error or OSError(28, "No space left on device")

    def begin(self, run):
        super().begin(run)
        self._fail("begin")

    def round(self, round, values):
        super().round(round, values)
        self._fail(round)

    def finish(self, outcome, files):
        super().finish(outcome, files)
        self._fail("finish")

    def _fail(self, what):
        if what == self.when:
            raise self.error


def read_board(folder):
    """What TensorBoard reads from a run's folder: by tag, pairs of step and value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def read_texts(folder, tag):
    """The texts that TensorBoard reads under a tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder)).Reload()
    return [text.decode() for event in board.Tensors(tag) for text in event.tensor_proto.string_val]
