"""A wall clock that is wrong, or is set while a process runs: to try that a network goes on with it.

Written `seconds` or `seconds@after`, such as `-3600@5`: set back an hour, five seconds after the process began.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from bdfl.errors import BdflError

CLOCK_VARIABLE = "BDFL_WALL_CLOCK"


class BadClock(BdflError):
    """A wall clock that cannot be had."""


@dataclass(frozen=True)
class ClockShift:
    """How far the wall clock is off (s; negative: it is behind), from so long after now on."""

    by_s: float
    after_s: float = 0.0


def read_shift(text: str) -> ClockShift:
    """A shift as it is written; raises `BadClock`."""
    by, _, after = text.partition("@")
    try:
        shift = ClockShift(float(by), float(after or 0.0))
    except ValueError:
        shift = ClockShift(float("nan"))
    if not (isfinite(shift.by_s) and isfinite(shift.after_s)):
        raise BadClock(f"wall clock {text!r}: seconds, or seconds@after expected")
    return shift


def shift_wall_clock(environment: Mapping[str, str]) -> None:
    """Makes this whole process see the wall clock that an environment names; without one nothing is changed."""
    text = environment.get(CLOCK_VARIABLE, "")
    if text:
        time.time = shifted(read_shift(text), time.time, time.monotonic)


def shifted(shift: ClockShift, wall: Callable[[], float], monotonic: Callable[[], float]) -> Callable[[], float]:
    """A wall clock (s since 1970) that is off."""
    begin_s = monotonic() + shift.after_s
    return lambda: wall() + (shift.by_s if monotonic() >= begin_s else 0.0)
