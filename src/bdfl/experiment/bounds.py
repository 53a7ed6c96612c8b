"""Bounds: the least delay of a scenario's long run and of one run's rounds, and Lemmas 1 and 2 for a finished run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.environment import owed_participation
from bdfl.errors import BdflError
from bdfl.experiment.simulation import Draws, charge_batteries, draw_run, first_battery, round_problems
from bdfl.experiment.statistics import running_mean
from bdfl.learning.training import Outcome, num_local_steps
from bdfl.records import LearningRecord, PerRound, RunRecord
from bdfl.scenario import Horizon, LocalUnit, MiningMode, Optimizer, RateSchedule, Scenario, ServerOptimizer
from bdfl.scheduling.battery import battery_bound
from bdfl.scheduling.bound import DualBound, FittedBound, dual_bound, fit_bound
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.queues import ConvergenceBound, aggregation_bound, convergence_bound
from bdfl.scheduling.registry import WITHOUT_TRADEOFF
from bdfl.types import PerClient

_USUAL_PASSES = 10  # over the rounds, of a fit
_ROUNDING = 1e-9  # of a number of participations
_KEEP_POWER = frozenset({*WITHOUT_TRADEOFF, "drc", "exact"})  # transmit with `power_w`


class PathBound(msgspec.Struct, frozen=True, kw_only=True):
    """Least mean delay of any schedule of exactly these rounds that meets every participation rate, from both sides.

    NaN if no round is feasible; infeasible rounds are left out, as in the mean delay of a run.
    """

    bound_s: float  # proven: no schedule is faster, choosing sets at random neither
    attained_s: float  # mean delay of a random choice of sets in every round; NaN on batteries: unknown
    whole_s: float  # proven, for whole participations: at least ceil(beta T)

    @property
    def gap(self) -> float:
        """Relative distance within which the least mean delay is known."""
        return self.attained_s / self.bound_s - 1.0

    @property
    def whole_percent(self) -> float:
        """Cost of whole participations, in percent of the delay."""
        return 100.0 * (self.whole_s / self.bound_s - 1.0)


class LongRunBound(msgspec.Struct, frozen=True, kw_only=True):
    """Lower bounds on the mean delay of any scheduler that meets every participation rate, in the long run and here."""

    scenario: str
    seed: int
    rounds: int  # of each of the two samples
    infeasible_rounds: int  # of the second sample
    bound_s: float  # of the long run: estimate, unbiased from below
    error_s: float  # its standard error
    confident_s: float  # the estimate minus twice its error
    multipliers_s: list[float]  # price of each client's participation
    participation_rate: list[float]
    path: PathBound  # of the second sample


NO_PATH = PathBound(bound_s=float("nan"), attained_s=float("nan"), whole_s=float("nan"))


class NoBound(BdflError):
    """A scenario to whose delays the bound does not apply."""


def bound_long_run(scenario: Scenario, *, on_progress: Callable[[int, int], None] | None = None) -> LongRunBound:
    """Estimate the bound and its sampling error: multipliers from one sample of rounds, the bound from another.

    Both samples have as many rounds as the scenario, the second is the scenario's own and is bounded by itself too.
    Infeasible rounds are left out. Raises `NoBound` if mining is sampled: the bound is on planned delays. `on_progress`
    receives the number of rounds solved and about how many there will be.
    """
    if not is_bounded(scenario):
        raise NoBound("mining.mode: sampled given, the bound is on planned delays: allowed is quantile")
    solver = bounding_solver([scenario.scheduler.name])
    draws = draw_run(scenario)
    other = draw_run(msgspec.structs.replace(scenario, seed=scenario.seed + 1))
    fitted = _bounding_problems(scenario, Draws(draws.federation, draws.participation_rate, other.states))
    played = _bounding_problems(scenario, draws)
    if on_progress is not None:
        solver = _counting(solver, _USUAL_PASSES * (len(fitted) + len(played)), on_progress)
    owed = owed_participation(scenario, draws.participation_rate, scenario.rounds)
    if scenario.energy.horizon is Horizon.RUN:
        bound = battery_bound(fitted, played, owed, solver=solver)
    else:
        bound = dual_bound(fit_bound(fitted, owed, solver=solver).multipliers, played, owed, solver=solver)
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
        participation_rate=owed.tolist(),
        path=bound_path(scenario, draws, solver),
    )


def is_bounded(scenario: Scenario) -> bool:
    """Return whether delays are the planned ones, to which the bound applies; sampled ones are shorter."""
    return scenario.mining.mode is MiningMode.QUANTILE


def bounding_solver(schedulers: Iterable[str]) -> Scheduler:
    """Return a solver whose bounds hold for all of these schedulers; an unknown one may choose its transmit power."""
    return exact if _KEEP_POWER.issuperset(schedulers) else exact_power


def bound_path(scenario: Scenario, draws: Draws, solver: Scheduler = exact) -> PathBound:
    """Enclose the least mean delay (s) of any schedule of exactly these rounds that meets every participation rate."""
    problems = _bounding_problems(scenario, draws)
    owed = owed_participation(scenario, draws.participation_rate, len(problems))
    fit = (
        fit_bound(problems, owed, solver=solver)
        if scenario.energy.horizon is Horizon.ROUND
        else battery_bound(problems, problems, owed, solver=solver)
    )
    share = _share_feasible(fit)
    if share == 0.0:
        return NO_PATH
    num_rounds = len(fit.values_s)
    whole = np.ceil(fit.rate * num_rounds - _ROUNDING) / num_rounds
    return PathBound(
        bound_s=fit.mean_s / share,
        attained_s=fit.attained_s / share if isinstance(fit, FittedBound) else float("nan"),
        whole_s=fit.for_participation(whole) / share,
    )


def _bounding_problems(scenario: Scenario, draws: Draws) -> list[RoundProblem]:
    """Problems of every round without a price on energy; batteries hold what they have received so far."""
    problems = []
    battery = first_battery(scenario)
    for problem in round_problems(scenario, draws):
        charged = replace(charge_batteries(problem, battery), energy_price=None)
        problems.append(charged)
        battery = charged.battery
    return problems


def _counting(solver: Scheduler, total: int, on_progress: Callable[[int, int], None]) -> Scheduler:
    """Wrap the solver to report after every round the number solved, of about `total`."""
    done = 0

    def solve(problem: RoundProblem) -> Decision:
        nonlocal done
        decision = solver(problem)
        done += 1
        on_progress(done, max(done, total))
        return decision

    return solve


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
    """Bounds of Lemmas 1 and 2 after T = 1, 2, ... rounds, and the measured values."""

    constants: LemmaConstants
    owed: Sequence[ConvergenceBound]  # Lemma 1, one for each T, clients participating at their rates beta_i
    achieved: Sequence[ConvergenceBound]  # the same at the participation of the whole run
    weighted: Sequence[ConvergenceBound]  # Lemma 2, at the clients' mean weights in the aggregates of the whole run
    squared_gradient: PerRound  # |grad F|^2 at the model before each round, NaN if not measured
    measured: PerRound  # mean of those measured up to and including each round
    unmet: Sequence[str]  # assumptions of the lemmas that this run does not meet

    def is_telling(self, bounds: Sequence[ConvergenceBound]) -> bool:
        """Return whether the last of these bounds is below the trivial one."""
        return bounds[-1].total < self.constants.known_anyway

    def looseness(self, bounds: Sequence[ConvergenceBound]) -> float:
        """Ratio of the last of these bounds to the measured mean."""
        measured = float(self.measured[-1])
        return bounds[-1].total / measured if measured > 0 else float("inf")


def estimate_convergence(
    run: RunRecord, learning: LearningRecord, scenario: Scenario
) -> ConvergenceEstimate | CannotSay:
    """Evaluate Lemmas 1 and 2 with constants from the run, or return the reason why they are unknown."""
    constants = estimate_constants(learning, scenario)
    if isinstance(constants, CannotSay):
        return constants
    squared_gradient, rounds = np.square(learning.gradient_norm), range(1, run.num_rounds + 1)
    weight = mean_weights(run, learning.samples)
    weight[learning.samples > 0] *= count_steps(scenario, learning.samples) / constants.most_steps
    return ConvergenceEstimate(
        constants=constants,
        owed=[_bound(constants, number, run.participation_rate, learning.samples) for number in rounds],
        achieved=[_bound(constants, number, run.participation, learning.samples) for number in rounds],
        weighted=[_weighted_bound(constants, number, weight, learning.samples) for number in rounds],
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
            f" The steps of this run are {stretch:.1f} times longer, in the mean. Lemma 2 has (3)."
        )
    if constants.most_steps > constants.fewest_steps:
        found.append(
            f"Clients make {constants.fewest_steps} to {constants.most_steps} local steps; the proof has one number for"
            " all. Each term is taken at the worse of the two; Lemma 2 weighs every client by its steps."
        )
    difference = float(np.max(np.abs(run.participation - run.participation_rate)))
    if difference > _SAME_RATE:
        found.append(
            f"Clients took part up to {100 * difference:.0f} points more or less often than beta, where the proof has"
            " exactly beta; so the bound is given at both, and Lemma 2 at the weights of the run."
        )
    if run.scheduler != "random" and not (run.delivered == run.delivered[0]).all():
        found.append(
            f"{run.scheduler} chooses by what happened before. In Lemma 2 expected weights do not depend on that."
        )
    if num_diverged := learning.count_outcomes(Outcome.DIVERGED):
        found.append(f"{num_diverged} local trainings diverged: no G bounds their gradients.")
    return tuple(found)


def mean_stretch(run: RunRecord, samples: PerClient) -> float:
    """Mean over rounds of |D| / |D_S|, all data over the data of clients that delivered; 1 if none did."""
    delivered = run.delivered @ samples
    ratio = np.sum(samples) / delivered[delivered > 0]
    return float(np.mean(ratio)) if ratio.size else 1.0


def mean_weights(run: RunRecord, samples: PerClient) -> PerClient:
    """Mean weight of each client in a round's aggregate (3), (clients,); a round without updates gives nobody any."""
    data = run.delivered * samples
    total = np.sum(data, axis=1, keepdims=True)
    return np.asarray(np.mean(data / np.where(total > 0, total, 1.0), axis=0))


def _weighted_bound(constants: LemmaConstants, rounds: int, weight: PerClient, samples: PerClient) -> ConvergenceBound:
    return aggregation_bound(
        initial_gap=constants.initial_gap,
        learning_rate=constants.learning_rate,
        smoothness=constants.smoothness,
        gradient_norm=constants.gradient_norm,
        local_updates=constants.most_steps,
        rounds=rounds,
        weight=weight,
        samples=samples,
    )


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
