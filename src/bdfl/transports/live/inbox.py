"""A fair bounded queue: no sender can use up the space of the others."""

import threading
from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
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

    @property
    def is_over(self) -> bool:
        """True if closed and empty."""
        return self._is_closed and not self._length

    def _take_turn(self) -> _Item:
        sender = self._turns.popleft()
        item, weight = self._queues[sender].popleft()
        self._weights[sender] -= weight
        if self._queues[sender]:
            self._turns.append(sender)
        return item
