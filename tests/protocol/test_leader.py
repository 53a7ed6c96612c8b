"""Leaders of the third and later attempts: who waits, who follows, and what a liar can no longer do."""

from dataclasses import replace

import pytest

from bdfl.ledger.block import Kind
from bdfl.protocol import consensus
from bdfl.protocol.events import SetTimer, Timer, TimerFired
from bdfl.protocol.messages import Hearsay, Proposal
from bdfl.protocol.node import begin
from bdfl.protocol.state import Recovered
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import TIMING, Table, make_block, replace_sender, say_votes, vote

LIAR = 3
LENGTH_NS = {attempt: TIMING.attempt_ns * (2 + attempt) // 2 for attempt in range(1, 20)}


def founded():
    """Four members that may lie, and two blocks of the first attempt, the one with the lowest hash first."""
    table = Table(4, QuorumRule.BFT)
    table.start()
    table.collect()
    blocks = [make_block(table.seats[1]), make_block(table.seats[2])]
    law = table.genesis.law.work
    blocks.sort(key=lambda block: table.toolbox.work_hash(law, block.header, block.nonce))
    return table, blocks


def show(seat, *blocks):
    for block in blocks:
        seat.hear(replace_sender(seat.message(Proposal(block)), LIAR))


def enter(seat, attempt):
    """Let two others vote in an attempt, so that the seat enters it."""
    for number in (1, 2):
        say_votes(seat, vote(seat, Kind.PRECOMMIT, attempt, b"?" * 32, number=number))
    assert seat.state.attempt == attempt


def leader_of(attempt):
    return (1 + attempt) % 4


def prevotes(seat, attempt):
    return [cast.block for cast in seat.votes(Kind.PREVOTE) if cast.attempt == attempt]


def wait_of(seat):
    return [one for one in seat.did(SetTimer) if one.timer is Timer.LEADER]


def test_a_node_waits_for_the_leader_and_prevotes_for_its_block():
    table, (low, high) = founded()
    seat = table.seats[0]
    show(seat, low, high)
    enter(seat, 4)
    assert prevotes(seat, 4) == []
    assert [one.delay_ns for one in wait_of(seat)] == [LENGTH_NS[4] // 4]
    assert seat.state.mined is None  # it has a block to vote for
    say_votes(seat, vote(seat, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(seat, 4) == [high.digest]


def test_the_leader_itself_waits_for_nobody():
    table, (low, high) = founded()
    seat = table.seats[0]
    show(seat, high, low)
    enter(seat, 3)
    assert leader_of(3) == seat.number
    assert prevotes(seat, 3) == [low.digest]
    assert not wait_of(seat)


def test_without_a_word_of_the_leader_a_node_chooses_itself_when_the_wait_is_over():
    table, (low, high) = founded()
    seat = table.seats[0]
    show(seat, high, low)
    enter(seat, 4)
    [wait] = wait_of(seat)
    seat.give(TimerFired(wait.timer, wait.height, 3))  # of another attempt
    assert prevotes(seat, 4) == []
    seat.give(TimerFired(wait.timer, wait.height, wait.attempt), wait.delay_ns)
    assert prevotes(seat, 4) == [low.digest]


def test_without_a_block_the_wait_has_not_begun():
    table, (low, _) = founded()
    seat = table.seats[0]
    enter(seat, 4)
    assert not wait_of(seat)
    assert seat.state.mined is not None
    show(seat, low)
    assert len(wait_of(seat)) == 1


def locked_and_bound(table, block, attempt):
    """A seat that precommitted a block in an attempt."""
    seat = table.seats[0]
    show(seat, block)
    if attempt > 1:
        enter(seat, attempt)
    say_votes(seat, *[vote(seat, Kind.PREVOTE, attempt, block.digest, number=number) for number in (1, 2, 3)])
    assert [cast.block for cast in seat.votes(Kind.PRECOMMIT)] == [block.digest]
    return seat


def test_a_precommit_binds_unless_a_later_quorum_backs_the_leaders_block():
    table, (low, high) = founded()
    seat = locked_and_bound(table, low, 2)
    show(seat, high)
    enter(seat, 4)
    say_votes(seat, vote(seat, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(seat, 4) == [low.digest]
    enter(seat, 5)
    say_votes(seat, *[vote(seat, Kind.PREVOTE, 3, high.digest, number=number) for number in (1, 2, 3)])
    say_votes(seat, vote(seat, Kind.PREVOTE, 5, high.digest, number=leader_of(5)))
    assert prevotes(seat, 5) == [high.digest]


def test_a_quorum_before_the_precommit_does_not_free_a_node():
    table, (low, high) = founded()
    seat = locked_and_bound(table, low, 2)
    show(seat, high)
    enter(seat, 4)
    say_votes(seat, *[vote(seat, Kind.PREVOTE, 1, high.digest, number=number) for number in (1, 2, 3)])
    say_votes(seat, vote(seat, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(seat, 4) == [low.digest]


def test_a_precommit_binds_after_a_restart_as_well():
    table, (low, high) = founded()
    seat = locked_and_bound(table, low, 2)
    kept = tuple(seat.state.own_votes.values())
    again = replace(
        seat,
        state=begin(seat.context, seat.state.chain, Recovered(blocks=(low, high), votes=kept, blobs=seat.state.blobs)),
        effects=[],
    )
    enter(again, 4)
    say_votes(again, vote(again, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert high.digest not in prevotes(again, 4)


def test_a_lock_without_a_precommit_does_not_keep_a_node_from_following():
    table, (low, high) = founded()
    seat = table.seats[0]
    show(seat, low, high)
    enter(seat, 4)
    say_votes(seat, *[vote(seat, Kind.PREVOTE, 2, low.digest, number=number) for number in (1, 2, 3)])
    assert seat.state.lock.block == low.digest
    say_votes(seat, vote(seat, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(seat, 4) == [high.digest]


@pytest.mark.parametrize(("attempt", "is_late"), [(2, True), (3, False), (3, True)])
def test_nobody_precommits_in_the_last_quarter_of_a_led_attempt(attempt, is_late):
    table, (low, _) = founded()
    seat = table.seats[0]
    show(seat, low)
    enter(seat, attempt)
    cast = tuple(vote(seat, Kind.PREVOTE, attempt, low.digest, number=number) for number in (1, 2))
    now_ns = LENGTH_NS[attempt] * 3 // 4 - (not is_late)
    seat.give_at(replace_sender(seat.message(Hearsay(attempt, votes=cast)), 1), now_ns)
    assert seat.state.lock.attempt == attempt
    assert bool(seat.votes(Kind.PRECOMMIT)) == (attempt == 2 or not is_late)


def say_all_again(table, honest, now_ns):
    for seat in honest:
        table.deliver(seat, seat.give(TimerFired(Timer.RESEND, 1, seat.state.attempt), now_ns), honest, now_ns)


def hold_up(table, honest, now_ns):
    """One attempt of the attack: two enter the next attempt, and only then the liar shows its vote.

    The vote, kept back until now, completes a quorum for one member, which has not left its attempt yet.
    """
    attempt = honest[0].state.attempt
    blocks = {seat.number: prevotes(seat, attempt)[0] for seat in honest}
    alone = next(seat for seat in honest if list(blocks.values()).count(blocks[seat.number]) == 1)
    others = [seat for seat in honest if seat is not alone]
    now_ns += LENGTH_NS[attempt]
    said = [(seat, seat.give(TimerFired(Timer.ATTEMPT, 1, attempt), now_ns)) for seat in others]
    for sender, effects in said:
        table.deliver(sender, effects, others, now_ns)
    withheld = vote(alone, Kind.PREVOTE, attempt, blocks[others[0].number], number=LIAR)
    shown = replace_sender(alone.message(Hearsay(attempt, votes=(withheld,))), LIAR)
    table.deliver(alone, alone.give_at(shown, now_ns), honest, now_ns)
    table.deliver(alone, alone.give(TimerFired(Timer.ATTEMPT, 1, attempt), now_ns), honest, now_ns)
    for sender, effects in said:
        table.deliver(sender, effects, honest, now_ns)
    say_all_again(table, honest, now_ns)
    return now_ns


def set_apart(table, low, high):
    """Two attempts in trouble: member 2 is locked on one block, the other two prevote for the other."""
    honest = table.seats[:LIAR]
    for seat, block in zip(honest, (low, high, high), strict=True):
        show(seat, block)
    cast = [vote(seat, Kind.PREVOTE, 1, prevotes(seat, 1)[0]) for seat in honest]
    for seat in honest:
        say_votes(seat, *(one for one in cast if one.vote.voter != seat.number))
    say_votes(honest[2], vote(honest[2], Kind.PREVOTE, 1, high.digest, number=LIAR))
    assert [seat.state.lock is not None for seat in honest] == [False, False, True]
    for seat in honest:
        show(seat, low, high)
    said = [(seat, seat.give(TimerFired(Timer.ATTEMPT, 1, 1), LENGTH_NS[1])) for seat in honest]
    for sender, effects in said:
        table.deliver(sender, effects, honest, LENGTH_NS[1])
    assert [prevotes(seat, seat.state.attempt) for seat in honest] == [[low.digest], [low.digest], [high.digest]]
    say_all_again(table, honest, LENGTH_NS[1])
    return honest


@pytest.mark.parametrize("has_leaders", [True, False])
def test_a_liar_that_shows_its_prevotes_late_does_not_keep_locks_apart(monkeypatch, has_leaders):
    if not has_leaders:
        monkeypatch.setattr(consensus, "LEADERLESS_ATTEMPTS", 0)
        monkeypatch.setattr(consensus, "_choose", consensus._choose_alone)
        monkeypatch.setattr(consensus, "_is_ending", lambda draft: False)
    table, (low, high) = founded()
    honest = set_apart(table, low, high)
    now_ns, num_attempts = LENGTH_NS[1], 0
    while num_attempts < 12 and all(seat.state.chain.height == 0 for seat in honest):
        now_ns = hold_up(table, honest, now_ns)
        num_attempts += 1
    assert [seat.state.chain.height for seat in honest] == ([1, 1, 1] if has_leaders else [0, 0, 0])
    assert num_attempts == (1 if has_leaders else 12)
