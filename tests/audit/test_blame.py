"""Who helped and who harmed: marginal effects are differences of losses, and find who sends nonsense."""

import numpy as np
import pytest

from bdfl.aggregation import get_aggregator
from bdfl.audit.influence import blame_clients
from bdfl.audit.lineage import NotOnChain, aggregate_without, read_model, read_updates, trace_model
from bdfl.learning.weights import Vector
from bdfl.scenario import Aggregation
from benchmarks.ledger.valid_chain import example_weights
from tests.ledger.lying import new_maker
from tests.ledger.test_server_chain import NUM_BLOCKS, TEXTS, grown
from tests.vectors.make_vectors import make_chain

GOAL = example_weights(5)


def loss_of(weights: Vector) -> float:
    """How far the model is from the goal."""
    return float(np.sum((weights.astype(np.float64) - GOAL) ** 2))


def weights_of(client: int, round: int) -> Vector:
    """All but client 2 come close to the goal."""
    return (GOAL * np.float32(-3.0) if client == 2 else GOAL + np.float32(0.01 * client)).astype(np.float32)


def test_an_effect_is_the_loss_without_an_update_minus_the_loss_with_it():
    maker = new_maker()
    maker.grow(2, weights_of)
    blame = blame_clients(maker.store, loss_of)
    assert [(effect.block, effect.client) for effect in blame.effects] == [(b, c) for b in (1, 2) for c in range(4)]
    block = maker.store.block(2)
    updates = read_updates(maker.store, block)
    without = [update for update in updates if update.client != 1]
    model = get_aggregator(Aggregation())([one.weights for one in without], [one.samples for one in without])
    effect = blame.effects[5]
    assert effect.loss == loss_of(read_model(maker.store, 2))
    assert effect.loss_without == loss_of(model)
    assert effect.effect == effect.loss_without - effect.loss


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_server_optimizer_models_are_judged_by_their_weights_alone(text):
    maker = grown(text)
    blame = blame_clients(maker.store, loss_of, first=NUM_BLOCKS)
    block = maker.store.block(NUM_BLOCKS)
    updates = read_updates(maker.store, block)
    for effect in blame.effects:
        assert effect.loss == loss_of(read_model(maker.store, NUM_BLOCKS))
        assert effect.loss_without == loss_of(aggregate_without(maker.store, block, updates, effect.client))
    trace = trace_model(maker.store, NUM_BLOCKS)
    assert (trace.rule, sum(one.weight for one in trace.contributions)) == (text, pytest.approx(1.0))


def test_who_sends_nonsense_comes_first_and_all_others_help():
    maker = new_maker()
    maker.grow(4, weights_of)
    judged = []
    blame = blame_clients(maker.store, loss_of, on_judged=lambda done, total: judged.append((done, total)))
    worst, *others = blame.verdicts
    assert (worst.client, worst.num_harmed, worst.num_blocks) == (2, 4, 4)
    assert worst.mean_effect < 0 < min(verdict.mean_effect for verdict in others)
    assert judged == [(done, 20) for done in range(1, 21)]


def test_without_its_only_update_a_block_would_have_kept_the_model_before():
    maker = new_maker()
    maker.grow(1)
    reports = [maker.sign_report(client) for client in range(4)]
    maker.commit(maker.make_block([maker.sign_update(3, GOAL)], reports))
    (effect,) = blame_clients(maker.store, loss_of, first=2).effects
    assert effect.loss == 0.0
    assert effect.loss_without == loss_of(read_model(maker.store, 1))


def test_only_the_blocks_asked_for_are_judged_and_empty_ones_say_nothing():
    chain = make_chain().store
    assert {effect.block for effect in blame_clients(chain, loss_of).effects} == {1, 2, 3, 6, 7, 8}
    blame = blame_clients(chain, loss_of, first=2, last=2)
    assert {effect.client for effect in blame.effects} == {0}
    assert [verdict.client for verdict in blame.verdicts] == [0, 1, 2, 3]  # those without updates come last
    with pytest.raises(NotOnChain, match="blocks 3 to 2: none"):
        blame_clients(chain, loss_of, first=3, last=2)
    with pytest.raises(NotOnChain, match="block 9"):
        blame_clients(chain, loss_of, last=9)
