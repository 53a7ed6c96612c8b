"""Rounds in which nobody trains: they back off, by what stands on the chain alone, and end as soon as somebody can."""

import pytest

from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import apply_block, start_chain
from bdfl.protocol.deadlines import MAX_BACK_OFF_NS, back_off_ns, deadline_ns
from bdfl.protocol.events import MessageArrived, Mine, Send, SetTimer, Timer, TrainingFinished
from bdfl.protocol.messages import Proposal
from bdfl.protocol.state import Phase
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import TIMING, Kind, ManualNetwork, say_votes, vote


@pytest.fixture
def network():
    network = ManualNetwork(rounds=20)
    network.start()
    return network


def fire_all(network, timer):
    for node in network.nodes:
        network.deliver(node, network.fire(node, timer))


def decide(network, winner=0):
    """The winner's block, agreed on by all."""
    height = network.nodes[0].state.chain.height
    network.deliver(network.nodes[winner], network.mine(network.nodes[winner]))
    assert all(node.state.chain.height == height + 1 for node in network.nodes)


def train_without_reports(network):
    """A round in which all train and nobody reports: nobody can train in the next."""
    for node in network.nodes:
        network.deliver(node, network.train(node))
    fire_all(network, Timer.DEADLINE)
    decide(network)
    assert not network.nodes[0].state.chain.schedule.is_feasible


def pass_idle_round(network):
    timer = Timer.BACK_OFF if network.nodes[0].state.chain.num_idle else Timer.DEADLINE
    fire_all(network, timer)
    decide(network)


def last_delay_ns(node, timer):
    height = node.state.chain.height + 1
    return next((one.delay_ns for one in node.did(SetTimer) if (one.timer, one.height) == (timer, height)), None)


def test_a_round_in_which_nobody_can_train_is_neither_proposed_nor_voted_for_before_its_deadline(network):
    train_without_reports(network)
    proposer, voter = network.nodes[:2]
    assert proposer.state.phase is Phase.COLLECTING
    assert not [one for one in proposer.did(Mine) if one.header.height == 2]
    network.fire(proposer, Timer.DEADLINE)
    proposal = next(one.message for one in network.mine(proposer) if isinstance(one, Send))
    assert isinstance(proposal.content, Proposal)
    voter.give(MessageArrived(proposal), now_ns=10**12)
    assert voter.state.candidates[proposal.content.block.digest].is_valid
    assert voter.state.mining_ms == 0  # it did not search: what it waited does not count as work
    assert voter.votes(Kind.PREVOTE)[-1].block != proposal.content.block.digest
    assert last_delay_ns(voter, Timer.ATTEMPT) is None  # a block that comes too soon cuts nothing short
    network.fire(voter, Timer.DEADLINE)
    assert voter.votes(Kind.PREVOTE)[-1].block == proposal.content.block.digest


def test_the_wait_doubles_with_every_idle_block_up_to_a_limit_and_ends_with_the_first_model(network):
    train_without_reports(network)
    node = network.nodes[1]
    grace_ns = TIMING.grace_ns
    for num_idle in range(12):
        chain = node.state.chain
        assert chain.num_idle == num_idle
        assert last_delay_ns(node, Timer.DEADLINE) == grace_ns
        assert back_off_ns(chain, TIMING, network.cache) == min(grace_ns << num_idle, MAX_BACK_OFF_NS)
        assert last_delay_ns(node, Timer.BACK_OFF) == (min(grace_ns << num_idle, MAX_BACK_OFF_NS) if num_idle else None)
        if num_idle:
            fire_all(network, Timer.DEADLINE)
            assert node.state.phase is Phase.COLLECTING
        pass_idle_round(network)
    for one in network.nodes:
        network.deliver(one, network.measure(one))
    decide(network)  # everybody reported: somebody can train, and nothing is waited for
    chain = node.state.chain
    assert chain.schedule.is_feasible
    assert back_off_ns(chain, TIMING, network.cache) > deadline_ns(chain, TIMING, network.cache)
    network.play_round()
    assert node.state.chain.num_idle == 0
    assert last_delay_ns(node, Timer.BACK_OFF) is None


def test_a_round_in_which_all_decline_waits_though_nothing_is_missing(network):
    for wait in (Timer.DEADLINE, Timer.BACK_OFF):
        for node in network.nodes:
            height, tip = node.state.chain.height + 1, node.state.chain.tip
            network.deliver(node, node.give(TrainingFinished(height, tip, None)))
            network.deliver(node, network.measure(node))
        assert all(node.state.phase is Phase.COLLECTING for node in network.nodes)
        fire_all(network, wait)
        decide(network)
    assert network.nodes[0].state.chain.num_idle == 2
    network.play_round()
    assert network.nodes[0].state.chain.num_idle == 0


def test_one_model_ends_a_round_that_backs_off_at_its_deadline(network):
    train_without_reports(network)
    for _ in range(5):
        pass_idle_round(network)
    for node in network.nodes:
        network.deliver(node, network.measure(node))
    decide(network)
    for node in network.nodes:
        network.deliver(node, network.measure(node))
    network.deliver(network.nodes[0], network.train(network.nodes[0]))
    assert all(node.state.phase is Phase.COLLECTING for node in network.nodes)
    fire_all(network, Timer.DEADLINE)
    decide(network)
    assert network.nodes[0].state.chain.num_idle == 0


def test_who_joins_late_waits_as_long_as_the_others(network):
    train_without_reports(network)
    for _ in range(3):
        pass_idle_round(network)
    chain = start_chain(network.genesis, VerificationCache())
    for height in sorted(network.decided):
        chain = apply_block(chain, network.decided[height][0], VerificationCache())
    known = network.nodes[0].state.chain
    assert chain.tip == known.tip
    assert (
        back_off_ns(chain, TIMING, VerificationCache())
        == back_off_ns(known, TIMING, network.cache)
        == TIMING.grace_ns << 3
    )


def test_who_was_started_again_follows_those_whose_wait_is_over():
    network = ManualNetwork(num_members=3, quorum=QuorumRule.BFT)
    network.start()
    train_without_reports(network)
    *others, late = network.nodes
    for node in others:
        network.deliver(node, network.fire(node, Timer.DEADLINE), to=others)
    network.deliver(others[0], network.mine(others[0]))
    block = others[0].votes(Kind.PREVOTE)[-1].block
    assert (late.state.chain.height, late.votes(Kind.PREVOTE)[-1].block) == (2, block)  # more vouch for it than may lie
    assert late.votes(Kind.PREVOTE)[-1].attempt == 1


def test_an_idle_block_is_voted_for_before_its_time_once_more_vouch_for_it_than_may_lie(network):
    train_without_reports(network)
    proposer, voter = network.nodes[:2]
    network.fire(proposer, Timer.DEADLINE)
    proposal = next(one.message for one in network.mine(proposer) if isinstance(one, Send))
    block = proposal.content.block.digest
    voter.give(MessageArrived(proposal))
    for number, has_voted in ((2, False), (3, True)):  # of four members one may lie
        say_votes(voter, vote(voter, Kind.PREVOTE, 1, block, number=number))
        assert (voter.votes(Kind.PREVOTE)[-1].block == block) is has_voted
