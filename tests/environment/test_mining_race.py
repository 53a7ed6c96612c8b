"""The race for a block: who is first, and how long after the others are."""

import numpy as np
import pytest

from bdfl.environment.draws import draw_finding, draw_lags

DIFFICULTY = 2.0
MINING_HZ = np.array([3.0, 0.0, 1.0])


def test_the_first_block_and_its_finder_follow_the_frequencies():
    rng = np.random.default_rng(0)
    times, winners = zip(*(draw_finding(rng, DIFFICULTY, MINING_HZ) for _ in range(5000)), strict=True)
    assert np.mean(times) == pytest.approx(DIFFICULTY / 4, rel=0.05)
    assert np.bincount(winners, minlength=3) / 5000 == pytest.approx([0.75, 0.0, 0.25], abs=0.02)


def test_the_others_search_on_as_if_they_had_begun_anew():
    rng = np.random.default_rng(1)
    lags = np.array([draw_lags(rng, DIFFICULTY, MINING_HZ, winner=2) for _ in range(5000)])
    assert not lags[:, 2].any()
    assert np.isinf(lags[:, 1]).all()
    assert np.mean(lags[:, 0]) == pytest.approx(DIFFICULTY / 3, rel=0.05)


def test_a_race_by_its_first_and_its_lags_is_one_of_independent_searches():
    """The time of client 0, whether or not it wins, is exponential with its own frequency."""
    rng = np.random.default_rng(2)
    times = []
    for _ in range(5000):
        first_s, winner = draw_finding(rng, DIFFICULTY, MINING_HZ)
        times.append(first_s + draw_lags(rng, DIFFICULTY, MINING_HZ, winner)[0])
    assert np.mean(times) == pytest.approx(DIFFICULTY / 3, rel=0.05)
    assert np.std(times) == pytest.approx(DIFFICULTY / 3, rel=0.07)
