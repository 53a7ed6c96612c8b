"""Thread-safe counters of an attack."""

import threading
import time

from campaigns.hostile.orders import Said


class Tally:
    """Traffic and processor time since the attack began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = self._sent_bytes = self._failed = self._received_bytes = 0
        self.begin()

    def begin(self) -> None:
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()

    def send(self, num_bytes: int) -> None:
        with self._lock:
            self._sent += 1
            self._sent_bytes += num_bytes

    def lead_s(self, rate: float) -> float:
        """Return how far (s) the attack is ahead of `rate` payloads per second; 0 without a rate."""
        return self._sent / rate - (time.monotonic() - self._began_s) if rate else 0.0

    def fail(self) -> None:
        """Count a payload that could not be sent."""
        with self._lock:
            self._sent += 1
            self._failed += 1

    def receive(self, num_bytes: int) -> None:
        with self._lock:
            self._received_bytes += num_bytes

    def read(self, *, is_ready: bool = False, is_over: bool = False) -> Said:
        with self._lock:
            return Said(
                sent=self._sent,
                sent_bytes=self._sent_bytes,
                failed=self._failed,
                received_bytes=self._received_bytes,
                cpu_s=time.process_time() - self._began_cpu_s,
                seconds=time.monotonic() - self._began_s,
                is_ready=is_ready,
                is_over=is_over,
            )
