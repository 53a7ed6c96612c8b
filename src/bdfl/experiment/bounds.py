"""Lower bounds on the delay: the dual bound on a scenario's long run, and on the rounds of one run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.simulation import Draws, draw_run, round_problems
from bdfl.scenario import MiningMode, Scenario
from bdfl.scheduling.bound import DualBound, dual_bound
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.registry import BASELINES

# Step sizes of the multipliers, relative to a round's least delay: fine for an estimate, one quick pass for a path.
# There any multipliers give a bound, and better ones raise it only slightly (0.05 % on the paper's scenarios).
_FINE_STEPS = (0.02, 0.005, 0.002)
_QUICK_STEPS = (0.01,)
_KEEP_POWER = frozenset({*BASELINES, "drc", "exact"})  # transmit with `power_w`


class LongRunBound(msgspec.Struct, frozen=True, kw_only=True):
    """A lower bound on the long-run mean delay of any scheduler that meets every client's participation rate."""

    scenario: str
    seed: int
    rounds: int  # of each of the two samples
    infeasible_rounds: int  # of the second sample
    bound_s: float  # estimate, unbiased from below
    error_s: float  # its standard error
    confident_s: float  # the estimate minus twice its error
    multipliers_s: list[float]  # price of each client's participation
    participation_rate: list[float]


class NoBound(BdflError):
    """A scenario to whose delays the bound does not apply."""


def bound_long_run(scenario: Scenario, *, on_progress: Callable[[int, int], None] | None = None) -> LongRunBound:
    """Estimate the bound and its sampling error: multipliers from one sample of rounds, the bound from another.

    Both samples have as many rounds as the scenario. Infeasible rounds are left out. Raises `NoBound` if mining is
    sampled: the bound is on planned delays. `on_progress` receives the number of rounds solved and of all.
    """
    if not is_bounded(scenario):
        raise NoBound("mining.mode: sampled given, the bound is on planned delays: allowed is quantile")
    solver = bounding_solver([scenario.scheduler.name])
    draws = draw_run(scenario)
    other = draw_run(msgspec.structs.replace(scenario, seed=scenario.seed + 1))
    fitted = round_problems(scenario, Draws(draws.federation, draws.participation_rate, other.states))
    steps = _scaled_steps(_FINE_STEPS, fitted)
    played = round_problems(scenario, draws)
    if on_progress is not None:
        solver = _counting(solver, len(steps) * len(fitted) + len(played), on_progress)
    bound = dual_bound(fitted, played, draws.participation_rate, solver=solver, steps=steps)
    scale = 1.0 / max(_share_feasible(bound), 1e-12)
    return LongRunBound(
        scenario=scenario.name,
        seed=scenario.seed,
        rounds=scenario.rounds,
        infeasible_rounds=int(np.count_nonzero(bound.values_s == 0.0)),
        bound_s=bound.mean_s * scale,
        error_s=bound.error_s * scale,
        confident_s=(bound.mean_s - 2.0 * bound.error_s) * scale,
        multipliers_s=bound.multipliers.tolist(),
        participation_rate=draws.participation_rate.tolist(),
    )


def is_bounded(scenario: Scenario) -> bool:
    """Return whether delays are the planned ones, to which the bound applies; sampled ones are shorter."""
    return scenario.mining.mode is MiningMode.QUANTILE


def bounding_solver(schedulers: Iterable[str]) -> Scheduler:
    """Return a solver whose bounds hold for all of these schedulers; an unknown one may choose its transmit power."""
    return exact if _KEEP_POWER.issuperset(schedulers) else exact_power


def bound_path(scenario: Scenario, draws: Draws, solver: Scheduler = exact) -> float:
    """Lower bound on the mean delay (s) of any schedule of exactly these rounds that meets every participation rate.

    It has no sampling error. NaN if no round is feasible; infeasible rounds are left out, as in the mean delay of a
    run.
    """
    problems = round_problems(scenario, draws)
    fitted = problems[::2]
    steps = _scaled_steps(_QUICK_STEPS, fitted)
    bound = dual_bound(fitted, problems, draws.participation_rate, solver=solver, steps=steps)
    share = _share_feasible(bound)
    return bound.mean_s / share if share > 0 else float("nan")


def _counting(solver: Scheduler, total: int, on_progress: Callable[[int, int], None]) -> Scheduler:
    """Wrap the solver to report after every round the number solved, of `total`."""
    done = 0

    def solve(problem: RoundProblem) -> Decision:
        nonlocal done
        decision = solver(problem)
        done += 1
        on_progress(done, total)
        return decision

    return solve


def _scaled_steps(relative: Sequence[float], problems: Sequence[RoundProblem]) -> list[float]:
    """Step sizes (s), scaled by the least delay of the first feasible one of `problems`."""
    decisions = (exact(replace(problem, tradeoff=1.0)) for problem in problems)
    least_s = next((decision.bound for decision in decisions if decision.is_feasible), 1.0)
    return [step * least_s for step in relative]


def _share_feasible(bound: DualBound) -> float:
    return float(np.count_nonzero(bound.values_s) / len(bound.values_s))
