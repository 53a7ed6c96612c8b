"""Lower bound on the average delay of any scheduler: the dual of P1, with the best multipliers for given rounds.

[Li24, Eq. 15] (P1) with a multiplier lambda_i >= 0 on every client's participation: no policy's average delay is below

    E[ min over S, f, F of d - sum_i lambda_i Gamma_i ] + sum_i lambda_i beta_i.

The minimum is a round problem with V = 1 and lambda as queues. Its proven bound is used, so the result is a bound even
if the solver is not optimal, and it holds for all multipliers: on the very rounds they were fitted on, too. As an
estimate for other rounds of the same kind it would be too high there; for that, multipliers come from another sample.

The best multipliers solve the dual of a linear program: the least mean delay of a random choice among all sets in every
round. It is solved by column generation (Kelley's cutting planes, one model per round): every set found at some
multipliers is a plane above its round's term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import exact
from bdfl.scheduling.problem import RoundProblem, Scheduler
from bdfl.types import PerClient

_TOLERANCE = 1e-4  # relative: the optimum of the program is known to this
_MAX_PASSES = 40  # over all rounds
_PASSES_OF_CLIENTS = 4_000  # with more than 100 clients fewer passes: so many, divided by the clients
_FEWEST_PASSES = 8
_DEAREST = 100.0  # mean least delays that a participation costs at most
_LEAST_DELAY_S = 1e-9
_SPARE = 1.0 - 1e-6  # of the rounds in which a client can train: if it had to in all, any high price would do
_REACH = 0.7  # of the way from the best multipliers to those of the planes: all of it oscillates


@dataclass(frozen=True, eq=False)
class DualBound:
    """A lower bound on the average delay of any policy on the rounds it was evaluated on."""

    multipliers: PerClient  # lambda_i (s)
    rate: PerClient  # beta_i
    values_s: PerClient  # (rounds,): min of d - sum lambda Gamma in every round played; 0 in an infeasible one

    @property
    def mean_s(self) -> float:
        """Bound on the average delay (s) of any policy that meets every participation rate."""
        return self.for_participation(self.rate)

    @property
    def error_s(self) -> float:
        """Standard error (s) of that bound as an estimate for other rounds, from the spread over the rounds."""
        return float(np.std(self.values_s, ddof=1) / np.sqrt(len(self.values_s))) if len(self.values_s) > 1 else np.inf

    def for_participation(self, achieved: PerClient) -> float:
        """Bound (s) on the average delay over exactly these rounds of any schedule with this participation.

        It has no sampling error: it holds on every sample path.
        """
        return float(np.mean(self.values_s) + np.sum(self.multipliers * achieved))


@dataclass(frozen=True, eq=False)
class FittedBound(DualBound):
    """The bound at the best multipliers for the rounds themselves: the optimum of all schedules is close above it."""

    attained_s: float  # average delay of some random choice of sets that meets every rate


def dual_bound(
    multipliers: PerClient, problems: Sequence[RoundProblem], rate: PerClient, *, solver: Scheduler = exact
) -> DualBound:
    """Lower bound on the average delay (s) over these rounds, at any multipliers >= 0.

    Queues and tradeoffs of the problems are ignored. `solver` must return proven bounds for all decisions allowed.
    """
    return DualBound(multipliers, rate, _solve_rounds(problems, multipliers, solver).values_s)


def fit_bound(problems: Sequence[RoundProblem], rate: PerClient, *, solver: Scheduler = exact) -> FittedBound:
    """Best lower bound on the average delay (s) over these rounds: within 1e-4 of the least that any schedule attains.

    Rates are lowered to the share of rounds in which a client can train. Where the passes do not suffice, as with very
    many clients, the bound is proven all the same, and `attained_s` is farther above it.
    """
    free = _solve_rounds(problems, np.zeros_like(rate), solver)
    usual_s = max(float(np.mean(free.delay_s)), _LEAST_DELAY_S)
    busy = _solve_rounds(problems, np.full_like(rate, _DEAREST * usual_s), solver)  # all who can train do
    rate = np.minimum(rate, _SPARE * busy.selected.mean(axis=0))
    best, planes = DualBound(free.multipliers, rate, free.values_s), [free, busy]
    attained_s, most = np.inf, min(max(_PASSES_OF_CLIENTS // len(rate), _FEWEST_PASSES), _MAX_PASSES)
    while len(planes) < most:
        highest, attained_s = _solve_planes(planes, rate, _DEAREST * usual_s)
        if attained_s - best.mean_s <= _TOLERANCE * usual_s:
            break
        planes.append(_solve_rounds(problems, best.multipliers + _REACH * (highest - best.multipliers), solver))
        found = DualBound(planes[-1].multipliers, rate, planes[-1].values_s)
        best = max(best, found, key=lambda bound: bound.mean_s)
    return FittedBound(best.multipliers, rate, best.values_s, attained_s)


@dataclass(frozen=True, eq=False)
class _Pass:
    """All rounds solved at the same multipliers; zeros in infeasible rounds."""

    multipliers: PerClient
    values_s: PerClient  # (rounds,): proven lower bounds on d - sum lambda Gamma
    delay_s: PerClient  # (rounds,) of the decisions found
    selected: NDArray[np.bool_]  # (rounds, clients)


def _solve_rounds(problems: Sequence[RoundProblem], multipliers: PerClient, solver: Scheduler) -> _Pass:
    decisions = [solver(replace(problem, queue=multipliers, tradeoff=1.0, memory=None)) for problem in problems]
    return _Pass(
        multipliers,
        np.array([decision.bound if decision.is_feasible else 0.0 for decision in decisions]),
        np.array([evaluate(*round).delay_s for round in zip(problems, decisions, strict=True)]),
        np.array([decision.selected for decision in decisions]),
    )


def _solve_planes(planes: Sequence[_Pass], rate: PerClient, dearest_s: float) -> tuple[PerClient, float]:
    """Multipliers at the top of all planes, and its height: mean of v_t + lambda beta with v_t <= d - lambda Gamma."""
    from scipy.optimize import linprog  # slow to import, and rarely needed
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    delay_s = np.concatenate([plane.delay_s for plane in planes])
    num_rounds, num_clients = planes[0].selected.shape
    choice = vstack([eye_array(num_rounds)] * len(planes))
    taken = csr_array(np.concatenate([plane.selected for plane in planes]).astype(np.float64))
    solved = linprog(
        -np.concatenate([np.full(num_rounds, 1.0 / num_rounds), rate]),
        A_ub=hstack([choice, taken], format="csr"),
        b_ub=delay_s,
        bounds=[(None, None)] * num_rounds + [(0.0, dearest_s)] * num_clients,
    )
    if solved.x is None or solved.fun is None:  # it has a solution: the rates can be met
        raise RuntimeError(f"the dual of {num_rounds} rounds was not solved: {solved.message}")
    return np.maximum(solved.x[num_rounds:], 0.0), -float(solved.fun)
