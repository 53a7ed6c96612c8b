"""Projection of requested label counts onto the available samples.

Clients request samples of each label (rows of w), but of label k there are only s_k. Among all matrices x with the same
row sums r and column sums of at most s, take the one of least Kullback-Leibler divergence sum x log(x/w) from w. It is
x_ik = a_i w_ik b_k with b_k <= 1, and b_k < 1 only if label k is exhausted: a scarce label is cut by the same factor
for all clients. With b = exp(-p), the prices p minimise the convex dual
sum_i r_i log(sum_k w_ik exp(-p_k)) + sum_k s_k p_k over p >= 0, one variable for each label.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bdfl.arrays import PerClient

Counts: TypeAlias = NDArray[np.int64]  # (clients, labels)
Matrix: TypeAlias = NDArray[np.float64]  # (clients, labels)
PerLabel: TypeAlias = NDArray[np.float64]  # (labels,)

_LEAST_WISH = 1e-3  # samples: any client can hold any label if no other is left
_TOLERANCE = 1e-8  # relative to the greatest supply
_MOST_SLACK = 1e-3  # samples: rounding tolerates less than half a sample in all
_MAX_STEPS = 200
_GRAIN = 1e-6  # resolution of remainders: the last bits of a sum must not matter


def fit_to_supply(wishes: Counts, supply: NDArray[np.int64]) -> Counts:
    """Integers nearest to the wishes: the same row sums, column sums of at most `supply`, (clients, labels).

    Wishes that can all be met are met exactly. Their total must not exceed the supply of all labels.
    """
    if (wishes.sum(axis=0) <= supply).all():
        return wishes
    return round_to_supply(project_wishes(wishes, supply), supply)


def project_wishes(wishes: Counts, supply: NDArray[np.int64]) -> Matrix:
    """Return the matrix nearest to the wishes with their row sums and column sums of at most `supply`.

    Damped Newton method on the prices of the labels in supply. A wish of 0 counts as a thousandth of a sample.
    """
    is_there = supply > 0
    log_wishes = np.log(np.maximum(wishes[:, is_there], _LEAST_WISH))
    sizes, limits = wishes.sum(axis=1).astype(np.float64), supply[is_there].astype(np.float64)
    prices: PerLabel = np.zeros(len(limits))
    value, held = _dual(log_wishes, sizes, limits, prices)
    tolerance = min(_TOLERANCE * float(limits.max()), _MOST_SLACK)
    damping = 1e-3
    for _ in range(_MAX_STEPS):
        slope = limits - held.sum(axis=0)
        is_free = (prices > 0) | (slope < 0)  # a label not exhausted keeps its price of 0
        if np.abs(slope[is_free]).max(initial=0.0) <= tolerance:
            break
        step = _newton_step(held[:, is_free], sizes, slope[is_free], damping)
        next_prices = prices.copy()
        next_prices[is_free] = np.maximum(prices[is_free] + step, 0.0)
        next_value, next_held = _dual(log_wishes, sizes, limits, next_prices)
        if next_value <= value:
            prices, value, held, damping = next_prices, next_value, next_held, max(damping / 10, 1e-12)
        else:
            damping *= 10
    projected = np.zeros(wishes.shape)
    projected[:, is_there] = held
    return projected


def round_to_supply(held: Matrix, supply: NDArray[np.int64]) -> Counts:
    """Round `held` up or down to integers with the same row sums and column sums of at most `supply`.

    The nearest such matrix in squared distance: a transport problem, whose vertices are integers. A solution exists
    because `held` satisfies the supplies up to far less than a sample.
    """
    from scipy.optimize import linprog  # slow to import, and rarely needed

    sizes = np.rint(held.sum(axis=1)).astype(np.int64)
    lower = np.floor(held + _GRAIN)
    remainder = np.round((held - lower) / _GRAIN) * _GRAIN
    client, label = np.nonzero(remainder > 0)  # entries that may be rounded up
    counts = lower.astype(np.int64)
    if not len(client):
        return counts
    rounding = linprog(  # type: ignore[call-overload]  # sparse matrices are missing from its stubs
        1.0 - 2.0 * remainder[client, label],
        A_eq=_picks(client, len(sizes)),
        b_eq=sizes - counts.sum(axis=1),
        A_ub=_picks(label, len(supply)),
        b_ub=supply - counts.sum(axis=0),
        bounds=(0.0, 1.0),
        method="highs-ds",  # a simplex method ends at a vertex
    )
    if not rounding.success:
        raise ArithmeticError(f"labels could not be rounded to whole samples: {rounding.message}")
    counts[client, label] += np.rint(rounding.x).astype(np.int64)
    return counts


def _picks(rows: NDArray[np.int64], num_rows: int) -> sparse.csr_array:
    """Matrix that sums the entries of each row, (rows, entries)."""
    return sparse.csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(num_rows, len(rows)))


def _dual(log_wishes: Matrix, sizes: PerClient, limits: PerLabel, prices: PerLabel) -> tuple[float, Matrix]:
    """Value of the dual at these prices, and the corresponding matrix."""
    weights = log_wishes - prices
    greatest = weights.max(axis=1, keepdims=True)
    shares = np.exp(weights - greatest)
    totals = shares.sum(axis=1, keepdims=True)
    value = float((sizes * (greatest + np.log(totals))[:, 0]).sum() + (limits * prices).sum())
    return value, shares / totals * sizes[:, np.newaxis]


def _newton_step(held: Matrix, sizes: PerClient, slope: PerLabel, damping: float) -> PerLabel:
    """Newton step of the prices, shortened by `damping`.

    If all labels are exhausted, raising all prices together has no effect: damping also keeps the step finite.
    """
    outer = np.einsum("ik,il->kl", held, held / sizes[:, np.newaxis])  # not BLAS: its bits depend on threads
    curvature = np.diag(held.sum(axis=0)) - outer
    scale = np.diag(curvature) + 1e-9 * float(sizes.sum())
    return -np.linalg.solve(curvature + np.diag(damping * scale), slope)
