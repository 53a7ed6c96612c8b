"""Mining in a separate process, so that it does not compete with the node for the GIL.

In a thread, Argon2 would wait up to 5 ms for the GIL after every hash while the node computes, and SHA-256 would slow
the node down; `benchmarks/ledger` measures both.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import msgspec

from bdfl.ledger.proof_of_work import search_nonce
from bdfl.processes import BrokenMessage, Channel, ChildProcess, open_parent_channel
from bdfl.scenario.schema_learning import WorkKind

_MODULE = "bdfl.ledger.miner"
_CLOSE_WAIT_S = 2.0

OnFound = Callable[[bytes], None]


class _Search(msgspec.Struct, frozen=True, array_like=True):
    """A search that replaces any earlier one; no kind: stop searching."""

    number: int
    kind: WorkKind | None
    seal: bytes
    difficulty: int


class _Result(msgspec.Struct, frozen=True, array_like=True):
    """The end of a search: with a nonce, or without one because a newer one was ordered."""

    number: int
    nonce: bytes | None
    ended_ns: int


_SEARCHES: msgspec.msgpack.Decoder[_Search] = msgspec.msgpack.Decoder(_Search)
_RESULTS: msgspec.msgpack.Decoder[_Result] = msgspec.msgpack.Decoder(_Result)


class Miner(AbstractContextManager["Miner"]):
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
        return self._child.pid

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no search is running, for at most `timeout_s`, and return whether that is so."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Stop the search and end its process."""
        with self._lock:
            self._number += 1
            self._on_found = None
        self._child.end(_CLOSE_WAIT_S)
        if self._listener is not threading.current_thread():
            self._listener.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, kind: WorkKind | None, seal: bytes, difficulty: int, on_found: OnFound | None) -> None:
        with self._lock:
            self._number += 1
            self._on_found = on_found
            self._idle.clear()
            search = _Search(self._number, kind, seal, difficulty)
            try:
                self._child.send(search)
            except BrokenPipeError:  # the process was killed
                self._child.end(_CLOSE_WAIT_S)
                self._begin()
                self._child.send(search)

    def _begin(self) -> None:
        self._child = ChildProcess(_MODULE)
        self._listener = threading.Thread(target=self._listen, args=(self._child,), name="miner", daemon=True)
        self._listener.start()

    def _listen(self, child: ChildProcess) -> None:
        """Read results and call `on_found`, until the process ends."""
        with suppress(BrokenMessage):
            for result in child.listen(_RESULTS):
                with self._lock:
                    if result.number != self._number:
                        continue  # the search was stopped or replaced
                    self.idle_since_ns = result.ended_ns
                    self._idle.set()
                    on_found, self._on_found = self._on_found, None
                    if on_found is not None and result.nonce is not None:
                        on_found(result.nonce)
        with self._lock:
            if child is self._child:
                self._idle.set()


def _serve(channel: Channel) -> None:
    """Search until the end of the channel; of several searches waiting, only the newest is carried out and answered."""
    # Polled by the hashing thread: a second thread would first have to be scheduled.
    while (search := channel.receive(_SEARCHES)) is not None:
        while channel.has_message() and (newer := channel.receive(_SEARCHES)) is not None:
            search = newer
        nonce = None
        if search.kind is not None:
            nonce = search_nonce(search.kind, search.seal, search.difficulty, is_stopped=channel.has_message)
        channel.send(_Result(search.number, nonce, time.monotonic_ns()))


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the owner is gone
        _serve(open_parent_channel())
