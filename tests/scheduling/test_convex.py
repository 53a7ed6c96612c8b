"""Minima of convex functions: the proven bound is below the minimum, the value above, and both are close."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.scheduling.convex import STEEPEST, bracket_near, minimise_convex, narrow_brackets

ORIGIN = 0.3
GRID = ORIGIN + 10.0 * np.linspace(0.0, 1.0, 9) ** 3


def convex_function(linear, pole, hinge, hinge_at, root):
    """Value and slope of linear x + pole / (x - o)^(1/2) + hinge max(x - h, 0) - root (x - o)^(1/3), from o on."""

    def evaluate(x):
        away = np.maximum(np.asarray(x, dtype=float) - ORIGIN, 1e-60)
        value = linear * x + pole * away**-0.5 + hinge * np.maximum(x - hinge_at, 0.0) - root * np.cbrt(away)
        slope = linear - 0.5 * pole * away**-1.5 + hinge * (x > hinge_at) - root / 3.0 * away ** (-2.0 / 3.0)
        return value, np.maximum(slope, -STEEPEST)

    return evaluate


sizes = st.one_of(st.just(0.0), st.floats(-5.0, 2.0).map(lambda exponent: 10.0**exponent))
functions = st.builds(convex_function, st.floats(0.01, 10.0), sizes, sizes, st.floats(0.4, 9.0), sizes)


def true_minimum(evaluate):
    """By ever closer grids around the best point, values alone."""
    low, high = ORIGIN, GRID[-1]
    for _ in range(30):
        points = ORIGIN + np.linspace(np.cbrt(low - ORIGIN), np.cbrt(high - ORIGIN), 41) ** 3
        best = int(np.argmin(evaluate(points)[0]))
        low, high = points[max(best - 1, 0)], points[min(best + 1, 40)]
    return float(np.min(evaluate(points)[0]))


def check_enclosure(enclosure, evaluate):
    minimum = true_minimum(evaluate)
    size = abs(minimum) + 1e-9
    assert enclosure.value[0] == pytest.approx(float(evaluate(enclosure.at[0])[0]), rel=1e-14)
    assert enclosure.bound[0] <= enclosure.value[0]
    assert enclosure.bound[0] <= minimum + 1e-13 * size
    assert enclosure.value[0] >= minimum - 1e-10 * size
    assert enclosure.value[0] - enclosure.bound[0] <= 1e-9 * size


@given(functions)
def test_a_grid_search_encloses_the_minimum(evaluate):
    brackets = narrow_brackets(np.array([ORIGIN]), np.stack([GRID, *evaluate(GRID)])[:, None, :])
    check_enclosure(minimise_convex(lambda at, _: evaluate(at), brackets), evaluate)


@given(functions)
def test_a_search_by_plain_floats_encloses_the_minimum(evaluate):
    def plain(x):
        value, slope = evaluate(x)
        return float(value), float(slope)

    brackets = narrow_brackets(np.array([ORIGIN]), np.stack([GRID, *evaluate(GRID)])[:, None, :])
    check_enclosure(minimise_convex(lambda at, _: evaluate(at), brackets, None, lambda _: plain), evaluate)


@given(functions, st.floats(0.0, 9.0))
def test_a_bracket_found_from_a_guess_holds_the_minimum(evaluate, guess):
    def plain(x):
        value, slope = evaluate(x)
        return float(value), float(slope)

    brackets = bracket_near(plain, ORIGIN, guess)
    if brackets.right[0, 0] <= GRID[-1]:
        enclosure = minimise_convex(lambda at, _: evaluate(at), brackets, None, lambda _: plain)
        check_enclosure(enclosure, evaluate)


@given(st.lists(functions, min_size=2, max_size=6))
def test_functions_searched_together_end_as_when_searched_alone(several):
    def evaluate(at, rows):
        pairs = [several[row](points) for row, points in zip(rows, at, strict=True)]
        return np.stack([value for value, _ in pairs]), np.stack([slope for _, slope in pairs])

    rows = np.arange(len(several))
    samples = np.stack([np.tile(GRID, (len(several), 1)), *evaluate(np.tile(GRID, (len(several), 1)), rows)])
    together = minimise_convex(evaluate, narrow_brackets(np.full(len(several), ORIGIN), samples))
    for row, function in enumerate(several):
        minimum = true_minimum(function)
        assert together.bound[row] <= minimum + 1e-13 * (abs(minimum) + 1e-9)
        assert together.value[row] == pytest.approx(minimum, rel=1e-9, abs=1e-15)
