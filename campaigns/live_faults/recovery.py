"""Recovery time of restarted nodes.

At a restart round h + 1 is in progress, where h is the greatest height of the other nodes. The node recovers within two
rounds if it votes in that round, or in round h + 2 or h + 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bdfl.ledger.block import SignedVote
from bdfl.ledger.sqlite_store import ChainStore
from campaigns.live_faults.event_history import Incarnation, Testimony
from campaigns.live_faults.log_reader import Diary

ROUNDS_TO_RETURN = 2
_ROUNDS_TO_REPORT = 8  # after that many a recovered node must have reported


@dataclass(frozen=True)
class Return:
    """One restart of a node."""

    node: int
    began_s: float  # monotonic clock
    height: int  # greatest height of the other nodes at that time
    rounds: int | None  # after the one in progress; none: it did not vote
    seconds: float | None  # until its vote reached another node
    rounds_there: int  # finished by the others while it ran
    has_reported: bool  # or did not run long enough

    @property
    def is_watched(self) -> bool:
        """True if it ran long enough to be judged."""
        return self.rounds_there > ROUNDS_TO_RETURN

    @property
    def is_late(self) -> bool:
        return self.is_watched and (self.rounds is None or self.rounds > ROUNDS_TO_RETURN)


def find_returns(testimony: Testimony, stores: Mapping[int, ChainStore], diaries: Sequence[Diary]) -> list[Return]:
    """List all restarts of all nodes."""
    reporters = _read_reporters(max(stores.values(), key=lambda store: store.height)) if stores else {}
    found = []
    for number, store in stores.items():
        incarnations = testimony.incarnations[number]
        for place, began in enumerate(incarnations[1:], start=1):
            after = incarnations[place + 1] if place + 1 < len(incarnations) else None
            others = [diary for other, diary in enumerate(diaries) if other != number]
            height = max(diary.height_at(began.began_s) for diary in others)
            last = max(diary.height_at(began.ended_s) for diary in others)
            first = next(_new_votes(store, began, after), None)
            rounds = seconds = None
            if first is not None:
                heard_s = testimony.heard_s(*first)
                rounds = max(0, first[0] - height - 1)
                seconds = None if heard_s is None else max(0.0, heard_s - began.began_s)
            reported = any(number in reporters.get(later, ()) for later in range(height + 2, last + 1))
            found.append(
                Return(
                    number,
                    began.began_s,
                    height,
                    rounds,
                    seconds,
                    rounds_there=last - height,
                    has_reported=reported or last < height + _ROUNDS_TO_REPORT,
                )
            )
    return found


def _new_votes(store: ChainStore, began: Incarnation, after: Incarnation | None) -> Iterator[tuple[int, SignedVote]]:
    """Yield the votes cast after a start, with their heights."""
    last = store.height + 1 if after is None else after.height + 1
    for height in range(began.height + 1, last + 1):
        for vote in store.read_round(height).votes:
            is_own = after is None or height <= after.height or vote.signature in after.votes
            if vote.signature not in began.votes and is_own:
                yield height, vote


def _read_reporters(store: ChainStore) -> dict[int, set[int]]:
    """Map each height to the members whose reports are in its block."""
    return {block.header.height: {signed.report.client for signed in block.body.reports} for block in store.blocks()}
