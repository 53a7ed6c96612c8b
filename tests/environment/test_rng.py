"""Draws depend on seed, purpose, round and client, and on nothing else."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from bdfl.environment import Purpose, draw_values, stream
from bdfl.scenario import Choice, Lognormal, Normal, Uniform

DISTRIBUTIONS = [
    Uniform(low=2.0, high=5.0),
    Lognormal(median=3.0, sigma=0.5),
    Normal(mean=1.0, std=2.0, low=0.0, high=3.0),
    Choice(values=(1.0, 2.0, 4.0), weights=(1.0, 0.0, 3.0)),
]


def test_streams_differ_by_seed_purpose_and_round_and_by_nothing_else():
    keys = [(seed, purpose, round) for seed in (0, 1) for purpose in Purpose for round in (0, 1, 2)]
    first = [stream(*key).random() for key in keys]
    assert len(set(first)) == len(keys)
    assert first == [stream(*key).random() for key in keys]


def test_purposes_keep_their_numbers():
    assert [purpose.value for purpose in Purpose] == list(range(1, len(Purpose) + 1))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda value: type(value).__name__)
@given(few=st.integers(1, 50), more=st.integers(0, 50), seed=st.integers(0, 100))
def test_a_clients_value_does_not_change_when_clients_are_added(distribution, few, more, seed):
    some = draw_values(stream(seed, Purpose.POWER), distribution, few)
    all_of_them = draw_values(stream(seed, Purpose.POWER), distribution, few + more)
    assert (some == all_of_them[:few]).all()


def test_numbers_and_lists_are_taken_as_given():
    rng = stream(0, Purpose.POWER)
    assert draw_values(rng, 3.0, 2).tolist() == [3.0, 3.0]
    assert draw_values(rng, (1.0, 2.0), 2).tolist() == [1.0, 2.0]


def test_uniform_draws_are_uniform():
    draws = draw_values(stream(1, Purpose.POWER), Uniform(low=2.0, high=5.0), 20_000)
    assert stats.kstest(draws, stats.uniform(2.0, 3.0).cdf).pvalue > 0.01


def test_lognormal_draws_have_their_median_and_sigma():
    draws = draw_values(stream(2, Purpose.POWER), Lognormal(median=3.0, sigma=0.5), 20_000)
    assert stats.kstest(draws, stats.lognorm(0.5, scale=3.0).cdf).pvalue > 0.01


def test_normal_draws_outside_the_ends_move_to_them():
    draws = draw_values(stream(3, Purpose.POWER), Normal(mean=1.0, std=2.0, low=0.0, high=3.0), 20_000)
    normal = stats.norm(1.0, 2.0)
    assert (draws.min(), draws.max()) == (0.0, 3.0)
    assert np.mean(draws == 0.0) == pytest.approx(normal.cdf(0.0), abs=0.02)
    assert np.mean(draws <= 2.0) == pytest.approx(normal.cdf(2.0), abs=0.02)


def test_choices_come_as_often_as_their_weights():
    draws = draw_values(stream(4, Purpose.POWER), Choice(values=(1.0, 2.0, 4.0), weights=(1.0, 0.0, 3.0)), 20_000)
    assert set(draws) == {1.0, 4.0}
    assert np.mean(draws == 4.0) == pytest.approx(0.75, abs=0.02)
    equal = draw_values(stream(4, Purpose.POWER), Choice(values=(1.0, 2.0)), 20_000)
    assert np.mean(equal == 1.0) == pytest.approx(0.5, abs=0.02)
