"""Shared work: done once, never mistaken, never more remembered than allowed."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl import encoding, identity
from bdfl.encoding import digest
from bdfl.identity import Meaning, statement_digest
from bdfl.learning.weights import encode_weights
from bdfl.ledger import proof_of_work
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.cache import LruCache, VerificationCache
from bdfl.ledger.errors import InvalidUpdate, MissingBlob
from bdfl.ledger.schedule import Prospect, plan_round
from bdfl.scenario.schema_learning import Aggregation, WorkKind
from bdfl.scheduling.problem import infeasible_decision
from tests.ledger.small_federation import LAYOUT, found_federation

SMALL = found_federation()
STATE = SMALL.start()
BOXES = [
    VerificationCache(max_entries=0),
    VerificationCache(max_entries=1),
    VerificationCache(max_bytes=0),
    VerificationCache(),
]


def counting(monkeypatch, module, name):
    """Replaces a function by one that also notes its calls."""
    calls = []
    original = getattr(module, name)

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_a_signature_is_checked_once(monkeypatch):
    calls = counting(monkeypatch, identity, "is_signed")
    signed = SMALL.update(STATE, 0)
    statement = statement_digest(Meaning.UPDATE, STATE.place, encoding.encode(signed.update))
    key = SMALL.signers[0].public_key
    cache = VerificationCache()
    for _ in range(3):
        assert cache.is_signed(key, signed.signature, statement)
        assert not cache.is_signed(SMALL.signers[1].public_key, signed.signature, statement)
        assert not cache.is_signed(key, signed.signature, bytes(32))
        assert not cache.is_signed(key, bytes(64), statement)
    assert len(calls) == 4


def test_work_is_checked_once_for_each_difficulty(monkeypatch):
    calls = counting(monkeypatch, proof_of_work, "is_worked")
    nonce = proof_of_work.search_nonce(WorkKind.SHA256, bytes(32), 50)
    cache = VerificationCache()
    for _ in range(3):
        assert cache.is_worked(WorkKind.SHA256, bytes(32), nonce, 50)
        assert not cache.is_worked(WorkKind.SHA256, bytes(32), nonce, 2**60)
    assert len(calls) == 2


def test_the_same_blob_is_hashed_once(monkeypatch):
    calls = counting(monkeypatch, encoding, "digest")
    data = bytes(1000)
    cache = VerificationCache()
    assert cache.digest(data) == cache.digest(data)
    assert len(calls) == 1
    assert cache.digest(bytes(bytearray(1000))) == cache.digest(data)  # another object with the same bytes
    assert len(calls) == 2
    assert VerificationCache(max_entries=0).digest(data) == digest(data)


def test_digests_of_forgotten_blobs_are_not_taken_for_those_of_new_ones():
    cache = VerificationCache(max_entries=2)
    for number in range(2000):  # objects come and go at the same addresses
        data = number.to_bytes(40, "big")
        assert cache.digest(data) == digest(data)


@pytest.mark.parametrize("cache", BOXES)
def test_models_are_read_only_and_must_be_what_they_are_called(cache):
    data = SMALL.model(0, 1)
    for _ in range(2):
        weights = cache.decode_model(digest(data), bytes(bytearray(data)), LAYOUT)
        assert encode_weights(weights, LAYOUT) == data
        with pytest.raises(ValueError, match="read-only"):
            weights[0] = 1.0
        with pytest.raises(InvalidUpdate, match="blob-digest"):
            cache.decode_model(digest(data), SMALL.model(1, 1), LAYOUT)


@pytest.mark.parametrize("cache", BOXES)
@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
def test_aggregates_are_the_same_whatever_is_remembered(cache, rule):
    models = [SMALL.model(client, 1) for client in range(3)]
    blobs = {digest(data): data for data in models}
    updates = [ModelUpdate(client, 100 + client, len(data), digest(data), 0) for client, data in enumerate(models)]
    choice = Aggregation(rule=rule)
    expected = VerificationCache(max_entries=0).aggregate(choice, LAYOUT, updates, blobs)
    assert cache.aggregate(choice, LAYOUT, updates, blobs) == expected
    assert cache.aggregate(choice, LAYOUT, updates, blobs) == expected
    with pytest.raises(MissingBlob):
        cache.aggregate(choice, LAYOUT, updates, dict(list(blobs.items())[:2]))
    others = [ModelUpdate(one.client, 7 ** (1 + one.client), one.size, one.model, 0) for one in updates]
    assert (cache.aggregate(choice, LAYOUT, others, blobs) == expected) == (rule != "mean")


def test_plans_are_made_once_for_each_question():
    asked = []

    def scheduler(given):
        asked.append(given)
        return infeasible_decision(given, "counted")

    params, cache = replace(STATE.params, scheduler=scheduler), VerificationCache()
    prospect = Prospect(STATE.tip, 2, STATE.queue_nano, STATE.candidates, None)
    assert plan_round(params, prospect, cache) is plan_round(params, prospect, cache)
    plan_round(params, replace(prospect, round=3), cache)
    assert len(asked) == 2


def test_no_more_is_remembered_than_allowed():
    cache = VerificationCache(max_entries=64, max_bytes=20_000)  # of models with their weights, half of it without
    blobs = [np.random.default_rng(number).bytes(3000) for number in range(20)]
    for data in blobs:
        cache.digest(data)
    memo = cache._digests
    assert len(memo._entries) == 3
    assert memo._num_bytes == 9000
    cache.digest(bytes(20_000))  # larger than all that is allowed: the others stay
    assert len(memo._entries) == 3
    for number in range(200):
        cache.is_signed(bytes(32), bytes(64), number.to_bytes(32, "big"))
    assert len(cache._signed._entries) == 64


def test_what_was_asked_for_last_is_kept_longest():
    cache = VerificationCache(max_entries=32)  # two of the larger values
    made = []
    for key in "abacab":
        cache.recall(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "b"]


@pytest.mark.parametrize("cache", BOXES, ids=["nothing", "one", "no bytes", "all"])
def test_once_is_about_these_very_objects(cache):
    one, equal, two = (1, 2, 3), tuple(range(1, 4)), (4,)
    assert one == equal
    seen, divisors = [], [0, 2]

    def pair(first, second, found):
        assert found is cache
        seen.append((id(first), id(second)))
        return first, second

    def nothing(value, _):
        seen.append(id(value))

    def divide(value, _):
        return value[0] / divisors.pop(0)

    for _ in range(2):
        for first in (one, equal):
            assert cache.once(pair, first, two)[0] is first
        assert cache.once(nothing, one) is None
    assert {seen.count((id(first), id(two))) for first in (one, equal)} <= {1, 2}
    with pytest.raises(ZeroDivisionError):
        cache.once(divide, two)
    assert cache.once(divide, two) == 2


def test_once_works_once():
    given = []
    cache = VerificationCache()

    def note(*arguments):
        given.append(arguments)

    values = object(), object()
    for _ in range(3):
        cache.once(note, *values)
    assert given == [(*values, cache)]


def test_a_value_put_again_counts_once_and_the_last_one_is_given():
    memo = LruCache(max_entries=10, max_bytes=100)
    memo.put("a", "old", 60)
    assert memo.put("a", "new", 40) == "new"
    memo.put("b", "other", 60)  # together a hundred: nothing has to go
    assert (memo.get("a"), memo.get("b")) == ("new", "other")
    assert memo._num_bytes == 100
    memo.put("c", "more", 1)
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == (None, "other", "more")
    memo.put("d", "too large", 101)
    assert (memo.get("b"), memo.get("d")) == ("other", None)
    memo.put("e", "all", 100)
    memo.put("f", "of no size")
    assert (memo.get("e"), memo.get("f"), memo._num_bytes) == ("all", "of no size", 100)


def test_a_model_is_remembered_with_its_weights_as_twice_its_bytes_and_digests_and_aggregates_within_their_share():
    data = SMALL.model(0, 1)
    cache = VerificationCache(max_bytes=10 * len(data))
    cache.decode_model(digest(data), data, LAYOUT)
    assert cache._models._num_bytes == 2 * len(data)
    assert cache._digests._max_bytes == 5 * len(data)
    assert cache._aggregates._max_bytes == 10 * len(data) // 4
    assert (
        VerificationCache(max_entries=33)._models._max_entries,
        VerificationCache(max_entries=32)._models._max_entries,
    ) == (3, 2)
    update = ModelUpdate(0, 100, len(data), digest(data), 0)
    made = VerificationCache()
    aggregated = made.aggregate(Aggregation(rule="mean"), LAYOUT, [update], {digest(data): data})
    assert made._aggregates._num_bytes == len(aggregated)


def test_updates_that_the_rule_cannot_aggregate_are_named_as_such():
    data = SMALL.model(0, 1)
    update = ModelUpdate(0, 100, len(data), digest(data), 0)
    with pytest.raises(InvalidUpdate, match=r"aggregate: .* found, updates that median can aggregate expected"):
        VerificationCache().aggregate(Aggregation(rule="median", faulty=1), LAYOUT, [update], {digest(data): data})


def test_a_model_is_decoded_once_whoever_holds_its_bytes():
    data = SMALL.model(0, 1)
    cache = VerificationCache()
    weights = cache.decode_model(digest(data), data, LAYOUT)
    assert cache.decode_model(digest(data), data, LAYOUT) is weights
    assert cache.decode_model(digest(data), bytes(bytearray(data)), LAYOUT) is weights
