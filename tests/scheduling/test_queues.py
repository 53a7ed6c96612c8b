"""Virtual queues: their step, and that the paper's bounds on it hold."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from bdfl.scheduling.queues import (
    drift_bound,
    drift_constant,
    lyapunov,
    lyapunov_drift,
    next_queue,
    squared_queue_bound,
)

queues = arrays(np.float64, 5, elements=st.floats(0.0, 1e6))
rates = arrays(np.float64, 5, elements=st.floats(0.0, 1.0))
masks = arrays(np.bool_, 5)


def test_queue_grows_by_the_rate_and_shrinks_by_taking_part():
    after = next_queue(np.array([0.0, 0.0, 2.0]), np.array([0.4, 0.4, 0.4]), np.array([False, True, True]))
    np.testing.assert_allclose(after, [0.4, 0.0, 1.4])


@given(queues, rates, masks)
def test_whole_numbers_of_units_stay_whole(queue, rate, participated):
    nano = 10**9
    queue_nano, rate_nano = np.rint(queue * nano).astype(np.int64), np.rint(rate * nano).astype(np.int64)
    after = next_queue(queue_nano, rate_nano, participated * np.int64(nano))
    assert after.dtype == np.int64
    np.testing.assert_allclose(after / nano, next_queue(queue, rate, participated), rtol=1e-12, atol=2e-9)


def test_lyapunov_is_half_the_squared_length():
    assert lyapunov(np.array([3.0, 4.0])) == 12.5


def test_drift_constant_counts_every_client():
    assert drift_constant(np.array([0.0, 1.0])) == 1.5


@given(queues, rates, masks)
def test_no_queue_is_ever_negative(queue, rate, participated):
    assert (next_queue(queue, rate, participated) >= 0).all()


@given(queues, rates, masks)
def test_squared_queue_stays_below_equation_20(queue, rate, participated):
    bound = squared_queue_bound(queue, rate, participated)
    assert (next_queue(queue, rate, participated) ** 2 <= bound * (1 + 1e-12) + 1e-9).all()


@given(queues, rates, masks)
def test_drift_stays_below_equation_21(queue, rate, participated):
    drift = lyapunov_drift(queue, next_queue(queue, rate, participated))
    rounding = 1e-12 * lyapunov(queue)  # the drift is a difference of two Lyapunov functions
    assert drift <= drift_bound(queue, rate, participated) + rounding + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_equations_20_and_21_hold_along_random_paths(seed):
    rng = np.random.default_rng(seed)
    rate, queue = rng.uniform(size=12), np.zeros(12)
    for _ in range(500):
        participated = rng.uniform(size=12) < 0.4
        after = next_queue(queue, rate, participated)
        assert (after**2 <= squared_queue_bound(queue, rate, participated) + 1e-9).all()
        assert lyapunov_drift(queue, after) <= drift_bound(queue, rate, participated) + 1e-9
        queue = after


def test_taking_part_more_often_than_the_rate_keeps_queues_mean_rate_stable():
    rng = np.random.default_rng(0)
    queue = np.zeros(8)
    for _ in range(5000):
        queue = next_queue(queue, np.full(8, 0.4), rng.uniform(size=8) < 0.45)
    assert queue.max() / 5000 < 0.01
