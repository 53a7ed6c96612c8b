"""Leaderboard of schedulers on the same rounds of each scenario: delay, energy, fairness, accuracy, with intervals."""

from collections.abc import Iterable, Sequence
from math import inf, isnan

import msgspec
import numpy as np

from bdfl.experiment.bounds import bound_path, bounding_solver, is_bounded
from bdfl.experiment.comparison import Saving, find_savings
from bdfl.experiment.parallel import Group, Progress, list_seeds, map_parallel, prepare_groups
from bdfl.experiment.simulation import Draws, draw_run, play
from bdfl.experiment.statistics import Interval, jain_index, mean_client_energy, mean_interval
from bdfl.experiment.training_run import run_group
from bdfl.records import RunRecord, RunSummary, summarise_run
from bdfl.scenario import Scenario, override_scenario
from bdfl.scenario.schema_learning import HUB_PREFIX
from bdfl.scheduling.registry import (
    BASELINES,
    choose_scheduler,
    scheduler_names,
    validate_choices,
    with_best_frequencies,
)

SERVED = 0.05  # mean shortfall of the worst served client up to which a scheduler is ranked


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduler in one scenario; intervals are over seeds."""

    scheduler: str  # as given, such as `drc` or `exact:tradeoff=50`
    tradeoff: float
    rank: int | None  # by delay among schedulers that serve all clients; None: not ranked
    delay_s: Interval  # mean over the rounds that took place
    bound_s: Interval | None  # None: not computed; proven: no schedule serving all clients has a lower mean
    above_bound_percent: Interval | None
    reduction_percent: Interval | None  # of the mean delay, against the best ranked baseline; None without one
    allocating_percent: Interval | None  # part of it: that baseline at its best frequencies; None if not known
    choosing_percent: Interval | None  # the other part: other clients, also at the best frequencies for them
    energy_j: Interval  # of a client in a round
    energy_use: Interval  # share of the budgets spent
    selected: Interval  # clients that train in a round
    shortfall: Interval  # of each seed's worst served client, below its participation rate
    jain: Interval  # of the clients' participation
    accuracy_percent: Interval | None  # of the last model; None without learning
    infeasible_rounds: int  # over all seeds


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """Standings of one scenario: ranked schedulers first, each part by delay."""

    scenario: str
    description: str
    clients: int
    rounds: int
    seeds: list[int]
    is_learned: bool
    best_baseline: str | None  # fastest ranked baseline at its initial frequencies, or of all if none is
    standings: list[Standing]


class _Score(msgspec.Struct, frozen=True):
    """Data of a run kept for a leaderboard."""

    summary: RunSummary
    bound_s: float
    energy_j: float
    jain: float
    accuracy: float


class _Task(msgspec.Struct, frozen=True):
    """All schedulers on one seed of a scenario."""

    group: Group
    is_learned: bool
    with_bound: bool


def play_leaderboard(
    scenarios: Sequence[Scenario],
    choices: Sequence[str] | None = None,
    *,
    num_seeds: int = 10,
    learn: bool = False,
    with_bound: bool = True,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> list[Leaderboard]:
    """Return a board for every scenario: its seed and the `num_seeds - 1` after it, all schedulers on the same draws.

    `choices` are by default all installed schedulers, including third-party ones, and the baselines once more at their
    best frequencies. With `learn` the runs train if the scenario's data are local (anything but the hub). `workers`
    changes the run time only, never the result.
    """
    installed = scheduler_names()
    twins = [with_best_frequencies(name) for name in installed if name in BASELINES]
    names = [*installed, *twins] if choices is None else list(choices)
    validate_choices(names)
    validate_choices([scenario.name for scenario in scenarios], "scenarios")
    entered = [(scenario, [choose_scheduler(scenario, name) for name in names]) for scenario in scenarios]
    tasks: list[_Task] = []
    for scenario, entrants in entered:
        groups = [
            [msgspec.structs.replace(entrant, seed=seed) for entrant in entrants]
            for seed in list_seeds(scenario, num_seeds)
        ]
        bounded = with_bound and is_bounded(scenario)
        tasks += [_Task(group, learn and is_at_hand(scenario), bounded) for group in prepare_groups(groups)]
    played = map_parallel(_play_seed, tasks, workers=workers, on_progress=on_progress)
    boards: list[Leaderboard] = []
    for place, (scenario, entrants) in enumerate(entered):
        scores = played[place * num_seeds : (place + 1) * num_seeds]
        columns = {name: [of_seed[column] for of_seed in scores] for column, name in enumerate(names)}
        delays = {name: np.array([one.summary.mean_delay_s for one in columns[name]]) for name in names}
        best, savings = find_savings(
            dict(zip(names, entrants, strict=True)),
            delays,
            [name for name in names if _shortfall(columns[name]).mean <= SERVED],
        )
        standings = [
            _stand(name, entrant.scheduler.tradeoff, columns[name], savings[name])
            for name, entrant in zip(names, entrants, strict=True)
        ]
        boards.append(
            Leaderboard(
                scenario=scenario.name,
                description=scenario.description,
                clients=scenario.clients.count,
                rounds=scenario.rounds,
                seeds=list_seeds(scenario, num_seeds),
                is_learned=learn and is_at_hand(scenario),
                best_baseline=best,
                standings=rank(standings),
            )
        )
    return boards


def is_at_hand(scenario: Scenario) -> bool:
    """Return whether the scenario's data need no download."""
    return not scenario.data.source.startswith(HUB_PREFIX)


def rank(standings: Iterable[Standing]) -> list[Standing]:
    """Rank schedulers that serve all clients by delay; append the others by delay, without a rank.

    Leaving slow clients out lowers the delay, so delays are only comparable among schedulers that serve all clients.
    """

    def by_delay(standing: Standing) -> float:
        return inf if isnan(standing.delay_s.mean) else standing.delay_s.mean

    ordered = sorted(standings, key=by_delay)
    serving = [one for one in ordered if one.shortfall.mean <= SERVED and not isnan(one.delay_s.mean)]
    ranked = [msgspec.structs.replace(one, rank=place) for place, one in enumerate(serving, start=1)]
    return ranked + [msgspec.structs.replace(one, rank=None) for one in ordered if one not in serving]


def _shortfall(scores: Sequence[_Score]) -> Interval:
    return mean_interval([score.summary.worst_shortfall for score in scores])


def _stand(choice: str, tradeoff: float, scores: Sequence[_Score], saving: Saving) -> Standing:
    def over_seeds(values: Iterable[float]) -> Interval | None:
        known = list(values)
        return None if all(map(isnan, known)) else mean_interval(known)

    summaries = [score.summary for score in scores]
    return Standing(
        scheduler=choice,
        tradeoff=tradeoff,
        rank=None,
        delay_s=mean_interval([summary.mean_delay_s for summary in summaries]),
        bound_s=over_seeds(score.bound_s for score in scores),
        above_bound_percent=over_seeds(100.0 * (score.summary.mean_delay_s / score.bound_s - 1.0) for score in scores),
        reduction_percent=saving.reduction,
        allocating_percent=saving.allocating,
        choosing_percent=saving.choosing,
        energy_j=mean_interval([score.energy_j for score in scores]),
        energy_use=mean_interval([summary.mean_energy_use for summary in summaries]),
        selected=mean_interval([summary.mean_selected for summary in summaries]),
        shortfall=_shortfall(scores),
        jain=mean_interval([score.jain for score in scores]),
        accuracy_percent=over_seeds(100.0 * score.accuracy for score in scores),
        infeasible_rounds=sum(summary.infeasible_rounds for summary in summaries),
    )


def _play_seed(task: _Task) -> list[_Score]:
    """Play one seed: simulated, or learned with shared data and trainer; only the last model is evaluated."""
    if task.is_learned:
        every = task.group[0].scenario.rounds
        changes = [f"learning.evaluate_every={every}", "learning.gradient_every=0"]
        learned = run_group([override_scenario(scenario, changes) for scenario, _ in task.group])
        accuracies = [run.learning.final_accuracy for run in learned]
        return _score(task, learned[0].federated.draws, [run.record for run in learned], accuracies)
    draws = draw_run(task.group[0].scenario)
    runs = [play(scenario, scheduler, draws) for scenario, scheduler in task.group]
    return _score(task, draws, runs, [float("nan")] * len(runs))


def _score(task: _Task, draws: Draws, runs: Sequence[RunRecord], accuracies: Sequence[float]) -> list[_Score]:
    """Score each scheduler against the bound that holds for it: one that may choose its power has a lower bound."""
    solvers = [bounding_solver([scenario.scheduler.name]) for scenario, _ in task.group]
    scenario = task.group[0][0]
    used = dict.fromkeys(solvers if task.with_bound else ())
    bounds = {solver: bound_path(scenario, draws, solver).bound_s for solver in used}
    return [
        _Score(
            summarise_run(run),
            bounds.get(solver, float("nan")),
            mean_client_energy(run),
            jain_index(run.participation),
            accuracy,
        )
        for run, solver, accuracy in zip(runs, solvers, accuracies, strict=True)
    ]
