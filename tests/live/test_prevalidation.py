"""A rehearsal leaves its work in the cache, changes nothing and signs nothing."""

from dataclasses import replace

from bdfl.identity import Signer
from bdfl.protocol.events import BlobArrived, MessageArrived, Started, Timer, TimerFired, TrainingFinished
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.protocol.node import step
from bdfl.transports.live import prevalidation
from bdfl.transports.live.prevalidation import Arrival, Prevalidator, is_costly
from tests.live.memory_network import MemoryNetwork, wait_until
from tests.protocol.manual_network import ManualNetwork, make_block, replace_sender


class _Forbidden(Signer):
    def __init__(self, public_key):
        self.public_key = public_key

    def sign(self, meaning, place, content):
        raise AssertionError("signed in a rehearsal")


def ready_to_propose():
    """A node that lacks nothing but a block, and the block that another node mined."""
    network = ManualNetwork()
    network.start()
    network.collect()
    return network, network.nodes[0], make_block(network.nodes[1])


def test_a_step_changes_nothing_of_the_state_it_is_given():
    _, node, block = ready_to_propose()
    before = node.state
    names = [name for name in before.__dataclass_fields__ if name != "chain"]
    copies = {name: getattr(before, name) for name in names}
    maps = {name: dict(value) for name, value in copies.items() if isinstance(value, dict)}
    message = network_message(node, 1, Proposal(block))
    first = step(node.context, before, MessageArrived(message), 5, 0)
    again = step(node.context, before, MessageArrived(message), 5, 0)
    assert first[1] == again[1]
    assert first[1]
    for name, value in copies.items():
        assert getattr(before, name) is value
        assert name not in maps or dict(value) == maps[name]


def network_message(node, sender, content):
    return replace_sender(node.message(content), sender)


def test_what_was_rehearsed_costs_nothing_any_more():
    _, node, block = ready_to_propose()
    arrival = Arrival(MessageArrived(network_message(node, 1, Proposal(block))), 1, 16)
    given = []
    context = replace(node.context, signer=_Forbidden(node.context.signer.public_key))
    rehearsals = Prevalidator(
        context, 1, find_state=lambda: node.state, clock=lambda: 0, wall_clock=lambda: 1, give=given.append
    )
    assert rehearsals.is_worth_it(arrival)
    rehearsals.start()
    rehearsals.put(arrival)
    wait_until(lambda: given)
    rehearsals.end()
    [rehearsed] = given
    assert rehearsed.event is arrival.event
    assert not rehearsals.is_worth_it(rehearsed)
    asked = []
    node.context.cache._worked.put = lambda key, value: asked.append(key) or value
    node.give(arrival.event)
    assert asked == []
    assert node.state.candidates[block.digest].is_valid


def test_only_what_takes_long_is_rehearsed(tmp_path):
    network, node, block = ready_to_propose()
    assert is_costly(node.state, MessageArrived(network_message(node, 1, Proposal(block))))
    assert not is_costly(node.state, Started())
    assert not is_costly(node.state, TimerFired(Timer.DEADLINE, 1, 1))
    assert not is_costly(node.state, BlobArrived(1, b"x" * 100))
    assert not is_costly(node.state, MessageArrived(network_message(node, 1, Gossip(1))))
    updates = tuple(network.nodes[1].state.updates.values())
    fresh = network.node(0)
    assert is_costly(fresh.state, MessageArrived(network_message(fresh, 1, Gossip(1, updates=updates))))
    assert not is_costly(node.state, MessageArrived(network_message(node, 1, Gossip(1, updates=updates))))
    large = MemoryNetwork(tmp_path, num_parameters=100_000).thread(0)
    assert is_costly(large.node.state, TrainingFinished(1, large.node.state.chain.tip, b"m"))
    assert is_costly(large.node.state, TimerFired(Timer.DEADLINE, 1, 1))
    assert is_costly(large.node.state, BlobArrived(1, bytes(large.node.state.chain.genesis.model.size)))
    large.work.close()


def test_an_event_is_rehearsed_again_only_if_much_has_changed():
    network, node, block = ready_to_propose()
    given = []
    rehearsals = Prevalidator(
        node.context, 1, find_state=lambda: node.state, clock=lambda: 0, wall_clock=lambda: 1, give=given.append
    )
    rehearsals.start()
    rehearsals.put(Arrival(MessageArrived(network_message(node, 1, Proposal(block))), 1))
    wait_until(lambda: given)
    assert not rehearsals.is_worth_it(given[0])
    node.hear(network_message(node, 2, Proposal(make_block(network.nodes[2]))))
    assert rehearsals.is_worth_it(given[0])
    assert not rehearsals.is_worth_it(replace(given[0], num_rehearsals=3))
    rehearsals.end()


class _Panic(BaseException):
    """As native code panics."""


def test_whatever_a_rehearsal_raises_the_event_goes_on_to_the_node(monkeypatch):
    def panic(*arguments):
        raise _Panic

    monkeypatch.setattr(prevalidation, "step", panic)
    _, node, block = ready_to_propose()
    arrival = Arrival(MessageArrived(network_message(node, 1, Proposal(block))), 1)
    given = []
    rehearsals = Prevalidator(
        node.context, 1, find_state=lambda: node.state, clock=lambda: 0, wall_clock=lambda: 1, give=given.append
    )
    rehearsals.start()
    rehearsals.put(arrival)
    rehearsals.put(arrival)
    wait_until(lambda: len(given) == 2)
    rehearsals.end()
