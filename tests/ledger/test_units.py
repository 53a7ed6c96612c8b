"""Measures as whole numbers of units, and back."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.ledger.costs import ATTO, NANO, ONE, PICOJOULE, DoesNotFit, count_capped, count_units, to_cap, to_measure


@given(st.integers(0, 2**53))
def test_whole_numbers_of_units_come_back(count):
    measure = float(to_measure([count], NANO)[0])
    assert count_units(measure, NANO, "value") == pytest.approx(count, rel=2**-52)
    assert count_units(count, ONE, "value") == count


@given(st.floats(0.0, 9.0))
def test_rounding_moves_a_value_by_half_a_unit_at_most(value):
    count = count_units(value, ATTO, "gain")
    assert abs(count / ATTO - value) <= 0.5 / ATTO + 1e-16 * value


@pytest.mark.parametrize(("value", "count"), [(0.5, 0), (1.5, 2), (2.5, 2), (2.5000001, 3)])
def test_halves_are_rounded_to_even(value, count):
    assert count_units(value, ONE, "value") == count


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), -float("inf"), 1e30, np.float64(1e30), 10**400])
def test_what_does_not_fit_is_named(value):
    with pytest.raises(DoesNotFit) as refusal:
        count_units(value, PICOJOULE, "energy")
    assert refusal.value.name == "energy"


def test_the_least_count_is_a_limit():
    assert count_units(0.0, ONE, "value") == 0
    with pytest.raises(DoesNotFit):
        count_units(0.4, ONE, "value", least=1)


def test_no_cap_is_infinity():
    assert count_capped(float("inf"), ONE, "cap") is None
    assert count_capped(2e9, ONE, "cap") == 2 * 10**9
    np.testing.assert_array_equal(to_cap([None, 7]), [np.inf, 7.0])
