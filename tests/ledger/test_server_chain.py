"""Chains with a server-side optimizer: every model is the step from its parent's, and nothing else is valid."""

import itertools

import pytest
from hypothesis import given, strategies as st

from bdfl.aggregation import Update, aggregate, get_aggregator
from bdfl.encoding import digest
from bdfl.learning.weights import decode_weights, encode_weights
from bdfl.ledger.block import Law
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import start_chain
from bdfl.ledger.chain_params import blob_limit, weights_file
from bdfl.ledger.errors import MissingBlob, WrongModel
from bdfl.ledger.rules import make_body, validate_model
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on
from bdfl.ledger.verify import ModelCheck, verify_chain
from bdfl.scenario.schema_learning import Aggregation, QuorumRule, WorkKind
from bdfl.server_optimizer import encode_state, first_state, take_step
from benchmarks.ledger.valid_chain import SMALL, example_weights
from tests.ledger.broken_blocks import flip
from tests.ledger.lying import INITIAL, new_maker, replaced, store_unasked
from tests.vectors.make_vectors import ADAM, MOMENTUM, make_chain

TEXTS = [MOMENTUM, f"median {ADAM}"]
NUM_BLOCKS = 4


def law_with(aggregation):
    return Law(QuorumRule.BFT, WorkKind.SHA256, 4, 0, aggregation, 0, 1, 3600 * 10**9)


def grown(aggregation, num_blocks=NUM_BLOCKS):
    maker = new_maker(law=law_with(aggregation))
    maker.grow(num_blocks)
    return maker


MAKERS = {text: grown(text) for text in TEXTS}


def next_block(maker):
    """The next block of a chain, its blobs, the bytes of its model, and its updates; nothing is committed."""
    state = maker.state
    updates = [maker.sign_update(client, example_weights(90 + client)) for client in state.schedule.selected]
    block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)])
    wanted = [state.model, *(signed.update.model for signed in updates)]
    blobs = {blob: maker.store.get_blob(blob) for blob in wanted}
    return block, blobs, maker.store.get_blob(block.body.model), updates


@pytest.mark.parametrize("text", TEXTS)
def test_every_model_is_the_step_from_its_parents_towards_the_aggregate(text):
    store, server = MAKERS[text].store, MAKERS[text].state.params.server
    rule = get_aggregator(Aggregation(rule=text.split(" ")[0]))
    state = first_state(server, decode_weights(INITIAL, SMALL))
    for block in store.blocks():
        updates = [
            Update(one.client, decode_weights(store.get_blob(one.model), SMALL), one.samples)
            for one in block.body.aggregated
        ]
        state = take_step(server, state, aggregate(rule, updates))
        data = store.get_blob(block.body.model)
        assert data == encode_state(state, SMALL)
        assert len(data) == blob_limit(store.genesis)
        assert weights_file(store.genesis, data) == encode_weights(state[0], SMALL)
        assert {signed.update.size for signed in block.body.updates} == {len(INITIAL)}


@pytest.mark.parametrize("text", TEXTS)
def test_the_order_of_arrival_does_not_change_a_byte_of_the_block(text):
    maker = MAKERS[text]
    _, blobs, model, updates = next_block(maker)
    bodies = set()
    for order in itertools.permutations(updates):
        body, made = make_body(
            maker.state,
            certificate=maker.certificate,
            updates=order,
            reports=[],
            entries=[],
            blobs=blobs,
            cache=VerificationCache(max_entries=0),
        )
        bodies.add((digest(made), body))
    assert len(bodies) == 1
    assert bodies.pop()[0] == digest(model)


@given(text=st.sampled_from(TEXTS), share=st.floats(0, 1, exclude_max=True))
def test_a_model_or_a_moment_that_differs_in_one_bit_is_refused(text, share):
    maker = MAKERS[text]
    block, blobs, model, _ = next_block(maker)
    assert validate_model(maker.state, block, blobs, maker.cache) == model
    wrong = flip(model, int(share * 8 * len(model)))
    changed = replaced(block, body=replaced(block.body, model=digest(wrong)))
    with pytest.raises(WrongModel, match="model-aggregate"):
        validate_model(maker.state, changed, blobs, maker.cache)


@pytest.mark.parametrize("text", TEXTS)
def test_a_model_cannot_be_checked_without_its_parent_nor_with_bytes_that_are_none(text):
    maker = MAKERS[text]
    block, blobs, _, _ = next_block(maker)
    parent = blobs.pop(maker.state.model)
    with pytest.raises(MissingBlob) as refusal:
        validate_model(maker.state, block, blobs, maker.cache)
    assert refusal.value.digest == maker.state.model
    for bad in (b"", parent[:-1], parent + parent, parent[:-4] + b"\x00\x00\xc0\x7f"):
        with pytest.raises(WrongModel, match="model-parent"):
            validate_model(maker.state, block, blobs | {maker.state.model: bad}, maker.cache)


@pytest.mark.parametrize("text", TEXTS)
def test_an_empty_block_keeps_the_model_and_its_moments(text):
    chain = make_chain(text).store
    empty = [block for block in chain.blocks() if block.body.is_empty]
    assert len(empty) == 2
    for block in empty:
        before = chain.block(block.header.height - 1)
        assert block.body.model == before.body.model
    assert verify_chain(chain).is_valid


@pytest.mark.parametrize("text", TEXTS)
def test_a_chain_is_recomputed_and_a_pruned_one_from_its_checkpoint_on(tmp_path, text):
    maker = grown(text)
    with ChainStore.create(tmp_path / "chain", maker.store.genesis, INITIAL, durable=False) as store:
        for block in maker.store.blocks():
            for use in rested_on(block):
                store.put_blob(use.blob, maker.store.get_blob(use.blob))
            store.append(block, maker.store.certificate(block.header.height))
        found = verify_chain(store)
        assert found.is_valid, found.failure
        assert found.count_models(ModelCheck.RECOMPUTED) == NUM_BLOCKS
        assert found.num_bytes == NUM_BLOCKS * 4 * len(INITIAL)
        store.prune(2)
    with ChainStore.open(tmp_path / "chain", read_only=True) as store:
        found = verify_chain(store)
        assert found.is_valid, found.failure
        assert found.count_models(ModelCheck.RECOMPUTED) == 2
        parent = store.block(NUM_BLOCKS - 2).body.model
        (tmp_path / "chain" / "blobs" / parent.hex()[:2] / parent.hex()).unlink()
        assert verify_chain(store).failure.block == NUM_BLOCKS - 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_model_with_a_moment_that_is_no_number_is_refused_though_everybody_voted_for_it(text):
    maker = new_maker(law=law_with(text))
    maker.grow(1)
    block, _, model, _ = next_block(maker)
    nonsense = model[:-4] + b"\x00\x00\xc0\x7f"
    maker.store.put_blob(digest(nonsense), nonsense)
    changed = maker.make_block(
        list(block.body.updates),
        list(block.body.reports),
        change=lambda body: replaced(body, model=digest(nonsense)),
    )
    store_unasked(maker, changed)
    failure = verify_chain(maker.store).failure
    assert (failure.block, failure.rule) == (2, "model-aggregate")


def test_a_chain_without_an_optimizer_has_no_larger_blobs():
    maker = new_maker()
    assert maker.state.params.server is None
    assert blob_limit(maker.store.genesis) == len(INITIAL)
    assert start_chain(MAKERS[MOMENTUM].store.genesis, VerificationCache()).params.aggregation.rule == "mean"
