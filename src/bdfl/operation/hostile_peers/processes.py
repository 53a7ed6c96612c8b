"""Attacking and burning processes, as the campaign holds them."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import msgspec

from bdfl.errors import BdflError
from bdfl.operation.hostile_peers.orders import STOP, Order, Said

_READY_S = 180.0
_END_S = 20.0


class AttackFailed(BdflError):
    """An attack that did not come off: nothing is shown by it."""


class Attacker:
    """A process that attacks; made by `attacking`."""

    def __init__(self, order: Order, process: "subprocess.Popen[str]") -> None:
        self._order, self._process = order, process
        self._last: Said | None = None
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._say(msgspec.json.encode(order).decode())
        self._reader.start()

    def wait_ready(self) -> None:
        """Until it is connected and loaded."""
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

    def end(self) -> Said:
        """Lets it stop; what it did."""
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
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextmanager
def attacking(order: Order, errors: IO[bytes]) -> Iterator[Attacker]:
    """Inside, a process is there that attacks when it is told to begin; it ends with this one."""
    with _module("bdfl.operation.hostile_peers.attacker", [], errors) as process:
        attacker = Attacker(order, process)
        attacker.wait_ready()
        yield attacker


@contextmanager
def burning(cores: float, errors: IO[bytes]) -> Iterator[list[float]]:
    """Inside, a process burns so many cores' worth of processor time; the list gets what it burned (s) at the end."""
    burned: list[float] = []
    with _module("bdfl.operation.hostile_peers.burner", [str(cores)], errors) as process:
        yield burned
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        burned.append(float(process.stdout.readline() or "nan"))


@contextmanager
def _module(name: str, arguments: list[str], errors: IO[bytes]) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-P", "-m", name, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
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
