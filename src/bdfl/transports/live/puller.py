"""Blob client: a thread that requests pieces, collects answers and delivers whole blobs."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bdfl.ledger.units import NANO
from bdfl.transports.live.blob_pull import PIECE_SIZE, Answer, Pull
from bdfl.transports.live.envelope import PieceRequest
from bdfl.transports.live.pulls import Errand, Pulls

_SHORTEST_WAIT_S = 0.001


class Asking(Protocol):
    """Sends a request to a holder. The answer comes by callback, from any thread, at most once."""

    def __call__(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None: ...


class Puller:
    """Downloads any number of blobs. Thread-safe. Close it after use."""

    def __init__(
        self,
        ask: Asking,
        deliver: Callable[[int, bytes], None],
        count: Callable[[str], None],
        patience_s: float,
        piece_size: int = PIECE_SIZE,
    ) -> None:
        self._ask, self._deliver, self._count = ask, deliver, count
        self._pulls = Pulls(round(patience_s * NANO), piece_size)
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="puller", daemon=True)
        self._thread.start()

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Start a download, or add holders to one in progress."""
        with self._changed:
            if self._pulls.want(blob, size, holders, time.monotonic_ns()):
                self._count("fetches")
            self._changed.notify()

    def forget(self) -> None:
        """Cancel all downloads; a delivery in progress still completes."""
        with self._changed:
            self._pulls.clear()

    def set_present(self, present: frozenset[int]) -> None:
        """Set the members that may be asked beside the named holders."""
        with self._changed:
            self._pulls.set_present(present)
            self._changed.notify()

    @property
    def num_pulls(self) -> int:
        return len(self._pulls)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._pulls.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now_ns = time.monotonic_ns()
                whole = self._pulls.find_whole()
                errands = [] if whole else self._plan(now_ns)
                if whole is None and not errands:
                    self._changed.wait(self._idle_s(now_ns))
            if whole is not None:
                self._finish(whole)
            for errand in errands:
                self._ask(errand.holder, errand.request, self._taking(errand))

    def _plan(self, now_ns: int) -> list[Errand]:
        for _ in range(self._pulls.expire(now_ns)):
            self._count("fetch_timeouts")
        return self._pulls.plan(now_ns)

    def _idle_s(self, now_ns: int) -> float | None:
        next_ns = self._pulls.next_time_ns(now_ns)
        return None if next_ns is None else max(_SHORTEST_WAIT_S, (next_ns - now_ns) / NANO)

    def _taking(self, errand: Errand) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            with self._changed:
                if self._pulls.answer(errand, answer, time.monotonic_ns()):
                    self._count("fetched_late")
                self._changed.notify()

        return take

    def _finish(self, pull: Pull) -> None:
        data = pull.whole()
        giver = pull.main_giver
        with self._changed:
            if pull not in self._pulls:
                return
            if data is None:
                self._count("fetches_wrong")
                self._pulls.blame(pull)
                return
            self._pulls.remove(pull)
        self._count("fetches_done")
        self._deliver(-1 if giver is None else giver, data)
