"""Counting votes."""

from bdfl.ledger.block import Kind, SignedVote, Vote
from bdfl.protocol.votes import is_split, key_of

BLOCKS = [bytes([number]) * 32 for number in range(3)]


def held(*prevotes: tuple[int, int], attempt: int = 1, kind: Kind = Kind.PREVOTE):
    """Votes as a node holds them, from pairs of voter and block."""
    votes = [Vote(kind, attempt, BLOCKS[block], voter, (), (), 0) for voter, block in prevotes]
    signed = [SignedVote(vote, bytes(64)) for vote in votes]
    return {key_of(one): one for one in signed}


def test_an_attempt_is_split_when_no_block_can_reach_the_quorum_any_more():
    assert is_split(held((0, 0), (1, 0), (2, 1), (3, 1)), 1, 4, 3)


def test_who_has_not_voted_may_still_decide():
    assert not is_split(held((0, 0), (1, 0), (2, 1)), 1, 4, 3)
    assert is_split(held((0, 0), (1, 1), (2, 2)), 1, 4, 3)


def test_a_quorum_is_no_split_and_neither_is_silence():
    assert not is_split(held((0, 0), (1, 0), (2, 0), (3, 1)), 1, 4, 3)
    assert not is_split({}, 1, 4, 3)


def test_only_prevotes_of_the_attempt_count():
    split = ((0, 0), (1, 0), (2, 1), (3, 1))
    assert not is_split(held(*split, attempt=2), 1, 4, 3)
    assert not is_split(held(*split, kind=Kind.PRECOMMIT), 1, 4, 3)


def test_one_who_votes_for_two_blocks_makes_no_split_where_there_is_none():
    assert not is_split(held((0, 0), (1, 0), (2, 1), (3, 0), (3, 1)), 1, 4, 3)
