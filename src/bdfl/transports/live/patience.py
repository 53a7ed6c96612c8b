"""How long a node waits for a piece before it asks for it again, and how many it asks for at a time.

Both follow what the lines are seen to do. Whoever asks again too early over a slow line fills it with what it asked for
before, waits longer for everything, asks again, and in the end gets nothing at all. So the wait for each holder is by
how long its pieces took, as TCP's is [RFC 6298], and a line that brings nothing is asked for less [RFC 5681].
"""

from dataclasses import dataclass
from statistics import median_low

_MOST_DOUBLINGS = 3
MOST_TIMES = 1 << _MOST_DOUBLINGS  # the least wait
_LEAST_IN_FLIGHT = 2  # one that never comes leaves room for another
_TIMES_THE_OTHERS = 2
_RECENT_TIMES = 4 * MOST_TIMES  # the least wait: whose last piece came before that says nothing about the lines now
_GAIN, _SPREAD_GAIN, _SPREADS = 1 / 8, 1 / 4, 4  # RFC 6298, 2.3


@dataclass
class _Habit:
    """How long one holder's pieces take."""

    mean_ns: float = 0.0
    spread_ns: float = 0.0
    last_ns: int | None = None  # when one came; none: never
    num_silences: int = 0  # since then
    silent_ns: int = -1  # when the last of these was found

    def note_silence(self, asked_ns: int, now_ns: int) -> None:
        if asked_ns > self.silent_ns:  # else it was under way then
            self.num_silences, self.silent_ns = self.num_silences + 1, now_ns

    def note(self, took_ns: int, now_ns: int) -> None:
        if self.last_ns is None:
            self.mean_ns, self.spread_ns = float(took_ns), took_ns / 2
        else:
            self.spread_ns += _SPREAD_GAIN * (abs(took_ns - self.mean_ns) - self.spread_ns)
            self.mean_ns += _GAIN * (took_ns - self.mean_ns)
        self.last_ns, self.num_silences = now_ns, 0


class Patience:
    """Of one node, for all that it pulls. Knows no clock: times are the caller's, in ns."""

    def __init__(self, least_ns: int, most_in_flight: int) -> None:
        """`least_ns`: how long is waited for any holder at least; it is at most eight times as long."""
        self.least_ns = least_ns
        self._most_in_flight = most_in_flight
        self.reset()

    def reset(self) -> None:
        """The node's own line is a new one."""
        self._in_flight = self._enough = float(self._most_in_flight)
        self._has_come = False  # a piece, since less was asked for
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

    @property
    def in_doubt(self) -> int:
        """How many of these of holders that were silent: the others are to have room, however many are gone."""
        return self.in_flight // 2

    def is_doubted(self, holder: int) -> bool:
        """Whether that one was silent, and gave nothing since."""
        return holder in self._habits and self._habits[holder].num_silences > 0

    def wait_ns(self, holder: int, now_ns: int) -> int:
        """How long to wait for a piece of that holder.

        Where others are quicker it is not much longer than for these: it may be slow on purpose.
        """
        own_ns = self._usual_ns(self._habits.get(holder, _Habit()))
        since_ns = now_ns - _RECENT_TIMES * self.least_ns
        others = (habit for number, habit in self._habits.items() if number != holder)
        others_ns = [self._usual_ns(one) for one in others if one.last_ns is not None and one.last_ns >= since_ns]
        return min(own_ns, _TIMES_THE_OTHERS * median_low(others_ns)) if others_ns else own_ns

    def note_answer(self, asked_ns: int) -> None:
        """What was asked then was answered: the lines are there."""
        self._answered_ns = max(self._answered_ns, asked_ns)

    def note_piece(self, holder: int, asked_ns: int, now_ns: int, *, is_late: bool = False) -> None:
        """What was asked of a holder then is here now; late: after one had given it up."""
        self.note_answer(asked_ns)
        self._habits.setdefault(holder, _Habit()).note(now_ns - asked_ns, now_ns)
        if not is_late:
            more = 1.0 if self._in_flight < self._enough else 1 / self._in_flight
            self._in_flight = min(self._most_in_flight, self._in_flight + more)
            self._has_come = True

    def note_silence(self, holder: int, asked_ns: int, now_ns: int) -> None:
        """What was asked of a holder then was waited for long enough, or got lost.

        If nothing that was asked since then was answered either, it is the line's fault, once for all that is under
        way: little is asked for, more with every piece that comes, and slowly from half as much as it was.
        """
        self._habits.setdefault(holder, _Habit()).note_silence(asked_ns, now_ns)
        if asked_ns > max(self._answered_ns, self._reduced_ns):
            if self._has_come:
                self._enough = max(_LEAST_IN_FLIGHT, self._in_flight / 2)
            self._in_flight, self._has_come, self._reduced_ns = float(_LEAST_IN_FLIGHT), False, now_ns

    def welcome(self, holder: int) -> None:
        """That one comes anew: it may have been silent for not having been there."""
        if holder in self._habits:
            self._habits[holder].num_silences = 0

    def _usual_ns(self, habit: _Habit) -> int:
        usual_ns = max(self.least_ns, round(habit.mean_ns + _SPREADS * habit.spread_ns))
        return min(self.most_ns, usual_ns << min(habit.num_silences, _MOST_DOUBLINGS))
