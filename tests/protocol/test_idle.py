"""Rounds in which nobody trains: they back off, by what stands on the chain alone, and end as soon as somebody can."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from table import TIMING, Kind, Table, say_votes, vote

from bdfl.ledger.cache import Toolbox
from bdfl.ledger.chain import apply_block, start_chain
from bdfl.protocol.deadlines import MAX_BACK_OFF_NS, back_off_ns, deadline_ns
from bdfl.protocol.events import MessageArrived, Mine, Send, SetTimer, Timer, TrainingFinished
from bdfl.protocol.messages import Proposal
from bdfl.protocol.state import Phase
from bdfl.scenario import QuorumRule


@pytest.fixture
def table():
    table = Table(rounds=20)
    table.start()
    return table


def fire_all(table, timer):
    for seat in table.seats:
        table.deliver(seat, table.fire(seat, timer))


def decide(table, winner=0):
    """The winner's block, agreed on by all."""
    height = table.seats[0].state.chain.height
    table.deliver(table.seats[winner], table.mine(table.seats[winner]))
    assert all(seat.state.chain.height == height + 1 for seat in table.seats)


def train_without_reports(table):
    """A round in which all train and nobody reports: nobody can train in the next."""
    for seat in table.seats:
        table.deliver(seat, table.train(seat))
    fire_all(table, Timer.DEADLINE)
    decide(table)
    assert not table.seats[0].state.chain.schedule.is_feasible


def pass_idle_round(table):
    timer = Timer.BACK_OFF if table.seats[0].state.chain.num_idle else Timer.DEADLINE
    fire_all(table, timer)
    decide(table)


def last_delay_ns(seat, timer):
    height = seat.state.chain.height + 1
    return next((one.delay_ns for one in seat.did(SetTimer) if (one.timer, one.height) == (timer, height)), None)


def test_a_round_in_which_nobody_can_train_is_neither_proposed_nor_voted_for_before_its_deadline(table):
    train_without_reports(table)
    proposer, voter = table.seats[:2]
    assert proposer.state.phase is Phase.COLLECTING
    assert not [one for one in proposer.did(Mine) if one.header.height == 2]
    table.fire(proposer, Timer.DEADLINE)
    proposal = next(one.message for one in table.mine(proposer) if isinstance(one, Send))
    assert isinstance(proposal.content, Proposal)
    voter.give(MessageArrived(proposal), now_ns=10**12)
    assert voter.state.candidates[proposal.content.block.digest].is_valid
    assert voter.state.mining_ms == 0  # it did not search: what it waited does not count as work
    assert voter.votes(Kind.PREVOTE)[-1].block != proposal.content.block.digest
    assert last_delay_ns(voter, Timer.ATTEMPT) is None  # a block that comes too soon cuts nothing short
    table.fire(voter, Timer.DEADLINE)
    assert voter.votes(Kind.PREVOTE)[-1].block == proposal.content.block.digest


def test_the_wait_doubles_with_every_idle_block_up_to_a_limit_and_ends_with_the_first_model(table):
    train_without_reports(table)
    seat = table.seats[1]
    grace_ns = TIMING.grace_ns
    for num_idle in range(12):
        chain = seat.state.chain
        assert chain.num_idle == num_idle
        assert last_delay_ns(seat, Timer.DEADLINE) == grace_ns
        assert back_off_ns(chain, TIMING, table.toolbox) == min(grace_ns << num_idle, MAX_BACK_OFF_NS)
        assert last_delay_ns(seat, Timer.BACK_OFF) == (min(grace_ns << num_idle, MAX_BACK_OFF_NS) if num_idle else None)
        if num_idle:
            fire_all(table, Timer.DEADLINE)
            assert seat.state.phase is Phase.COLLECTING
        pass_idle_round(table)
    for one in table.seats:
        table.deliver(one, table.measure(one))
    decide(table)  # everybody reported: somebody can train, and nothing is waited for
    chain = seat.state.chain
    assert chain.schedule.is_feasible
    assert back_off_ns(chain, TIMING, table.toolbox) > deadline_ns(chain, TIMING, table.toolbox)
    table.play_round()
    assert seat.state.chain.num_idle == 0
    assert last_delay_ns(seat, Timer.BACK_OFF) is None


def test_a_round_in_which_all_decline_waits_though_nothing_is_missing(table):
    for wait in (Timer.DEADLINE, Timer.BACK_OFF):
        for seat in table.seats:
            height, tip = seat.state.chain.height + 1, seat.state.chain.tip
            table.deliver(seat, seat.give(TrainingFinished(height, tip, None)))
            table.deliver(seat, table.measure(seat))
        assert all(seat.state.phase is Phase.COLLECTING for seat in table.seats)
        fire_all(table, wait)
        decide(table)
    assert table.seats[0].state.chain.num_idle == 2
    table.play_round()
    assert table.seats[0].state.chain.num_idle == 0


def test_one_model_ends_a_round_that_backs_off_at_its_deadline(table):
    train_without_reports(table)
    for _ in range(5):
        pass_idle_round(table)
    for seat in table.seats:
        table.deliver(seat, table.measure(seat))
    decide(table)
    for seat in table.seats:
        table.deliver(seat, table.measure(seat))
    table.deliver(table.seats[0], table.train(table.seats[0]))
    assert all(seat.state.phase is Phase.COLLECTING for seat in table.seats)
    fire_all(table, Timer.DEADLINE)
    decide(table)
    assert table.seats[0].state.chain.num_idle == 0


def test_who_joins_late_waits_as_long_as_the_others(table):
    train_without_reports(table)
    for _ in range(3):
        pass_idle_round(table)
    chain = start_chain(table.genesis, Toolbox())
    for height in sorted(table.decided):
        chain = apply_block(chain, table.decided[height][0], Toolbox())
    known = table.seats[0].state.chain
    assert chain.tip == known.tip
    assert back_off_ns(chain, TIMING, Toolbox()) == back_off_ns(known, TIMING, table.toolbox) == TIMING.grace_ns << 3


def test_who_was_started_again_follows_those_whose_wait_is_over():
    table = Table(num_members=3, quorum=QuorumRule.BFT)
    table.start()
    train_without_reports(table)
    *others, late = table.seats
    for seat in others:
        table.deliver(seat, table.fire(seat, Timer.DEADLINE), to=others)
    table.deliver(others[0], table.mine(others[0]))
    block = others[0].votes(Kind.PREVOTE)[-1].block
    assert (late.state.chain.height, late.votes(Kind.PREVOTE)[-1].block) == (2, block)  # more vouch for it than may lie
    assert late.votes(Kind.PREVOTE)[-1].attempt == 1


def test_an_idle_block_is_voted_for_before_its_time_once_more_vouch_for_it_than_may_lie(table):
    train_without_reports(table)
    proposer, voter = table.seats[:2]
    table.fire(proposer, Timer.DEADLINE)
    proposal = next(one.message for one in table.mine(proposer) if isinstance(one, Send))
    block = proposal.content.block.digest
    voter.give(MessageArrived(proposal))
    for number, has_voted in ((2, False), (3, True)):  # of four members one may lie
        say_votes(voter, vote(voter, Kind.PREVOTE, 1, block, number=number))
        assert (voter.votes(Kind.PREVOTE)[-1].block == block) is has_voted
