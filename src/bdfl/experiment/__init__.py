"""Runs of a scenario, and comparisons of schedulers on the same rounds."""

from bdfl.experiment.comparison import Comparison as Comparison, compare as compare
from bdfl.experiment.simulation import simulate as simulate
from bdfl.experiment.statistics import Interval as Interval
