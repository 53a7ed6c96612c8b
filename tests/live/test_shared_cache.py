"""A cache that several threads use gives the same answers, each worked out once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bdfl.encoding import digest
from bdfl.learning.weights import Layout, encode_weights
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.cache import VerificationCache
from bdfl.scenario.schema_learning import Aggregation
from bdfl.transports.live.shared_cache import SharedVerificationCache

LAYOUT = Layout(("w",), ((1000,),))


def test_what_several_threads_ask_at_the_same_time_is_worked_out_once():
    cache = SharedVerificationCache()
    together = threading.Barrier(8)
    made = []

    def make():
        made.append(None)
        return cache.recall(("inner", 1), lambda: made.append(None) or "inner")

    def ask():
        together.wait(240)
        return cache.recall(("outer", 1), make)

    with ThreadPoolExecutor(8) as threads:
        answers = [answer.result(30) for answer in [threads.submit(ask) for _ in range(8)]]
    assert answers == ["inner"] * 8
    assert len(made) == 2
    assert not cache._under_way


def test_one_who_fails_lets_the_next_try():
    cache = SharedVerificationCache()

    def fail():
        raise ValueError

    for make in (fail, lambda: "made"):
        try:
            assert cache.recall(("key",), make) == "made"
        except ValueError:
            assert make is fail
    assert not cache._under_way


def test_many_threads_get_the_answers_of_a_plain_toolbox():
    shared = SharedVerificationCache(64, 40_000)  # so small that much is forgotten
    draw = np.random.default_rng(0)
    blobs = [encode_weights(draw.normal(size=1000).astype(np.float32), LAYOUT) for _ in range(20)]
    by_digest = {digest(data): data for data in blobs}
    updates = [ModelUpdate(number, 1 + number, len(data), digest(data), 0) for number, data in enumerate(blobs)]
    choice = Aggregation()

    def work(seed):
        chosen = np.random.default_rng(seed).choice(20, size=5, replace=False)
        some = [updates[number] for number in sorted(chosen)]
        plain = VerificationCache()
        total = shared.aggregate(choice, LAYOUT, some, by_digest)
        assert total == plain.aggregate(choice, LAYOUT, some, by_digest)
        for update in some:
            data = by_digest[update.model]
            assert shared.digest(data) == update.model
            weights = shared.decode_model(update.model, data, LAYOUT)
            assert (weights == plain.decode_model(update.model, data, LAYOUT)).all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(60)))


def test_a_toolbox_is_sized_for_its_chain():
    cache = SharedVerificationCache.sized_for(8, 4_300_000, frozenset({"rules:mine"}))
    assert cache.own_functions == frozenset({"rules:mine"})
    assert cache._signed._max_entries == 1024
    assert 8 * 8_600_000 < cache._models._max_bytes < 10**9
