"""Two network namespaces of the kernel, joined by a pair of virtual cards with netem on both: needs root and netem."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sites import NotPossible, Program, Quality, node_program

_NETWORK = "10.77.0"  # two addresses that exist in the two namespaces alone
_FIRST_PORT = 7447
_NAME = re.compile(r"bdfl-(\d+)-[ab]")


class Namespaces:
    """The sites; nodes are zenoh peers, each joined to all others, so half of all connections cross the line."""

    num_access_points = 0

    def __init__(self, names: tuple[str, str], quality: Quality) -> None:
        self._names = names
        self._quality = quality

    def programs(self, folder: Path, num_nodes: int, blocks: int) -> list[Program]:
        addresses = [f"{_NETWORK}.{1 + number % 2}:{_FIRST_PORT + number}" for number in range(num_nodes)]
        return [
            node_program(
                folder,
                number,
                blocks,
                ("ip", "netns", "exec", self._names[number % 2]),
                listen=addresses[number],
                peers=addresses[:number],
            )
            for number in range(num_nodes)
        ]

    def cut(self) -> None:
        self._shape("change", Quality(self._quality.delay_ms, 100.0))

    def heal(self) -> None:
        self._shape("change", self._quality)

    def tell(self) -> str:
        told = [_run("tc", "-n", name, "-s", "qdisc", "show", "dev", _card(name)) for name in self._names]
        return "; ".join(" ".join(line.split()) for text in told for line in text.splitlines() if "Sent" in line)

    def build(self) -> None:
        """Makes the namespaces and all in them."""
        for name in self._names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        first, second = self._names
        _run("ip", "link", "add", _card(first), "netns", first, "type", "veth",
             "peer", "name", _card(second), "netns", second)  # fmt: skip
        for number, name in enumerate(self._names, start=1):
            _run("ip", "-n", name, "address", "add", f"{_NETWORK}.{number}/24", "dev", _card(name))
            _run("ip", "-n", name, "link", "set", _card(name), "up")
        self._shape("add", self._quality)

    def remove(self) -> None:
        """Removes the namespaces, and with them the cards."""
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _shape(self, verb: str, quality: Quality) -> None:
        for name in self._names:
            _run("tc", "-n", name, "qdisc", verb, "dev", _card(name), "root", "netem",
                 "delay", f"{quality.delay_ms}ms", "loss", f"{quality.loss_percent}%")  # fmt: skip


@contextmanager
def open_namespaces(quality: Quality) -> Iterator[Namespaces]:
    """The two sites; nothing of them is left afterwards. Raises `NotPossible`."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise NotPossible(f"{' and '.join(missing)} of iproute2 not found")
    if os.geteuid() != 0:
        raise NotPossible("network namespaces need root")
    _remove_abandoned()
    sites = Namespaces((f"bdfl-{os.getpid()}-a", f"bdfl-{os.getpid()}-b"), quality)
    try:
        try:
            sites.build()
        except subprocess.CalledProcessError as error:
            what = "this kernel has no netem" if "netem" in error.cmd else " ".join(error.cmd)
            raise NotPossible(f"{what}: {' '.join(error.stderr.split())}") from None
        yield sites
    finally:
        sites.remove()


def _remove_abandoned() -> None:
    """Removes what processes left that were killed."""
    for line in _run("ip", "netns", "list").splitlines():
        found = _NAME.match(line)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "del", found[0]], capture_output=True, check=False)


def _card(namespace: str) -> str:
    return f"veth-{namespace[-1]}"


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout
