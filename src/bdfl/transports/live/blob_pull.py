"""Chunked download of one blob from several holders at once, until the whole matches its digest.

A holder answers every request immediately: with the piece, with the time until it has it, or with absence. So a slow
upload differs from an unreachable holder, and only the latter is backed off. A late piece still counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from bdfl.encoding import digest
from bdfl.ledger.units import NANO
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.patience import Patience

PIECE_SIZE = 512 * 1024
_MAX_WINDOW = 4  # pieces in flight from one holder, for one blob
_LEAST_WAIT_NS = 5_000_000  # before a retry with the same holder
_MAX_WAIT_NS = 60 * NANO  # cap on the wait that a holder announces
_MAX_BACKOFF = 5  # doublings of the wait after timeouts


@dataclass(frozen=True, eq=False)
class Piece:
    """The requested bytes."""

    data: bytes


@dataclass(frozen=True)
class NotYet:
    """The holder will have the bytes after `wait_ns`."""

    wait_ns: int


@dataclass(frozen=True)
class Absent:
    """The holder does not have the blob."""


@dataclass(frozen=True)
class Silence:
    """No answer: timed out, lost, or no holder reachable."""


Answer: TypeAlias = Piece | NotYet | Absent | Silence


@dataclass
class _Holder:
    is_named: bool
    not_before_ns: int = 0
    num_failures: int = 0  # in a row
    window: int = 1
    num_asked: int = 0
    is_barred: bool = False  # its bytes were wrong


@dataclass(frozen=True)
class Asked:
    """A request in flight."""

    holder: int
    at_ns: int
    deadline_ns: int


@dataclass
class Pull:
    """The state machine of one download: pieces received, requests in flight, next holder. No clock, no I/O."""

    blob: bytes
    size: int
    piece_size: int
    patience: Patience
    started_ns: int
    holders: dict[int, _Holder] = field(default_factory=dict)
    asked: dict[int, Asked] = field(default_factory=dict)  # by offset
    givers: dict[int, int] = field(default_factory=dict)  # by offset: the holder whose piece was taken
    is_single: bool = False  # after a wrong digest: download from one holder at a time
    turn_ns: int | None = None  # when it became active; None: queued

    def __post_init__(self) -> None:
        self._buffer = bytearray()
        self._progress_ns = self.started_ns
        self._only = -1  # the holder of a single-holder download; -1: none yet
        self._given_up: set[tuple[int, int]] = set()  # holder and offset: timed out, may still arrive

    @property
    def is_whole(self) -> bool:
        return len(self.givers) == len(self._offsets())

    def is_idle(self, now_ns: int) -> bool:
        """Return whether it is active, made no progress for `least_ns`, and has no request in flight."""
        if self.turn_ns is None or self.asked:
            return False
        return now_ns - max(self.turn_ns, self._progress_ns) >= self.patience.least_ns

    def name(self, holders: Iterable[int]) -> None:
        """Add members that should hold the blob. They are preferred, and their back-off is cleared."""
        for number in holders:
            holder = self.holders.setdefault(number, _Holder(is_named=True))
            holder.is_named = True
            if holder.num_failures:
                holder.num_failures, holder.not_before_ns = 0, 0

    def next_request(
        self, present: frozenset[int], now_ns: int, *, with_doubted: bool = True
    ) -> tuple[int, PieceRequest] | None:
        """Return the next holder and request, now in flight, or None. `with_doubted` allows unresponsive holders."""
        missing = (offset for offset in self._offsets() if offset not in self.givers and offset not in self.asked)
        offset = next(missing, None)
        number = self._choose(present, now_ns, with_doubted) if offset is not None else None
        if offset is None or number is None:
            return None
        self.holders[number].num_asked += 1
        self.asked[offset] = Asked(number, now_ns, now_ns + self.patience.wait_ns(number, now_ns))
        return number, PieceRequest(self.blob, offset, min(self.piece_size, self.size - offset))

    @property
    def num_given_up(self) -> int:
        """Number of timed-out requests whose piece may still arrive."""
        return len(self._given_up)

    def is_asked(self, number: int, offset: int) -> bool:
        """Return whether a request for the piece at `offset` to that holder is in flight."""
        asked = self.asked.get(offset)
        return asked is not None and asked.holder == number

    def answer(self, number: int, offset: int, answer: Answer, now_ns: int) -> None:
        """Handle a holder's answer. A late answer counts only if it is a piece; an unrequested one is ignored."""
        if not self.is_asked(number, offset):
            if isinstance(answer, Piece):
                self._take_late(number, offset, answer.data, now_ns)
            return
        self._end_request(offset)
        holder = self.holders[number]
        match answer:
            case Piece(data):
                self._take(number, holder, offset, data, now_ns)
            case NotYet(wait_ns):
                holder.window = 1
                holder.num_failures = 0
                ready_ns = now_ns + min(max(wait_ns, _LEAST_WAIT_NS), _MAX_WAIT_NS)
                is_waiting = holder.not_before_ns > now_ns
                holder.not_before_ns = min(holder.not_before_ns, ready_ns) if is_waiting else ready_ns
            case _:
                self._put_aside(holder, now_ns)

    def expire(self, now_ns: int) -> int:
        """Time out overdue requests; return their number."""
        late = [(offset, asked) for offset, asked in self.asked.items() if asked.deadline_ns <= now_ns]
        for offset, asked in late:
            self.patience.note_silence(asked.holder, asked.at_ns, now_ns)
            self._given_up.add((asked.holder, offset))
            self.answer(asked.holder, offset, Silence(), now_ns)
        return len(late)

    def whole(self) -> bytes | None:
        """Return the blob, or None if its digest is wrong."""
        data = bytes(self._buffer)
        return data if digest(data) == self.blob else None

    def bar(self, number: int) -> None:
        """Exclude that member from this download."""
        self.holders.setdefault(number, _Holder(is_named=False)).is_barred = True

    def blame(self) -> int | None:
        """Discard all pieces after a wrong digest. A single holder of all pieces is barred and returned."""
        givers = set(self.givers.values())
        liar = givers.pop() if len(givers) == 1 else None
        if liar is not None:
            self.bar(liar)
        self.is_single = True
        self._only = -1
        self.givers.clear()
        self._given_up.clear()
        return liar

    @property
    def main_giver(self) -> int | None:
        """The holder that gave the most pieces."""
        givers = list(self.givers.values())
        return max(set(givers), key=givers.count, default=None)

    def next_time_ns(self, now_ns: int) -> int:
        """Return the time of the next timeout or retry (ns)."""
        times = [asked.deadline_ns for asked in self.asked.values()]
        times += [holder.not_before_ns for holder in self.holders.values() if holder.not_before_ns > now_ns]
        times.append(max(self._progress_ns + self.patience.least_ns, now_ns + self.patience.least_ns // 4))
        return min(times)

    def _end_request(self, offset: int) -> None:
        asked = self.asked.pop(offset, None)
        if asked is not None:
            self.holders[asked.holder].num_asked -= 1

    def _take_late(self, number: int, offset: int, data: bytes, now_ns: int) -> None:
        """Take a piece after its timeout, and drop the retry to another holder."""
        holder = self.holders.get(number)
        is_expected = (number, offset) in self._given_up and offset not in self.givers
        is_heard = not self.is_single or number == self._only
        if holder is not None and not holder.is_barred and is_expected and is_heard:
            self._end_request(offset)
            self._take(number, holder, offset, data, now_ns)

    def _take(self, number: int, holder: _Holder, offset: int, data: bytes, now_ns: int) -> None:
        if len(data) != min(self.piece_size, self.size - offset):
            holder.is_barred = True
            return
        if not self._buffer:
            self._buffer = bytearray(self.size)
        self._buffer[offset : offset + len(data)] = data
        self.givers[offset] = number
        holder.window = min(_MAX_WINDOW, holder.window * 2)
        holder.num_failures = 0
        self._progress_ns = now_ns

    def _put_aside(self, holder: _Holder, now_ns: int) -> None:
        holder.window = 1
        wait_ns = self.patience.least_ns // 4 * 2 ** min(holder.num_failures, _MAX_BACKOFF)
        holder.num_failures += 1
        holder.not_before_ns = now_ns + wait_ns

    def _choose(self, present: frozenset[int], now_ns: int, with_doubted: bool) -> int | None:
        named = [number for number, holder in self.holders.items() if holder.is_named and not holder.is_barred]
        is_stuck = now_ns - self._progress_ns >= self.patience.least_ns
        if is_stuck or all(self.holders[number].num_failures or self.patience.is_doubted(number) for number in named):
            for number in present:
                self.holders.setdefault(number, _Holder(is_named=False))
            candidates = [number for number, holder in self.holders.items() if holder.is_named or number in present]
        else:
            candidates = named
        if self.is_single and self._goes_on(now_ns):
            candidates = [self._only]
        ready = [number for number in candidates if self._is_ready(self.holders[number], now_ns)]
        if not with_doubted:
            ready = [number for number in ready if not self.patience.is_doubted(number)]
        chosen = min(ready, key=lambda number: self._rank(number, present, now_ns), default=None)
        if self.is_single and chosen is not None and chosen != self._only:
            self._only, self._progress_ns = chosen, now_ns
        return chosen

    def _goes_on(self, now_ns: int) -> bool:
        """Return whether the single holder stays in use; otherwise discard its pieces."""
        holder = self.holders.get(self._only)
        if holder is None:
            return False
        is_stuck = now_ns - self._progress_ns >= self.patience.wait_ns(self._only, now_ns)
        if not (holder.is_barred or holder.num_failures or is_stuck):
            return True
        if is_stuck:
            self._put_aside(holder, now_ns)
        for offset in list(self.asked):
            self._end_request(offset)
        self.givers.clear()
        self._only = -1
        return False

    def _is_ready(self, holder: _Holder, now_ns: int) -> bool:
        return not holder.is_barred and holder.not_before_ns <= now_ns and holder.num_asked < holder.window

    def _rank(self, number: int, present: frozenset[int], now_ns: int) -> tuple[bool, int, bool, bool, int, int]:
        holder, patience = self.holders[number], self.patience
        slowness = patience.wait_ns(number, now_ns) // patience.least_ns
        is_doubted = patience.is_doubted(number)
        return number not in present, holder.num_failures, is_doubted, not holder.is_named, slowness, holder.num_asked

    def _offsets(self) -> range:
        return range(0, self.size, self.piece_size)
