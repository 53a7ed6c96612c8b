"""Numbers by seed, and verdicts on the paper's claims about accuracy; claims that the runs cannot decide get none.

There are two accuracies. `final` is of the last model; verdicts use it. `best` is of the best round, chosen on the test
set and hence biased upwards. The paper does not state which of the two it reports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.reproduce.figures import TIME_TOLERANCE_PERCENT
from bdfl.reproduce.results import (
    DATA_SET_NAMES,
    PAPER_ACCURACY_PERCENT,
    PAPER_TIME_S,
    Verdict,
    delay_keys,
)
from bdfl.reproduce.training import TrainedRun
from bdfl.scenario import Scenario
from bdfl.scheduling.registry import BASELINES, show_choice

STEP_PERCENT = 5  # compared accuracies are multiples of it
MOST_LEVELS = 3
PAPER_LEVELS = {"cifar10": (70.0, 74.0), "svhn": (88.0, 91.0)}  # below the paper's accuracies, and near them

PerSeed = NDArray[np.float64]  # (seeds,)


@dataclass(frozen=True, eq=False)
class DataSetRuns:
    """All runs on one data set, and the scenario they share beside the shipped one."""

    data_set: str
    shipped: Scenario
    used: Scenario  # before choosing schedulers and seeds
    by_choice: Mapping[str, Sequence[TrainedRun]]  # a scheduler's runs in the order of the seeds
    beside: Sequence[TrainedRun] = ()  # the paper's algorithm trained by another recipe

    @property
    def name(self) -> str:
        """Display name of the data set."""
        return DATA_SET_NAMES[self.data_set]

    @property
    def runs(self) -> list[TrainedRun]:
        """All runs, scheduler by scheduler."""
        return [run for of_choice in self.by_choice.values() for run in of_choice]

    @property
    def num_seeds(self) -> int:
        """Number of runs of each scheduler."""
        return len(next(iter(self.by_choice.values())))

    @property
    def rounds_text(self) -> str:
        return f"{self.used.rounds} of {self.shipped.rounds}"

    @property
    def is_full_length(self) -> bool:
        """True if runs have as many rounds as the shipped scenario."""
        return self.used.rounds == self.shipped.rounds


def final_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the last model evaluated, (seeds,)."""
    return np.array([100.0 * run.final_accuracy for run in runs])


def best_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the best round, (seeds,); NaN if no round was evaluated with finite loss."""
    return np.array([100.0 * run.best_accuracy for run in runs])


def total_s(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the simulated time (s) of all rounds, (seeds,)."""
    return np.array([float(run.seconds[-1]) for run in runs])


def common_levels(runs: Sequence[TrainedRun]) -> list[float]:
    """Return the highest few accuracies (%) that every run reached and no untrained model has, ascending."""
    lowest_best = float(np.min(best_percent(runs)))
    if np.isnan(lowest_best):
        return []
    highest_start = max(100.0 * float(np.nan_to_num(run.initial_accuracy)) for run in runs)
    levels = np.arange(STEP_PERCENT, lowest_best + 1e-9, STEP_PERCENT)
    return [float(level) for level in levels[levels > highest_start][-MOST_LEVELS:]]


def reach_level(run: TrainedRun, level_percent: float) -> tuple[int, float] | None:
    """First evaluated round with this accuracy (%), and the simulated seconds up to its end; None if there is none."""
    reached = np.flatnonzero(100.0 * run.accuracy >= level_percent - 1e-9)
    return (int(reached[0]) + 1, float(run.seconds[reached[0]])) if reached.size else None


def seconds_to(runs: Sequence[TrainedRun], level_percent: float) -> PerSeed:
    """Return the simulated seconds to reach this accuracy (%), of the seeds that do."""
    found = [reach_level(run, level_percent) for run in runs]
    return np.array([place[1] for place in found if place is not None])


# Verdicts of training runs on the paper's claims; claims that the runs cannot decide get no verdict.

ACCURACY_TOLERANCE_POINTS = 2.0  # of the paper's
BASELINE_TOLERANCE_POINTS = 1.0  # below the best baseline's


def judge_runs(found: DataSetRuns, levels: Sequence[float]) -> list[Verdict]:
    """Return all verdicts on one data set; `levels` are accuracies (%) that all runs reached."""
    verdicts = (_judge_accuracy(found), _judge_time(found), _judge_baseline(found), _judge_reach(found, levels))
    return [verdict for verdict in (*verdicts, _judge_noise(found)) if verdict is not None]


def _judge_accuracy(found: DataSetRuns) -> Verdict | None:
    paper = PAPER_ACCURACY_PERCENT[found.data_set]
    off = {
        choice: float(np.mean(final_percent(runs))) - paper[choice]
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return None
    worst = max(off, key=lambda choice: float(np.nan_to_num(abs(off[choice]), nan=np.inf)))
    best = float(np.mean(best_percent(found.by_choice[worst])))
    return Verdict(
        f"{found.name}: final accuracy within {ACCURACY_TOLERANCE_POINTS:g} points of the paper's ({', '.join(off)})",
        all(abs(points) <= ACCURACY_TOLERANCE_POINTS for points in off.values()),
        f"furthest is {worst}, {off[worst]:+.2f} points; its best round {best - paper[worst]:+.2f}",
    )


def _judge_time(found: DataSetRuns) -> Verdict | None:
    """Judge full-length runs with the shipped delays only: a part of a run does not compare with the paper's time."""
    paper = PAPER_TIME_S[found.data_set]
    if not found.is_full_length or delay_keys(found.used, found.shipped):
        return None
    off = {
        choice: 100.0 * (float(np.mean(total_s(runs))) / paper[choice] - 1.0)
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return None
    worst = max(off, key=lambda choice: abs(off[choice]))
    return Verdict(
        f"{found.name}: time within {TIME_TOLERANCE_PERCENT:g} % of the paper's ({', '.join(off)})",
        abs(off[worst]) <= TIME_TOLERANCE_PERCENT,
        f"furthest is {worst}, {off[worst]:+.2f} %",
    )


def _judge_baseline(found: DataSetRuns) -> Verdict | None:
    """Compare with the best baseline, which is the stricter test."""
    final = {choice: float(np.mean(final_percent(runs))) for choice, runs in found.by_choice.items()}
    baselines = [choice for choice in final if choice.partition(":")[0] in BASELINES]
    others = [choice for choice in final if choice not in baselines]
    if not baselines or not others:
        return None
    best = max(baselines, key=lambda choice: float(np.nan_to_num(final[choice], nan=-np.inf)))
    shown = ", ".join(f"{show_choice(choice)} {final[choice] - final[best]:+.2f}" for choice in others)
    return Verdict(
        f"{found.name}: {' and '.join(map(show_choice, others))} end at most"
        f" {BASELINE_TOLERANCE_POINTS:g} point below the best baseline's accuracy",
        all(final[choice] >= final[best] - BASELINE_TOLERANCE_POINTS for choice in others),
        f"against {best} with {final[best]:.2f} %: {shown} points",
    )


def _judge_reach(found: DataSetRuns, levels: Sequence[float]) -> Verdict | None:
    """Compare the seconds to the highest accuracy that all runs reached."""
    exact = next((choice for choice in found.by_choice if choice.partition(":")[0] == "exact"), None)
    if exact is None or len(found.by_choice) < 2 or not levels:
        return None
    seconds = {choice: float(np.mean(seconds_to(runs, levels[-1]))) for choice, runs in found.by_choice.items()}
    return Verdict(
        f"{found.name}: {show_choice(exact)} needs least simulated seconds to reach {levels[-1]:g} %",
        all(seconds[exact] < other_s for choice, other_s in seconds.items() if choice != exact),
        ", ".join(f"{show_choice(choice)} {time_s:.1f} s" for choice, time_s in seconds.items()),
    )


def _judge_noise(found: DataSetRuns) -> Verdict | None:
    """Judge if accuracies differ; no verdict if the intervals are too wide to exclude a difference."""
    differences = differences_of(final_percent, found)
    if not differences or (not _any_differs(differences) and _widest(differences) > ACCURACY_TOLERANCE_POINTS):
        return None
    first = next(iter(found.by_choice))
    shown = ", ".join(
        f"{show_choice(choice)} {points.mean:+.2f} ± {points.half_width:.2f}" for choice, points in differences.items()
    )
    return Verdict(
        f"{found.name}: no final accuracy differs from {show_choice(first)}'s beyond the noise of"
        f" {found.num_seeds} seeds ({len(differences)} comparisons at 95 %)",
        not _any_differs(differences),
        f"points: {shown}",
    )


def describe_unjudged(found: DataSetRuns, levels: Sequence[float]) -> list[str]:
    """Describe the claims without a verdict, and pairs of schedulers with the same training."""
    notes = [
        f"{found.name}: {show_choice(one)} and {show_choice(other)} trained the same clients in every round, so their"
        " models are the same: their accuracies are one measurement, not two"
        for one, other in combinations(found.by_choice, 2)
        if all(
            left.summary.selected == right.summary.selected
            for left, right in zip(found.by_choice[one], found.by_choice[other], strict=True)
        )
    ]
    if not levels:
        notes.append(
            f"{found.name}: no multiple of {STEP_PERCENT} % above the untrained models was reached by all runs,"
            " so there are no seconds to compare"
        )
    differences = differences_of(final_percent, found)
    if differences and not _judge_noise(found):
        notes.append(
            f"{found.name}: {found.num_seeds} seeds leave differences of accuracy uncertain by up to"
            f" {_widest(differences):.1f} points, so whether schedulers differ is not judged"
        )
    return notes


def differences_of(measure: Callable[[Sequence[TrainedRun]], PerSeed], found: DataSetRuns) -> dict[str, Interval]:
    """Return a measure minus the first scheduler's, paired over seeds; empty for a single seed.

    The reference is the first scheduler: one chosen by its result would bias every difference.
    """
    if found.num_seeds < 2:
        return {}
    first, *others = found.by_choice
    reference = measure(found.by_choice[first])
    return {choice: mean_interval(measure(found.by_choice[choice]) - reference) for choice in others}


def _any_differs(differences: Mapping[str, Interval]) -> bool:
    return any(abs(points.mean) > points.half_width for points in differences.values())


def _widest(differences: Mapping[str, Interval]) -> float:
    return max(points.half_width for points in differences.values())
