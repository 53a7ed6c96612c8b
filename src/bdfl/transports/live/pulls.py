"""All blobs being pulled: whose turn it is, and what is asked of whom next. Knows no clock, thread or network."""

from collections.abc import Sequence
from dataclasses import dataclass

from bdfl.transports.live.blob_pull import Absent, Answer, NotYet, Piece, Pull, Silence
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.patience import Patience

_MAX_IN_FLIGHT = 32  # pieces asked at a time, of all
_MAX_WRONG = 2  # models: bytes of one member in a round that made wrong ones, then it is asked no more
_MAX_ACTIVE_BYTES = 256 * 2**20  # of blobs being pulled at a time; the others wait for their turn


@dataclass(frozen=True, eq=False)
class Errand:
    """A request to be sent, for one of the pulls."""

    pull: Pull
    holder: int
    request: PieceRequest
    asked_ns: int


class Pulls:
    """Any number of blobs, so many bytes at a time. Times are the caller's, in ns; for one thread at a time.

    A blob that does not come keeps no other from coming: whoever gets nowhere in its turn waits for another behind the
    rest, with the pieces that are here.
    """

    def __init__(self, patience_ns: int, piece_size: int) -> None:
        self._piece_size = piece_size
        self._patience = Patience(patience_ns, _MAX_IN_FLIGHT)
        self._pulls: dict[bytes, Pull] = {}
        self._present: frozenset[int] = frozenset()
        self._wrong: dict[int, int] = {}  # bytes that made wrong blobs since all was forgotten, by who gave them

    def __len__(self) -> int:
        return len(self._pulls)

    def __contains__(self, pull: Pull) -> bool:
        return self._pulls.get(pull.blob) is pull

    def want(self, blob: bytes, size: int, holders: Sequence[int], now_ns: int) -> bool:
        """Begins to pull a blob, or adds holders to one that is being pulled; whether it is a new one."""
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
        """Who may be asked beside those named. When somebody is there after nobody was, all begins anew."""
        if present and not self._present:
            self._patience.reset()
        for newcomer in present - self._present:
            self._patience.welcome(newcomer)
        self._present = present

    def find_whole(self) -> Pull | None:
        """One of which all pieces are here."""
        return next((pull for pull in self._pulls.values() if pull.is_whole), None)

    def remove(self, pull: Pull) -> None:
        del self._pulls[pull.blob]

    def blame(self, pull: Pull) -> None:
        """Throws a wrong whole away; who gave too many bytes of such is asked no more until all is forgotten."""
        liar = pull.blame()
        if liar is None:
            return
        self._wrong[liar] = self._wrong.get(liar, 0) + pull.size
        if self._wrong[liar] >= _MAX_WRONG * pull.size:
            for other in self._pulls.values():
                other.bar(liar)

    def clear(self) -> None:
        """Forgets all blobs: the round is over, and with it every budget."""
        self._pulls.clear()
        self._wrong.clear()

    def expire(self, now_ns: int) -> int:
        """Gives up what was waited for long enough; gives how much."""
        return sum(pull.expire(now_ns) for pull in self._pulls.values())

    def plan(self, now_ns: int) -> list[Errand]:
        """What to ask for now, what one has not given up yet first; noted as asked."""
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
        """Takes what a holder says to a request; whether one had given it up and it was of use all the same."""
        pull, holder, offset, asked_ns = errand.pull, errand.holder, errand.request.offset, errand.asked_ns
        asked = pull.asked.get(offset) if pull in self else None
        is_waited_for = asked is not None and (asked.holder, asked.at_ns) == (holder, asked_ns)
        match answer:
            case Piece():
                self._patience.note_piece(holder, asked_ns, now_ns, is_late=not is_waited_for)
            case NotYet() | Absent():
                self._patience.note_answer(asked_ns)
            case Silence() if is_waited_for and holder in self._present:  # the request or its answer got lost
                self._patience.note_silence(holder, asked_ns, now_ns)
        if pull not in self or not (is_waited_for or isinstance(answer, Piece)):
            return False
        was_here = offset in pull.givers
        pull.answer(holder, offset, answer, now_ns)
        return not is_waited_for and not was_here and offset in pull.givers

    def next_time_ns(self, now_ns: int) -> int | None:
        """When to look again if nothing comes before; none: there is nothing to pull."""
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
        """Those whose turn it is."""
        active: list[Pull] = []
        num_bytes = 0
        for pull in self._pulls.values():
            num_bytes += pull.size
            if active and num_bytes > _MAX_ACTIVE_BYTES:
                break
            active.append(pull)
        return active
