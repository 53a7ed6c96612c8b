"""Networks that keep the updates of their newest blocks only bring back who was away, and take in who is new."""

from dataclasses import replace
from functools import partial

import pytest

from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.verify import ModelCheck, verify_chain
from bdfl.protocol.events import BlobArrived
from bdfl.protocol.state import Timing
from bdfl.scenario.schema_learning import QuorumRule, ServerOptimizer
from bdfl.transports.simulated import Ending, Network
from campaigns.faults.plan import SECOND_NS, Offer
from campaigns.faults.recorder import Recorder
from campaigns.faults.trial import GRACE_NS
from campaigns.faults.world import TinyCostModel
from tests.transports.calm_network import CALM
from tests.transports.many_networks import validate_noticed
from tests.transports.simulated_nodes import make_nodes

AWAY = 50  # blocks
KEEP = 5
FOREVER_NS = 10**6 * SECOND_NS
MAX_EVENTS = 200_000
AWAY_NODE = 3


class Watch(Recorder):
    """Counts the blobs that every node was given."""

    def __init__(self, num_nodes):
        super().__init__(num_nodes)
        self.num_blobs = [0] * num_nodes

    def stepped(self, now_ns, number, done):
        super().stepped(now_ns, number, done)
        self.num_blobs[number] += isinstance(done.event, BlobArrived)


def open_network(plan, keep_blocks=KEEP):
    cache = VerificationCache()
    world = TinyCostModel(plan, cache)
    timing = Timing(grace_ns=GRACE_NS, attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes = make_nodes(world.genesis, world.initial_model, world.signers, timing, cache=cache, keep_blocks=keep_blocks)
    watch = Watch(len(nodes))
    network = Network(nodes, world, observer=watch, check_encoding=True)
    for offer in plan.offers:
        for node in offer.nodes:
            network.at(offer.at_ns, partial(network.offer, node, world.make_change(offer)))
    return network, watch


def run_until(network, is_done):
    assert network.run(is_done, max_events=MAX_EVENTS) is Ending.DONE


def leave(network, height=2):
    """One node is away from that height on until the others have fifty blocks more."""
    nodes = network.nodes
    run_until(network, lambda: nodes[AWAY_NODE].height >= height)
    network.crash(AWAY_NODE, FOREVER_NS)
    left = nodes[AWAY_NODE].height
    run_until(network, lambda: nodes[0].height >= left + AWAY)
    return left


def come_back(network, number=AWAY_NODE, within=2):
    """The node starts again, and has all blocks that others have before they have two more."""
    nodes, before = network.nodes, network.nodes[0].height
    network._restart(nodes[number])
    run_until(network, lambda: nodes[number].height >= nodes[0].height)
    assert nodes[0].height <= before + within
    return before


def takes_part(watch, number, height):
    """Whether a node voted at a height, and was listened to."""
    return any(sent.height > height for sent in watch.nodes[number].votes)


@pytest.mark.parametrize("quorum", list(QuorumRule))
@pytest.mark.parametrize("keep_blocks", [1, KEEP])
def test_who_was_away_for_fifty_blocks_is_back_within_two_rounds(quorum, keep_blocks):
    network, watch = open_network(replace(CALM, quorum=quorum), keep_blocks)
    left = leave(network)
    num_blobs = watch.num_blobs[AWAY_NODE]
    tip = come_back(network)
    store = network.nodes[AWAY_NODE].store
    assert list(store.trusted) == list(range(left + 1, store.checkpoint + 1))
    assert store.checkpoint >= tip - keep_blocks
    assert watch.num_blobs[AWAY_NODE] - num_blobs <= 4 * (keep_blocks + 3)  # not those of fifty blocks
    run_until(network, lambda: network.nodes[0].height >= tip + 6)
    assert takes_part(watch, AWAY_NODE, tip)
    blocks = [network.nodes[0].store.block(height) for height in range(tip + 3, tip + 7)]
    assert any(AWAY_NODE in {signed.report.client for signed in block.body.reports} for block in blocks)
    found = verify_chain(store)
    assert found.is_valid, found.failure
    assert found.trusted == [height for height in store.trusted if not store.block(height).body.is_empty]
    assert found.blocks[-1].model is ModelCheck.RECOMPUTED


@pytest.mark.parametrize("server", [ServerOptimizer.MOMENTUM, ServerOptimizer.ADAM])
def test_with_a_server_optimizer_the_model_on_trust_brings_its_moments(server):
    network, watch = open_network(replace(CALM, server=server))
    leave(network)
    tip = come_back(network)
    run_until(network, lambda: network.nodes[0].height >= tip + 6)
    assert takes_part(watch, AWAY_NODE, tip)
    store = network.nodes[AWAY_NODE].store
    found = verify_chain(store)
    assert found.is_valid, found.failure
    assert store.trusted
    assert found.blocks[-1].model is ModelCheck.RECOMPUTED
    newest = store.get_blob(store.block(store.height).body.model)
    assert len(newest) == blob_limit(store.genesis) > store.genesis.model.size


def test_the_network_goes_on_though_the_next_one_fails():
    """Of four one was away for long; once it is back, another may go."""
    network, _ = open_network(CALM)
    leave(network)
    tip = come_back(network)
    network.crash(1, FOREVER_NS)
    run_until(network, lambda: network.nodes[AWAY_NODE].height >= tip + 5)


@pytest.mark.parametrize("quorum", list(QuorumRule))
def test_a_newcomer_joins_a_network_that_has_pruned(quorum):
    offer = Offer(at_ns=30 * SECOND_NS, nodes=(0,), member=4, expires=10_000)
    network, watch = open_network(replace(CALM, quorum=quorum, offers=(offer,)))
    nodes = network.nodes
    network.crash(4, FOREVER_NS)
    run_until(network, lambda: 4 in nodes[0].state.chain.active)
    assert nodes[0].store.checkpoint > AWAY // 2
    tip = come_back(network, 4)
    assert nodes[4].store.trusted[0] == 1
    run_until(network, lambda: takes_part(watch, 4, tip))
    found = verify_chain(nodes[4].store)
    assert found.is_valid, found.failure


def test_a_node_that_crashes_on_the_way_goes_on_from_where_it_was():
    """At any of its effects, many times; it never loses a block, and never believes more than once."""
    network, watch = open_network(CALM)
    leave(network)
    nodes, node = network.nodes, network.nodes[AWAY_NODE]
    network._restart(node)
    for num_effects in range(0, 60, 7):
        network.crash_later(AWAY_NODE, num_effects, SECOND_NS // 10)
        network.run(until_ns=network.now_ns + SECOND_NS // 4, max_events=MAX_EVENTS)
    node.effects_left = None
    run_until(network, lambda: node.is_up and node.height >= nodes[0].height)
    assert all(not (restart.lost_votes or restart.lost_blocks) for restart in watch.restarts)
    assert list(node.store.trusted) == sorted(set(node.store.trusted))
    assert verify_chain(node.store).is_valid


def test_a_removed_member_that_was_away_learns_of_its_end():
    offer = Offer(at_ns=3 * SECOND_NS, nodes=(0,), member=AWAY_NODE, expires=10_000)
    network, _ = open_network(replace(CALM, num_nodes=5, offers=(offer,)))
    node = network.nodes[AWAY_NODE]
    leave(network, height=1)
    network._restart(node)
    run_until(network, lambda: bool(node.state.end))
    assert "removed" in node.state.end


@pytest.mark.parametrize(("name", "first", "law"), [("never-trusts", 2, "progress"), ("trusts-early", 2, "trust")])
def test_the_laws_notice_who_waits_for_ever_and_who_believes_too_soon(name, first, law):
    validate_noticed(
        name, first, lambda breaches: law in {breach.law for breach in breaches}, lambda plan: plan.keep_blocks > 0
    )
