"""Who is in a model: by weight in its aggregate, and since when."""

import numpy as np
import pytest

from bdfl.aggregation import Update, get_aggregator
from bdfl.audit.lineage import NotOnChain, trace_model, update_weights
from bdfl.ledger.store import MemoryStore
from bdfl.scenario import Aggregation
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis, example_weights
from tests.ledger.lying import INITIAL, SIGNERS, new_maker, replaced
from tests.vectors.make_vectors import make_chain


def test_weights_of_the_mean_are_the_shares_of_samples():
    maker = new_maker()
    maker.grow(3)
    trace = trace_model(maker.store, 3)
    assert [row.weight for row in trace.contributions] == [0.1, 0.2, 0.3, 0.4]
    assert {(row.since, row.last, row.num_blocks) for row in trace.contributions} == {(1, 3, 3)}
    assert trace.made_in == trace.block == 3
    assert trace.model == maker.state.model.hex()


def test_an_empty_block_has_the_model_of_an_earlier_one_and_nobody_without_data_is_in_it():
    chain = make_chain().store
    trace = trace_model(chain, 4)
    assert (trace.block, trace.made_in) == (4, 3)
    found = [(row.since, row.last, row.num_blocks) for row in trace.contributions]
    assert found == [(1, 3, 3), (1, 3, 2), (None, None, 0), (1, 1, 1)]
    assert [row.weight for row in trace.contributions] == [pytest.approx(1 / 3), pytest.approx(2 / 3), None, None]
    assert trace_model(chain, 2).contributions[1].weight is None  # it had nothing to give
    assert trace_model(chain, 2).contributions[1].since == 1


def test_a_model_that_nobody_trained_was_made_in_block_0():
    maker = new_maker()
    maker.commit(maker.make_block([], [maker.sign_report(client) for client in range(4)]))
    trace = trace_model(maker.store, 1)
    assert trace.made_in == 0
    assert all(row.since is None and row.weight is None for row in trace.contributions)


def test_a_pruned_chain_can_be_traced():
    maker = new_maker()
    maker.grow(4)
    before = trace_model(maker.store, 2)
    maker.store.prune(1)
    assert trace_model(maker.store, 2) == before


def test_a_block_that_is_not_there_is_named():
    maker = new_maker()
    with pytest.raises(NotOnChain, match="block 1: not on the chain, none is there yet"):
        trace_model(maker.store, 1)
    maker.grow(2)
    with pytest.raises(NotOnChain, match="block 3: not on the chain, 1 to 2 expected"):
        trace_model(maker.store, 3)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed-mean", "krum", "multi-krum", "minimum-diameter"])
def test_weights_are_those_with_which_updates_enter_the_aggregate(rule):
    random = np.random.default_rng(0)
    updates = [
        Update(client, random.standard_normal(2000).astype(np.float32), int(random.integers(1, 100)))
        for client in range(7)
    ]
    choice = Aggregation(rule=rule, faulty=0 if rule == "mean" else 2)
    weights = update_weights(choice, updates)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()
    vectors, samples = [one.weights for one in updates], [one.samples for one in updates]
    result = get_aggregator(choice)(vectors, samples)
    if rule not in ("median", "trimmed-mean"):  # the same weights in every coordinate
        assert np.allclose(weights @ np.array(vectors), result, atol=1e-6)
    else:  # a coordinate's weight goes to who has the rank: count it by hand
        ranks = np.argsort(np.argsort(np.array(vectors), axis=0), axis=0)
        taken = ranks == 3 if rule == "median" else (ranks >= 2) & (ranks <= 4)
        assert np.allclose(weights, taken.sum(axis=1) / taken.sum())


def test_the_weights_of_somebodys_own_rule_are_not_known():
    updates = [Update(0, np.ones(3, np.float32), 1)]
    assert update_weights(Aggregation(rule="my_rules:first"), updates) is None


def test_a_chain_with_a_robust_rule_is_traced_from_its_stored_updates():
    genesis = example_genesis(INITIAL)
    law = replaced(genesis.law, aggregation="krum", min_updates=3)
    maker = ChainMaker(MemoryStore(replaced(genesis, law=law), INITIAL), SIGNERS)
    maker.grow(1, lambda client, round: example_weights(0) * np.float32(1 + 0.001 * client**3))
    weights = [row.weight for row in trace_model(maker.store, 1).contributions]
    assert weights == [1.0, 0.0, 0.0, 0.0] or weights == [0.0, 1.0, 0.0, 0.0]
    maker.grow(1)
    maker.store.prune(1)
    with pytest.raises(NotOnChain, match=r"the update of client \d in block 1: .* pruned, blocks 2 to 2"):
        trace_model(maker.store, 1)
