"""Timeouts of a live node: those derived from the scenario, and adaptive ones with the congestion window of downloads.

Retries that are too early congest a slow line with duplicates, which causes more timeouts, up to collapse. So each
holder's timeout follows the mean and deviation of its RTT, as in TCP [RFC 6298]. The number of requests in flight
follows slow start and AIMD [RFC 5681].
"""

from dataclasses import dataclass
from math import exp
from statistics import median_low

from bdfl.learning.training import num_local_steps
from bdfl.ledger.costs import NANO
from bdfl.protocol.state import Timing
from bdfl.scenario import Scenario
from bdfl.scenario.distributions import Choice, Lognormal, Normal, PerClientWhole, Uniform
from bdfl.scenario.schema import LiveMode
from bdfl.scenario.schema_learning import LocalUnit

_LEAST_GRACE_S = 5.0
_LEAST_RESEND_S = 1.0
_MEMBERS_PER_RESEND_S = 16  # resends are all-to-all: less often with more members
_LEAST_FETCH_S = 2.0
_LEASE_S = 5.0
_BYTES_PER_S = 5e6  # transferred and checked, at least, on a busy machine
_WEIGHTS_PER_S = 5e7  # weights times samples trained, at least, on a busy machine
_WEIGHT_SIZE = 4  # bytes


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a live node."""

    timing: Timing
    fetch_s: float
    lease_s: float


def live_waits(scenario: Scenario, model_size: int) -> Timeouts:
    """Return all timeouts of a node in a scenario's network; `model_size` in bytes.

    The deadline of a round is twice its modelled exchange, times the time scale, plus the grace: the cost of a dead
    member. Real training and transfer times are not modelled, so the grace covers both at the rate of a slow machine
    shared by several nodes. An attempt allows two resends and the transfer of a block's models. A fetch need not wait
    for a holder's own upload: the holder answers that it is not ready yet.
    """
    live = scenario.live
    num_members = scenario.clients.count
    moving_s = num_members * model_size / _BYTES_PER_S
    resend_s = _or(live.resend_s, max(_LEAST_RESEND_S, num_members / _MEMBERS_PER_RESEND_S))
    grace_s = _or(live.grace_s, _LEAST_GRACE_S + moving_s + _training_s(scenario, model_size))
    attempt_s = _or(live.attempt_s, 2.0 * resend_s + moving_s)
    timing = Timing(
        grace_ns=round(grace_s * NANO),
        attempt_ns=round(attempt_s * NANO),
        resend_ns=round(resend_s * NANO),
        time_scale=live.time_scale if live.mode is LiveMode.EMULATE else 1.0,
    )
    fetch_s = _or(live.fetch_s, max(_LEAST_FETCH_S, 2.0 * model_size / _BYTES_PER_S))
    return Timeouts(timing, fetch_s, _or(live.lease_s, _LEASE_S))


def _or(given: float | None, derived: float) -> float:
    return derived if given is None else given


def _training_s(scenario: Scenario, model_size: int) -> float:
    """Return an upper estimate of real training time (s)."""
    learning = scenario.learning
    steps = num_local_steps(scenario)
    per_step = learning.batch if learning.unit is LocalUnit.UPDATES else _most(scenario.clients.samples)
    return float(steps * per_step * model_size / _WEIGHT_SIZE / _WEIGHTS_PER_S)


def _most(samples: PerClientWhole) -> float:
    """Return the approximate size of the largest data set."""
    match samples:
        case tuple():
            return max(samples)
        case Uniform() | Normal():
            return samples.high
        case Lognormal():
            return samples.median * exp(2.0 * samples.sigma)
        case Choice():
            return max(samples.values)
    return samples


_MOST_DOUBLINGS = 3
MOST_TIMES = 1 << _MOST_DOUBLINGS  # longest timeout in units of the least
_LEAST_IN_FLIGHT = 2  # a lost one leaves room for another
_TIMES_THE_OTHERS = 2
_RECENT_TIMES = 4 * MOST_TIMES  # in units of the least timeout: older RTTs of other holders are ignored
_GAIN, _SPREAD_GAIN, _SPREADS = 1 / 8, 1 / 4, 4  # RFC 6298, 2.3


@dataclass
class _Habit:
    """RTT statistics of one holder."""

    mean_ns: float = 0.0
    spread_ns: float = 0.0
    last_ns: int | None = None  # time of the last piece
    num_silences: int = 0  # timeouts since then
    silent_ns: int = -1  # time of the last timeout

    def note_silence(self, asked_ns: int, now_ns: int) -> None:
        if asked_ns > self.silent_ns:  # else it was in flight at the last timeout
            self.num_silences, self.silent_ns = self.num_silences + 1, now_ns

    def note(self, took_ns: int, now_ns: int) -> None:
        if self.last_ns is None:
            self.mean_ns, self.spread_ns = float(took_ns), took_ns / 2
        else:
            self.spread_ns += _SPREAD_GAIN * (abs(took_ns - self.mean_ns) - self.spread_ns)
            self.mean_ns += _GAIN * (took_ns - self.mean_ns)
        self.last_ns, self.num_silences = now_ns, 0


class FetchTimeouts:
    """Timeouts and congestion window of a node, for all its downloads. Times are the caller's, in ns."""

    def __init__(self, least_ns: int, most_in_flight: int) -> None:
        """`least_ns` is the shortest timeout; the longest is eight times that."""
        self.least_ns = least_ns
        self._most_in_flight = most_in_flight
        self.reset()

    def reset(self) -> None:
        """Forget all measurements: the node's own connection is new."""
        self._in_flight = self._enough = float(self._most_in_flight)
        self._has_come = False  # a piece arrived since the last reduction
        self._habits: dict[int, _Habit] = {}
        self._answered_ns = -1  # send time of the latest answered request
        self._reduced_ns = -1

    @property
    def most_ns(self) -> int:
        return MOST_TIMES * self.least_ns

    @property
    def in_flight(self) -> int:
        """Congestion window: the number of requests allowed in flight."""
        return int(self._in_flight)

    @property
    def in_doubt(self) -> int:
        """Part of the window for unresponsive holders; the rest is reserved for the others."""
        return self.in_flight // 2

    def is_doubted(self, holder: int) -> bool:
        """Return whether requests to a holder timed out since its last piece."""
        return holder in self._habits and self._habits[holder].num_silences > 0

    def wait_ns(self, holder: int, now_ns: int) -> int:
        """Return the timeout of a request to that holder (ns).

        It is at most twice the median of the other recent holders: a holder may be slow on purpose.
        """
        own_ns = self._usual_ns(self._habits.get(holder, _Habit()))
        since_ns = now_ns - _RECENT_TIMES * self.least_ns
        others = (habit for number, habit in self._habits.items() if number != holder)
        others_ns = [self._usual_ns(one) for one in others if one.last_ns is not None and one.last_ns >= since_ns]
        return min(own_ns, _TIMES_THE_OTHERS * median_low(others_ns)) if others_ns else own_ns

    def note_answer(self, asked_ns: int) -> None:
        """Note an answer to a request sent at `asked_ns`: the network works."""
        self._answered_ns = max(self._answered_ns, asked_ns)

    def note_piece(self, holder: int, asked_ns: int, now_ns: int, *, is_late: bool = False) -> None:
        """Note a piece: update the RTT and, unless it is late (timed out before), grow the window."""
        self.note_answer(asked_ns)
        self._habits.setdefault(holder, _Habit()).note(now_ns - asked_ns, now_ns)
        if not is_late:
            more = 1.0 if self._in_flight < self._enough else 1 / self._in_flight
            self._in_flight = min(self._most_in_flight, self._in_flight + more)
            self._has_come = True

    def note_silence(self, holder: int, asked_ns: int, now_ns: int) -> None:
        """Note a timeout or loss.

        If no later request was answered either, it counts as congestion, once for all requests in flight. The window
        drops to its minimum, then grows by one per piece up to half its former size, then by one per window.
        """
        self._habits.setdefault(holder, _Habit()).note_silence(asked_ns, now_ns)
        if asked_ns > max(self._answered_ns, self._reduced_ns):
            if self._has_come:
                self._enough = max(_LEAST_IN_FLIGHT, self._in_flight / 2)
            self._in_flight, self._has_come, self._reduced_ns = float(_LEAST_IN_FLIGHT), False, now_ns

    def welcome(self, holder: int) -> None:
        """Clear the timeouts of a holder that reappeared: it may have been offline."""
        if holder in self._habits:
            self._habits[holder].num_silences = 0

    def _usual_ns(self, habit: _Habit) -> int:
        usual_ns = max(self.least_ns, round(habit.mean_ns + _SPREADS * habit.spread_ns))
        return min(self.most_ns, usual_ns << min(habit.num_silences, _MOST_DOUBLINGS))
