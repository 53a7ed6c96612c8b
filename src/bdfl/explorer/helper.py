"""Client of the worker process, which is started on first use and killed after a timeout."""

import os
import select
import subprocess
import sys
import threading
import time
from typing import TypeVar

import msgspec

from bdfl.explorer.errors import Busy, NotHere
from bdfl.explorer.orders import LENGTH_SIZE, MAX_FRAME, AnyOrder, Reply
from bdfl.process_pool import THREAD_VARIABLES

PATIENCE_S = 10.0  # for an answer
_START_S = 60.0  # to import everything
_MAX_WAITING = 4
_END_S = 2.0

_Answer = TypeVar("_Answer")
_ENCODER = msgspec.msgpack.Encoder()
_REPLY = msgspec.msgpack.Decoder(Reply)


class Helper:
    """Client of the worker process: one request at a time, few may wait."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(_MAX_WAITING)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None before its first use."""
        return None if self._process is None else self._process.pid

    def ask(self, order: AnyOrder, answer: type[_Answer], patience_s: float | None = None) -> _Answer:
        """Return the worker's answer; raise `NotHere` if something is missing, `Busy` if it fails or is late."""
        patience_s = self._patience_s if patience_s is None else patience_s
        if not self._places.acquire(blocking=False):
            raise Busy("too many questions wait for an answer; try again in a moment")
        try:
            if not self._turn.acquire(timeout=patience_s):
                raise Busy("the answers to others take too long; try again in a moment")
            try:
                reply = self._exchange(_ENCODER.encode(order), patience_s)
            finally:
                self._turn.release()
        finally:
            self._places.release()
        if reply.refusal is not None:
            raise (NotHere if reply.refusal.is_missing else Busy)(reply.refusal.what)
        return msgspec.msgpack.decode(reply.answer, type=answer)

    def close(self) -> None:
        """Kill the worker; waiting callers get `Busy`."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._end()

    def _exchange(self, order: bytes, patience_s: float) -> Reply:
        try:
            process = self._start()
            assert process.stdin is not None
            process.stdin.write(len(order).to_bytes(LENGTH_SIZE, "big") + order)
            process.stdin.flush()
            return _REPLY.decode(self._read(process, patience_s))
        except TimeoutError:  # a subclass of OSError
            self._end()
            raise Busy(f"no answer within {patience_s:g} s") from None
        except (OSError, EOFError):
            self._end()
            raise Busy("the process that works this out ended; it is started again with the next question") from None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if self._is_closed:
            raise EOFError
        environment = dict.fromkeys(THREAD_VARIABLES, "1") | os.environ  # more threads gain nothing on small problems
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bdfl.explorer.desk_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._read(self._process, _START_S)  # an empty frame: the worker is ready
        return self._process

    def _read(self, process: subprocess.Popen[bytes], patience_s: float) -> bytes:
        until_s = time.monotonic() + patience_s
        size = int.from_bytes(_read_bytes(process, LENGTH_SIZE, until_s), "big")
        if size > MAX_FRAME:
            raise EOFError
        return _read_bytes(process, size, until_s)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # unsent bytes are lost
        process.wait(_END_S)


def _read_bytes(process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    parts: list[bytes] = []
    while size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
