"""Counting votes: pure functions of the votes a node holds for one height."""

from collections.abc import Mapping

from bdfl.ledger.block import Certificate, Kind, SignedVote
from bdfl.protocol.state import VoteKey

Votes = Mapping[VoteKey, SignedVote]


def key_of(signed: SignedVote) -> VoteKey:
    """What a vote is held under."""
    vote = signed.vote
    return vote.attempt, vote.kind, vote.voter, vote.block


def find_quorums(votes: Votes, kind: Kind, quorum: int) -> list[tuple[int, bytes]]:
    """Attempt and block of every quorum of one kind, latest attempt first."""
    if len(votes) < quorum:
        return []
    counts: dict[tuple[int, bytes], int] = {}
    for attempt, cast, _, block in votes:
        if cast is kind:
            place = attempt, block
            counts[place] = counts.get(place, 0) + 1
    return sorted((place for place, count in counts.items() if count >= quorum), reverse=True)


def collect_votes(votes: Votes, kind: Kind, attempt: int, block: bytes) -> Certificate:
    """The votes of a kind and attempt for a block, by voter."""
    chosen = [vote for (when, cast, _, what), vote in votes.items() if (when, cast, what) == (attempt, kind, block)]
    return tuple(sorted(chosen, key=lambda vote: vote.vote.voter))


def is_split(votes: Votes, attempt: int, num_members: int, quorum: int) -> bool:
    """Whether the prevotes of an attempt fell so far apart that no block can get a quorum of them any more."""
    voters: set[int] = set()
    counts: dict[bytes, int] = {}
    for when, kind, voter, block in votes:
        if when == attempt and kind is Kind.PREVOTE:
            voters.add(voter)
            counts[block] = counts.get(block, 0) + 1
    return bool(counts) and max(counts.values()) + num_members - len(voters) < quorum


def reached_attempt(votes: Votes, num_voters: int, beyond: int) -> int:
    """The latest attempt beyond a given one that so many members have voted in, or later; 0 if there is none."""
    latest: dict[int, int] = {}
    for attempt, _, voter, _ in votes:
        if attempt > beyond and attempt > latest.get(voter, 0):
            latest[voter] = attempt
    if len(latest) < num_voters:
        return 0
    return sorted(latest.values(), reverse=True)[num_voters - 1]
