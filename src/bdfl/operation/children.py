"""Processes that a network on one machine consists of: started, watched and ended by the one that made them.

Each is in a session of its own, so that a Ctrl-C reaches its maker alone, and ends when its standard input does: a pipe
from its maker, which closes however the maker ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bdfl.process_pool import THREAD_VARIABLES

COMMAND_LINE = "bdfl.cli"
GRACE_S = 10.0  # from asking a process to end until it is ended
_POLL_S = 0.05
_NUM_LAST_WORDS = 4096  # bytes


class Child:
    """A process of this package's command line."""

    def __init__(self, name: str, arguments: Sequence[str], output: Path, module: str = COMMAND_LINE) -> None:
        """Starts it; what it writes is appended to `output`. Another `module` takes the same arguments."""
        self.name = name
        self._arguments = tuple(arguments)
        self._module = module
        self._output = output
        self._begin({})

    def _begin(self, variables: Mapping[str, str]) -> None:
        # -P: nothing is imported from the current folder
        command = [sys.executable, "-P", "-m", self._module, *self._arguments]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **variables}
        with self._output.open("ab") as output:
            self._began = output.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_up(self) -> bool:
        return self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def last_words(self) -> str:
        """The last line that it wrote in this life; empty: none."""
        with suppress(OSError), self._output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._began, size - _NUM_LAST_WORDS))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def restart(self, variables: Mapping[str, str] | None = None) -> None:
        """Starts it again after it ended; `variables` are added to its environment, for this life."""
        self._close_pipe()
        self._begin(variables or {})

    def ask_to_end(self) -> None:
        if self.is_up:
            self.process.terminate()

    def kill(self) -> None:
        """Ends it at once, with all that it started; what a process that ended left behind notices that by itself."""
        if self.is_up:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # its session is its own
            self.process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def end_all(children: Iterable[Child], grace_s: float = GRACE_S) -> list[str]:
    """Asks all to end, waits, and ends those that do not; returns the names of these."""
    waiting = list(children)
    for child in waiting:
        child.ask_to_end()
    deadline_s = time.monotonic() + grace_s
    while any(child.is_up for child in waiting) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    stubborn = [child.name for child in waiting if child.is_up]
    for child in waiting:
        child.kill()
    return stubborn


def watch_input(on_end: Callable[[], None]) -> None:
    """Calls `on_end` from another thread when standard input ends, which is when its other end's owner is gone."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        on_end()

    threading.Thread(target=wait, name="input", daemon=True).start()
