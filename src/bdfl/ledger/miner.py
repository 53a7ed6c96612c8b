"""Mining beside everything else: a process of its own searches, so that neither slows the other down.

In a thread, Argon2 would wait up to 5 ms for its turn after every hash while the node computes, and SHA-256 would slow
the node down; `benchmarks/ledger` measures both.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from bdfl.ledger.work import search_nonce
from bdfl.scenario.ledger import WorkKind

_ORDERS, _ANSWERS = 0, 1  # the process's standard input and output
_PIPE_BYTES = 65536
_CLOSE_WAIT_S = 2.0

OnFound = Callable[[bytes], None]


class _Order(msgspec.Struct, frozen=True):
    """What to search, instead of anything before; no kind: nothing."""

    number: int
    kind: WorkKind | None
    seal: bytes
    difficulty: int


class _Answer(msgspec.Struct, frozen=True):
    """That an order is done: with a nonce, or without because there is a newer order."""

    number: int
    nonce: bytes | None
    ended_ns: int


class Miner:
    """Searches one nonce at a time. To be closed; its process also ends when the one that made it does."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle = threading.Event()
        self._idle.set()
        self.idle_since_ns = time.monotonic_ns()  # when hashing last ended, by the clock that all processes share
        self._number = 0
        self._on_found: OnFound | None = None
        self._begin()

    def start(self, kind: WorkKind, seal: bytes, difficulty: int, on_found: OnFound) -> None:
        """Begins to search, instead of any search before; `on_found(nonce)` is called once, from another thread.

        `on_found` returns soon and raises nothing; it may start the next search.
        """
        self._order(kind, seal, difficulty, on_found)

    def stop(self) -> None:
        """Ends the search: `on_found` is not called from now on, and hashing ends within 10 ms."""
        self._order(None, b"", 1, None)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether no search goes on any more, at the latest after `timeout_s`."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Ends the search and its process."""
        with self._lock:
            self._number += 1
            self._on_found = None
        self._end()
        if self._listener is not threading.current_thread():
            self._listener.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _order(self, kind: WorkKind | None, seal: bytes, difficulty: int, on_found: OnFound | None) -> None:
        with self._lock:
            self._number += 1
            self._on_found = on_found
            self._idle.clear()
            line = msgspec.json.encode(_Order(self._number, kind, seal, difficulty)) + b"\n"
            try:
                self._tell(line)
            except BrokenPipeError:  # somebody ended the process
                self._end()
                self._begin()
                self._tell(line)

    def _tell(self, line: bytes) -> None:
        orders = self._process.stdin
        assert orders is not None
        orders.write(line)
        orders.flush()

    def _begin(self) -> None:
        # -P: nothing is imported from the current folder
        command = [sys.executable, "-P", "-m", "bdfl.ledger.miner"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._listener = threading.Thread(target=self._listen, args=(self._process,), name="miner", daemon=True)
        self._listener.start()

    def _end(self) -> None:
        orders = self._process.stdin
        assert orders is not None
        with suppress(BrokenPipeError):
            orders.close()  # the process takes it as the end
        try:
            self._process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Passes on what is found, until the process ends."""
        decoder = msgspec.json.Decoder(_Answer)
        assert process.stdout is not None
        with process.stdout as answers:
            for line in answers:
                answer = decoder.decode(line)
                with self._lock:
                    if answer.number != self._number:
                        continue  # of a search that was stopped or replaced
                    self.idle_since_ns = answer.ended_ns
                    self._idle.set()
                    on_found, self._on_found = self._on_found, None
                    if on_found is not None and answer.nonce is not None:
                        on_found(answer.nonce)
        with self._lock:
            if process is self._process:
                self._idle.set()


def _serve_orders() -> None:
    """What the process does until nobody gives orders any more: the newest counts, and is answered."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the owner, who then closes us
    decoder = msgspec.json.Decoder(_Order)
    unread = b""
    while data := os.read(_ORDERS, _PIPE_BYTES):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines[-1:]:
            order = decoder.decode(line)
            nonce = None
            if order.kind is not None:
                nonce = search_nonce(order.kind, order.seal, order.difficulty, is_stopped=_is_ordered)
            answer = _Answer(order.number, nonce, time.monotonic_ns())
            os.write(_ANSWERS, msgspec.json.encode(answer) + b"\n")


def _is_ordered() -> bool:
    """Whether there is a newer order, or nobody to give any."""
    # Asked by the very thread that hashes: a second one would first have to be given a core.
    return bool(select.select([_ORDERS], [], [], 0)[0])


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the owner is gone
        _serve_orders()
