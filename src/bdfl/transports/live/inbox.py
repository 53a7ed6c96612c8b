"""What waits for a node: bounded, and nobody can fill it for the others."""

import threading
from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
    """Items of the node itself, never refused and first; and of its members, a share for each, in turns."""

    def __init__(self, max_weight: int) -> None:
        """`max_weight` is what one member's items may weigh together."""
        self._max_weight = max_weight
        self._own: deque[_Item] = deque()
        self._queues: dict[int, deque[tuple[_Item, int]]] = {}
        self._weights: dict[int, int] = {}
        self._turns: deque[int] = deque()  # members of whom something waits
        self._length = 0
        self._is_closed = False
        self._news = threading.Condition()

    def __len__(self) -> int:
        return self._length

    def put(self, sender: int | None, item: _Item, weight: int = 1) -> bool:
        """Whether there is room for it; no sender: it is the node's own, and there is."""
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
        """The next item; none if there is none in time, or no more ever."""
        with self._news:
            if not self._length and not self._is_closed:
                self._news.wait(timeout_s)
            if not self._length:
                return None
            self._length -= 1
            return self._own.popleft() if self._own else self._take_turn()

    def wake(self) -> None:
        """Ends a wait."""
        with self._news:
            self._news.notify_all()

    def close(self) -> None:
        """Takes nothing more; what waits can still be taken."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self._is_closed and not self._length

    def _take_turn(self) -> _Item:
        sender = self._turns.popleft()
        item, weight = self._queues[sender].popleft()
        self._weights[sender] -= weight
        if self._queues[sender]:
            self._turns.append(sender)
        return item
