"""Bounded queues, fair among members, of incoming events and outgoing messages; and a node's timers."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bdfl.protocol.events import SetTimer, Timer, TimerFired
from bdfl.transports.live.admission import Limits

_Item = TypeVar("_Item")


# A fair bounded queue: no sender can use up the space of the others.


class FairQueue(Generic[_Item]):
    """A queue with a quota per sender, served round-robin. The node's own items come first and have no quota."""

    def __init__(self, max_weight: int) -> None:
        """`max_weight` bounds the total weight of one sender's items."""
        self._max_weight = max_weight
        self._own: deque[_Item] = deque()
        self._queues: dict[int, deque[tuple[_Item, int]]] = {}
        self._weights: dict[int, int] = {}
        self._turns: deque[int] = deque()  # senders with waiting items
        self._length = 0
        self._is_closed = False
        self._news = threading.Condition()

    def __len__(self) -> int:
        return self._length

    def put(self, sender: int | None, item: _Item, weight: int = 1) -> bool:
        """Add an item; return False if its sender's quota is full or the queue is closed. No sender: the node's own."""
        with self._news:
            if self._is_closed:
                return False
            if sender is None:
                self._own.append(item)
            else:
                held = self._weights.get(sender, 0)
                if held + weight > self._max_weight:
                    return False
                queue = self._queues.setdefault(sender, deque())
                if not queue:
                    self._turns.append(sender)
                queue.append((item, weight))
                self._weights[sender] = held + weight
            self._length += 1
            self._news.notify()
            return True

    def take(self, timeout_s: float | None) -> _Item | None:
        """Remove and return the next item; None on timeout, `wake`, or when closed and empty."""
        with self._news:
            if not self._length and not self._is_closed:
                self._news.wait(timeout_s)
            if not self._length:
                return None
            self._length -= 1
            return self._own.popleft() if self._own else self._take_turn()

    def wake(self) -> None:
        """Wake all waiting `take` calls."""
        with self._news:
            self._news.notify_all()

    def close(self) -> None:
        """Reject further items; waiting items can still be taken."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def _take_turn(self) -> _Item:
        sender = self._turns.popleft()
        item, weight = self._queues[sender].popleft()
        self._weights[sender] -= weight
        if self._queues[sender]:
            self._turns.append(sender)
        return item


@dataclass(frozen=True, eq=False)
class _Outgoing:
    to: int | None
    payload: bytes


class Outbox:
    """A bounded send queue with its own thread: broadcasts first, then direct messages round-robin.

    With a quota per member, answers to one that asks a lot neither delay broadcasts nor take their space. Close it
    after use.
    """

    def __init__(self, send: Callable[[int | None, bytes], None], limits: Limits) -> None:
        self._send, self._limits = send, limits
        self._waiting: FairQueue[_Outgoing] = FairQueue(limits.answers_bytes)
        self._num_shared = self._shared_bytes = 0  # broadcasts
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="link-sender", daemon=True)
        self._thread.start()

    def put(self, to: int | None, payload: bytes) -> bool:
        """Queue a payload to one member or to all; return False if the quota is full."""
        limits, outgoing, size = self._limits, _Outgoing(to, payload), len(payload)
        if to is not None:  # quota: at most `answers` messages, fewer if large
            return self._waiting.put(to, outgoing, max(size, limits.answers_bytes // limits.answers))
        with self._lock:
            if self._num_shared >= limits.outgoing or self._shared_bytes + size > limits.outgoing_bytes:
                return False
            self._num_shared += 1
            self._shared_bytes += size
        return self._waiting.put(None, outgoing)

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self, timeout_s: float) -> None:
        """End the thread after the current send; the rest is dropped."""
        self._is_closed = True
        self._waiting.close()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._is_closed:
            outgoing = self._waiting.take(None)
            if outgoing is None:
                continue
            if outgoing.to is None:
                with self._lock:
                    self._num_shared -= 1
                    self._shared_bytes -= len(outgoing.payload)
            self._send(outgoing.to, outgoing.payload)


class Timers:
    """Pending timers, one per kind, and their times (ns). Not thread-safe."""

    def __init__(self) -> None:
        self._set: dict[Timer, tuple[int, SetTimer]] = {}

    def set(self, effect: SetTimer, now_ns: int) -> None:
        """Set a timer; replaces an earlier one of its kind."""
        self._set[effect.timer] = now_ns + effect.delay_ns, effect

    def clear(self) -> None:
        self._set.clear()

    @property
    def next_ns(self) -> int | None:
        """Time of the next timer (ns); None if none is set."""
        return min((due_ns for due_ns, _ in self._set.values()), default=None)

    def pop_due(self, now_ns: int) -> list[TimerFired]:
        """Remove and return the timers that are due, in order of time."""
        due = sorted((due_ns, kind) for kind, (due_ns, _) in self._set.items() if due_ns <= now_ns)
        fired = [self._set.pop(kind)[1] for _, kind in due]
        return [TimerFired(effect.timer, effect.height, effect.attempt) for effect in fired]
