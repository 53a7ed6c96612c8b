"""Run commands in processes of their own on a folder, and detect everything that must not happen."""

import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bdfl.encoding import digest, encode
from bdfl.errors import BdflError
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on

MAX_CPU_S = 5.0  # beyond the same command's time on the undamaged folder
MAX_MEMORY = 500 * 2**20
_MAX_WALL_S = 120.0  # the machine may be shared
_HARD_LIMIT = 8 * 2**30  # address space, so that a bug here does not exhaust the machine
_EXPECTED_EXITS = (0, 1, 2)
_TRACES = re.compile(r"Traceback|MemoryError|Segmentation fault|RecursionError|Error: .*Error\b")
CANARY = "canary"


@dataclass(frozen=True)
class Outcome:
    """Result of one command on one folder."""

    exit_code: int | None  # none: killed after a timeout
    cpu_s: float
    memory: int  # bytes, peak
    output: str  # both streams

    def find_faults(self, start_up_s: float) -> list[str]:
        """List violations as text; empty if there are none."""
        found = []
        if self.exit_code is None:
            found.append("hang")
        elif self.exit_code not in _EXPECTED_EXITS:
            found.append(f"exit {self.exit_code}")
        if _TRACES.search(self.output):
            found.append("traceback")
        if self.cpu_s > start_up_s + MAX_CPU_S:
            found.append(f"{self.cpu_s - start_up_s:.1f} s of computing")
        if self.memory > MAX_MEMORY:
            found.append(f"{self.memory >> 20} MB of memory")
        if not all(one.isprintable() or one == "\n" for one in self.output):
            found.append("control characters")
        return found


def run_command(arguments: Sequence[str], folder: Path, *, is_forked: bool = False) -> Outcome:
    """Run `bdfl` with these arguments inside a folder, as after unpacking an archive.

    `is_forked`: in a fork of this process, which has imported most modules already, instead of the script.
    """
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _become_command(arguments, folder, output.fileno(), is_forked=is_forked)
        code, used = _wait(pid)
        output.seek(0)
        text = output.read(2**22).decode(errors="backslashreplace")
    return Outcome(code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, text)


def _become_command(arguments: Sequence[str], folder: Path, output: int, *, is_forked: bool) -> NoReturn:
    """Become the command and never return; an internal error gives an exit code that no command has."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_AS, (_HARD_LIMIT, _HARD_LIMIT))
        for name in [name for name in os.environ if name.startswith("PYTHON")]:
            del os.environ[name]
        os.environ |= {"NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        script = str(Path(sys.executable).with_name("bdfl"))
        if not is_forked:
            os.execv(script, [script, *arguments])
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv = [script, *arguments]
        from bdfl.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int) -> tuple[int | None, resource.struct_rusage]:
    """Wait for a process; return its exit code, None if it had to be killed with its group, and its resource usage."""
    until_s = time.monotonic() + _MAX_WALL_S
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used
        if time.monotonic() > until_s:
            os.killpg(pid, signal.SIGKILL)
            return None, os.wait4(pid, 0)[2]
        time.sleep(0.02)


def fingerprint(chain: Path) -> str:
    """Return a digest of a chain's genesis, blocks, certificates and models."""
    try:
        with ChainStore.open(chain, read_only=True) as store:
            parts = [encode(store.genesis), store.get_blob(store.genesis.model.initial) or b""]
            for block in store.blocks():
                parts += store.raw_block(block.header.height)
                parts += [store.get_blob(use.blob) or b"" for use in rested_on(block)]
    except BdflError as error:
        return f"unreadable: {error}"
    return digest(b"".join(map(digest, parts))).hex()
