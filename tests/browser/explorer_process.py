"""`bdfl explore` as a process of its own, for as long as it is looked at."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

_STARTING_S = 120.0  # a busy machine with two cores
_ENDING_S = 120.0
_ADDRESS = re.compile(r"http://[\w.\[\]:]+:\d+")


@dataclass(frozen=True)
class Explorer:
    """A server that answers."""

    origin: str  # http://127.0.0.1:PORT
    pid: int


@contextmanager
def explore(*arguments: Path | str, port: int = 0) -> Iterator[Explorer]:
    """`bdfl explore` with these arguments at a port, 0 for any free one; ended by a signal, and it must end well."""
    command = [sys.executable, "-m", "bdfl.cli", "explore", *map(str, arguments), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: Queue[str] = Queue()
    said: list[str] = []
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield Explorer(_find_address(lines, said), process.pid)
        process.terminate()
        code = process.wait(_ENDING_S)
        assert code in (0, 130, 143, -15), f"bdfl explore: exit code {code}: {said}"
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
    said += list(lines.queue)
    assert "Traceback" not in "".join(said), "".join(said)


def _read(process: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _find_address(lines: "Queue[str]", said: list[str]) -> str:
    """The address that the server says it is at."""
    while True:
        try:
            line = lines.get(timeout=_STARTING_S)
        except Empty:
            raise AssertionError(f"no address in {_STARTING_S:.0f} s: {said}") from None
        said.append(line)
        assert line, f"bdfl explore ended: {said}"
        if found := _ADDRESS.search(line):
            return found[0]
