"""Lower bound on the long-run average delay of any scheduler: the dual of P1.

[Li24, Eq. 15] (P1) with a multiplier lambda_i >= 0 on every client's participation: no policy's average delay is below

    E[ min over S, f, F of d - sum_i lambda_i Gamma_i ] + sum_i lambda_i beta_i.

The minimum is a round problem with V = 1 and lambda as queues. Its proven bound is used, so the result is a bound even
if the solver is not optimal. Multipliers are fitted on one sample of rounds and evaluated on another: on the same
rounds the estimate would be too high.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bdfl.scheduling.exact import exact
from bdfl.scheduling.problem import RoundProblem, Scheduler
from bdfl.scheduling.queues import next_queue
from bdfl.types import PerClient, PerClientMask

_STEPS = (0.02, 0.005, 0.002)  # s per missed participation, one pass over the sample each


@dataclass(frozen=True, eq=False)
class DualBound:
    """A lower bound on the average delay of any policy on the rounds it was evaluated on."""

    multipliers: PerClient  # lambda_i (s)
    rate: PerClient  # beta_i
    values_s: PerClient  # (rounds,): min of d - sum lambda Gamma in every round played; 0 in an infeasible one

    @property
    def mean_s(self) -> float:
        """Estimate of the bound on the average delay (s) of any policy that meets every participation rate."""
        return self.for_participation(self.rate)

    @property
    def error_s(self) -> float:
        """Standard error (s) of that estimate, from the spread over the rounds."""
        return float(np.std(self.values_s, ddof=1) / np.sqrt(len(self.values_s))) if len(self.values_s) > 1 else np.inf

    def for_participation(self, achieved: PerClient) -> float:
        """Bound (s) on the average delay over exactly these rounds of any schedule with this participation.

        It has no sampling error: it holds on every sample path.
        """
        return float(np.mean(self.values_s) + np.sum(self.multipliers * achieved))


def dual_bound(
    fitted: Sequence[RoundProblem],
    played: Sequence[RoundProblem],
    rate: PerClient,
    *,
    solver: Scheduler = exact,
    steps: Sequence[float] = _STEPS,
) -> DualBound:
    """Lower bound on the average delay (s) over the `played` rounds, with multipliers from the `fitted` ones.

    Queues and tradeoffs of the problems are ignored. `solver` must return proven bounds for all decisions allowed.
    """
    multipliers = fit_multipliers(fitted, rate, solver=solver, steps=steps)
    values = [_dual_value(problem, multipliers, solver)[0] for problem in played]
    return DualBound(multipliers, rate, np.array(values))


def fit_multipliers(
    problems: Sequence[RoundProblem], rate: PerClient, *, solver: Scheduler = exact, steps: Sequence[float] = _STEPS
) -> PerClient:
    """Near-optimal multipliers (s), (clients,): stochastic ascent, one pass per step size, with averaging.

    A step is the scaled update of the virtual queue [Li24, Eq. 16]: missed participation raises a multiplier. The
    average is over the second half of a pass.
    """
    multipliers = np.zeros_like(rate)
    for step in steps:
        queue, total = multipliers / step, np.zeros_like(rate)
        for number, problem in enumerate(problems):
            _, participated = _dual_value(problem, queue * step, solver)
            queue = next_queue(queue, rate, participated)
            if number >= len(problems) // 2:
                total += queue
        multipliers = step * total / max(len(problems) - len(problems) // 2, 1)
    return multipliers


def _dual_value(problem: RoundProblem, multipliers: PerClient, solver: Scheduler) -> tuple[float, PerClientMask]:
    """Proven lower bound (s) on d - sum lambda Gamma in one round, and the clients selected at its minimum."""
    decision = solver(replace(problem, queue=multipliers, tradeoff=1.0))
    if not decision.is_feasible:
        return 0.0, decision.selected
    return decision.bound, decision.selected
