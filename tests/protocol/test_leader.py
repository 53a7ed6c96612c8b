"""Leaders of the third and later attempts: who waits, who follows, and what a liar can no longer do."""

from dataclasses import replace

import pytest

from bdfl.ledger.block import Kind
from bdfl.protocol import consensus
from bdfl.protocol.events import SetTimer, Timer, TimerFired
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.protocol.node import begin
from bdfl.protocol.state import Recovered
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import TIMING, ManualNetwork, make_block, replace_sender, say_votes, vote

LIAR = 3
LENGTH_NS = {attempt: TIMING.attempt_ns * (2 + attempt) // 2 for attempt in range(1, 20)}


def founded():
    """Four members that may lie, and two blocks of the first attempt, the one with the lowest hash first."""
    network = ManualNetwork(4, QuorumRule.BFT)
    network.start()
    network.collect()
    blocks = [make_block(network.nodes[1]), make_block(network.nodes[2])]
    law = network.genesis.law.work
    blocks.sort(key=lambda block: network.cache.work_hash(law, block.header, block.nonce))
    return network, blocks


def show(node, *blocks):
    for block in blocks:
        node.hear(replace_sender(node.message(Proposal(block)), LIAR))


def enter(node, attempt):
    """Let two others vote in an attempt, so that the node enters it."""
    for number in (1, 2):
        say_votes(node, vote(node, Kind.PRECOMMIT, attempt, b"?" * 32, number=number))
    assert node.state.attempt == attempt


def leader_of(attempt):
    return (1 + attempt) % 4


def prevotes(node, attempt):
    return [cast.block for cast in node.votes(Kind.PREVOTE) if cast.attempt == attempt]


def wait_of(node):
    return [one for one in node.did(SetTimer) if one.timer is Timer.LEADER]


def test_a_node_waits_for_the_leader_and_prevotes_for_its_block():
    network, (low, high) = founded()
    node = network.nodes[0]
    show(node, low, high)
    enter(node, 4)
    assert prevotes(node, 4) == []
    assert [one.delay_ns for one in wait_of(node)] == [LENGTH_NS[4] // 4]
    assert node.state.mined is None  # it has a block to vote for
    say_votes(node, vote(node, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(node, 4) == [high.digest]


def test_the_leader_itself_waits_for_nobody():
    network, (low, high) = founded()
    node = network.nodes[0]
    show(node, high, low)
    enter(node, 3)
    assert leader_of(3) == node.number
    assert prevotes(node, 3) == [low.digest]
    assert not wait_of(node)


def test_without_a_word_of_the_leader_a_node_chooses_itself_when_the_wait_is_over():
    network, (low, high) = founded()
    node = network.nodes[0]
    show(node, high, low)
    enter(node, 4)
    [wait] = wait_of(node)
    node.give(TimerFired(wait.timer, wait.height, 3))  # of another attempt
    assert prevotes(node, 4) == []
    node.give(TimerFired(wait.timer, wait.height, wait.attempt), wait.delay_ns)
    assert prevotes(node, 4) == [low.digest]


def test_without_a_block_the_wait_has_not_begun():
    network, (low, _) = founded()
    node = network.nodes[0]
    enter(node, 4)
    assert not wait_of(node)
    assert node.state.mined is not None
    show(node, low)
    assert len(wait_of(node)) == 1


def locked_and_bound(network, block, attempt):
    """A node that precommitted a block in an attempt."""
    node = network.nodes[0]
    show(node, block)
    if attempt > 1:
        enter(node, attempt)
    say_votes(node, *[vote(node, Kind.PREVOTE, attempt, block.digest, number=number) for number in (1, 2, 3)])
    assert [cast.block for cast in node.votes(Kind.PRECOMMIT)] == [block.digest]
    return node


def test_a_precommit_binds_unless_a_later_quorum_backs_the_leaders_block():
    network, (low, high) = founded()
    node = locked_and_bound(network, low, 2)
    show(node, high)
    enter(node, 4)
    say_votes(node, vote(node, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(node, 4) == [low.digest]
    enter(node, 5)
    say_votes(node, *[vote(node, Kind.PREVOTE, 3, high.digest, number=number) for number in (1, 2, 3)])
    say_votes(node, vote(node, Kind.PREVOTE, 5, high.digest, number=leader_of(5)))
    assert prevotes(node, 5) == [high.digest]


def test_a_quorum_before_the_precommit_does_not_free_a_node():
    network, (low, high) = founded()
    node = locked_and_bound(network, low, 2)
    show(node, high)
    enter(node, 4)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, high.digest, number=number) for number in (1, 2, 3)])
    say_votes(node, vote(node, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(node, 4) == [low.digest]


def test_a_precommit_binds_after_a_restart_as_well():
    network, (low, high) = founded()
    node = locked_and_bound(network, low, 2)
    kept = tuple(node.state.own_votes.values())
    again = replace(
        node,
        state=begin(node.context, node.state.chain, Recovered(blocks=(low, high), votes=kept, blobs=node.state.blobs)),
        effects=[],
    )
    enter(again, 4)
    say_votes(again, vote(again, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert high.digest not in prevotes(again, 4)


def test_a_lock_without_a_precommit_does_not_keep_a_node_from_following():
    network, (low, high) = founded()
    node = network.nodes[0]
    show(node, low, high)
    enter(node, 4)
    say_votes(node, *[vote(node, Kind.PREVOTE, 2, low.digest, number=number) for number in (1, 2, 3)])
    assert node.state.lock.block == low.digest
    say_votes(node, vote(node, Kind.PREVOTE, 4, high.digest, number=leader_of(4)))
    assert prevotes(node, 4) == [high.digest]


@pytest.mark.parametrize(("attempt", "is_late"), [(2, True), (3, False), (3, True)])
def test_nobody_precommits_in_the_last_quarter_of_a_led_attempt(attempt, is_late):
    network, (low, _) = founded()
    node = network.nodes[0]
    show(node, low)
    enter(node, attempt)
    cast = tuple(vote(node, Kind.PREVOTE, attempt, low.digest, number=number) for number in (1, 2))
    now_ns = LENGTH_NS[attempt] * 3 // 4 - (not is_late)
    node.give_at(replace_sender(node.message(Gossip(attempt, votes=cast)), 1), now_ns)
    assert node.state.lock.attempt == attempt
    assert bool(node.votes(Kind.PRECOMMIT)) == (attempt == 2 or not is_late)


def say_all_again(network, honest, now_ns):
    for node in honest:
        network.deliver(node, node.give(TimerFired(Timer.RESEND, 1, node.state.attempt), now_ns), honest, now_ns)


def hold_up(network, honest, now_ns):
    """One attempt of the attack: two enter the next attempt, and only then the liar shows its vote.

    The vote, kept back until now, completes a quorum for one member, which has not left its attempt yet.
    """
    attempt = honest[0].state.attempt
    blocks = {node.number: prevotes(node, attempt)[0] for node in honest}
    alone = next(node for node in honest if list(blocks.values()).count(blocks[node.number]) == 1)
    others = [node for node in honest if node is not alone]
    now_ns += LENGTH_NS[attempt]
    said = [(node, node.give(TimerFired(Timer.ATTEMPT, 1, attempt), now_ns)) for node in others]
    for sender, effects in said:
        network.deliver(sender, effects, others, now_ns)
    withheld = vote(alone, Kind.PREVOTE, attempt, blocks[others[0].number], number=LIAR)
    shown = replace_sender(alone.message(Gossip(attempt, votes=(withheld,))), LIAR)
    network.deliver(alone, alone.give_at(shown, now_ns), honest, now_ns)
    network.deliver(alone, alone.give(TimerFired(Timer.ATTEMPT, 1, attempt), now_ns), honest, now_ns)
    for sender, effects in said:
        network.deliver(sender, effects, honest, now_ns)
    say_all_again(network, honest, now_ns)
    return now_ns


def set_apart(network, low, high):
    """Two attempts in trouble: member 2 is locked on one block, the other two prevote for the other."""
    honest = network.nodes[:LIAR]
    for node, block in zip(honest, (low, high, high), strict=True):
        show(node, block)
    cast = [vote(node, Kind.PREVOTE, 1, prevotes(node, 1)[0]) for node in honest]
    for node in honest:
        say_votes(node, *(one for one in cast if one.vote.voter != node.number))
    say_votes(honest[2], vote(honest[2], Kind.PREVOTE, 1, high.digest, number=LIAR))
    assert [node.state.lock is not None for node in honest] == [False, False, True]
    for node in honest:
        show(node, low, high)
    said = [(node, node.give(TimerFired(Timer.ATTEMPT, 1, 1), LENGTH_NS[1])) for node in honest]
    for sender, effects in said:
        network.deliver(sender, effects, honest, LENGTH_NS[1])
    assert [prevotes(node, node.state.attempt) for node in honest] == [[low.digest], [low.digest], [high.digest]]
    say_all_again(network, honest, LENGTH_NS[1])
    return honest


@pytest.mark.parametrize("has_leaders", [True, False])
def test_a_liar_that_shows_its_prevotes_late_does_not_keep_locks_apart(monkeypatch, has_leaders):
    if not has_leaders:
        monkeypatch.setattr(consensus, "LEADERLESS_ATTEMPTS", 0)
        monkeypatch.setattr(consensus, "_choose", consensus._choose_alone)
        monkeypatch.setattr(consensus, "_is_over", lambda draft, num_quarters: False)
    network, (low, high) = founded()
    honest = set_apart(network, low, high)
    now_ns, num_attempts = LENGTH_NS[1], 0
    while num_attempts < 12 and all(node.state.chain.height == 0 for node in honest):
        now_ns = hold_up(network, honest, now_ns)
        num_attempts += 1
    assert [node.state.chain.height for node in honest] == ([1, 1, 1] if has_leaders else [0, 0, 0])
    assert num_attempts == (1 if has_leaders else 12)
