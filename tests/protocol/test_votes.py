"""Counting votes."""

import random

import pytest

from bdfl.ledger.block import Kind, SignedVote, Vote
from bdfl.protocol.votes import (
    VoteSet,
    count_votes,
    find_quorums,
    find_rivals,
    is_split,
    key_of,
    reached_attempt,
    tally_of,
)

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


@pytest.mark.parametrize("may_share", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_running_tally_answers_as_counting_does(seed, may_share):
    chance = random.Random(seed)
    ballots, plain = VoteSet({}, may_share=may_share), {}
    for _ in range(60):
        vote = Vote(
            chance.choice(list(Kind)), chance.randint(1, 3), chance.choice(BLOCKS), chance.randrange(6), (), (), 0
        )
        signed = SignedVote(vote, bytes(64))
        key = key_of(signed)
        if key not in plain:
            assert find_rivals(ballots, key) == [held for held in plain if held[:3] == key[:3]]
        ballots = VoteSet.copy_of(ballots, may_share=may_share)  # as every step does
        ballots[key] = plain[key] = signed
        if chance.random() < 0.2:
            gone = chance.choice(list(plain))
            del ballots[gone], plain[gone]
        assert ballots == plain
        assert tally_of(ballots) == count_votes(plain) == count_votes(ballots)
        for quorum in range(1, 5):
            for kind in Kind:
                assert find_quorums(ballots, kind, quorum) == find_quorums(plain, kind, quorum)
            for attempt in range(4):
                assert reached_attempt(ballots, quorum, attempt) == reached_attempt(plain, quorum, attempt)
                assert is_split(ballots, attempt, 6, quorum) == slowly_split(plain, attempt, 6, quorum)


def slowly_split(votes, attempt, num_members, quorum):
    prevotes = [(voter, block) for when, kind, voter, block in votes if when == attempt and kind is Kind.PREVOTE]
    blocks = [block for _, block in prevotes]
    undecided = num_members - len({voter for voter, _ in prevotes})
    return bool(blocks) and max(map(blocks.count, blocks)) + undecided < quorum


@pytest.mark.parametrize("may_share", [False, True])
def test_copies_of_ballots_are_their_own(may_share):
    first = VoteSet(held((0, 0), (1, 0)), may_share=may_share)
    second = VoteSet.copy_of(first, may_share=may_share)
    del second[next(iter(second))]
    assert tally_of(first) != tally_of(second)
    assert tally_of(first) == count_votes(first)
