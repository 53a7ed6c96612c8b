"""A network on one machine: its folder and its supervised subprocesses.

Each process runs in its own session, so Ctrl-C reaches only the supervisor. Each exits when its standard input closes:
a pipe that closes with the supervisor, even if that crashes.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bdfl.errors import BdflError
from bdfl.processes import THREAD_VARIABLES
from bdfl.storage import read_regular, replace_file

NETWORK_FILE = "network.json"
GENESIS_FILE = "genesis.bdfl"
SCENARIO_FILE = "scenario.toml"
_MAX_BYTES = 2**20
_MAX_PROCESSES = 10_000

COMMAND_LINE = "bdfl.cli"
GRACE_S = 10.0  # between SIGTERM and SIGKILL
_POLL_S = 0.05
_NUM_LAST_WORDS = 4096  # bytes


class BadNetwork(BdflError):
    """A folder without a network, or a network that cannot be started."""


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a network beyond its genesis."""

    scenario: str  # its name
    chain: str
    num_nodes: Annotated[int, Meta(ge=0, le=_MAX_PROCESSES)]
    num_access_points: Annotated[int, Meta(ge=0, le=_MAX_PROCESSES)]
    blocks: int | None = None  # the last height
    pid: int | None = None  # of the supervisor, running or not
    functions: tuple[str, ...] = ()  # of the scenario's author, allowed to run


def node_folder(folder: Path, number: int) -> Path:
    return folder / f"node-{number}"


def access_point_folder(folder: Path, number: int) -> Path:
    return folder / f"ap-{number}"


def write_network(folder: Path, network: NetworkFile) -> None:
    replace_file(folder / NETWORK_FILE, msgspec.json.encode(network) + b"\n")


def read_network(folder: Path) -> NetworkFile:
    """Read the settings of a network's folder."""
    try:
        return msgspec.json.decode(read_regular(folder / NETWORK_FILE, _MAX_BYTES), type=NetworkFile)
    except OSError:
        raise BadNetwork(f"{folder}: no {NETWORK_FILE} in it, the folder of bdfl network up expected") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadNetwork(f"{folder / NETWORK_FILE}: {error}") from None


@dataclass(eq=False, repr=False)
class Child:
    """A subprocess that runs this package's command line, from now on."""

    name: str
    arguments: Sequence[str]
    output: Path  # its output is appended to it
    module: str = COMMAND_LINE  # or another that takes the same arguments

    def __post_init__(self) -> None:
        self._begin({})

    def _begin(self, variables: Mapping[str, str]) -> None:
        # -P: import nothing from the current folder
        command = [sys.executable, "-P", "-m", self.module, *self.arguments]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **variables}
        with self.output.open("ab") as output:
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
        with suppress(OSError), self.output.open("rb") as file:
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
