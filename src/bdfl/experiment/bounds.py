"""Bounds: the least delay of a scenario's long run and of one run's rounds, and Lemma 1 for a finished run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.experiment.simulation import Draws, charge_batteries, draw_run, first_battery, round_problems
from bdfl.experiment.statistics import running_mean
from bdfl.learning.training import Outcome, num_local_steps
from bdfl.records import LearningRecord, PerRound, RunRecord
from bdfl.scenario import Horizon, LocalUnit, MiningMode, Optimizer, RateSchedule, Scenario, ServerOptimizer
from bdfl.scheduling.battery import battery_bound
from bdfl.scheduling.bound import DualBound, dual_bound
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.queues import ConvergenceBound, convergence_bound
from bdfl.scheduling.registry import BASELINES
from bdfl.types import PerClient

# Step sizes of the multipliers, relative to a round's least delay: fine for an estimate, one quick pass for a path.
# There any multipliers give a bound, and better ones raise it only slightly (0.05 % on the paper's scenarios).
_FINE_STEPS = (0.02, 0.005, 0.002)
_QUICK_STEPS = (0.01,)
_KEEP_POWER = frozenset({*BASELINES, "drc", "exact", "battery"})  # transmit with `power_w`


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
    fitted = _bounding_problems(scenario, Draws(draws.federation, draws.participation_rate, other.states))
    steps = _scaled_steps(_FINE_STEPS, fitted)
    played = _bounding_problems(scenario, draws)
    if on_progress is not None:
        solver = _counting(solver, len(steps) * len(fitted) + len(played), on_progress)
    bound = _bound_problems(fitted, played, draws.participation_rate, solver, steps)
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
    problems = _bounding_problems(scenario, draws)
    fitted = problems[::2] if scenario.energy.horizon is Horizon.ROUND else problems
    steps = _scaled_steps(_QUICK_STEPS, fitted)
    bound = _bound_problems(fitted, problems, draws.participation_rate, solver, steps)
    share = _share_feasible(bound)
    return bound.mean_s / share if share > 0 else float("nan")


def _bounding_problems(scenario: Scenario, draws: Draws) -> list[RoundProblem]:
    """Problems of every round without a price on energy; batteries hold what they have received so far."""
    problems = []
    battery = first_battery(scenario)
    for problem in round_problems(scenario, draws):
        charged = replace(charge_batteries(problem, battery), energy_price=None)
        problems.append(charged)
        battery = charged.battery
    return problems


def _bound_problems(
    fitted: Sequence[RoundProblem],
    played: Sequence[RoundProblem],
    rate: PerClient,
    solver: Scheduler,
    steps: Sequence[float],
) -> DualBound:
    if played[0].battery is not None:
        return battery_bound(fitted, played, rate, solver=solver)
    return dual_bound(fitted, played, rate, solver=solver, steps=steps)


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


_SAME_RATE = 0.01  # participation and beta count as equal up to this


@dataclass(frozen=True)
class CannotSay:
    """The reason why a run does not determine the constants of Lemma 1."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class LemmaConstants:
    """Constants of Lemma 1, estimated from a run.

    `smoothness` and `gradient_norm` are the largest values observed, so the true constants are no smaller: these
    estimates can make the bound too low, but never too high.
    """

    initial_gap: float  # F(w(1)), no less than F(w(1)) - F*, since a cross-entropy is never negative
    learning_rate: float  # eta
    smoothness: float  # L: between two models of the run
    gradient_norm: float  # G: of a mini-batch, or of all data
    fewest_steps: int  # H of the client that makes fewest
    most_steps: int  # H of the client that makes most

    @property
    def step(self) -> float:
        """Step eta L H, dimensionless: length of local training relative to the change of gradients."""
        return self.learning_rate * self.smoothness * self.most_steps

    @property
    def known_anyway(self) -> float:
        """Trivial bound G^2 on a squared gradient norm: a bound above it is vacuous."""
        return self.gradient_norm**2


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvergenceEstimate:
    """Lemma 1's bound after T = 1, 2, ... rounds, at the target and at the achieved rates, and the measured values."""

    constants: LemmaConstants
    owed: Sequence[ConvergenceBound]  # one for each T, clients participating at their rates beta_i
    achieved: Sequence[ConvergenceBound]  # the same at the participation of the whole run
    squared_gradient: PerRound  # |grad F|^2 at the model before each round, NaN if not measured
    measured: PerRound  # mean of those measured up to and including each round
    unmet: Sequence[str]  # assumptions of Lemma 1 that this run does not meet

    @property
    def is_telling(self) -> bool:
        """True if the final bound, at the achieved rates, is below the trivial bound."""
        return self.achieved[-1].total < self.constants.known_anyway

    @property
    def looseness(self) -> float:
        """Ratio of the final bound to the measured mean, at the achieved rates."""
        measured = float(self.measured[-1])
        return self.achieved[-1].total / measured if measured > 0 else float("inf")


def estimate_convergence(
    run: RunRecord, learning: LearningRecord, scenario: Scenario
) -> ConvergenceEstimate | CannotSay:
    """Evaluate Lemma 1 with constants from the run, or return the reason why they are unknown."""
    constants = estimate_constants(learning, scenario)
    if isinstance(constants, CannotSay):
        return constants
    squared_gradient, rounds = np.square(learning.gradient_norm), range(1, run.num_rounds + 1)
    return ConvergenceEstimate(
        constants=constants,
        owed=[_bound(constants, number, run.participation_rate, learning.samples) for number in rounds],
        achieved=[_bound(constants, number, run.participation, learning.samples) for number in rounds],
        squared_gradient=squared_gradient,
        measured=running_mean(squared_gradient),
        unmet=list_unmet(constants, run, learning, scenario),
    )


def estimate_constants(learning: LearningRecord, scenario: Scenario) -> LemmaConstants | CannotSay:
    """Estimate the constants of Lemma 1 from the run."""
    if not np.isfinite(learning.gradient_norm).any():
        return CannotSay("the full gradient was not measured; learning.gradient_every = 1 measures it in every round")
    if not np.isfinite(learning.global_loss[0]):
        return CannotSay("the loss of the first model on all training data is not a finite number")
    if not np.isfinite(learning.smoothness).any():
        return CannotSay("L needs the full gradient at two different models, and the run has fewer")
    if not np.isfinite(learning.local_gradient_norm).any():
        return CannotSay("no client saw a finite gradient, so there is no G")
    steps = count_steps(scenario, learning.samples)
    return LemmaConstants(
        initial_gap=float(learning.global_loss[0]),
        learning_rate=scenario.learning.learning_rate,
        smoothness=_largest(learning.smoothness),
        gradient_norm=max(_largest(learning.local_gradient_norm), _largest(learning.gradient_norm)),
        fewest_steps=int(steps.min()),
        most_steps=int(steps.max()),
    )


def count_steps(scenario: Scenario, samples: PerClient) -> NDArray[np.int64]:
    """Mini-batch updates H in a round of each client that has data."""
    settings = scenario.learning
    asked = num_local_steps(scenario)
    held = samples[samples > 0]
    if settings.unit is LocalUnit.UPDATES:
        return np.full(len(held), asked, dtype=np.int64)
    return asked * np.ceil(held / settings.batch).astype(np.int64)


def list_unmet(
    constants: LemmaConstants, run: RunRecord, learning: LearningRecord, scenario: Scenario
) -> tuple[str, ...]:
    """List the assumptions of Lemma 1 or its proof that the run does not meet, one sentence each."""
    settings = scenario.learning
    found: list[str] = []
    if settings.momentum > 0:
        longer = 1.0 / (1.0 - settings.momentum)
        found.append(
            f"Momentum {settings.momentum:g}: the proof has plain steps, these are up to {longer:.3g} times longer."
        )
    if settings.optimizer is not Optimizer.SGD:
        found.append(f"Optimizer {settings.optimizer}: the proof has steps along the gradient.")
    if settings.schedule is not RateSchedule.CONSTANT:
        found.append(f"Learning rate by {settings.schedule}: the proof has one for all rounds, the first is taken.")
    if settings.clip_norm is not None:
        found.append(f"Gradients clipped to {settings.clip_norm:g}: the proof has them whole.")
    if settings.proximal > 0 or settings.label_smoothing > 0 or settings.augment:
        found.append("Proximal term, label smoothing or augmentation: the steps follow another function than F.")
    if settings.weight_decay > 0:
        found.append(f"Weight decay {settings.weight_decay:g}: the steps follow another function than F.")
    if settings.aggregation.server is not ServerOptimizer.NONE:
        found.append(f"Server optimizer {settings.aggregation.server}: the proof has the mean as the next model.")
    if settings.aggregation.rule != "mean":
        found.append(f"Aggregation by {settings.aggregation.rule}: the proof has the weighted mean.")
    elif (stretch := mean_stretch(run, learning.samples)) > 1.0 + _SAME_RATE:
        found.append(
            "The mean of a round is over the data of those who trained (3); the proof divides by all data (38)."
            f" The steps of this run are {stretch:.1f} times longer, in the mean."
        )
    if constants.most_steps > constants.fewest_steps:
        found.append(
            f"Clients make {constants.fewest_steps} to {constants.most_steps} local steps; the proof has one number for"
            " all. Each term is taken at the worse of the two."
        )
    difference = float(np.max(np.abs(run.participation - run.participation_rate)))
    if difference > _SAME_RATE:
        found.append(
            f"Clients took part up to {100 * difference:.0f} points more or less often than beta, where the proof has"
            " exactly beta; so the bound is given at both."
        )
    if num_diverged := learning.count_outcomes(Outcome.DIVERGED):
        found.append(f"{num_diverged} local trainings diverged: no G bounds their gradients.")
    return tuple(found)


def mean_stretch(run: RunRecord, samples: PerClient) -> float:
    """Mean over rounds of |D| / |D_S|, all data over the data of clients that delivered; 1 if none did."""
    delivered = run.delivered @ samples
    ratio = np.sum(samples) / delivered[delivered > 0]
    return float(np.mean(ratio)) if ratio.size else 1.0


def _bound(constants: LemmaConstants, rounds: int, rate: PerClient, samples: PerClient) -> ConvergenceBound:
    """Bound for unequal numbers of steps: the fewest for the initial loss, the most for the drift terms."""
    fewest, most = (
        convergence_bound(
            initial_gap=constants.initial_gap,
            learning_rate=constants.learning_rate,
            smoothness=constants.smoothness,
            gradient_norm=constants.gradient_norm,
            local_updates=local_updates,
            rounds=rounds,
            rate=rate,
            samples=samples,
        )
        for local_updates in (constants.fewest_steps, constants.most_steps)
    )
    return replace(most, initial_loss=fewest.initial_loss)


def _largest(values: NDArray[np.float64]) -> float:
    return float(np.max(values[np.isfinite(values)]))
