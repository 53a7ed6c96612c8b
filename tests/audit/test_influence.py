"""A model without a client: exactly what re-aggregation from stored updates gives, no more."""

import numpy as np
import pytest

from bdfl.aggregation import aggregate
from bdfl.audit.influence import leave_out
from bdfl.audit.lineage import NotOnChain, aggregate_without, aggregator_of, read_model, read_updates
from bdfl.server_optimizer import decode_state, take_step
from benchmarks.ledger.valid_chain import SMALL, example_genesis
from tests.ledger.lying import INITIAL, new_maker, replaced
from tests.ledger.test_server_chain import NUM_BLOCKS, TEXTS, grown
from tests.vectors.make_vectors import ADAM, make_chain


def again(chain, height, client):
    block = chain.block(height)
    return aggregate_without(chain, block, read_updates(chain, block), client)


def test_of_one_block_it_is_that_blocks_aggregate_of_the_others_bit_for_bit():
    maker = new_maker()
    maker.grow(3)
    found = leave_out(maker.store, 2, block=3, since=3)
    assert found.weights.tobytes() == again(maker.store, 3, 2).tobytes()
    assert found.changed_in == (3,)
    assert found.distance == pytest.approx(np.linalg.norm(found.weights - read_model(maker.store, 3)))


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_server_optimizer_it_is_the_other_step_from_the_same_parent(text):
    maker = grown(text)
    chain, server = maker.store, maker.state.params.server
    assert [again(chain, height, 9).tobytes() for height in (1, 2, 3)] == [  # nobody is left out
        read_model(chain, height).tobytes() for height in (1, 2, 3)
    ]
    others = [update for update in read_updates(chain, chain.block(3)) if update.client != 2]
    before = decode_state(server, chain.get_blob(chain.block(2).body.model), SMALL)
    expected = take_step(server, before, aggregate(aggregator_of(chain.genesis), others))[0]
    found = leave_out(chain, 2, block=3, since=3)
    assert found.weights.tobytes() == expected.tobytes()
    assert found.distance > 0


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_server_optimizer_a_checkpoint_is_parent_enough(text):
    maker = grown(text)
    whole = leave_out(maker.store, 2, since=NUM_BLOCKS)
    maker.store.prune(1)
    assert leave_out(maker.store, 2, since=NUM_BLOCKS).weights.tobytes() == whole.weights.tobytes()


def test_over_several_blocks_the_changes_of_each_add_up():
    maker = new_maker()
    maker.grow(3)
    found = leave_out(maker.store, 1)
    expected = read_model(maker.store, 3).astype(np.float64)
    for height in (1, 2, 3):
        expected += again(maker.store, height, 1).astype(np.float64) - read_model(maker.store, height)
    assert np.allclose(found.weights, expected, atol=1e-6)
    assert found.changed_in == (1, 2, 3)
    assert found.block == 3


def test_a_client_that_gave_nothing_changes_nothing():
    chain = make_chain().store
    found = leave_out(chain, 2)  # holds no data
    assert found.weights.tobytes() == read_model(chain, chain.height).tobytes()
    assert (found.changed_in, found.distance) == ((), 0.0)


def test_a_block_left_without_enough_updates_counts_as_empty():
    chain = make_chain().store
    found = leave_out(chain, 0, block=2, since=2)  # its update is the only one of block 2
    assert found.weights.tobytes() == read_model(chain, 1).tobytes()


def test_what_cannot_be_asked_is_named():
    maker = new_maker()
    maker.grow(3)
    with pytest.raises(NotOnChain, match="client 4: no member of the chain, 0 to 3 expected"):
        leave_out(maker.store, 4)
    with pytest.raises(NotOnChain, match="blocks 3 to 2: none"):
        leave_out(maker.store, 1, block=2, since=3)
    maker.store.prune(1)
    assert leave_out(maker.store, 1, since=3).changed_in == (3,)
    with pytest.raises(NotOnChain, match=r"in block 1: its bytes .* pruned, blocks 3 to 3 have theirs"):
        leave_out(maker.store, 1)


def test_somebodys_own_rule_of_a_foreign_chain_does_not_run_unasked(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text("def first(updates, samples):\n    return updates[0]\n")
    monkeypatch.chdir(tmp_path)
    genesis = example_genesis(INITIAL)
    foreign = replaced(genesis, law=replaced(genesis.law, aggregation="my_rules:first"))
    with pytest.raises(NotOnChain, match="runs only if it is allowed to"):
        aggregator_of(foreign)
    assert aggregator_of(foreign, frozenset({"my_rules:first"}))
    stepped = replaced(genesis, law=replaced(genesis.law, aggregation=f"my_rules:first {ADAM}"))
    with pytest.raises(NotOnChain, match="runs only if it is allowed to"):
        aggregator_of(stepped)
