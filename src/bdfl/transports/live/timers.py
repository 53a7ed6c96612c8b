"""The timers of one node: one of each kind, on whatever clock the node has."""

from bdfl.protocol.events import SetTimer, Timer, TimerFired

NEWS_RESENDS = 8  # resend intervals after news, at the latest, everything is said again
_MAX_DOUBLINGS = 6  # while nothing new is heard


class Timers:
    """What a node waits for, and until when (ns). Used by one thread.

    While an attempt lasts, everything is said again more and more seldom: the same from everybody to everybody once a
    second would fill a slow line, and what is new would never get through. A network that lacks its quorum says hardly
    anything.
    """

    def __init__(self) -> None:
        self._set: dict[Timer, tuple[int, SetTimer]] = {}
        self._num_said = 0  # times that everything was said in the attempt below
        self._said_in = (0, 0)  # height and attempt

    def set(self, effect: SetTimer, now_ns: int) -> None:
        """One of the same kind set before is forgotten."""
        doublings = self._count_said(effect) if effect.timer is Timer.RESEND else 0
        self._set[effect.timer] = now_ns + (effect.delay_ns << min(doublings, _MAX_DOUBLINGS)), effect

    def hasten(self, timer: Timer, due_ns: int) -> None:
        """Lets a timer that is set fire by `due_ns`, if it would later."""
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
        """When the next one is due."""
        return min((due_ns for due_ns, _ in self._set.values()), default=None)

    def pop_due(self, now_ns: int) -> list[TimerFired]:
        """Those whose time has come, in the order of their time."""
        due = sorted((due_ns, kind) for kind, (due_ns, _) in self._set.items() if due_ns <= now_ns)
        fired = [self._set.pop(kind)[1] for _, kind in due]
        return [TimerFired(effect.timer, effect.height, effect.attempt) for effect in fired]
