"""How long a node waits for a piece before it asks for it again, and how many it asks for at a time.

Both follow what the lines are seen to do. Whoever asks again too early over a slow line fills it with what it asked for
before, waits longer for everything, asks again, and in the end gets nothing at all. So the wait for each holder is by
how long its pieces took, as TCP's is [RFC 6298], and a line that brings nothing is asked for less.
"""

from dataclasses import dataclass

_MOST_DOUBLINGS = 3
MOST_TIMES = 1 << _MOST_DOUBLINGS  # the least wait
_LEAST_IN_FLIGHT = 2  # one that never comes leaves room for another
_TIMES_THE_QUICKEST = 2
_GAIN, _SPREAD_GAIN, _SPREADS = 1 / 8, 1 / 4, 4  # RFC 6298, 2.3


@dataclass
class _Habit:
    """How long one holder's pieces take."""

    mean_ns: float = 0.0
    spread_ns: float = 0.0
    num_silences: int = 0  # since the last piece

    def note(self, took_ns: int) -> None:
        if self.mean_ns:
            self.spread_ns += _SPREAD_GAIN * (abs(took_ns - self.mean_ns) - self.spread_ns)
            self.mean_ns += _GAIN * (took_ns - self.mean_ns)
        else:
            self.mean_ns, self.spread_ns = float(took_ns), took_ns / 2
        self.num_silences = 0


class Patience:
    """Of one node, for all that it pulls. Knows no clock: times are the caller's, in ns."""

    def __init__(self, least_ns: int, most_in_flight: int) -> None:
        """`least_ns`: how long is waited for any holder at least; it is at most eight times as long."""
        self.least_ns = least_ns
        self._most_in_flight = most_in_flight
        self._in_flight = float(most_in_flight)
        self._habits: dict[int, _Habit] = {}
        self._answered_ns = -1  # when that was asked which was answered, the last of it
        self._reduced_ns = -1

    @property
    def most_ns(self) -> int:
        return MOST_TIMES * self.least_ns

    @property
    def in_flight(self) -> int:
        """How many pieces may be asked for at a time."""
        return int(self._in_flight)

    def wait_ns(self, holder: int) -> int:
        """How long to wait for a piece of that holder.

        Where others are quicker it is not much longer than for these: it may be slow on purpose.
        """
        own_ns = self._usual_ns(self._habits.get(holder, _Habit()))
        others_ns = (self._usual_ns(habit) for number, habit in self._habits.items() if number != holder)
        return min(own_ns, _TIMES_THE_QUICKEST * min(others_ns, default=own_ns))

    def note_answer(self, asked_ns: int) -> None:
        """What was asked then was answered: the lines are there."""
        self._answered_ns = max(self._answered_ns, asked_ns)

    def note_piece(self, holder: int, asked_ns: int, now_ns: int) -> None:
        """What was asked of a holder then is here now, perhaps after one had given it up."""
        self.note_answer(asked_ns)
        self._habits.setdefault(holder, _Habit()).note(now_ns - asked_ns)
        self._in_flight = min(self._most_in_flight, self._in_flight + 1 / self._in_flight)

    def note_silence(self, holder: int, asked_ns: int, now_ns: int) -> None:
        """What was asked of a holder then was waited for long enough.

        If nothing that was asked since then came either, it is the line's fault: it is asked for half as much, once for
        all that is under way.
        """
        self._habits.setdefault(holder, _Habit()).num_silences += 1
        if asked_ns > max(self._answered_ns, self._reduced_ns):
            self._in_flight = max(_LEAST_IN_FLIGHT, self._in_flight / 2)
            self._reduced_ns = now_ns

    def forget(self, holder: int) -> None:
        """That one comes anew, perhaps by another line."""
        self._habits.pop(holder, None)
        self._in_flight = float(self._most_in_flight)

    def _usual_ns(self, habit: _Habit) -> int:
        usual_ns = max(self.least_ns, round(habit.mean_ns + _SPREADS * habit.spread_ns))
        return min(self.most_ns, usual_ns << min(habit.num_silences, _MOST_DOUBLINGS))
