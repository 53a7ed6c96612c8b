"""The vote set of a height, an append-only map with cheap copies."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from itertools import islice
from typing import Self, TypeAlias, TypeVar

from bdfl.ledger.block import Certificate, Kind, SignedVote
from bdfl.protocol.state import VoteKey

# A copy-on-write map for append-mostly data that every event copies into a new state.

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class AppendMap(MutableMapping[_Key, _Value]):
    """A copy-on-write map whose copies share one dict as long as entries are only appended.

    The dict is insertion-ordered: a copy with n entries is its first n. A copy that overwrites, deletes, or is used
    after another copy grew gets a dict of its own. Copying costs the same for any number of entries. With `may_share`
    false nothing is shared, as two threads must not write to one dict.
    """

    __slots__ = ("_entries", "_length", "_may_share")

    def __init__(self, entries: Mapping[_Key, _Value], *, may_share: bool) -> None:
        """Make a map with a dict of its own."""
        self._entries: dict[_Key, _Value] = dict(entries.items())
        self._length = len(self._entries)
        self._may_share = may_share

    @classmethod
    def copy_of(cls, held: Mapping[_Key, _Value], *, may_share: bool) -> Self:
        """A copy of `held`, which changes to the copy do not affect."""
        if not (may_share and isinstance(held, cls) and held._may_share):
            return cls(held, may_share=may_share)
        copy = cls.__new__(cls)
        copy._entries, copy._length, copy._may_share = held._entries, held._length, True
        return copy

    def _held(self) -> dict[_Key, _Value]:
        """The dict with exactly the entries of this map."""
        if len(self._entries) != self._length:  # a copy grew
            self._entries = dict(islice(self._entries.items(), self._length))
        return self._entries

    def __getitem__(self, key: _Key) -> _Value:
        return self._held()[key]

    def __setitem__(self, key: _Key, value: _Value) -> None:
        held = self._held()
        if key in held:
            self._entries = held = dict(held)
        held[key] = value
        self._length = len(held)

    def __delitem__(self, key: _Key) -> None:
        self._entries = held = dict(self._held())
        del held[key]
        self._length = len(held)

    def __contains__(self, key: object) -> bool:
        return key in self._held()

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._held())

    def __len__(self) -> int:
        return self._length

    def keys(self) -> KeysView[_Key]:
        return self._held().keys()

    def values(self) -> ValuesView[_Value]:
        return self._held().values()

    def items(self) -> ItemsView[_Key, _Value]:
        return self._held().items()


# Vote counting: pure functions of the votes that a node holds for one height.

Votes = Mapping[VoteKey, SignedVote]
Tally: TypeAlias = dict[tuple[int, Kind, bytes], int]  # votes of an attempt and kind for a block


class VoteSet(AppendMap[VoteKey, SignedVote]):
    """Votes with a running tally: recounting at every vote would take time linear in the votes."""

    __slots__ = ("tally",)

    def __init__(self, votes: Votes, *, may_share: bool) -> None:
        super().__init__(votes, may_share=may_share)
        self.tally: Tally = votes.tally.copy() if isinstance(votes, VoteSet) else count_votes(votes)

    @classmethod
    def copy_of(cls, held: Votes, *, may_share: bool) -> Self:
        copy = super().copy_of(held, may_share=may_share)
        copy.tally = tally_of(held).copy()
        return copy

    def __setitem__(self, key: VoteKey, signed: SignedVote) -> None:
        if key not in self:
            attempt, kind, _, block = key
            self.tally[attempt, kind, block] = self.tally.get((attempt, kind, block), 0) + 1
        super().__setitem__(key, signed)

    def __delitem__(self, key: VoteKey) -> None:
        super().__delitem__(key)
        attempt, kind, _, block = key
        self.tally[attempt, kind, block] -= 1
        if not self.tally[attempt, kind, block]:
            del self.tally[attempt, kind, block]


def key_of(signed: SignedVote) -> VoteKey:
    """The key of a vote."""
    vote = signed.vote
    return vote.attempt, vote.kind, vote.voter, vote.block


def by_voter(certificate: Certificate) -> dict[int, SignedVote]:
    """The votes of a certificate by voter."""
    return {signed.vote.voter: signed for signed in certificate}


def count_votes(votes: Votes) -> Tally:
    """Number of votes for each attempt, kind and block, counted one by one."""
    counts: Tally = {}
    for attempt, kind, _, block in votes:
        place = attempt, kind, block
        counts[place] = counts.get(place, 0) + 1
    return counts


def tally_of(votes: Votes) -> Tally:
    """The result of `count_votes`, from the running tally if there is one."""
    return votes.tally if isinstance(votes, VoteSet) else count_votes(votes)


def find_quorums(votes: Votes, kind: Kind, quorum: int) -> list[tuple[int, bytes]]:
    """Attempt and block of every quorum of one kind of vote, latest attempt first."""
    if len(votes) < quorum:
        return []
    return sorted(
        (
            (attempt, block)
            for (attempt, cast, block), count in tally_of(votes).items()
            if cast is kind and count >= quorum
        ),
        reverse=True,
    )


def find_rivals(votes: Votes, key: VoteKey) -> list[VoteKey]:
    """Conflicting votes: of the same member, attempt and kind for other blocks, in order of arrival."""
    attempt, kind, voter, block = key
    others = [what for when, cast, what in tally_of(votes) if (when, cast) == (attempt, kind) and what != block]
    rivals = [(attempt, kind, voter, other) for other in others if (attempt, kind, voter, other) in votes]
    if len(rivals) < 2:
        return rivals
    return [held for held in votes if held[:3] == key[:3] and held != key]


def collect_votes(votes: Votes, kind: Kind, attempt: int, block: bytes) -> Certificate:
    """The votes of a kind and attempt for a block, by voter."""
    chosen = [vote for (when, cast, _, what), vote in votes.items() if (when, cast, what) == (attempt, kind, block)]
    return tuple(sorted(chosen, key=lambda vote: vote.vote.voter))


def is_split(votes: Votes, attempt: int, num_members: int, quorum: int) -> bool:
    """Return whether the prevotes of an attempt are split so that no block can reach a quorum any more."""
    counts = [count for (when, kind, _), count in tally_of(votes).items() if when == attempt and kind is Kind.PREVOTE]
    if not counts or max(counts) + num_members - sum(counts) >= quorum:  # voters are at most as many as votes
        return False
    voters = {voter for when, kind, voter, _ in votes if when == attempt and kind is Kind.PREVOTE}
    return max(counts) + num_members - len(voters) < quorum


def reached_attempt(votes: Votes, num_voters: int, beyond: int) -> int:
    """The latest attempt after `beyond` that `num_voters` members have voted in, or after it; 0 if there is none."""
    if all(attempt <= beyond for attempt, _, _ in tally_of(votes)):
        return 0
    latest: dict[int, int] = {}
    for attempt, _, voter, _ in votes:
        if attempt > beyond and attempt > latest.get(voter, 0):
            latest[voter] = attempt
    if len(latest) < num_voters:
        return 0
    return sorted(latest.values(), reverse=True)[num_voters - 1]
