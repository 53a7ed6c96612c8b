"""Wall clock with fault injection: off from the start, or set while the process runs.

A shift is `seconds` or `seconds@after`, such as `-3600@5`: set back an hour, five seconds after the process starts.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from bdfl.errors import BdflError

CLOCK_VARIABLE = "BDFL_WALL_CLOCK"


class BadClock(BdflError):
    """An invalid clock shift."""


@dataclass(frozen=True)
class ClockShift:
    """Offset (s) of the wall clock, negative if behind, effective `after_s` from now."""

    by_s: float
    after_s: float = 0.0


def read_shift(text: str) -> ClockShift:
    """Parse a shift; raises `BadClock`."""
    by, _, after = text.partition("@")
    try:
        shift = ClockShift(float(by), float(after or 0.0))
    except ValueError:
        shift = ClockShift(float("nan"))
    if not (isfinite(shift.by_s) and isfinite(shift.after_s)):
        raise BadClock(f"wall clock {text!r}: seconds, or seconds@after expected")
    return shift


def shift_wall_clock(environment: Mapping[str, str]) -> None:
    """Shift this process's wall clock if the environment names a shift."""
    text = environment.get(CLOCK_VARIABLE, "")
    if text:
        time.time = shifted(read_shift(text), time.time, time.monotonic)


def shifted(shift: ClockShift, wall: Callable[[], float], monotonic: Callable[[], float]) -> Callable[[], float]:
    """Return a wall clock (Unix time, s) with the shift applied."""
    begin_s = monotonic() + shift.after_s
    return lambda: wall() + (shift.by_s if monotonic() >= begin_s else 0.0)
