"""All is said again more and more seldom, sooner after news and to newcomers; a model is asked of all who have it."""

from itertools import pairwise

import pytest

from bdfl.protocol.events import FetchBlob, PeersAppeared, Send, SetTimer, Started, Timer, TimerFired
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.protocol.sync import MAX_DOUBLINGS, NEWCOMER_SHARE, NEWS_INTERVALS
from tests.protocol.manual_network import TIMING, ManualNetwork, make_block

RESEND_NS = TIMING.resend_ns


@pytest.fixture
def network():
    network = ManualNetwork()
    network.start()
    return network


def waits(effects):
    return [effect.delay_ns for effect in effects if isinstance(effect, SetTimer) and effect.timer is Timer.RESEND]


def say_again(network, node, count):
    """Lets the timer fire so many times, and returns what it is set to, in intervals."""
    return [waits(network.fire(node, Timer.RESEND))[-1] // RESEND_NS for _ in range(count)]


def update_of(network, node):
    """The message with the node's update, and the digest of its model."""
    message = next(effect.message for effect in network.train(node) if isinstance(effect, Send))
    return message, message.content.updates[0].update.model


def asked(effects, blob):
    return [effect.holder for effect in effects if isinstance(effect, FetchBlob) and effect.blob == blob]


def test_everything_is_said_more_and_more_seldom_until_the_next_height(network):
    node = network.nodes[0]
    assert say_again(network, node, 7) == [4, 8, 16, 32, 64, 64, 64]  # it was said at the start
    assert 2**MAX_DOUBLINGS == 64
    network.play_round()
    assert node.state.chain.height == 1
    assert waits(node.effects)[-1] == RESEND_NS
    assert say_again(network, node, 2) == [2, 4]


def test_lost_messages_cost_at_most_as_long_again_as_the_loss_lasts(network):
    node, elapsed = network.nodes[0], 2  # intervals, until the first repetition
    for wait in say_again(network, node, 10):
        assert wait <= min(elapsed + 2, 64)
        elapsed += wait


def test_a_new_attempt_begins_with_the_shortest_wait(network):
    node = network.nodes[0]
    say_again(network, node, 5)
    assert waits(node.give(TimerFired(Timer.ATTEMPT, 1, 1))) == [RESEND_NS]
    assert node.state.attempt == 2
    assert say_again(network, node, 2) == [2, 4]


def test_news_hasten_what_is_said_again_and_what_is_known_does_not(network):
    node = network.nodes[0]
    say_again(network, node, 6)
    message, blob = update_of(network, network.nodes[1])
    assert waits(node.hear(message)) == [NEWS_INTERVALS * RESEND_NS]
    assert waits(node.hear(message)) == []
    say_again(network, node, 1)
    assert waits(node.receive_blob(network.blobs[blob])) == [NEWS_INTERVALS * RESEND_NS]
    assert waits(node.receive_blob(network.blobs[blob])) == []


def test_a_refused_message_is_no_news(network):
    node = network.nodes[0]
    say_again(network, node, 6)
    assert waits(node.receive_blob(b"of no model")) == []


def test_who_appears_is_told_soon_and_nothing_is_put_off(network):
    node = network.nodes[0]
    say_again(network, node, 3)
    assert node.give(PeersAppeared()) == [SetTimer(Timer.RESEND, 1, 1, RESEND_NS // NEWCOMER_SHARE)]
    assert node.give(PeersAppeared(), RESEND_NS // 16) == []


@pytest.mark.parametrize("flaps", [1, 3, 100])
def test_presence_that_comes_and_goes_adds_at_most_one_repetition_in_an_interval(network, flaps):
    """Whoever relays can say that an absent member is there, as often as it likes."""
    node, said_ns, now_ns = network.nodes[0], [], 0
    say_again(network, node, 6)  # the next one is 64 intervals away
    due_ns = node.state.resend_at_ns
    while now_ns < 20 * RESEND_NS:
        effects = node.give(PeersAppeared(), now_ns)
        due_ns = min([due_ns, *(now_ns + wait_ns for wait_ns in waits(effects))])
        now_ns += RESEND_NS // flaps
        if due_ns <= now_ns:
            said_ns.append(due_ns)
            due_ns += waits(node.give(TimerFired(Timer.RESEND, 1, 1), due_ns))[-1]
    assert said_ns[0] == RESEND_NS // NEWCOMER_SHARE
    assert len(said_ns) >= 20
    assert min(later - earlier for earlier, later in pairwise(said_ns)) >= RESEND_NS


def test_a_node_that_is_done_says_nothing_to_newcomers():
    network = ManualNetwork(last_height=1)
    network.start()
    network.play_round()
    assert network.nodes[0].give(PeersAppeared()) == []


def test_a_wanted_model_is_asked_once_of_everybody_who_tells_of_it(network):
    node = network.nodes[0]
    message, blob = update_of(network, network.nodes[1])
    said = Gossip(1, updates=message.content.updates)
    told = [node.hear(message), *(node.hear(network.nodes[other].message(said)) for other in (2, 3, 2))]
    assert [asked(effects, blob) for effects in told] == [[1], [2], [3], []]
    node.receive_blob(network.blobs[blob], 2)
    assert asked(node.hear(network.nodes[3].message(said)), blob) == []


def test_a_block_tells_of_the_models_that_it_rests_on(network):
    node, others = network.nodes[0], network.nodes[1:]
    node.give(Started())
    for other in network.nodes:
        network.deliver(other, [*network.train(other), *network.measure(other)], to=others)
    block = make_block(others[0])
    models = [signed.update.model for signed in block.body.updates if signed.update.client != node.number]
    told = node.hear(others[0].message(Proposal(block)))
    assert [asked(told, blob) for blob in models] == [[1]] * 3
    told = node.hear(others[1].message(Proposal(block)))
    assert [asked(told, blob) for blob in models] == [[2]] * 3
