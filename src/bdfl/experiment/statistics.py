"""Means with their uncertainty."""

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import stdtrit

from bdfl.arrays import PerClient

CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """A mean and half the width of its 95 % confidence interval (NaN, in JSON `null`, from a single value)."""

    mean: float
    half_width: float


def mean_interval(values: Sequence[float] | PerClient) -> Interval:
    """Student's t interval of the mean of independent values; NaNs (no measurement) are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        return Interval(float("nan"), float("nan"))
    mean = float(np.mean(known))
    if known.size == 1:
        return Interval(mean, float("nan"))
    quantile = float(stdtrit(known.size - 1, 0.5 + CONFIDENCE / 2))
    return Interval(mean, quantile * float(np.std(known, ddof=1)) / known.size**0.5)
