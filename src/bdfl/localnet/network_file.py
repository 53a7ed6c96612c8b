"""Layout and settings file of a network's folder on one machine."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bdfl.errors import BdflError
from bdfl.storage import read_regular, replace_file

NETWORK_FILE = "network.json"
GENESIS_FILE = "genesis.bdfl"
SCENARIO_FILE = "scenario.toml"
_MAX_BYTES = 2**20
_MAX_PROCESSES = 10_000


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
