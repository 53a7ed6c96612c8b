"""The processor time that an attacker took, as it went: a control takes the same, when the attacker did."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import msgspec


class Effort(msgspec.Struct, frozen=True):
    """Seconds of processor time over seconds that passed, from nothing at the beginning; straight between points."""

    points: tuple[tuple[float, float], ...] = ()  # seconds passed, processor time till then; both only grow

    def till(self, seconds: float) -> float:
        """The processor time until then; after the end it goes on as it was on average."""
        points = ((0.0, 0.0), *self.points)
        end_s, total_s = points[-1]
        if seconds >= end_s:
            return total_s * seconds / end_s if end_s else 0.0
        place = bisect_right(points, seconds, key=itemgetter(0))
        (before_s, before), (after_s, after) = points[place - 1], points[place]
        return before + (after - before) * (seconds - before_s) / (after_s - before_s)

    def scaled(self, time_factor: float, share: float = 1.0) -> "Effort":
        """The same course in another time, at the same cores at corresponding times; a share of it."""
        return Effort(tuple((at_s * time_factor, cpu_s * time_factor * share) for at_s, cpu_s in self.points))


def effort_of(points: Sequence[tuple[float, float]]) -> Effort:
    """From what was said now and then; what is said of the same time again replaces it."""
    return Effort(tuple(sorted({at_s: cpu_s for at_s, cpu_s in points if at_s > 0}.items())))
