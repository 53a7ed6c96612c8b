"""Comparison of schedulers on the same draws: means with intervals, paired differences, bound and frontiers.

A scheduler saves time by choosing clients and by allocating energy to training and mining. Baselines can be played at
their initial and at their best frequencies, which tells the two apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.experiment.bounds import NO_PATH, PathBound, bound_path, bounding_solver, is_bounded
from bdfl.experiment.parallel import Group, Progress, list_seeds, map_parallel, prepare_groups
from bdfl.experiment.simulation import Draws, draw_run, play
from bdfl.experiment.statistics import Interval, cumulative_delay, mean_client_energy, mean_interval
from bdfl.records import RunSummary, summarise_run
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.problem import Scheduler
from bdfl.scheduling.registry import (
    BASELINES,
    WITHOUT_TRADEOFF,
    InvalidChoice,
    allocates_best,
    choose_scheduler,
    validate_choices,
    with_best_frequencies,
)

PAPER_SCHEDULERS = ("random", "round-robin", "channel-best", "drc")
DEFAULT_SCHEDULERS = (
    *PAPER_SCHEDULERS,
    *(with_best_frequencies(name) for name in PAPER_SCHEDULERS if name in BASELINES),
    "exact:tradeoff=50",
    "steady",
)
FRONTIER_TRADEOFFS = (1.0, 10.0, 50.0, 150.0, 500.0)
FRONTIER_BUDGETS = (0.6, 0.8, 1.0, 1.5, 2.0)  # of the scenario's energy budgets
FRONTIER_SEEDS = 3

PerSeed = NDArray[np.float64]  # (seeds,)


class SchedulerResult(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler over all seeds. Intervals are over seeds; those of differences of two schedulers are paired."""

    scheduler: str  # as given, such as `drc` or `exact:tradeoff=50`
    tradeoff: float
    total_s: Interval  # time of all rounds that took place
    delay_s: Interval  # mean delay of those rounds
    difference_s: Interval  # total of this minus total of the reference
    reduction_percent: Interval | None  # of the mean delay, against the best baseline; None without a baseline
    allocating_percent: Interval | None  # part of it: that baseline at its best frequencies; None if not known
    choosing_percent: Interval | None  # the other part: other clients, also at the best frequencies for them
    shortfall: Interval  # of each seed's worst served client
    worst_shortfall: float  # over all seeds
    energy_j: Interval  # of a client in a round
    energy_use: Interval  # share of the budgets spent
    infeasible_rounds: int  # over all seeds
    iterations: Interval  # mean K
    gap: Interval  # mean proven gap of a round; NaN without a bound
    above_bound_percent: Interval | None  # of the mean delay; None if no bound was computed
    cumulative_s: list[float]  # time up to and including each round, mean over seeds
    per_seed: list[RunSummary]  # in the order of the seeds


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Delay, energy and shortfall of a scheduler at one V and one share of the energy budgets."""

    scheduler: str
    tradeoff: float
    budget_share: float
    delay_s: Interval
    energy_j: Interval  # of a client in a round
    shortfall: Interval
    infeasible_rounds: int  # over all seeds of the frontier


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Schedulers on the same draws of the same scenario."""

    scenario: str
    rounds: int
    seeds: list[int]
    reference: str  # of the differences
    best_baseline: str | None  # least mean delay of the baselines at their initial frequencies, or of all if none is
    bound: Interval | None  # dual bound (s) on the mean delay over exactly these rounds; None if not computed
    bound_gap_percent: float | None  # of the least that any schedule attains above the bound, at most, over all seeds
    whole_percent: Interval | None  # of the bound for whole participations above the bound
    results: list[SchedulerResult]
    frontier: list[FrontierPoint]  # over V
    energy_frontier: list[FrontierPoint]  # over energy budgets; `scheduler` as given
    frontier_seeds: int  # number of seeds in the frontiers


class _Run(msgspec.Struct, frozen=True):
    """Data of a run kept for a comparison."""

    summary: RunSummary
    cumulative_s: list[float]
    energy_j: float


class _Task(msgspec.Struct, frozen=True):
    """A worker's share: one seed."""

    group: Group  # the entrants, then those at another V
    num_entrants: int
    budget_shares: Sequence[float]  # at which the entrants play once more
    solver: Scheduler | None


class _Seed(msgspec.Struct, frozen=True):
    """Result of a worker for one seed."""

    runs: list[_Run]
    bound: PathBound


def compare(
    scenario: Scenario,
    choices: Sequence[str] = DEFAULT_SCHEDULERS,
    *,
    num_seeds: int = 20,
    reference: str | None = None,
    frontier_tradeoffs: Sequence[float] = FRONTIER_TRADEOFFS,
    frontier_budgets: Sequence[float] = (),
    with_bound: bool = True,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Compare the schedulers on the same draws: seeds `scenario.seed` and the `num_seeds - 1` after it.

    Differences are against `reference`, by default the best baseline, or the first scheduler if there is none. Every
    scheduler that depends on V also runs at each of `frontier_tradeoffs`, on the first few seeds, and every scheduler
    at each of `frontier_budgets`, shares of the scenario's energy budgets. With `with_bound` each seed's rounds are
    also bounded (unless mining is sampled): no schedule of them that meets every rate is faster. `workers` (default:
    one per CPU core) changes the run time only, never the result.
    """
    validate_choices(choices)
    seeds = list_seeds(scenario, num_seeds)
    if reference is not None and reference not in choices:
        raise InvalidChoice(f"reference: {reference!r} given, allowed is one of {', '.join(choices)}")
    entrants = [choose_scheduler(scenario, choice) for choice in choices]
    swept = [
        override_scenario(entrant, [f"scheduler.tradeoff={tradeoff}"])
        for entrant in _that_weigh(entrants)
        for tradeoff in frontier_tradeoffs
    ]
    groups = [
        [
            msgspec.structs.replace(played, seed=seed)
            for played in (*entrants, *(swept if seed in seeds[:FRONTIER_SEEDS] else ()))
        ]
        for seed in seeds
    ]
    bounded = with_bound and is_bounded(scenario)
    solver = bounding_solver(entrant.scheduler.name for entrant in entrants) if bounded else None
    tasks = [
        _Task(group, len(entrants), frontier_budgets if seed in seeds[:FRONTIER_SEEDS] else (), solver)
        for seed, group in zip(seeds, prepare_groups(groups), strict=True)
    ]
    played = map_parallel(_play_seed, tasks, workers=workers, on_progress=on_progress)
    runs = [seed.runs for seed in played]
    bounds_s = np.array([seed.bound.bound_s for seed in played])
    per_choice = {choice: [of_seed[place] for of_seed in runs] for place, choice in enumerate(choices)}
    totals = {choice: np.array([run.summary.total_delay_s for run in of]) for choice, of in per_choice.items()}
    delays = {choice: np.array([run.summary.mean_delay_s for run in of]) for choice, of in per_choice.items()}
    best, savings = find_savings(dict(zip(choices, entrants, strict=True)), delays, choices)
    against = reference or best or choices[0]
    return Comparison(
        scenario=scenario.name,
        rounds=scenario.rounds,
        seeds=seeds,
        reference=against,
        best_baseline=best,
        bound=mean_interval(bounds_s) if bounded else None,
        bound_gap_percent=100.0 * max(seed.bound.gap for seed in played) if bounded else None,
        whole_percent=mean_interval([seed.bound.whole_percent for seed in played]) if bounded else None,
        results=[
            _result(
                choice,
                entrant.scheduler.tradeoff,
                per_choice[choice],
                savings[choice],
                reference_s=totals[against],
                bound_s=bounds_s if bounded else None,
            )
            for choice, entrant in zip(choices, entrants, strict=True)
        ],
        frontier=[
            _frontier_point(point.scheduler.name, point, 1.0, [of_seed[place] for of_seed in runs[:FRONTIER_SEEDS]])
            for place, point in enumerate(swept, start=len(entrants))
        ],
        energy_frontier=[
            _frontier_point(choice, entrant, share, [of_seed[place] for of_seed in runs[:FRONTIER_SEEDS]])
            for place, (share, (choice, entrant)) in enumerate(
                product(frontier_budgets, zip(choices, entrants, strict=True)), start=len(entrants) + len(swept)
            )
        ],
        frontier_seeds=min(num_seeds, FRONTIER_SEEDS),
    )


def _that_weigh(entrants: Sequence[Scenario]) -> list[Scenario]:
    """Return one scenario for each scheduler that depends on V; those that differ in V alone share a frontier."""
    one_each = {entrant.scheduler.name: entrant for entrant in reversed(entrants)}
    return [entrant for name, entrant in reversed(one_each.items()) if name not in WITHOUT_TRADEOFF]


class Saving(NamedTuple):
    """Mean delay (%) below that of the best baseline, and its two parts; None if not known."""

    reduction: Interval | None = None
    allocating: Interval | None = None  # of that baseline at its best frequencies
    choosing: Interval | None = None  # the rest: of other clients, at the best frequencies for them


def find_savings(
    entrants: Mapping[str, Scenario], delays: Mapping[str, PerSeed], comparable: Iterable[str]
) -> tuple[str | None, dict[str, Saving]]:
    """Return the best baseline of those `comparable`, if there is one, and what each scheduler saves against it.

    The best has the least mean of `delays` of those at their initial frequencies, or of all if none is. Savings have
    parts if that baseline also played at its best frequencies, and only for schedulers whose frequencies are the best
    for the clients that they choose.
    """
    schedulers = {name: entrant.scheduler for name, entrant in entrants.items()}
    baselines = [name for name in comparable if schedulers[name].name in BASELINES]
    initial = [name for name in baselines if not allocates_best(schedulers[name])]
    best = min(initial or baselines, key=lambda name: mean_interval(delays[name]).mean, default=None)
    if best is None:
        return None, dict.fromkeys(entrants, Saving())
    parameters = {**schedulers[best].parameters, "frequencies": "best"}
    twin = msgspec.structs.replace(schedulers[best], parameters=parameters)
    allocated_s = next((delays[name] for name, scheduler in schedulers.items() if scheduler == twin), None)

    def part(from_s: PerSeed, to_s: PerSeed) -> Interval:
        return mean_interval(100.0 * (from_s - to_s) / delays[best])

    savings: dict[str, Saving] = {}
    for name, delay_s in delays.items():
        saving = Saving(mean_interval(100.0 * (1.0 - delay_s / delays[best])))
        if allocated_s is not None and allocates_best(schedulers[name]):
            saving = Saving(saving.reduction, part(delays[best], allocated_s), part(allocated_s, delay_s))
        savings[name] = saving
    return best, savings


def _play_seed(task: _Task) -> _Seed:
    scenario = task.group[0].scenario
    draws = draw_run(scenario)
    runs = [play(entrant, scheduler, draws) for entrant, scheduler in task.group]
    for share in task.budget_shares:
        scaled = _scale_budgets(draws, share)
        runs += [play(entrant, scheduler, scaled) for entrant, scheduler in task.group[: task.num_entrants]]
    return _Seed(
        [_Run(summarise_run(run), cumulative_delay(run).tolist(), mean_client_energy(run)) for run in runs],
        NO_PATH if task.solver is None else bound_path(scenario, draws, task.solver),
    )


def _scale_budgets(draws: Draws, share: float) -> Draws:
    """Return the same draws with `share` of every energy budget."""
    states = [replace(state, energy_budget_j=share * state.energy_budget_j) for state in draws.states]
    return replace(draws, states=states)


def _result(
    choice: str,
    tradeoff: float,
    runs: Sequence[_Run],
    saving: Saving,
    *,
    reference_s: PerSeed,
    bound_s: PerSeed | None,
) -> SchedulerResult:
    summaries = [run.summary for run in runs]
    total_s = np.array([summary.total_delay_s for summary in summaries])
    delay_s = np.array([summary.mean_delay_s for summary in summaries])
    return SchedulerResult(
        scheduler=choice,
        tradeoff=tradeoff,
        total_s=mean_interval(total_s),
        delay_s=mean_interval(delay_s),
        difference_s=mean_interval(total_s - reference_s),
        reduction_percent=saving.reduction,
        allocating_percent=saving.allocating,
        choosing_percent=saving.choosing,
        shortfall=mean_interval([summary.worst_shortfall for summary in summaries]),
        worst_shortfall=max(summary.worst_shortfall for summary in summaries),
        energy_j=mean_interval([run.energy_j for run in runs]),
        energy_use=mean_interval([summary.mean_energy_use for summary in summaries]),
        infeasible_rounds=sum(summary.infeasible_rounds for summary in summaries),
        iterations=mean_interval([summary.mean_iterations for summary in summaries]),
        gap=mean_interval([summary.mean_gap for summary in summaries]),
        above_bound_percent=None if bound_s is None else mean_interval(100.0 * (delay_s / bound_s - 1.0)),
        cumulative_s=np.mean([run.cumulative_s for run in runs], axis=0).tolist(),
        per_seed=summaries,
    )


def _frontier_point(choice: str, point: Scenario, budget_share: float, runs: Sequence[_Run]) -> FrontierPoint:
    return FrontierPoint(
        scheduler=choice,
        tradeoff=point.scheduler.tradeoff,
        budget_share=budget_share,
        delay_s=mean_interval([run.summary.mean_delay_s for run in runs]),
        energy_j=mean_interval([run.energy_j for run in runs]),
        shortfall=mean_interval([run.summary.worst_shortfall for run in runs]),
        infeasible_rounds=sum(run.summary.infeasible_rounds for run in runs),
    )
