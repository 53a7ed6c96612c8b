"""A bounded queue with one worker thread."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Lane(Generic[_Item]):
    """Handles items in order in its own thread, bounded by count and bytes. Close it after use."""

    def __init__(self, name: str, handle: Callable[[_Item], None], max_items: int, max_bytes: int) -> None:
        self._handle = handle
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: deque[tuple[_Item, int]] = deque()
        self._num_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, item: _Item, size: int = 0) -> bool:
        """Add an item of `size` bytes; return False if the queue is full or closed."""
        with self._changed:
            if self._is_closed or len(self._items) >= self._max_items or self._num_bytes + size > self._max_bytes:
                return False
            self._items.append((item, size))
            self._num_bytes += size
            self._changed.notify()
            return True

    def __len__(self) -> int:
        return len(self._items)

    def close(self, timeout_s: float) -> list[_Item]:
        """End the thread after its current item; return the items not handled."""
        with self._changed:
            self._is_closed = True
            rest = [item for item, _ in self._items]
            self._items.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return rest

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._items and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                item, size = self._items.popleft()
                self._num_bytes -= size
            self._handle(item)
