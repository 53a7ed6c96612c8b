"""Mining in a separate process, so that it does not compete with the node for the GIL.

In a thread, Argon2 would wait up to 5 ms for the GIL after every hash while the node computes, and SHA-256 would slow
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

from bdfl.ledger.proof_of_work import search_nonce
from bdfl.scenario.schema_learning import WorkKind

_ORDERS, _ANSWERS = 0, 1  # the process's standard input and output
_PIPE_BYTES = 65536
_CLOSE_WAIT_S = 2.0

OnFound = Callable[[bytes], None]


class _Order(msgspec.Struct, frozen=True):
    """A search that replaces any earlier one; no kind: stop searching."""

    number: int
    kind: WorkKind | None
    seal: bytes
    difficulty: int


class _Answer(msgspec.Struct, frozen=True):
    """The end of an order: with a nonce, or without one because a newer order arrived."""

    number: int
    nonce: bytes | None
    ended_ns: int


class Miner:
    """A client of the mining process, with one search at a time. Close it; the process also exits with its parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle = threading.Event()
        self._idle.set()
        self.idle_since_ns = time.monotonic_ns()  # end of the last hashing, by the clock that all processes share
        self._number = 0
        self._on_found: OnFound | None = None
        self._begin()

    def start(self, kind: WorkKind, seal: bytes, difficulty: int, on_found: OnFound) -> None:
        """Start a search, replacing any earlier one; `on_found(nonce)` is called once, from another thread.

        `on_found` must return soon and raise nothing; it may start the next search.
        """
        self._order(kind, seal, difficulty, on_found)

    def stop(self) -> None:
        """Stop the search: `on_found` is not called any more, and hashing ends within 10 ms."""
        self._order(None, b"", 1, None)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no search is running, for at most `timeout_s`, and return whether that is so."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Stop the search and end its process."""
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
            except BrokenPipeError:  # the process was killed
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
            orders.close()  # the process exits at end of file
        try:
            self._process.wait(_CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Read answers and call `on_found`, until the process ends."""
        decoder = msgspec.json.Decoder(_Answer)
        assert process.stdout is not None
        with process.stdout as answers:
            for line in answers:
                answer = decoder.decode(line)
                with self._lock:
                    if answer.number != self._number:
                        continue  # the search was stopped or replaced
                    self.idle_since_ns = answer.ended_ns
                    self._idle.set()
                    on_found, self._on_found = self._on_found, None
                    if on_found is not None and answer.nonce is not None:
                        on_found(answer.nonce)
        with self._lock:
            if process is self._process:
                self._idle.set()


def _serve_orders() -> None:
    """Serve orders until end of file; of several waiting, only the newest is carried out and answered."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and closes this process
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
    """Return whether a newer order or end of file is waiting."""
    # Polled by the hashing thread: a second thread would first have to be scheduled.
    return bool(select.select([_ORDERS], [], [], 0)[0])


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the owner is gone
        _serve_orders()
