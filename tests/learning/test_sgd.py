"""Mini-batches: what a client sees in a round."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.learning.sgd import draw_batches
from bdfl.scenario import LocalUnit

SIZES = st.integers(1, 40)


def draw(samples, *, unit=LocalUnit.UPDATES, steps=10, batch=4, seed=1, round=2, client=3):
    return draw_batches(seed, round, client, np.array(samples), unit=unit, steps=steps, batch=batch)


@given(size=SIZES, steps=st.integers(1, 30), batch=SIZES)
def test_updates_make_as_many_equal_batches_of_own_samples(size, steps, batch):
    samples = np.arange(100, 100 + size)
    batches = draw(samples, steps=steps, batch=batch)
    assert [len(one) for one in batches] == [min(size, batch)] * steps
    assert set(np.concatenate(batches)) <= set(samples)


@given(size=SIZES, steps=st.integers(1, 30), batch=SIZES)
def test_no_sample_comes_twice_in_a_pass(size, steps, batch):
    batches = draw(range(size), steps=steps, batch=batch)
    per_pass = size // min(size, batch)
    for start in range(0, steps, per_pass):
        seen = np.concatenate(batches[start : start + per_pass])
        assert len(set(seen)) == len(seen)


@given(size=SIZES, steps=st.integers(1, 5), batch=SIZES)
def test_an_epoch_is_every_sample_once(size, steps, batch):
    batches = draw(range(size), unit=LocalUnit.EPOCHS, steps=steps, batch=batch)
    per_pass = -(-size // batch)
    assert len(batches) == steps * per_pass
    for start in range(0, len(batches), per_pass):
        own = batches[start : start + per_pass]
        assert sorted(np.concatenate(own)) == list(range(size))
        assert all(len(one) == min(size, batch) for one in own[:-1])


def test_passes_are_shuffled_anew():
    batches = draw(range(40), unit=LocalUnit.EPOCHS, steps=3, batch=40)
    assert len({one.tobytes() for one in batches}) == 3


@pytest.mark.parametrize("changed", [{"seed": 9}, {"round": 9}, {"client": 9}])
def test_batches_belong_to_seed_round_and_client(changed):
    first, again, other = draw(range(40)), draw(range(40)), draw(range(40), **changed)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("unit", LocalUnit)
def test_nobody_trains_on_nothing(unit):
    assert draw(np.zeros(0, np.int64), unit=unit) == []
