"""Simultaneous minimisation of many convex functions of one variable, each enclosed by tangents.

The functions may fall like a cube root at their origin: searches use the cube root of the distance from it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]  # (rows,): one entry per function
Curve = NDArray[np.float64]  # (rows, points)
Samples = NDArray[np.float64]  # (3, rows): point, value, slope
RowNumbers = NDArray[np.intp]
PlainFunction = Callable[[float], tuple[float, float]]  # from a point to value and slope

STEEPEST = 1e100  # replaces an infinite slope or loss, so that sums stay finite
NOTHING = 1e-60  # replaces zero in denominators
PRECISION = 1e-11  # relative: stop when value and proven lower bound agree to this

_MAX_STEPS = 100  # a bracket halves at least every second step: 50 halvings exhaust float64
_FIRST_CLOSENESS = 0.03  # distance of three points around the first guess, in bracket widths
_LAST_CLOSENESS = 1e-5
_SLOW_CLOSENESS = 0.25  # if the bracket was not halved
_AROUND = np.array([-1.0, 0.0, 1.0])
_AROUND.setflags(write=False)
_FEW_ROWS = 8  # up to which plain Python floats beat arrays
_PLAIN_STEPS = 40
_SLOW_RUN = 3  # steps from one side after which a bracket is bisected
_EDGE = 0.02
_FIRST_STRIDE, _STRIDE_GROWTH = 1e-3, 8.0  # relative, of a search for a bracket


@dataclass(frozen=True, eq=False)
class Brackets:
    """Brackets of convex functions, one per row: samples at both ends of an interval around the minimum."""

    origin: Rows
    left: Samples  # point, value and slope, (3, rows)
    right: Samples

    def take(self, keep: NDArray[np.bool_]) -> "Brackets":
        return Brackets(self.origin[keep], self.left[:, keep], self.right[:, keep])

    @property
    def width(self) -> Rows:
        width: Rows = self.right[0] - self.left[0]
        return width

    @property
    def best(self) -> Samples:
        """The end with the lower value."""
        return np.where(self.right[1] < self.left[1], self.right, self.left)

    def lower_bound(self) -> Rows:
        """Height at which the tangents at both ends cross: a lower bound of each row's function in the interval."""
        _, left_value, left_slope = self.left
        _, right_value, right_slope = self.right
        width, turn = self.width, np.maximum(right_slope - left_slope, NOTHING)
        offset = (left_value - right_value + right_slope * width) / turn  # from the left end
        offset = np.where(left_slope <= -STEEPEST, 0.0, offset)  # steeper than any representable line
        crossing: Rows = right_value + right_slope * (np.minimum(np.maximum(offset, 0.0), width) - width)
        ends = np.where(left_slope >= 0.0, left_value, right_value)
        return np.where((left_slope < 0.0) & (right_slope > 0.0), crossing, ends)

    def probes(self, offsets: Rows) -> Curve:
        """Points (rows, offsets) around the turning point of a cubic through both ends, or around the middle."""
        start, end = np.cbrt(np.stack([self.left[0], self.right[0]]) - self.origin)
        width = end - start
        with np.errstate(all="ignore"):
            start_slope, end_slope = 3.0 * start**2 * self.left[2], 3.0 * end**2 * self.right[2]
            middle = start_slope + end_slope - 3.0 * (self.right[1] - self.left[1]) / width
            root = np.sqrt(middle * middle - start_slope * end_slope)
            turn = 1.0 - (end_slope + root - middle) / (end_slope - start_slope + 2.0 * root)
        usable = (turn > 0.0) & (turn < 1.0) & (start > 0.0)
        turn = np.minimum(np.maximum(np.where(usable, turn, 0.5)[:, None] + offsets, 0.0), 1.0)
        points = self.origin[:, None] + (start[:, None] + turn * width[:, None]) ** 3
        inside: Curve = np.minimum(np.maximum(points, self.left[0][:, None]), self.right[0][:, None])
        return inside


def narrow_brackets(origin: Rows, samples: NDArray[np.float64]) -> Brackets:
    """Brackets from samples (3, rows, points) in ascending order: the interval in which the slope changes sign.

    If a row rises from the first point on, or falls to the last, its bracket is that point twice.
    """
    _, num_rows, num_points = samples.shape
    rows = np.arange(num_rows)
    rising = samples[2] >= 0.0
    after = np.where(rising.any(axis=1), rising.argmax(axis=1), num_points)
    left = samples[:, rows, np.maximum(after - 1, 0)]
    return Brackets(origin, left, samples[:, rows, np.minimum(after, num_points - 1)])


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Minima of convex functions, one per row: position, value, and a proven lower bound."""

    at: Rows
    value: Rows
    bound: Rows


def minimise_convex(
    evaluate: Callable[[Curve, RowNumbers], tuple[Curve, Curve]],
    brackets: Brackets,
    is_hopeless: Callable[[Rows, Rows, RowNumbers], NDArray[np.bool_]] | None = None,
    evaluate_one: Callable[[int], PlainFunction] | None = None,
    precision: float = PRECISION,
) -> Enclosure:
    """Minimise many convex functions inside their brackets at once, each enclosed by tangents from both sides.

    `evaluate(points, rows)` gives values and slopes at (rows, points) of the functions numbered `rows`.
    `is_hopeless(value, bound, rows)` may drop rows that their bound shows to be irrelevant. The last few rows are
    solved one by one if `evaluate_one(row)` gives the same function for plain floats.
    """
    rows = np.arange(len(brackets.origin))
    at, value, _ = brackets.best
    bound = np.minimum(brackets.lower_bound(), value)
    closeness = _FIRST_CLOSENESS
    for _ in range(_MAX_STEPS):
        value_here, bound_here = value[rows], bound[rows]
        is_open = (value_here - bound_here > precision * np.abs(value_here)) & (
            brackets.width > 4e-16 * brackets.right[0]
        )
        if is_hopeless is not None:
            is_open &= ~is_hopeless(value_here, bound_here, rows)
        if not is_open.any():
            break
        if not is_open.all():
            rows, brackets = rows[is_open], brackets.take(is_open)
        if evaluate_one is not None and len(rows) <= _FEW_ROWS and closeness != _SLOW_CLOSENESS:
            narrowed = _narrow_each(evaluate_one, rows, brackets, precision)
        else:
            points = brackets.probes(closeness * _AROUND)  # they bracket the minimum closely or cut the interval
            inner = np.stack([points, *evaluate(points, rows)])
            samples = np.concatenate([brackets.left[:, :, None], inner, brackets.right[:, :, None]], axis=2)
            narrowed = narrow_brackets(brackets.origin, samples)
        slow = bool(np.any(narrowed.width > 0.5 * brackets.width))
        closeness = _SLOW_CLOSENESS if slow else max(0.1 * closeness, _LAST_CLOSENESS)
        brackets = narrowed
        at[rows], value[rows], _ = brackets.best
        bound[rows] = np.minimum(np.maximum(bound[rows], brackets.lower_bound()), value[rows])
    return Enclosure(at, value, bound)


def _narrow_each(
    evaluate_one: Callable[[int], PlainFunction], rows: RowNumbers, brackets: Brackets, precision: float
) -> Brackets:
    """Narrow the brackets row by row until their tangents enclose the minimum to `precision`."""
    ends = np.stack([brackets.left, brackets.right])  # (2, 3, rows)
    for place, row in enumerate(rows.tolist()):
        sides = ends[:, :, place].tolist()
        ends[:, :, place] = _narrow_one(evaluate_one(row), float(brackets.origin[place]), sides, precision)
    return Brackets(brackets.origin, ends[0], ends[1])


def _narrow_one(
    evaluate: PlainFunction, origin: float, sides: list[list[float]], precision: float
) -> list[list[float]]:
    """Narrow a bracket of two ends (point, value, slope): regula falsi (Illinois) on the slope, halving if slow."""
    distance = [(side[0] - origin) ** (1.0 / 3.0) for side in sides]
    weight = [_turning(side[2], away) for side, away in zip(sides, distance, strict=True)]
    last, run = -1, 0
    for _ in range(_PLAIN_STEPS):
        is_usable = weight[0] < 0.0 < weight[1] and run < _SLOW_RUN
        fraction = weight[0] / (weight[0] - weight[1]) if is_usable else 0.5
        middle = distance[0] + min(max(fraction, _EDGE), 1.0 - _EDGE) * (distance[1] - distance[0])
        point = origin + middle**3
        value, slope = evaluate(point)
        moved = int(slope >= 0.0)  # the side that moves
        sides[moved], distance[moved], weight[moved] = [point, value, slope], middle, _turning(slope, middle)
        run = run + 1 if moved == last and is_usable else 0
        if moved == last:
            weight[1 - moved] *= 0.5
        last = moved
        if _missing(*sides) <= precision * abs(value) or distance[1] - distance[0] <= 4e-16 * distance[1]:
            break
    return sides


def _missing(left: list[float], right: list[float]) -> float:
    """Distance of the tangents' crossing below the better end: the plain twin of `Brackets.lower_bound`."""
    width = right[0] - left[0]
    offset = 0.0 if left[2] <= -STEEPEST else (left[1] - right[1] + right[2] * width) / max(right[2] - left[2], NOTHING)
    return min(left[1], right[1]) - right[1] - right[2] * (min(max(offset, 0.0), width) - width)


def _turning(slope: float, distance: float) -> float:
    """Slope in the cube root of the distance, up to a factor; finite even if the slope is not."""
    return max(slope, -STEEPEST) * max(distance, 1e-7) ** 2


def bracket_near(evaluate: PlainFunction, origin: float, near: float) -> Brackets:
    """Bracket one function from a guess: growing strides downhill until it rises or its origin is reached."""
    here = max(near, origin)
    side = [here, *evaluate(here)]
    uphill = side[2] >= 0.0
    stride = _FIRST_STRIDE * here
    while True:
        there = max(here - stride, origin) if uphill else here + stride
        other = [there, *evaluate(there)]
        left, right = (other, side) if uphill else (side, other)
        if (left[2] < 0.0) != (right[2] < 0.0) or there == origin:
            return Brackets(np.array([origin]), np.array(left)[:, None], np.array(right)[:, None])
        here, side, stride = there, other, stride * _STRIDE_GROWTH
