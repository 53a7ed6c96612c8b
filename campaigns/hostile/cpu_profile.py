"""CPU profile of an attacker over time, reproduced by a control load."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import msgspec


class Effort(msgspec.Struct, frozen=True):
    """Cumulative processor time (s) over elapsed time (s), from zero, piecewise linear."""

    points: tuple[tuple[float, float], ...] = ()  # elapsed time, processor time so far; both increase

    def till(self, seconds: float) -> float:
        """Return the processor time so far; after the end it continues at the average rate."""
        points = ((0.0, 0.0), *self.points)
        end_s, total_s = points[-1]
        if seconds >= end_s:
            return total_s * seconds / end_s if end_s else 0.0
        place = bisect_right(points, seconds, key=itemgetter(0))
        (before_s, before), (after_s, after) = points[place - 1], points[place]
        return before + (after - before) * (seconds - before_s) / (after_s - before_s)

    def scaled(self, time_factor: float, share: float = 1.0) -> "Effort":
        """Stretch the profile in time at the same load, and take a fraction of it."""
        return Effort(tuple((at_s * time_factor, cpu_s * time_factor * share) for at_s, cpu_s in self.points))


def effort_of(points: Sequence[tuple[float, float]]) -> Effort:
    """Build a profile from reports; a later report at the same time replaces an earlier one."""
    return Effort(tuple(sorted({at_s: cpu_s for at_s, cpu_s in points if at_s > 0}.items())))
