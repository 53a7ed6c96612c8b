"""A node and its store: whatever is kept comes back, and nothing else is needed to begin again."""

import pytest

from bdfl.ledger.block import Kind
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import MemoryStore
from bdfl.protocol.events import Commit, Store, Timer
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.scenario import ServerOptimizer
from bdfl.transports.interfaces import keep, recover
from tests.protocol.manual_network import ManualNetwork, make_block, replace_sender, vote


@pytest.fixture(params=["memory", "files"])
def make_store(request, tmp_path):
    def make(network):
        if request.param == "memory":
            return MemoryStore(network.genesis, network.initial)
        return ChainStore.create(tmp_path / "chain", network.genesis, network.initial, durable=False)

    return make


def keep_all(store, effects):
    for effect in effects:
        match effect:
            case Store(kept):
                keep(store, kept)
            case Commit(block, certificate):
                store.append(block, certificate)


def played(network, num_rounds):
    """Node 0 after some rounds and in the middle of the next: trained, reported, locked, and in its second attempt."""
    network.start()
    for _ in range(num_rounds):
        network.play_round(winner=1)
    node = network.nodes[0]
    network.collect()
    block = make_block(network.nodes[1])
    node.hear(network.nodes[1].message(Proposal(block)))
    for kind, attempt, number in ((Kind.PREVOTE, 1, 1), (Kind.PREVOTE, 1, 2), (Kind.PREVOTE, 2, 3)):
        signed = vote(node, kind, attempt, block.digest, number=number)
        node.hear(replace_sender(node.message(Gossip(1, votes=(signed,))), number))
    network.fire(node, Timer.ATTEMPT)
    return node


@pytest.mark.parametrize("server", list(ServerOptimizer))
@pytest.mark.parametrize("num_rounds", [0, 2])
def test_a_node_begins_again_with_its_statements_votes_lock_attempt_blocks_models_and_certificate(
    make_store, num_rounds, server
):
    network = ManualNetwork(server=server)
    node = played(network, num_rounds)
    store = make_store(network)
    keep_all(store, node.effects)
    found, known = recover(node.context, store), node.state
    assert found.chain.tip == known.chain.tip
    assert found.chain.height == num_rounds
    assert found.updates == known.updates  # those of others stand in the block
    assert found.reports == {0: known.reports[0]}
    assert (found.attempt, found.lock, found.phase) == (known.attempt, known.lock, known.phase)
    assert known.attempt == 2
    assert known.lock is not None
    assert found.own_votes == known.own_votes
    assert set(found.candidates) == set(known.candidates)
    assert set(found.blobs) == {signed.update.model for signed in known.updates.values()}
    assert all(found.blobs[name] == network.blobs[name] for name in found.blobs)
    assert {vote.vote.block for vote in found.precommits.values()} == ({known.chain.tip} if num_rounds else set())
    assert not found.lacks_model
    assert found.model == known.model
    assert (found.model == b"") == (server is ServerOptimizer.NONE)
    if isinstance(store, ChainStore):
        store.close()


def test_a_node_that_has_spoken_and_heard_nobody_begins_again_with_its_own_update_report_and_model(make_store):
    network = ManualNetwork()
    network.start()
    node = network.nodes[0]
    network.train(node)
    network.measure(node)
    store = make_store(network)
    keep_all(store, node.effects)
    found = recover(node.context, store)
    assert found.updates == node.state.updates
    assert found.reports == dict(node.state.reports)
    assert found.blobs == node.state.blobs
    assert (found.attempt, found.lock, found.own_votes) == (1, None, {})
    if isinstance(store, ChainStore):
        store.close()


def test_a_node_whose_store_has_no_model_of_its_tip_knows_that_it_lacks_it():
    network = ManualNetwork()
    node = played(network, 1)
    store = MemoryStore(network.genesis, network.initial)
    commit = next(effect for effect in node.effects if isinstance(effect, Commit))
    store.append(commit.block, commit.certificate, is_trusted=True)
    assert recover(node.context, store).lacks_model
