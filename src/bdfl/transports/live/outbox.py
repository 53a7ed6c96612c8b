"""Fair send queue: broadcasts first, then direct messages round-robin, with a quota per member.

So answers to a member that asks a lot neither delay broadcasts nor take their space.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from bdfl.transports.live.inbox import Inbox
from bdfl.transports.live.limits import Limits


@dataclass(frozen=True, eq=False)
class _Outgoing:
    to: int | None
    payload: bytes


class Outbox:
    """A bounded send queue with its own thread. Close it after use."""

    def __init__(self, send: Callable[[int | None, bytes], None], limits: Limits) -> None:
        self._send, self._limits = send, limits
        self._waiting: Inbox[_Outgoing] = Inbox(limits.answers_bytes)
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
