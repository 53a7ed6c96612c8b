"""Intervals."""

import numpy as np
import pytest
from scipy.stats import t

from bdfl.experiment.statistics import mean_interval


def test_the_interval_is_students():
    values = [1.0, 2.0, 4.0, 8.0]
    low, high = t.interval(0.95, 3, loc=np.mean(values), scale=np.std(values, ddof=1) / 2)
    found = mean_interval(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.half_width == pytest.approx((high - low) / 2)


def test_one_value_has_a_mean_and_no_interval():
    found = mean_interval([3.0])
    assert found.mean == 3.0
    assert np.isnan(found.half_width)


def test_values_that_do_not_exist_are_left_out():
    assert mean_interval([1.0, float("nan"), 3.0]).mean == 2.0
    assert np.isnan(mean_interval([float("nan")]).mean)
