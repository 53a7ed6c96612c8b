"""Aggregation of model updates: the paper's weighted mean, and Byzantine-robust rules.

Every rule sums in float64 in a fixed order and rounds once to float32, so the same updates give the same bytes on any
machine. `aggregate` makes the result independent of the order of arrival. The robust rules ignore sample counts: a
faulty client may claim any number, and with it the whole mean.

[Blanchard17] Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS 2017.
[ElMhamdi20] El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault: "Genuinely Distributed Byzantine Machine Learning",
PODC 2020.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from math import comb
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.learning.weights import Vector, is_finite
from bdfl.plugins import find_function, importing_from_here, show_exception
from bdfl.scenario.schema_learning import Aggregation, is_function

SAMPLES_LIMIT = 2**29  # below it the product of a sample count and a float32 is exact in float64
MAX_GROUPS = 200_000  # subsets of updates that minimum-diameter compares at most
_BLOCK_ENTRIES = 2**21  # numbers sorted at a time: 8 MiB
_MEAN_BLOCK = 2**16  # coordinates of a mean summed at a time
_DISTANCE_BLOCK = 2**14  # coordinates of a distance summed at a time


class InvalidAggregation(BdflError):
    """An unknown rule, a rule that tolerates fewer faults than asked for, or updates that cannot be aggregated."""


class FlushesToZero(BdflError):
    """A thread that flushes subnormal numbers to zero, so that other members would compute other aggregates."""


class Aggregator(Protocol):
    """A function from updates of equal length and their sample counts, in client order, to the next global model."""

    def __call__(self, updates: Sequence[Vector], samples: Sequence[int]) -> Vector: ...


@dataclass(frozen=True, eq=False)
class Update:
    """A client's trained model and the number of samples it was trained on."""

    client: int
    weights: Vector
    samples: int


def aggregate(aggregator: Aggregator, updates: Iterable[Update]) -> Vector:
    """The next global model: the same bytes for any order of the updates."""
    ordered = sorted(updates, key=lambda update: update.client)
    for former, latter in pairwise(ordered):
        if former.client == latter.client:
            raise InvalidAggregation(f"client {latter.client}: two updates given, expected one from each client")
    return aggregator([update.weights for update in ordered], [update.samples for update in ordered])


def min_updates(choice: Aggregation) -> int:
    """Fewest updates from which the rule makes a model while `choice.faulty` of them are wrong."""
    faulty = choice.faulty
    match choice.rule:
        case "median" | "trimmed-mean" | "minimum-diameter":
            return 2 * faulty + 1
        case "krum" | "multi-krum":
            return 2 * faulty + 3  # [Blanchard17, Proposition 4.2]
        case "mean" if faulty > 0:
            raise InvalidAggregation(
                f"learning.aggregation.faulty: {faulty} given, expected 0: the mean bears no wrong update"
            )
        case _:
            return 1


def validate_arithmetic() -> None:
    """Raise `FlushesToZero` unless this thread computes with subnormal numbers, as IEEE 754 requires.

    The mode is per thread, inherited by the threads it starts, and set by libraries.
    """
    if not sys.float_info.min / 2 > 0.0:
        raise FlushesToZero(
            "arithmetic: subnormal numbers are flushed to zero, as IEEE 754 expected: other members would refuse every"
            " model; do not call torch.set_flush_denormal(True), nor load what was compiled with -ffast-math"
        )


def get_aggregator(choice: Aggregation) -> Aggregator:
    """The rule of that name; it raises `InvalidAggregation` for too few updates and for any that is not finite."""
    return partial(_aggregate_checked, _get_rule(choice), min_updates(choice))


def _get_rule(choice: Aggregation) -> Aggregator:
    rules: dict[str, Aggregator] = {
        "mean": weighted_mean,
        "median": coordinate_median,
        "trimmed-mean": partial(trimmed_mean, faulty=choice.faulty),
        "krum": partial(krum, faulty=choice.faulty),
        "multi-krum": partial(multi_krum, faulty=choice.faulty),
        "minimum-diameter": partial(minimum_diameter, faulty=choice.faulty),
    }
    if is_function(choice.rule):
        return partial(_call_own, find_function(choice.rule), choice.rule)
    if choice.rule not in rules:
        raise InvalidAggregation(
            f"learning.aggregation.rule: {choice.rule!r} given, expected {', '.join(rules)} or module:function"
        )
    return rules[choice.rule]


def weighted_mean(updates: Sequence[Vector], samples: Sequence[int]) -> Vector:
    """W = sum |D_i| w_i / sum |D_i|, (parameters,): [Li24, Eq. 3].

    Products are exact, sums are taken in client order, and there is one division and one rounding.
    """
    total = sum(samples)
    if total == 0:
        raise InvalidAggregation("samples: all 0 given, expected at least one above 0 for a weighted mean")
    return _mean(updates, samples, float(total))


def coordinate_median(updates: Sequence[Vector], samples: Sequence[int]) -> Vector:
    """The median of every coordinate, (parameters,); of an even number the mean of the middle two."""
    low, high = (len(updates) - 1) // 2, len(updates) // 2

    def middle(ordered: Vector) -> NDArray[np.float64]:
        half: NDArray[np.float64] = (ordered[low].astype(np.float64) + ordered[high]) / 2.0
        return half + 0.0  # a sort may order 0.0 and -0.0 either way: this makes both 0.0

    return _by_coordinate(updates, middle)


def trimmed_mean(updates: Sequence[Vector], samples: Sequence[int], *, faulty: int) -> Vector:
    """The mean of every coordinate without its `faulty` largest and `faulty` smallest values, (parameters,)."""
    num_kept = len(updates) - 2 * faulty

    def inner_mean(ordered: Vector) -> NDArray[np.float64]:
        total = np.zeros(ordered.shape[1])
        for row in ordered[faulty : faulty + num_kept]:
            total += row
        return total / num_kept

    return _by_coordinate(updates, inner_mean)


def krum(updates: Sequence[Vector], samples: Sequence[int], *, faulty: int) -> Vector:
    """The update with the lowest Krum score, unchanged, (parameters,): [Blanchard17, Section 4]; first of equals."""
    return updates[int(np.argmin(krum_scores(updates, faulty)))].copy()


def multi_krum(updates: Sequence[Vector], samples: Sequence[int], *, faulty: int) -> Vector:
    """The plain mean of the n - f updates with the lowest Krum scores, (parameters,): [Blanchard17, Section 5].

    The paper leaves the number open; n - f is the most that may all be right. Of equal scores the first are taken.
    """
    best = np.argsort(krum_scores(updates, faulty), kind="stable")[: len(updates) - faulty]
    chosen = [updates[index] for index in sorted(best.tolist())]
    return _mean(chosen, [1] * len(chosen), float(len(chosen)))


def minimum_diameter(updates: Sequence[Vector], samples: Sequence[int], *, faulty: int) -> Vector:
    """The plain mean of the `closest_group` of n - f updates, (parameters,): [ElMhamdi20, Section 2]."""
    group = closest_group(updates, faulty)
    return _mean([updates[index] for index in group], [1] * len(group), float(len(group)))


def closest_group(updates: Sequence[Vector], faulty: int) -> tuple[int, ...]:
    """Indices of the n - f updates with the smallest diameter, ascending.

    The diameter is the largest distance between two updates; of equal groups the first in client order is taken.
    """
    _validate_groups(len(updates), faulty)
    size = len(updates) - faulty
    distances = squared_distances(updates)

    def diameter(group: tuple[int, ...]) -> float:
        return float(np.max(distances[np.ix_(group, group)]))

    return min(combinations(range(len(updates)), size), key=diameter)


def validate_crowd(choice: Aggregation, num_updates: int) -> None:
    """Raise `InvalidAggregation` if the rule would have to compare more than `MAX_GROUPS` subsets of the updates."""
    if choice.rule == "minimum-diameter":
        _validate_groups(num_updates, choice.faulty)


def _validate_groups(num_updates: int, faulty: int) -> None:
    num_groups = comb(num_updates, faulty)
    if num_groups > MAX_GROUPS:
        raise InvalidAggregation(
            f"minimum-diameter: {num_groups} groups of {num_updates - faulty} among {num_updates} updates, at most"
            f" {MAX_GROUPS} expected"
        )


def krum_scores(updates: Sequence[Vector], faulty: int) -> NDArray[np.float64]:
    """Sum of every update's squared distances to its n - f - 2 nearest others, (updates,)."""
    distances = squared_distances(updates)
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(updates) - faulty - 2]
    scores = np.zeros(len(updates))
    for column in nearest.T:
        scores += column
    return scores


def squared_distances(updates: Sequence[Vector]) -> NDArray[np.float64]:
    """Squared distance of every pair of updates, (updates, updates); additions in a fixed tree, in float64."""
    count, length = len(updates), updates[0].size
    distances = np.zeros((count, count))
    for start in range(0, length, _DISTANCE_BLOCK):
        block = np.stack([update[start : start + _DISTANCE_BLOCK] for update in updates]).astype(np.float64)
        for row in range(count - 1):
            gaps = block[row + 1 :] - block[row]
            gaps *= gaps
            distances[row, row + 1 :] += _tree_sum(gaps)
    return distances + distances.T


def _tree_sum(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of each row, (rows,): the second half is added to the first until one column is left.

    Only single additions, so the result depends on no library's order of summation; overwrites `rows`.
    """
    width = rows.shape[1]
    while width > 1:
        half = (width + 1) // 2
        rows[:, : width - half] += rows[:, half:width]
        width = half
    return rows[:, 0]


def _mean(updates: Sequence[Vector], weights: Sequence[int], total: float) -> Vector:
    """Weighted mean, block by block to stay in the CPU cache; each coordinate's additions keep their order."""
    result = np.empty_like(updates[0])
    sums, products = np.empty(_MEAN_BLOCK), np.empty(_MEAN_BLOCK)  # reused: allocating is slow
    for part in _blocks(result.size, _MEAN_BLOCK):
        accumulated, product = sums[: part.stop - part.start], products[: part.stop - part.start]
        accumulated.fill(0.0)
        for update, weight in zip(updates, weights, strict=True):
            np.multiply(update[part], np.float64(weight), out=product)
            accumulated += product
        accumulated /= total
        result[part] = accumulated
    return result


def _by_coordinate(updates: Sequence[Vector], reduce: Callable[[Vector], NDArray[np.float64]]) -> Vector:
    """Apply `reduce` to the sorted values of every coordinate, block by block, so as not to copy all updates."""
    result = np.empty_like(updates[0])
    for part in _blocks(result.size, max(1, _BLOCK_ENTRIES // len(updates))):
        values = np.stack([update[part] for update in updates])
        values.sort(axis=0)
        result[part] = reduce(values)
    return result


def _blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _aggregate_checked(rule: Aggregator, fewest: int, updates: Sequence[Vector], samples: Sequence[int]) -> Vector:
    validate_arithmetic()
    if len(updates) < fewest:
        raise InvalidAggregation(f"updates: {len(updates)} given, expected at least {fewest} for this rule")
    if len(samples) != len(updates):
        raise InvalidAggregation(f"samples: {len(samples)} given, expected one for each of {len(updates)} updates")
    for position, (update, count) in enumerate(zip(updates, samples, strict=True)):
        if update.dtype != np.float32 or update.ndim != 1 or update.size != updates[0].size:
            raise InvalidAggregation(
                f"update {position}: {update.dtype} of shape {update.shape} given, expected float32 of shape "
                f"({updates[0].size},)"
            )
        if not 0 <= count < SAMPLES_LIMIT:
            raise InvalidAggregation(f"samples {position}: {count} given, expected 0 to {SAMPLES_LIMIT - 1}")
    if rule is weighted_mean:  # finite if and only if all updates are: one check instead of many
        with np.errstate(invalid="ignore"):
            result = rule(updates, samples)
        if is_finite(result):
            return result
    for position, update in enumerate(updates):
        if not is_finite(update):
            raise InvalidAggregation(f"update {position}: not finite, expected finite numbers only")
    return rule(updates, samples)


def _call_own(function: Callable[..., object], name: str, updates: Sequence[Vector], samples: Sequence[int]) -> Vector:
    """Call a user's rule and return its result, which must be finite and shaped like the updates."""
    try:
        with importing_from_here():
            result = np.asarray(function(updates, samples), dtype=np.float32)
    except Exception as error:  # user code may raise anything
        raise InvalidAggregation(f"rule {name!r} failed: {show_exception(error)}") from error
    if result.shape != updates[0].shape or not is_finite(result):
        raise InvalidAggregation(
            f"rule {name!r}: gave shape {result.shape}, expected finite numbers of shape {updates[0].shape}"
        )
    return result
