"""Timers of one node, one per kind, on the node's clock."""

from bdfl.protocol.events import SetTimer, Timer, TimerFired

NEWS_RESENDS = 8  # resend intervals: the longest wait for a resend after news
_MAX_DOUBLINGS = 6  # without news


class Timers:
    """Pending timers and their times (ns). Not thread-safe.

    Resends back off exponentially within an attempt: all-to-all resends every second would fill a slow line and delay
    new messages. A network without a quorum is nearly silent.
    """

    def __init__(self) -> None:
        self._set: dict[Timer, tuple[int, SetTimer]] = {}
        self._num_said = 0  # resends in the attempt below
        self._said_in = (0, 0)  # height and attempt

    def set(self, effect: SetTimer, now_ns: int) -> None:
        """Set a timer; replaces an earlier one of its kind."""
        doublings = self._count_said(effect) if effect.timer is Timer.RESEND else 0
        self._set[effect.timer] = now_ns + (effect.delay_ns << min(doublings, _MAX_DOUBLINGS)), effect

    def hasten(self, timer: Timer, due_ns: int) -> None:
        """Make a pending timer fire at `due_ns` at the latest."""
        if timer in self._set:
            was_due_ns, effect = self._set[timer]
            self._set[timer] = min(was_due_ns, due_ns), effect

    def clear(self) -> None:
        self._set.clear()

    def _count_said(self, effect: SetTimer) -> int:
        attempt = effect.height, effect.attempt
        self._num_said = self._num_said + 1 if attempt == self._said_in else 0
        self._said_in = attempt
        return self._num_said

    @property
    def next_ns(self) -> int | None:
        """Time of the next timer (ns); None if none is set."""
        return min((due_ns for due_ns, _ in self._set.values()), default=None)

    def pop_due(self, now_ns: int) -> list[TimerFired]:
        """Remove and return the timers that are due, in order of time."""
        due = sorted((due_ns, kind) for kind, (due_ns, _) in self._set.items() if due_ns <= now_ns)
        fired = [self._set.pop(kind)[1] for _, kind in due]
        return [TimerFired(effect.timer, effect.height, effect.attempt) for effect in fired]
