"""The sides as processes: started, told when to play a round, watched and ended."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.gate import END, START

ROOT = Path(__file__).resolve().parents[2]
_START_LIMIT_S, _ROUND_LIMIT_S, _END_LIMIT_S = 300.0, 300.0, 60.0
_LOOK_AGAIN_S = 0.05
_SETTLE_S = 0.5  # from waking a side to its next round


class SideFailed(Exception):
    """A side that ended, broke its promise or kept silent; says what it wrote last."""


@dataclass(frozen=True)
class Side:
    """Somebody who can play a workload, in `processes` with `threads` each.

    `kind` tells apart what one module can do. `environment` names the virtual environment that it needs, None is this
    one.
    """

    name: str
    module: str
    kind: str
    processes: int
    threads: int
    environment: str | None = None

    @property
    def uses(self) -> str:
        """Processes and threads of each."""
        return f"{self.processes} x {self.threads}"

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        if self.environment is None:
            return Path(sys.executable)
        return ROOT / f".venv-{self.environment}" / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return self.python.exists()


@dataclass(frozen=True)
class Round:
    """What one round took, and parts of it where the side tells."""

    seconds: float
    phases_s: dict[str, float]


@dataclass(frozen=True)
class Worth:
    """What a side's model is worth on the test set after all its rounds, and the versions that made it."""

    accuracy: float
    loss: float
    versions: str
    digest: str = ""  # of the model, where a side tells it


class SideProcess:
    """A side at work; made by `open_side`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self._start_s = time.perf_counter()
        self._pending = b""
        self._is_frozen = False
        self._is_finished = False
        self._family: dict[int, str] = {}  # all that were ever seen: children stay when a parent is gone
        self.first_round_s: float | None = None  # from starting the process to the end of its first round
        self.peak_bytes: int | None = None

    def play(self) -> Round:
        """One round."""
        reply = self.ask(START, _START_LIMIT_S if self.first_round_s is None else _ROUND_LIMIT_S)
        if self.first_round_s is None:
            self.first_round_s = time.perf_counter() - self._start_s
        return Round(float(reply["seconds"]), {name: float(value) for name, value in reply["phases_s"].items()})

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Inside, the side can play; afterwards its processes stand still, so that they cost the others nothing."""
        self._thaw()
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def members(self) -> list[int]:
        """Numbers of all its processes that run."""
        self._family |= _tree(self._process.pid)
        return [process for process, begun in self._family.items() if _begun(process) == begun]

    def look(self) -> None:
        """Notes the memory that the side has needed so far; what judging its model takes is not the side's."""
        if self._is_finished:
            return
        found = peak_bytes(self.members())
        if found is not None:
            self.peak_bytes = max(found, self.peak_bytes or 0)

    def finish(self) -> Worth:
        """Ends the rounds."""
        self.look()
        self._is_finished = True
        return Worth(**self.ask(END, _END_LIMIT_S))

    def ask(self, word: str, limit_s: float) -> dict[str, object]:
        """The side's answer to a line, a line of JSON itself."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SideFailed("no line to the process")
        try:
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideFailed(self._last_words("ended")) from None
        end_s = time.perf_counter() + limit_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._process.stdout], [], [], max(end_s - time.perf_counter(), 0.0))
            if not ready:
                raise SideFailed(self._last_words(f"silent for {limit_s:.0f} s"))
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise SideFailed(self._last_words("ended"))
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        found: dict[str, object] = json.loads(line)
        return found

    def end(self) -> None:
        """Ends every process of the side, by its number, whatever state it is in."""
        self._thaw()
        self.members()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_s = time.perf_counter() + _END_LIMIT_S
        while time.perf_counter() < end_s:
            left = self.members()
            if not left:
                break
            for process in left:
                _send(process, signal.SIGKILL)
            time.sleep(_LOOK_AGAIN_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _thaw(self) -> None:
        if self._is_frozen:
            self._signal(signal.SIGCONT)
            time.sleep(_SETTLE_S)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.members():
            _send(process, number)
        self._is_frozen = number == signal.SIGSTOP

    def _last_words(self, what: str) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return f"{what}: {next((line.strip() for line in reversed(lines) if line.strip()), 'no message')}"


@contextmanager
def open_side(side: Side, workload: Path, folder: Path) -> Iterator[SideProcess]:
    """The side as a process; all that it started has ended afterwards."""
    log = folder / f"{side.name.replace(' ', '-')}-{side.processes}x{side.threads}.log"
    command = [side.python, "-m", side.module, workload, side.kind, side.processes, side.threads]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=os.environ | _settings(side, folder),
        )
    opened = SideProcess(process, log)
    try:
        yield opened
    finally:
        opened.end()


def peak_bytes(processes: Sequence[int]) -> int | None:
    """Sum of what each process has held at most (resident); None where the system does not tell."""
    peaks = [_status_bytes(process, "VmHWM") for process in processes]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def is_running(process: int) -> bool:
    """Whether a process still computes; one that has ended and waits for its parent to notice does not."""
    return _begun(process) is not None


def _settings(side: Side, folder: Path) -> Mapping[str, str]:
    return {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(side.threads),
        "XDG_CACHE_HOME": str(cache_of(folder).parent),
    }


def cache_of(folder: Path) -> Path:
    """Where sides that work in a folder keep decoded data."""
    return folder / "cache" / "bdfl"


def _tree(root: int) -> dict[int, str]:
    """A process and all that descend from it, by number, with the moment each began; empty where nobody tells."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        found = _stat(int(path.name))
        if found is not None:
            children.setdefault(int(found[1]), []).append(int(path.name))
    family: dict[int, str] = {}
    waiting = [root]
    while waiting:
        process = waiting.pop()
        begun = _begun(process)
        if begun is not None:
            family[process] = begun
            waiting += children.get(process, [])
    return family


def _stat(process: int) -> list[str] | None:
    """State, parent and what follows in /proc/N/stat."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _begun(process: int) -> str | None:
    found = _stat(process)
    return None if found is None or found[0] == "Z" else found[19]


def _status_bytes(process: int, key: str) -> int | None:
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)
