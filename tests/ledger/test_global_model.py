"""The global model: every node's own aggregate, bit for bit, of updates that are models."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import digest
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.errors import BadUpdate, InvalidUpdate, MissingBlob, WrongModel
from bdfl.ledger.rules import aggregated_updates, required_blobs, validate_model, validate_proposal
from bdfl.ledger.statements import validate_update, validate_update_blob
from bdfl.scenario.schema_learning import Aggregation, Learning
from tests.ledger.broken_blocks import GOOD, SMALL, SOMEBODY, STATE, flip, remade, with_updates
from tests.ledger.small_federation import found_federation, replace, small_scenario


@given(bit=st.integers(0, 8 * SMALL.genesis.model.size - 1))
def test_a_model_that_differs_in_one_bit_from_the_aggregate_is_refused(bit):
    blobs = SMALL.blobs(STATE)
    data = validate_model(STATE, GOOD, blobs, SMALL.cache)
    block = remade(model=digest(flip(data, bit)))
    validate_proposal(STATE, block, SMALL.cache)  # nothing else is wrong with it
    with pytest.raises(WrongModel) as refusal:
        validate_model(STATE, block, blobs, SMALL.cache)
    assert (refusal.value.rule, refusal.value.expected) == ("model-aggregate", digest(data))


def test_a_model_needs_the_bytes_of_all_aggregated_updates():
    needed = required_blobs(STATE, GOOD)
    assert needed == [signed.update.model for signed in GOOD.body.updates]
    blobs = {blob: data for blob, data in SMALL.blobs(STATE).items() if blob != needed[-1]}
    with pytest.raises(MissingBlob) as refusal:
        validate_model(STATE, GOOD, blobs, SMALL.cache)
    assert refusal.value.digest == needed[-1]


@pytest.mark.parametrize("cache", [SMALL.cache, VerificationCache(), VerificationCache(max_entries=0)])
def test_bytes_that_are_not_the_updates_are_refused_whatever_is_remembered(cache):
    blobs = dict(SMALL.blobs(STATE))
    blob = required_blobs(STATE, GOOD)[0]
    blobs[blob] = flip(blobs[blob], 600)
    with pytest.raises(InvalidUpdate, match="blob-digest"):
        validate_model(STATE, GOOD, blobs, cache)


def bad_blobs():
    good = SMALL.model(0, 1)
    payload = len(good) - 16
    return {
        "not a number": (good[:payload] + b"\x00\x00\xc0\x7f" * 4, "blob-model"),
        "infinite": (good[:payload] + b"\x00\x00\x80\x7f" * 4, "blob-model"),
        "another shape": (good.replace(b"[4]", b"[5]"), "blob-model"),
        "another type": (good.replace(b"F32", b"I32"), "blob-model"),
        "another name": (good.replace(b'"w"', b'"v"'), "blob-model"),
        "no safetensors": (bytes(len(good)), "blob-model"),
        "too short": (good[:-4], "blob-size"),
        "too long": (good + bytes(4), "blob-size"),
        "nothing": (b"", "blob-size"),
    }


@pytest.mark.parametrize("what", bad_blobs())
def test_a_blob_that_is_no_model_is_refused(what):
    data, rule = bad_blobs()[what]
    update = ModelUpdate(SOMEBODY, 300, SMALL.genesis.model.size, digest(data), 0)
    with pytest.raises(InvalidUpdate) as refusal:
        validate_update_blob(STATE, update, data, SMALL.cache)
    assert refusal.value.rule == rule


def test_a_blob_must_be_the_one_that_was_signed():
    update = SMALL.update(STATE, SOMEBODY).update
    validate_update_blob(STATE, update, SMALL.model(SOMEBODY, STATE.height + 1), SMALL.cache)
    with pytest.raises(InvalidUpdate, match="blob-digest"):
        validate_update_blob(STATE, update, SMALL.model(SOMEBODY, STATE.height), SMALL.cache)


def test_too_few_updates_make_an_empty_block_that_keeps_the_model():
    robust = Learning(aggregation=Aggregation(rule="median", faulty=1))
    small = found_federation(small_scenario(5, "all", learning=robust))
    state = small.start()
    assert small.genesis.law.min_updates == 3
    for left_out, is_empty in (((0, 1, 2), True), ((0, 1), False)):
        body = small.body(state, updates=small.updates(state, without=left_out))
        assert (body.is_empty, body.model == state.model) == (is_empty, is_empty)
        block = small.block(state, body)
        validate_proposal(state, block, small.cache)
        assert (required_blobs(state, block) == []) == is_empty
        assert (validate_model(state, block, small.blobs(state), small.cache) == b"") == is_empty


def test_a_declined_update_is_in_the_block_and_not_in_the_model():
    updates = [SMALL.declined(STATE, SOMEBODY), *SMALL.updates(STATE, without=[SOMEBODY])]
    block = with_updates(updates)
    validate_proposal(STATE, block, SMALL.cache)
    assert SOMEBODY not in {update.client for update in aggregated_updates(block.body.updates)}
    lying = SMALL.sign_update(STATE, ModelUpdate(SOMEBODY, 300, 1, b"", 0))
    with pytest.raises(BadUpdate, match="update-size"):
        validate_update(STATE, lying, SMALL.cache)


def test_a_client_without_data_takes_part_with_the_parents_model_and_changes_nothing():
    small = found_federation(small_scenario(4, "all"), samples=[0, 300, 300, 300])
    state = small.start()
    assert 0 in state.schedule.selected
    update = ModelUpdate(0, 0, small.genesis.model.size, state.model, 0)
    rest = small.updates(state, without=[0])
    body = small.body(state, updates=[small.sign_update(state, update), *rest])
    block = small.block(state, body)
    validate_proposal(state, block, small.cache)
    assert body.queue_nano[0] == 0
    assert body.model == small.body(state, updates=rest).model
    assert state.model not in required_blobs(state, block)
    other = replace(update, model=digest(small.model(0, 1)))
    with pytest.raises(BadUpdate, match="update-without-data"):
        validate_update(state, small.sign_update(state, other), small.cache)


def test_updates_of_offenders_do_not_count():
    state = dataclasses.replace(STATE, offenders=frozenset([SOMEBODY]))
    with pytest.raises(BadUpdate, match="update-offender"):
        validate_update(state, SMALL.update(STATE, SOMEBODY), SMALL.cache)
