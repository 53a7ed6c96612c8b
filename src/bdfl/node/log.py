"""Node log: JSON lines in a file rotated by size, and short lines for the terminal.

Values are numbers, booleans or short texts, so a log cannot contain a key or a model.
"""

import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TextIO, TypeAlias

import msgspec

from bdfl.storage import append_line

LOG_FILE = "node.log"
MAX_LOG_BYTES = 4 * 2**20
NUM_OLD_LOGS = 3
_MAX_TEXT = 300

Fact: TypeAlias = str | int | float | bool | None


class Level(StrEnum):
    """Severity of a line."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NodeLog:
    """Thread-safe logger. A failing disk does not stop the node; lost lines are counted."""

    def __init__(
        self, path: Path | None, *, echo: TextIO | None = None, max_bytes: int = MAX_LOG_BYTES, name: str = ""
    ) -> None:
        """`echo` receives the short lines, each prefixed with `name`."""
        self._path = path
        self._echo = echo
        self._max_bytes = max_bytes
        self._name = f"{name}: " if name else ""
        self._lock = threading.Lock()
        self.num_lost = 0

    def info(self, event: str, facts: Mapping[str, Fact] | None = None) -> None:
        self._say(Level.INFO, event, facts or {})

    def warn(self, event: str, facts: Mapping[str, Fact] | None = None) -> None:
        self._say(Level.WARNING, event, facts or {})

    def error(self, event: str, facts: Mapping[str, Fact] | None = None) -> None:
        self._say(Level.ERROR, event, facts or {})

    def _say(self, level: Level, event: str, facts: Mapping[str, Fact]) -> None:
        shown = {key: _short(value) for key, value in facts.items()}
        clock = round(time.monotonic(), 3)  # monotonic: orders the lines of one machine
        line = {"time": _utc(time.time()), "clock": clock, "level": level.value, "event": _short(event), **shown}
        with self._lock:
            try:
                if self._path is not None:
                    append_line(self._path, msgspec.json.encode(line) + b"\n", self._max_bytes, NUM_OLD_LOGS)
            except OSError:
                self.num_lost += 1
            self._tell(level, event, shown)

    def _tell(self, level: Level, event: str, facts: Mapping[str, Fact]) -> None:
        if self._echo is None:
            return
        mark = "" if level is Level.INFO else f"{level.value}: "
        rest = ", ".join(f"{key} {value}" for key, value in facts.items())
        try:
            print(f"{self._name}{mark}{_short(event)}" + (f" ({rest})" if rest else ""), file=self._echo, flush=True)
        except (OSError, ValueError):  # the reader has closed it
            self._echo = None


def _short(value: Fact) -> Fact:
    if not isinstance(value, str):
        return value
    line = " ".join(value.split())
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 3] + "..."


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
