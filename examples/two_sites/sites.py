"""Two sites with a slow line between them: what every way to build one offers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bdfl.localnet.processes import GENESIS_FILE, access_point_folder, node_folder
from bdfl.node.access_point import CERTIFICATE_FILE, KEY_FILE


class NotPossible(Exception):
    """This machine cannot build the line; says why in one line."""


@dataclass(frozen=True)
class Quality:
    """The line, each way."""

    delay_ms: float
    loss_percent: float


@dataclass(frozen=True)
class Program:
    """A process of the network: the words before the command's name, and those after it."""

    name: str
    prefix: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: Path


class TwoSites(Protocol):
    """Half of the nodes at each site, and a line between them that may be cut."""

    @property
    def num_access_points(self) -> int: ...

    def programs(self, folder: Path, num_nodes: int, blocks: int) -> list[Program]:
        """Everything that must run, in the order of starting."""
        ...

    def cut(self) -> None: ...

    def heal(self) -> None: ...

    def tell(self) -> str:
        """What has passed the line, in one line."""
        ...


def node_program(
    folder: Path, number: int, blocks: int, prefix: tuple[str, ...], *, listen: str | None, peers: list[str]
) -> Program:
    """`bdfl node` for a member of the network in a folder."""
    place = node_folder(folder, number)
    words = ["node", "--genesis", folder / GENESIS_FILE, "--key", place / KEY_FILE, "--folder", place]
    words += ["--rounds", blocks]
    words += [] if listen is None else ["--listen", listen]
    words += [word for peer in peers for word in ("--peer", peer)]
    return Program(f"node {number}", prefix, (*map(str, words), "--while-input"), place)


def access_point_program(folder: Path, number: int, *, listen: str, peers: list[str]) -> Program:
    """`bdfl ap` for an access point of the network in a folder."""
    place = access_point_folder(folder, number)
    words = ["ap", "--genesis", folder / GENESIS_FILE, "--key", place / KEY_FILE, "--folder", place]
    words += ["--certificate", place / CERTIFICATE_FILE, "--listen", listen]
    words += [word for peer in peers for word in ("--peer", peer)]
    return Program(f"access point {number}", (), (*map(str, words), "--while-input"), place)
