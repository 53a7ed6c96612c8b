"""Scheduler of all blob downloads: active ones, requests and holders. No clock, threads or I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from bdfl.transports.live.blob_pull import Absent, Answer, NotYet, Piece, Pull, Silence
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.patience import Patience

_MAX_IN_FLIGHT = 32  # pieces, of all downloads
_MAX_WRONG = 2  # blobs' worth of wrong bytes from one member in a round; then it is barred
_MAX_ACTIVE_BYTES = 256 * 2**20  # of active downloads; the others are queued


@dataclass(frozen=True, eq=False)
class Errand:
    """A request to send, for one of the downloads."""

    pull: Pull
    holder: int
    request: PieceRequest
    asked_ns: int


class Pulls:
    """Any number of downloads, a bounded number of bytes active. Times are the caller's, in ns. Not thread-safe.

    A stalled download does not block the others: it goes to the end of the queue and keeps its pieces.
    """

    def __init__(self, patience_ns: int, piece_size: int) -> None:
        self._piece_size = piece_size
        self._patience = Patience(patience_ns, _MAX_IN_FLIGHT)
        self._pulls: dict[bytes, Pull] = {}
        self._present: frozenset[int] = frozenset()
        self._wrong: dict[int, int] = {}  # bytes of wrong blobs in this round, by holder

    def __len__(self) -> int:
        return len(self._pulls)

    def __contains__(self, pull: Pull) -> bool:
        return self._pulls.get(pull.blob) is pull

    def want(self, blob: bytes, size: int, holders: Sequence[int], now_ns: int) -> bool:
        """Start a download, or add holders to one in progress; return whether it is new."""
        pull = self._pulls.get(blob)
        is_new = pull is None
        if pull is None:
            pull = self._pulls[blob] = Pull(blob, size, self._piece_size, self._patience, now_ns)
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

    def find_whole(self) -> Pull | None:
        """Return a download with all its pieces, or None."""
        return next((pull for pull in self._pulls.values() if pull.is_whole), None)

    def remove(self, pull: Pull) -> None:
        del self._pulls[pull.blob]

    def blame(self, pull: Pull) -> None:
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

    def plan(self, now_ns: int) -> list[Errand]:
        """Return the requests to send now, noted as in flight; downloads with fewest timeouts first."""
        errands: list[Errand] = []
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
                errands.append(Errand(pull, *found, now_ns))
                room -= 1
                doubted_room -= patience.is_doubted(found[0])
        return errands

    def answer(self, errand: Errand, answer: Answer, now_ns: int) -> bool:
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

    def _active(self) -> list[Pull]:
        """Return the active downloads: the first in the queue, up to the byte limit."""
        active: list[Pull] = []
        num_bytes = 0
        for pull in self._pulls.values():
            num_bytes += pull.size
            if active and num_bytes > _MAX_ACTIVE_BYTES:
                break
            active.append(pull)
        return active
