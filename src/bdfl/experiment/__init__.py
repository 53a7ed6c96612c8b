"""Runs of a scenario, and comparisons of schedulers on the same rounds."""

from bdfl.experiment.bounds import LongRunBound, bound_long_run
from bdfl.experiment.comparison import Comparison, FrontierPoint, SchedulerResult, compare
from bdfl.experiment.simulation import Draws, draw_run, play, simulate
from bdfl.experiment.statistics import Interval, mean_interval

__all__ = [
    "Comparison",
    "Draws",
    "FrontierPoint",
    "Interval",
    "LongRunBound",
    "SchedulerResult",
    "bound_long_run",
    "compare",
    "draw_run",
    "mean_interval",
    "play",
    "simulate",
]
