"""Whole numbers of small units for all hashed values: the only place where measures become integers, and back.

A value is rounded to the nearest unit, half to even; the units are so small that rounding is not measurable.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import isfinite

import numpy as np

from bdfl.arrays import PerClient
from bdfl.encoding import INT_LIMIT
from bdfl.errors import BdflError

# Units in one of the measures of the cost model.
ONE = 1  # cycle, bit, Hz
NANO = 10**9  # shares, queue lengths, V, seconds
MICROWATT = 10**6  # W
PICOJOULE = 10**12  # J
ATTO = 10**18  # channel gain
NOISE = 10**30  # W/Hz
CAPACITANCE = 10**36  # W s^3


class DoesNotFit(BdflError):
    """A value that the chain's integers cannot hold: its name, the value found and the range allowed."""

    def __init__(self, name: str, found: float, least: float, most: float) -> None:
        super().__init__(name, found, least, most)
        self.name = name
        self.found = found
        self.least = least
        self.most = most

    def __str__(self) -> str:
        return f"{self.name}: {self.found!r} given, the chain holds {self.least:g} to {self.most:g}"


def count_units(value: float, per_one: int, name: str, *, least: int = 0, most: int = INT_LIMIT) -> int:
    """Number of units in `value`, `per_one` to one; raises `DoesNotFit` below `least` or above `most`."""
    is_number = isinstance(value, int) or isfinite(value)
    count = round(Fraction(value) * per_one) if is_number else -1
    if not least <= count <= most:
        raise DoesNotFit(name, value, least / per_one, most / per_one)
    return count


def count_capped(value: float, per_one: int, name: str) -> int | None:
    """Number of units in a cap, as `count_units`; none for infinity, which means no cap."""
    return None if value == float("inf") else count_units(value, per_one, name)


def to_measure(counts: Iterable[int], per_one: int) -> PerClient:
    """Counts of units as measures, (clients,): each the float nearest to the exact value."""
    return np.array([count / per_one for count in counts], dtype=np.float64)


def to_cap(counts: Iterable[int | None]) -> PerClient:
    """Caps in Hz, (clients,): infinity where there is none."""
    return np.array([np.inf if count is None else float(count) for count in counts], dtype=np.float64)
