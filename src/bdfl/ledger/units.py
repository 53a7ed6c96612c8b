"""Whole numbers of small units for everything that is hashed: the only place where measures become integers, and back.

A value is rounded to the nearest unit, half to even; units are so small that what rounding changes is far below what
anybody can measure.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import isfinite

import numpy as np

from bdfl.arrays import PerClient
from bdfl.encoding import INT_LIMIT
from bdfl.errors import BdflError

# How many units make one of the measure that the cost model computes with.
ONE = 1  # cycle, bit, Hz
NANO = 10**9  # shares, queue lengths, V, seconds
MICROWATT = 10**6  # W
PICOJOULE = 10**12  # J
ATTO = 10**18  # channel gain
NOISE = 10**30  # W/Hz
CAPACITANCE = 10**36  # W s^3


class DoesNotFit(BdflError):
    """A value that the chain has no whole number for: its name, what was found and what is allowed."""

    def __init__(self, name: str, found: float, least: float, most: float) -> None:
        super().__init__(name, found, least, most)
        self.name = name
        self.found = found
        self.least = least
        self.most = most

    def __str__(self) -> str:
        return f"{self.name}: {self.found!r} given, the chain holds {self.least:g} to {self.most:g}"


def count_units(value: float, per_one: int, name: str, *, least: int = 0, most: int = INT_LIMIT) -> int:
    """How many units `value` is, of which `per_one` make one; raises `DoesNotFit` below `least` or above `most`."""
    is_number = isinstance(value, int) or isfinite(value)
    count = round(Fraction(value) * per_one) if is_number else -1
    if not least <= count <= most:
        raise DoesNotFit(name, value, least / per_one, most / per_one)
    return count


def count_capped(value: float, per_one: int, name: str) -> int | None:
    """As `count_units`, where infinity means that there is no cap."""
    return None if value == float("inf") else count_units(value, per_one, name)


def to_measure(counts: Iterable[int], per_one: int) -> PerClient:
    """Counts of units as measures, (clients,): each the float nearest to the exact value."""
    return np.array([count / per_one for count in counts], dtype=np.float64)


def to_cap(counts: Iterable[int | None]) -> PerClient:
    """Caps in Hz, (clients,): infinity where there is none."""
    return np.array([np.inf if count is None else float(count) for count in counts], dtype=np.float64)
