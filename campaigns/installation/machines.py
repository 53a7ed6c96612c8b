"""Machines to walk a page on: network namespaces joined in a star, or folders on loopback where none may be made.

In a star every machine reaches the first and no other: as behind NAT, where only one party has an open port.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.network_of_links import free_ports

HUB = "192.0.2.7"  # the first machine's address, as pages print it (TEST-NET-1)
PORT = 7447
PYTHON = os.environ.get("BDFL_WALKED_BY", sys.executable)  # of another environment, for `pages.py`
_CARD = "card"


@dataclass(frozen=True)
class Machine:
    """Somewhere to type commands: a folder, and perhaps a network of its own."""

    name: str
    folder: Path
    prefix: tuple[str, ...] = ()  # of every command
    port: int | None = None  # on loopback, in place of the hub's

    def words(self, line: str) -> list[str]:
        """The command line as this machine runs it."""
        if self.port is not None:
            local = f"127.0.0.1:{self.port}"
            line = line.replace(f"{HUB}:{PORT}", local).replace(f"0.0.0.0:{PORT}", local)
        program, *words = line.split()
        assert program == "bdfl", line
        return [*self.prefix, PYTHON, "-m", "bdfl.cli", *words]

    def run(self, line: str, *, expected: int = 0) -> str:
        """Return the output of a command, which must end with that exit code."""
        done = subprocess.run(self.words(line), cwd=self.folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, line: str, output: Path) -> subprocess.Popen[bytes]:
        """A process that goes on; what it says is in a file."""
        with output.open("ab") as file:
            return subprocess.Popen(
                self.words(line), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )


def may_make_namespaces() -> bool:
    """Tries it: root, iproute2 and a kernel that allows it."""
    if shutil.which("ip") is None:
        return False
    name = f"bdfl-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=True)
    return made


@contextmanager
def open_machines(names: Sequence[str], folder: Path) -> Iterator[list[Machine]]:
    """A machine for each name, the first one the hub; nothing is left of their networks afterwards."""
    folders = [folder / name for name in names]
    for one in folders:
        one.mkdir(parents=True)
    if not may_make_namespaces():
        (port,) = free_ports(1)
        yield [Machine(one.name, one, port=port) for one in folders]
        return
    spaces = [f"bdfl-{os.getpid()}-{number}" for number in range(len(names))]
    try:
        _join(spaces)
        yield [
            Machine(one.name, one, ("ip", "netns", "exec", space)) for one, space in zip(folders, spaces, strict=True)
        ]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _join(spaces: Sequence[str]) -> None:
    hub, *others = spaces
    for space in spaces:
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
    for number, space in enumerate(others):
        port, address = f"port{number}", f"192.0.2.{10 + number}"
        _ip("link", "add", port, "netns", hub, "type", "veth", "peer", "name", _CARD, "netns", space)
        _ip("-n", hub, "address", "add", HUB, "peer", address, "dev", port)
        _ip("-n", hub, "link", "set", "dev", port, "up")
        _ip("-n", space, "address", "add", address, "peer", HUB, "dev", _CARD)
        _ip("-n", space, "link", "set", "dev", _CARD, "up")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
