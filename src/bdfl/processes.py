"""Processes of this one: a child with messages over pipes, and a process pool. Both ignore SIGINT and die with it.

Import-light: what the pool needs is imported where it is opened, since every child process imports this module.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bdfl.errors import BdflError, one_line

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

# Number of threads of numeric libraries, read once when they are imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def count_cores() -> int:
    """CPUs this process may use: its CPU affinity, limited by the quota of its control group (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota_us, period_us = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota_us) // int(period_us))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one, so that idle connections do not use them up."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses an infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# A child process that runs one of our modules.

MAX_BYTES = 2**28  # of a message
_LENGTH_BYTES = 8
_READ_BYTES = 2**20
_GRACE_S = 2.0  # of a child whose input was closed

Message = TypeVar("Message")
_ENCODER = msgspec.msgpack.Encoder()
# Module-level, as all decoders should be: creating them concurrently in threads crashes the interpreter (msgspec 0.22).
_READY: msgspec.msgpack.Decoder[bool] = msgspec.msgpack.Decoder(bool)


class BrokenMessage(BdflError):
    """A message between processes that is too long or has another form."""


class ChildEnded(BdflError):
    """A child process that ended before it answered."""


class Channel:
    """Messages over a pair of pipes: MessagePack after eight bytes of length. Nothing is read ahead."""

    def __init__(self, reading: int, writing: int, max_bytes: int = MAX_BYTES) -> None:
        """Use these file descriptors, which stay the caller's to close."""
        self._reading, self._writing, self._max_bytes = reading, writing, max_bytes

    def send(self, message: object) -> None:
        """Write a message; raise `OSError` if the other process is gone."""
        frame = bytearray(_LENGTH_BYTES)
        _ENCODER.encode_into(message, frame, _LENGTH_BYTES)
        frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big")
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(self._writing, rest) :]

    def receive(self, decoder: msgspec.msgpack.Decoder[Message], timeout_s: float | None = None) -> Message | None:
        """Read the next message; None at the end of the stream. Raises `TimeoutError` or `BrokenMessage`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        head = self._read(_LENGTH_BYTES, until_s)
        size = int.from_bytes(head, "big")
        if size > self._max_bytes:
            raise BrokenMessage(f"a message of {size} bytes announced, at most {self._max_bytes} expected")
        data = self._read(size, until_s)
        if len(head) < _LENGTH_BYTES or len(data) < size:
            return None
        try:
            return decoder.decode(data)
        except msgspec.DecodeError as error:
            raise BrokenMessage(one_line(error)) from None

    def has_message(self, timeout_s: float = 0.0) -> bool:
        """Return whether a message or the end of the stream is waiting, after at most `timeout_s`."""
        poll = select.poll()  # select() refuses file descriptors from 1024 on
        poll.register(self._reading, select.POLLIN)
        return bool(poll.poll(1000.0 * timeout_s))

    def _read(self, size: int, until_s: float | None) -> bytes:
        """Read `size` bytes, fewer at the end of the stream."""
        parts = []
        while size:
            if until_s is not None and not self.has_message(max(0.0, until_s - time.monotonic())):
                raise TimeoutError
            part = os.read(self._reading, min(size, _READ_BYTES))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class ChildProcess:
    """A child process that runs a module of this package and exchanges messages with this process.

    It ends when its input does: on `end`, and if this process dies. One thread at a time may receive.
    """

    def __init__(
        self, *command: str, threads: int | None = None, is_quiet: bool = False, max_bytes: int = MAX_BYTES
    ) -> None:
        """Start `python -m` with `command`, a module's name, or `python` with a command that begins with an option.

        Numeric libraries use `threads` threads, see `open_process_pool`; a quiet child's standard error is discarded.
        """
        options = command if command[0].startswith("-") else ("-m", *command)
        self._process = subprocess.Popen(
            [sys.executable, "-P", *options],  # -P: nothing is imported from the current folder
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_quiet else None,
            env=os.environ | _thread_variables(threads),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._channel = Channel(self._output.fileno(), self._input.fileno(), max_bytes)
        self._posted: SimpleQueue[object] | None = None  # None in it: the end

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def send(self, message: object) -> None:
        """Send a message; raise `OSError` if the process is gone. It blocks while the pipe is full."""
        if self._input.closed:
            raise BrokenPipeError
        self._channel.send(message)

    def post(self, message: object) -> None:
        """Send a message from a thread of its own, after those posted before; a child that is gone ignores it.

        Only one thread at a time may post, and none may `send` besides.
        """
        if self._posted is None:
            self._posted = SimpleQueue()
            Thread(target=self._send_posted, args=(self._posted,), daemon=True, name="messages").start()
        self._posted.put(message)

    def _send_posted(self, posted: "SimpleQueue[object]") -> None:
        with suppress(OSError), self._input:
            while (message := posted.get()) is not None:
                self.send(message)

    def listen(self, decoder: msgspec.msgpack.Decoder[Message]) -> Iterator[Message]:
        """Yield the messages of the process until it ends; raise `BrokenMessage`."""
        with self._output:
            while (message := self._channel.receive(decoder)) is not None:
                yield message

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until a child that calls `serve_requests` has imported everything."""
        self._answer(_READY, timeout_s)

    def request(self, message: object, decoder: msgspec.msgpack.Decoder[Message], timeout_s: float) -> Message:
        """Return the answer to a request; raise `TimeoutError`, `ChildEnded` or `BrokenMessage`.

        After an error the process must be ended, for a late answer would be taken for that of another request.
        """
        with suppress(OSError):  # it is gone, which receiving tells
            self.send(message)
        return self._answer(decoder, timeout_s)

    def _answer(self, decoder: msgspec.msgpack.Decoder[Message], timeout_s: float) -> Message:
        answer = self._channel.receive(decoder, timeout_s)
        if answer is None:
            raise ChildEnded(f"process {self.pid} ended before it answered")
        return answer

    def end(self, grace_s: float = _GRACE_S) -> None:
        """Close its input, and kill it unless it ends in time; what it sent can still be received."""
        self.end_input()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def end_input(self) -> None:
        """Close its input after all messages posted: the child ends by itself."""
        if self._posted is None:
            self._input.close()
        else:
            self._posted.put(None)

    def kill(self) -> None:
        """End it at once, from any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill it and close its output; for those that do not `listen`, which closes it."""
        self.kill()
        self.end()
        self._output.close()


def open_parent_channel(max_bytes: int = MAX_BYTES) -> Channel:
    """Return a child's channel to its parent: the standard input and output it was started with.

    SIGINT is ignored, since the parent handles it. What libraries print goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(os.dup(0), os.dup(1), max_bytes)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return channel


def serve_requests(decoder: msgspec.msgpack.Decoder[Message], answer: Callable[[Message], object]) -> None:
    """Send `answer(request)` for every request of the parent, and exit at once when it ends or closes the input."""
    channel = open_parent_channel()
    requests: SimpleQueue[Message] = SimpleQueue()

    def read() -> None:
        with suppress(OSError, BdflError):
            while (request := channel.receive(decoder)) is not None:
                requests.put(request)
        os._exit(0)

    Thread(target=read, daemon=True, name="requests").start()
    with suppress(BrokenPipeError):  # the parent is gone
        channel.send(True)  # ready
        while True:
            channel.send(answer(requests.get()))


# A process pool whose workers start together.


@contextmanager
def open_process_pool(
    workers: int,
    *,
    threads: int | None = None,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[object, ...] = (),
) -> Iterator["ProcessPoolExecutor"]:
    """Open a pool of `workers` spawned processes; they end with the block, at once if it is left by an exception.

    Numeric libraries use `threads` threads in each, unless the environment already sets the number. `initializer` is
    called in each before its first task. Functions, tasks and results are pickled, so functions must be top-level.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    executor = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(initializer, initargs)
    )
    others = active_children()
    try:
        with _interrupts_held(), _environment(threads):
            for _ in range(workers):
                executor.submit(_get_ready)  # a first task for each, so that all start now
        yield executor
    except BaseException:
        for child in active_children():
            if child not in others:
                child.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT inside the context; processes started there inherit the mask and never receive it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def _environment(threads: int | None) -> Iterator[None]:
    """Set the thread variables for processes started inside: libraries read them once, when imported."""
    added = _thread_variables(threads)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _thread_variables(threads: int | None) -> dict[str, str]:
    """Return the thread variables that are missing in the environment."""
    return {} if threads is None else {name: str(threads) for name in THREAD_VARIABLES if name not in os.environ}


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[object, ...]) -> None:
    """Set up a worker: it ignores SIGINT, which its parent handles, and exits when its parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # at once: no process waits for the result


def _get_ready() -> None:
    """Do nothing: a first task makes the executor start the worker."""
