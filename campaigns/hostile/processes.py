"""Handles of attacking and CPU load processes."""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

import msgspec

from bdfl.errors import BdflError
from campaigns import importable
from campaigns.hostile.cpu_profile import Effort, effort_of
from campaigns.hostile.orders import STOP, Order, Said

_READY_S = 180.0
_END_S = 20.0
_NUM_BURNERS = 8  # each in its own session: Linux schedules per session, and nodes have one each


class AttackFailed(BdflError):
    """An attack that failed to run, so it shows nothing."""


class Attacker:
    """Handle of an attacking process, created by `attacking`."""

    def __init__(self, order: Order, process: "subprocess.Popen[str]") -> None:
        self._order, self._process = order, process
        self._last: Said | None = None
        self._course: list[tuple[float, float]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._say(msgspec.json.encode(order).decode())
        self._reader.start()

    def wait_ready(self) -> None:
        """Block until it is connected and has its payloads."""
        with self._news:
            self._news.wait_for(lambda: self._last is not None or not self._reader.is_alive(), _READY_S)
        if self._last is None:
            raise AttackFailed(
                f"{self._order.attack}: not ready within {_READY_S:.0f} s, a connected attacker expected"
            )

    def begin(self) -> None:
        self._say("")

    @property
    def num_sent(self) -> int:
        if not self._reader.is_alive():
            raise AttackFailed(f"{self._order.attack}: the attacker ended by itself after {self._last}")
        return 0 if self._last is None else self._last.sent

    @property
    def effort(self) -> Effort:
        """The CPU profile up to its last report."""
        with self._news:
            return effort_of(self._course)

    def end(self) -> Said:
        """Stop it and return its final report."""
        self._say(STOP)
        with self._news:
            self._news.wait_for(lambda: self._last is not None and self._last.is_over, _END_S)
        if self._last is None or not self._last.is_over:
            raise AttackFailed(f"{self._order.attack}: no last word within {_END_S:.0f} s")
        return self._last

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = msgspec.json.decode(line, type=Said)
            with self._news:
                self._last = said
                if not said.is_ready:  # from before the attack
                    self._course.append((said.seconds, said.cpu_s))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextmanager
def attacking(order: Order, errors: IO[bytes]) -> Iterator[Attacker]:
    """Run an attacking process inside the `with` block; it starts sending on `begin` and ends with this process."""
    with _module("campaigns.hostile.attacker", errors) as process:
        attacker = Attacker(order, process)
        attacker.wait_ready()
        yield attacker


class Burner:
    """Handle of CPU load processes, created by `burning`."""

    def __init__(self, effort: Effort, processes: "list[subprocess.Popen[str]]") -> None:
        self._processes = processes
        self._began_s = math.inf
        self._say(msgspec.json.encode(effort.scaled(1.0, 1 / len(processes))).decode())

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._say("")

    @property
    def seconds(self) -> float:
        """Time since `begin`."""
        return max(0.0, time.monotonic() - self._began_s)

    def end(self) -> float:
        """Stop them and return the processor time burned (s)."""
        self._say(STOP)
        return sum(float((process.stdout and process.stdout.readline()) or "nan") for process in self._processes)

    def _say(self, line: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(line + "\n")
                process.stdin.flush()


@contextmanager
def burning(effort: Effort, errors: IO[bytes]) -> Iterator[Burner]:
    """Run CPU load processes inside the `with` block; they start on `begin`."""
    with ExitStack() as stack:
        module = "campaigns.hostile.cpu_load"
        yield Burner(effort, [stack.enter_context(_module(module, errors, own=True)) for _ in range(_NUM_BURNERS)])


@contextmanager
def _module(name: str, errors: IO[bytes], *, own: bool = False) -> Iterator["subprocess.Popen[str]"]:
    """Run a module as a process that ends with its input, optionally in its own session."""
    with importable():
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=own,
        )
    try:
        yield process
    finally:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
