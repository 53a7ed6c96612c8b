"""Supervised subprocesses of a network on one machine.

Each runs in its own session, so Ctrl-C reaches only the supervisor. Each exits when its standard input closes: a pipe
that closes with the supervisor, even if that crashes.
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

from bdfl.processes import THREAD_VARIABLES

COMMAND_LINE = "bdfl.cli"
GRACE_S = 10.0  # between SIGTERM and SIGKILL
_POLL_S = 0.05
_NUM_LAST_WORDS = 4096  # bytes


class Child:
    """A subprocess that runs this package's command line."""

    def __init__(self, name: str, arguments: Sequence[str], output: Path, module: str = COMMAND_LINE) -> None:
        """Start it, appending its output to `output`; another `module` takes the same arguments."""
        self.name = name
        self._arguments = tuple(arguments)
        self._module = module
        self._output = output
        self._begin({})

    def _begin(self, variables: Mapping[str, str]) -> None:
        # -P: import nothing from the current folder
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
        """Return the last line written since the last start, or an empty string."""
        with suppress(OSError), self._output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._began, size - _NUM_LAST_WORDS))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def restart(self, variables: Mapping[str, str] | None = None) -> None:
        """Start it again after it has exited; `variables` are added to its environment until the next restart."""
        self._close_pipe()
        self._begin(variables or {})

    def ask_to_end(self) -> None:
        if self.is_up:
            self.process.terminate()

    def kill(self) -> None:
        """Kill it with its process group; after a normal exit, its children notice that by themselves."""
        if self.is_up:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads its own session
            self.process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def end_all(children: Iterable[Child], grace_s: float = GRACE_S) -> list[str]:
    """Terminate all, wait, then kill the rest; return the names of those killed."""
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
    """Call `on_end` from another thread when standard input closes: the supervisor has gone."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        on_end()

    threading.Thread(target=wait, name="input", daemon=True).start()
