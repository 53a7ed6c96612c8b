"""Numbers of training runs over seeds: accuracies, times, and the seconds to reach an accuracy.

There are two accuracies. `final` is of the last model; verdicts use it. `best` is of the best round, chosen on the test
set and hence biased upwards. The paper does not state which of the two it reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.experiment.measures import cumulative_delay
from bdfl.reproduce.campaign import TrainedRun
from bdfl.reproduce.paper import DATA_SET_NAMES
from bdfl.scenario import Scenario

STEP_PERCENT = 5  # compared accuracies are multiples of it
MOST_LEVELS = 3

PerSeed = NDArray[np.float64]  # (seeds,)


@dataclass(frozen=True, eq=False)
class DataSetRuns:
    """All runs on one data set, and the scenario they share beside the shipped one."""

    data_set: str
    shipped: Scenario
    used: Scenario  # before choosing schedulers and seeds
    by_choice: Mapping[str, Sequence[TrainedRun]]  # a scheduler's runs in the order of the seeds

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
    def is_full_length(self) -> bool:
        """True if runs have as many rounds as the shipped scenario."""
        return self.used.rounds == self.shipped.rounds


def final_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the last model evaluated, (seeds,)."""
    return np.array([100.0 * run.learning.final_accuracy for run in runs])


def best_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the best round, (seeds,); NaN if no round was evaluated with finite loss."""
    rounds = [(run.learning.accuracy, run.learning.best_round) for run in runs]
    return np.array([np.nan if best is None else 100.0 * float(accuracy[best - 1]) for accuracy, best in rounds])


def total_s(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the simulated time (s) of all rounds, (seeds,)."""
    return np.array([float(np.sum(run.record.delay_s)) for run in runs])


def common_levels(runs: Sequence[TrainedRun]) -> list[float]:
    """Return the highest few accuracies (%) that every run reached and no untrained model has, ascending."""
    lowest_best = float(np.min(best_percent(runs)))
    if np.isnan(lowest_best):
        return []
    highest_start = max(100.0 * float(np.nan_to_num(run.learning.initial_accuracy)) for run in runs)
    levels = np.arange(STEP_PERCENT, lowest_best + 1e-9, STEP_PERCENT)
    return [float(level) for level in levels[levels > highest_start][-MOST_LEVELS:]]


def reach_level(run: TrainedRun, level_percent: float) -> tuple[int, float]:
    """Return the first evaluated round with this accuracy (%), and the simulated seconds up to its end."""
    place = int(np.flatnonzero(100.0 * run.learning.accuracy >= level_percent - 1e-9)[0])
    return place + 1, float(cumulative_delay(run.record)[place])


def seconds_to(runs: Sequence[TrainedRun], level_percent: float) -> PerSeed:
    """Return the simulated seconds to reach this accuracy (%), (seeds,)."""
    return np.array([reach_level(run, level_percent)[1] for run in runs])
