"""Pulling blobs: piece by piece, from several holders at once, until the whole has the digest asked for.

A holder answers every request at once: with the piece, with how long until it has it, or that it does not have the
blob. So a holder whose upload is slow is told from one that is gone, and only the latter is put aside.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from bdfl.encoding import digest
from bdfl.transports.live.envelope import PieceRequest

PIECE_SIZE = 512 * 1024
_NS = 1_000_000_000
_MAX_WINDOW = 4  # pieces asked of one holder at a time, for one blob
_MAX_IN_FLIGHT = 32  # pieces asked at a time, of all
_MAX_ACTIVE_BYTES = 256 * 2**20  # of blobs being pulled at a time; the others wait for their turn
_LEAST_WAIT_NS = 5_000_000  # before the same holder is asked for the same again
_MAX_WAIT_NS = 60 * _NS  # however long a holder says it needs
_MAX_BACKOFF = 5  # doublings of the wait after silence


@dataclass(frozen=True, eq=False)
class Piece:
    """The bytes that were asked for."""

    data: bytes


@dataclass(frozen=True)
class NotYet:
    """The holder has the bytes only after so many ns."""

    wait_ns: int


@dataclass(frozen=True)
class Absent:
    """The holder does not have the blob, or is not there."""


@dataclass(frozen=True)
class Silence:
    """No answer in time."""


Answer: TypeAlias = Piece | NotYet | Absent | Silence


class Asking(Protocol):
    """How a request gets to a holder. The answer comes by call, from any thread, once or never."""

    def __call__(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None: ...


@dataclass
class _Holder:
    is_named: bool
    not_before_ns: int = 0
    num_failures: int = 0  # in a row
    window: int = 1
    num_asked: int = 0
    is_barred: bool = False  # its bytes were wrong


@dataclass
class Pull:
    """One blob being pulled: what is here, what is asked of whom, whom to ask next. Knows no clock and no network."""

    blob: bytes
    size: int
    piece_size: int
    patience_ns: int
    started_ns: int
    holders: dict[int, _Holder] = field(default_factory=dict)
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)  # by offset: holder, deadline
    givers: dict[int, int] = field(default_factory=dict)  # by offset: whose piece is here
    is_single: bool = False  # pieces of several holders did not fit together: from now on one at a time
    turn_ns: int | None = None  # since when it is pulled; none: it waits for its turn

    def __post_init__(self) -> None:
        self._buffer = bytearray()
        self._progress_ns = self.started_ns
        self._only = -1  # whom a single pull asks; -1: nobody yet

    @property
    def is_whole(self) -> bool:
        return len(self.givers) == len(self._offsets())

    def is_idle(self, now_ns: int) -> bool:
        """Whether its turn has brought nothing for as long as one is patient."""
        return self.turn_ns is not None and now_ns - max(self.turn_ns, self._progress_ns) >= self.patience_ns

    def name(self, holders: Iterable[int]) -> None:
        """Members that should have the blob: asked first, and again at once if they failed before."""
        for number in holders:
            holder = self.holders.setdefault(number, _Holder(is_named=True))
            holder.is_named = True
            if holder.num_failures:
                holder.num_failures, holder.not_before_ns = 0, 0

    def next_request(self, present: frozenset[int], now_ns: int) -> tuple[int, PieceRequest] | None:
        """Whom to ask for what now; noted as asked."""
        missing = (offset for offset in self._offsets() if offset not in self.givers and offset not in self.asked)
        offset = next(missing, None)
        number = self._choose(present, now_ns) if offset is not None else None
        if offset is None or number is None:
            return None
        self.holders[number].num_asked += 1
        self.asked[offset] = (number, now_ns + self.patience_ns)
        return number, PieceRequest(self.blob, offset, min(self.piece_size, self.size - offset))

    def answer(self, number: int, offset: int, answer: Answer, now_ns: int) -> None:
        """Takes a holder's answer; what was not asked is ignored."""
        if self.asked.get(offset, (None, 0))[0] != number:
            return
        del self.asked[offset]
        holder = self.holders[number]
        holder.num_asked -= 1
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
        """Takes silence for an answer where it lasts too long; gives how many times."""
        late = [(offset, number) for offset, (number, deadline) in self.asked.items() if deadline <= now_ns]
        for offset, number in late:
            self.answer(number, offset, Silence(), now_ns)
        return len(late)

    def whole(self) -> bytes | None:
        """All bytes, if they are the right ones."""
        data = bytes(self._buffer)
        return data if digest(data) == self.blob else None

    def blame(self) -> None:
        """Throws all pieces away: they made a wrong whole. Who gave all of them is asked no more."""
        givers = set(self.givers.values())
        if len(givers) == 1:
            self.holders[givers.pop()].is_barred = True
        self.is_single = True
        self._only = -1
        self.givers.clear()

    @property
    def main_giver(self) -> int | None:
        """Who gave the most pieces."""
        givers = list(self.givers.values())
        return max(set(givers), key=givers.count, default=None)

    def next_time_ns(self, now_ns: int) -> int:
        """When to look again if nothing comes before."""
        times = [deadline for _, deadline in self.asked.values()]
        times += [holder.not_before_ns for holder in self.holders.values() if holder.not_before_ns > now_ns]
        times.append(max(self._progress_ns + self.patience_ns, now_ns + self.patience_ns // 4))
        return min(times)

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
        wait_ns = self.patience_ns // 4 * 2 ** min(holder.num_failures, _MAX_BACKOFF)
        holder.num_failures += 1
        holder.not_before_ns = now_ns + wait_ns

    def _choose(self, present: frozenset[int], now_ns: int) -> int | None:
        named = [number for number, holder in self.holders.items() if holder.is_named and not holder.is_barred]
        is_stuck = now_ns - self._progress_ns >= self.patience_ns
        if is_stuck or all(self.holders[number].num_failures for number in named):
            for number in present:
                self.holders.setdefault(number, _Holder(is_named=False))
            candidates = [number for number, holder in self.holders.items() if holder.is_named or number in present]
        else:
            candidates = named
        if self.is_single and self._goes_on(now_ns):
            candidates = [self._only]
        ready = [number for number in candidates if self._is_ready(self.holders[number], now_ns)]
        chosen = min(ready, key=lambda number: self._rank(number, present), default=None)
        if self.is_single and chosen is not None and chosen != self._only:
            self._only, self._progress_ns = chosen, now_ns
        return chosen

    def _goes_on(self, now_ns: int) -> bool:
        """Whether the only one asked now is asked on; else what it gave is thrown away."""
        holder = self.holders.get(self._only)
        if holder is None:
            return False
        is_stuck = now_ns - self._progress_ns >= self.patience_ns
        if not (holder.is_barred or holder.num_failures or is_stuck):
            return True
        if is_stuck:
            self._put_aside(holder, now_ns)
        holder.num_asked = 0
        self.asked.clear()
        self.givers.clear()
        self._only = -1
        return False

    def _is_ready(self, holder: _Holder, now_ns: int) -> bool:
        return not holder.is_barred and holder.not_before_ns <= now_ns and holder.num_asked < holder.window

    def _rank(self, number: int, present: frozenset[int]) -> tuple[bool, int, bool, int]:
        holder = self.holders[number]
        return number not in present, holder.num_failures, not holder.is_named, holder.num_asked

    def _offsets(self) -> range:
        return range(0, self.size, self.piece_size)


class Puller:
    """Pulls any number of blobs, so many bytes at a time, in a thread of its own. To be closed.

    A blob that does not come keeps no other from coming: whoever gets nowhere in its turn waits for another behind the
    rest, with the pieces that are here.
    """

    def __init__(
        self,
        ask: Asking,
        deliver: Callable[[int, bytes], None],
        count: Callable[[str], None],
        patience_s: float,
        piece_size: int = PIECE_SIZE,
    ) -> None:
        self._ask, self._deliver, self._count = ask, deliver, count
        self._patience_ns = round(patience_s * _NS)
        self._piece_size = piece_size
        self._pulls: dict[bytes, Pull] = {}
        self._present: frozenset[int] = frozenset()
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="puller", daemon=True)
        self._thread.start()

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Begins to pull a blob, or adds holders to one that is being pulled."""
        with self._changed:
            pull = self._pulls.get(blob)
            if pull is None:
                pull = Pull(blob, size, self._piece_size, self._patience_ns, time.monotonic_ns())
                self._pulls[blob] = pull
                self._count("fetches")
            pull.name(holders)
            self._changed.notify()

    def forget(self) -> None:
        """Ends all pulls; nothing of them is delivered any more, but for what is being delivered now."""
        with self._changed:
            self._pulls.clear()

    def set_present(self, present: frozenset[int]) -> None:
        """Who may be asked beside those named."""
        with self._changed:
            self._present = present
            self._changed.notify()

    @property
    def num_pulls(self) -> int:
        return len(self._pulls)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._pulls.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_ns = time.monotonic_ns()
                whole = next((pull for pull in self._pulls.values() if pull.is_whole), None)
                requests = [] if whole else self._plan(now_ns)
                if whole is None and not requests:
                    self._changed.wait(self._idle_s(now_ns))
            if whole is not None:
                self._finish(whole)
            for pull, holder, request in requests:
                self._ask(holder, request, self._taking(pull, holder, request.offset))

    def _plan(self, now_ns: int) -> list[tuple[Pull, int, PieceRequest]]:
        requests: list[tuple[Pull, int, PieceRequest]] = []
        for pull in self._pulls.values():
            for _ in range(pull.expire(now_ns)):
                self._count("fetch_timeouts")
        self._pass_turns(now_ns)
        room = _MAX_IN_FLIGHT - sum(len(pull.asked) for pull in self._pulls.values())
        for pull in self._active():
            while room > 0 and (found := pull.next_request(self._present, now_ns)) is not None:
                requests.append((pull, *found))
                room -= 1
        return requests

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

    def _active(self) -> list[Pull]:
        """Those whose turn it is."""
        active: list[Pull] = []
        num_bytes = 0
        for pull in self._pulls.values():
            num_bytes += pull.size
            if active and num_bytes > _MAX_ACTIVE_BYTES:
                break
            active.append(pull)
        return active

    def _idle_s(self, now_ns: int) -> float | None:
        times = [pull.next_time_ns(now_ns) for pull in self._active()]
        return max(0.001, (min(times) - now_ns) / _NS) if times else None

    def _taking(self, pull: Pull, holder: int, offset: int) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            with self._changed:
                if self._pulls.get(pull.blob) is pull:
                    pull.answer(holder, offset, answer, time.monotonic_ns())
                    self._changed.notify()

        return take

    def _finish(self, pull: Pull) -> None:
        data = pull.whole()
        giver = pull.main_giver
        with self._changed:
            if self._pulls.get(pull.blob) is not pull:
                return
            if data is None:
                self._count("fetches_wrong")
                pull.blame()
                return
            del self._pulls[pull.blob]
        self._count("fetches_done")
        self._deliver(-1 if giver is None else giver, data)
