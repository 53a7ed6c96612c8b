"""Log reader: follows the logs of running nodes, timed by the monotonic clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from bdfl.node.log import LOG_FILE


class _Line(msgspec.Struct):
    """The relevant fields of a log line."""

    time: str
    clock: float
    event: str
    height: int | None = None
    digest: str | None = None
    incarnation: int | None = msgspec.field(name="life", default=None)


@dataclass(frozen=True)
class Sighting:
    """A block that a node had stored."""

    clock_s: float
    height: int
    digest: str  # a prefix


@dataclass(frozen=True)
class Joining:
    """The start of a node's participation, at a height."""

    clock_s: float
    incarnation: int
    height: int


class Diary:
    """A node's log, read incrementally."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG_FILE
        self._offset = 0
        self._decoder = msgspec.json.Decoder(_Line)
        self.blocks: list[Sighting] = []
        self.joinings: list[Joining] = []
        self.times: list[tuple[float, str]] = []  # monotonic clock, wall clock

    @property
    def height(self) -> int:
        """The greatest height logged."""
        return max((block.height for block in self.blocks), default=0)

    def read(self) -> "Diary":
        """Read new lines; after a rotation the rest of the old log comes first."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return self
        if size < self._offset:
            self._take(_read_lines(self._path.with_name(f"{LOG_FILE}.1"), self._offset))
            self._offset = 0
        lines = _read_lines(self._path, self._offset)
        self._offset += sum(map(len, lines))
        self._take(lines)
        return self

    def height_at(self, clock_s: float) -> int:
        """Return the greatest height logged by a time."""
        return max((block.height for block in self.blocks if block.clock_s <= clock_s), default=0)

    def gaps(self, since_s: float, until_s: float) -> list[float]:
        """Return seconds between consecutive blocks that overlap the interval; the last one may be open."""
        times = [block.clock_s for block in self.blocks]
        found = [after - before for before, after in pairwise(times) if after > since_s and before < until_s]
        is_open = bool(times) and times[-1] < until_s
        return [*found, until_s - times[-1]] if is_open else found

    def _take(self, lines: Iterable[bytes]) -> None:
        for data in lines:
            try:
                line = self._decoder.decode(data)
            except msgspec.DecodeError:  # truncated by a kill
                continue
            self.times.append((line.clock, line.time))
            if line.event == "block" and line.height is not None:
                self.blocks.append(Sighting(line.clock, line.height, line.digest or ""))
            elif line.event == "joining" and line.height is not None:
                self.joinings.append(Joining(line.clock, line.incarnation or 0, line.height))


def worst_gap_s(diaries: Sequence[Diary], since_s: float, until_s: float) -> float:
    """Return the longest time any of these nodes was without a new block; 0 if none logged blocks."""
    return max((gap for diary in diaries for gap in diary.gaps(since_s, until_s)), default=0.0)


def _read_lines(path: Path, offset: int) -> list[bytes]:
    """Return complete lines from an offset."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
