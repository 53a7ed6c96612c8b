"""Chunked download of blobs, each from several holders at once until the whole matches its digest, without I/O.

A holder answers every request immediately: with the piece, with the time until it has it, or with absence. So a slow
upload differs from an unreachable holder, and only the latter is backed off. A late piece still counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bdfl.encoding import digest
from bdfl.ledger.costs import NANO
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.timeouts import FetchTimeouts

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
class RequestInFlight:
    """A request in flight."""

    holder: int
    at_ns: int
    deadline_ns: int


@dataclass
class Download:
    """The state machine of one download: pieces received, requests in flight, next holder. No clock, no I/O."""

    blob: bytes
    size: int
    piece_size: int
    patience: FetchTimeouts
    started_ns: int
    holders: dict[int, _Holder] = field(default_factory=dict)
    asked: dict[int, RequestInFlight] = field(default_factory=dict)  # by offset
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
        self.asked[offset] = RequestInFlight(number, now_ns, now_ns + self.patience.wait_ns(number, now_ns))
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


# Scheduler of all blob downloads: active ones, requests and holders. No clock, threads or I/O.

_MAX_IN_FLIGHT = 32  # pieces, of all downloads
_MAX_WRONG = 2  # blobs' worth of wrong bytes from one member in a round; then it is barred
_MAX_ACTIVE_BYTES = 256 * 2**20  # of active downloads; the others are queued


@dataclass(frozen=True, eq=False)
class DownloadRequest:
    """A request to send, for one of the downloads."""

    pull: Download
    holder: int
    request: PieceRequest
    asked_ns: int


class Downloads:
    """Any number of downloads, a bounded number of bytes active. Times are the caller's, in ns. Not thread-safe.

    A stalled download does not block the others: it goes to the end of the queue and keeps its pieces.
    """

    def __init__(self, patience_ns: int, piece_size: int) -> None:
        self._piece_size = piece_size
        self._patience = FetchTimeouts(patience_ns, _MAX_IN_FLIGHT)
        self._pulls: dict[bytes, Download] = {}
        self._present: frozenset[int] = frozenset()
        self._wrong: dict[int, int] = {}  # bytes of wrong blobs in this round, by holder

    def __len__(self) -> int:
        return len(self._pulls)

    def __contains__(self, pull: Download) -> bool:
        return self._pulls.get(pull.blob) is pull

    def want(self, blob: bytes, size: int, holders: Sequence[int], now_ns: int) -> bool:
        """Start a download, or add holders to one in progress; return whether it is new."""
        pull = self._pulls.get(blob)
        is_new = pull is None
        if pull is None:
            pull = self._pulls[blob] = Download(blob, size, self._piece_size, self._patience, now_ns)
            for liar, num_bytes in self._wrong.items():
                if num_bytes >= _MAX_WRONG * size:
                    pull.bar(liar)
        pull.name(holders)
        return is_new

    def set_present(self, present: frozenset[int]) -> None:
        """Set the members that may be asked beside the named holders; timeouts restart if none was present before."""
        if present and not self._present:
            self._patience.reset()
        for newcomer in present - self._present:
            self._patience.welcome(newcomer)
        self._present = present

    def find_whole(self) -> Download | None:
        """Return a download with all its pieces, or None."""
        return next((pull for pull in self._pulls.values() if pull.is_whole), None)

    def remove(self, pull: Download) -> None:
        del self._pulls[pull.blob]

    def blame(self, pull: Download) -> None:
        """Discard a blob with a wrong digest; bar a holder of too many such bytes until `clear`."""
        liar = pull.blame()
        if liar is None:
            return
        self._wrong[liar] = self._wrong.get(liar, 0) + pull.size
        if self._wrong[liar] >= _MAX_WRONG * pull.size:
            for other in self._pulls.values():
                other.bar(liar)

    def clear(self) -> None:
        """Forget all downloads and wrong bytes: the round is over."""
        self._pulls.clear()
        self._wrong.clear()

    def expire(self, now_ns: int) -> int:
        """Time out overdue requests; return their number."""
        return sum(pull.expire(now_ns) for pull in self._pulls.values())

    def plan(self, now_ns: int) -> list[DownloadRequest]:
        """Return the requests to send now, noted as in flight; downloads with fewest timeouts first."""
        errands: list[DownloadRequest] = []
        self._pass_turns(now_ns)
        patience = self._patience
        asked = [one.holder for pull in self._pulls.values() for one in pull.asked.values()]
        room = patience.in_flight - len(asked)
        doubted_room = patience.in_doubt - sum(map(patience.is_doubted, asked))
        for pull in sorted(self._active(), key=lambda pull: pull.num_given_up):
            while room > 0:
                found = pull.next_request(self._present, now_ns, with_doubted=doubted_room > 0)
                if found is None:
                    break
                errands.append(DownloadRequest(pull, *found, now_ns))
                room -= 1
                doubted_room -= patience.is_doubted(found[0])
        return errands

    def answer(self, errand: DownloadRequest, answer: Answer, now_ns: int) -> bool:
        """Handle an answer; return whether it was a useful piece after its timeout."""
        pull, holder, offset, asked_ns = errand.pull, errand.holder, errand.request.offset, errand.asked_ns
        asked = pull.asked.get(offset) if pull in self else None
        is_waited_for = asked is not None and (asked.holder, asked.at_ns) == (holder, asked_ns)
        match answer:
            case Piece():
                self._patience.note_piece(holder, asked_ns, now_ns, is_late=not is_waited_for)
            case NotYet() | Absent():
                self._patience.note_answer(asked_ns)
            case Silence() if is_waited_for and holder in self._present:  # request or answer lost
                self._patience.note_silence(holder, asked_ns, now_ns)
        if pull not in self or not (is_waited_for or isinstance(answer, Piece)):
            return False
        was_here = offset in pull.givers
        pull.answer(holder, offset, answer, now_ns)
        return not is_waited_for and not was_here and offset in pull.givers

    def next_time_ns(self, now_ns: int) -> int | None:
        """Return the time of the next timeout or retry (ns); None without downloads."""
        return min((pull.next_time_ns(now_ns) for pull in self._active()), default=None)

    def _pass_turns(self, now_ns: int) -> None:
        active = self._active()
        if len(active) < len(self._pulls):
            for pull in active:
                if pull.is_idle(now_ns):
                    pull.turn_ns = None
                    self._pulls[pull.blob] = self._pulls.pop(pull.blob)
        for pull in self._active():
            if pull.turn_ns is None:
                pull.turn_ns = now_ns

    def _active(self) -> list[Download]:
        """Return the active downloads: the first in the queue, up to the byte limit."""
        active: list[Download] = []
        num_bytes = 0
        for pull in self._pulls.values():
            num_bytes += pull.size
            if active and num_bytes > _MAX_ACTIVE_BYTES:
                break
            active.append(pull)
        return active
