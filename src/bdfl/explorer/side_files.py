"""Readers of the files beside a chain: the journal of a run, the round times and the log of a node.

Reading continues at the last position, by complete lines: another process may be writing.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bdfl.explorer.columns import Columns
from bdfl.foreign_files import open_regular
from bdfl.operation.logs import LOG_FILE
from bdfl.records.learning import LearningRound, best_round
from bdfl.records.round_times import ROUNDS_FILE, RoundTimes, former_rounds
from bdfl.records.run_files import JournalHeader

_MAX_LINE = 2**24  # bytes
_MAX_FILE = 2**30
_NANO = 1e9

_ROUND = msgspec.json.Decoder(LearningRound)
_HEADER = msgspec.json.Decoder(JournalHeader)
_TIMES = msgspec.json.Decoder(RoundTimes)


class LineTail:
    """Reader of the new lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0

    def read(self) -> tuple[bool, list[tuple[int, bytes]]]:
        """Return whether the file was replaced or truncated since the last call, and new complete lines by offset."""
        try:
            with open_regular(self.path, _MAX_FILE) as file:
                found = os.fstat(file.fileno())
                identity = found.st_dev, found.st_ino
                is_new = self._file is not None and (identity != self._file or found.st_size < self._offset)
                if is_new or self._file is None:
                    self._file, self._offset = identity, 0
                if found.st_size == self._offset:
                    return is_new, []
                file.seek(self._offset)
                lines = []
                for line in iter(lambda: file.readline(_MAX_LINE), b""):
                    if not line.endswith(b"\n"):
                        break
                    lines.append((self._offset, line))
                    self._offset += len(line)
                return is_new, lines
        except OSError:
            return False, []


class Learning:
    """Accuracy and loss of a run's models by round; new values are written into the columns once."""

    def __init__(self) -> None:
        self._known: list[tuple[float | None, float | None]] = []  # accuracy and loss by round
        self._num_told = 0
        self.best: tuple[int, float, float] | None = None  # round, accuracy, loss

    def note(self, round: int, accuracy: float | None, loss: float | None) -> None:
        while len(self._known) < round:
            self._known.append((None, None))
        self._known[round - 1] = accuracy, loss
        self._num_told = min(self._num_told, round - 1)
        first = [self.best[1], accuracy] if self.best else [accuracy]
        losses = [self.best[2], loss] if self.best else [loss]
        if best_round(first, losses) == len(first) and accuracy is not None and loss is not None:
            self.best = round, accuracy, loss

    def forget(self) -> None:
        self._known.clear()
        self._num_told = 0
        self.best = None

    def tell(self, columns: Columns) -> None:
        """Write new values into the columns."""
        last = min(len(self._known), columns.num_rows)
        for place in range(self._num_told, last):
            accuracy, loss = self._known[place]
            columns.learn(place, _or_nan(accuracy), _or_nan(loss))
        self._num_told = max(self._num_told, last)


class Journal:
    """The journal of a run folder."""

    def __init__(self, path: Path) -> None:
        self._tail = LineTail(path)
        self.header: JournalHeader | None = None
        self.problem: str | None = None
        self.learning = Learning()
        self._places: list[int] = []  # offsets of the rounds' lines

    @property
    def num_rounds(self) -> int:
        return len(self._places)

    @property
    def is_begun(self) -> bool:
        return self.header is not None

    def refresh(self) -> None:
        is_new, lines = self._tail.read()
        if is_new:
            self.header = self.problem = None
            self._places.clear()
            self.learning.forget()
        for place, line in lines:
            self._take(place, line)

    def _take(self, place: int, line: bytes) -> None:
        if self.problem is not None:
            return  # lines after a damaged one have no number
        try:
            if self.header is None:
                self.header = _HEADER.decode(line)
                return
            row = _ROUND.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.problem = f"line {len(self._places) + 2} of the journal is damaged"
            return
        if row.round != len(self._places) + 1:
            self.problem = f"line {len(self._places) + 2} of the journal is not that of its round"
            return
        self._places.append(place)
        self.learning.note(row.round, row.accuracy, row.loss)

    def row(self, round: int) -> LearningRound | None:
        """Return one round's line; None if missing."""
        if not 1 <= round <= len(self._places):
            return None
        try:
            with open_regular(self._tail.path, _MAX_FILE) as file:
                file.seek(self._places[round - 1])
                return _ROUND.decode(file.readline(_MAX_LINE))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class NodeLogs:
    """Accuracies from the logs of evaluating nodes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.learning = Learning()
        self._tails = [LineTail(folder / LOG_FILE) for folder in folders]
        for tail in self._tails:
            for old in sorted(tail.path.parent.glob(f"{LOG_FILE}.[0-9]"), reverse=True):
                self._take(LineTail(old).read()[1])

    def refresh(self) -> None:
        for tail in self._tails:
            self._take(tail.read()[1])

    def _take(self, lines: Sequence[tuple[int, bytes]]) -> None:
        for _, line in lines:
            if b'"event":"accuracy"' not in line:
                continue
            try:
                fact = msgspec.json.decode(line, type=_AccuracyFact)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if 1 <= fact.height <= _MAX_HEIGHT:
                self.learning.note(fact.height, fact.accuracy, 0.0)


_MAX_HEIGHT = 10_000_000


class _AccuracyFact(msgspec.Struct):
    height: int
    accuracy: float


class MeasuredTimes:
    """Measured round times from the files of one or more nodes; the first file with a round counts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._tails = [LineTail(folder / ROUNDS_FILE) for folder in folders]
        self._waiting: dict[int, RoundTimes] = {}  # rounds that are not in the columns yet
        self._told: set[int] = set()
        for tail in self._tails:
            former = former_rounds(tail.path)
            if former.exists():
                self._take(LineTail(former).read()[1])

    def refresh(self, columns: Columns) -> None:
        """Write new values into the columns."""
        for tail in self._tails:
            self._take(tail.read()[1])
        for round in [one for one in self._waiting if one <= columns.num_rows]:
            times = self._waiting.pop(round)
            self._told.add(round)
            _measure(columns, round - 1, times)

    def _take(self, lines: Sequence[tuple[int, bytes]]) -> None:
        for times in _decode_times(lines):
            if times.is_whole and times.round >= 1 and times.round not in self._told:
                self._waiting.setdefault(times.round, times)


def _decode_times(lines: Sequence[tuple[int, bytes]]) -> Iterator[RoundTimes]:
    for _, line in lines:
        try:
            yield _TIMES.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue


def _measure(columns: Columns, place: int, times: RoundTimes) -> None:
    """Write measured times; the exchange is split into training and upload as modelled for the slowest client."""
    exchange_s = times.exchange_ns / _NANO
    training_s, upload_s = float(columns["training_s"][place]), float(columns["upload_s"][place])
    share = training_s / (training_s + upload_s) if training_s + upload_s > 0 else 1.0
    columns.measure(
        place, share * exchange_s, (1.0 - share) * exchange_s, times.mining_ns / _NANO, times.voting_ns / _NANO
    )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
