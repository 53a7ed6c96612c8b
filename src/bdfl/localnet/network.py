"""A network of real processes on one machine, in a folder with keys, genesis and a store for each member."""

import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from bdfl.addresses import LOOPBACK
from bdfl.federation.genesis_draft import create_federation
from bdfl.federation.genesis_file import GenesisFile, read_genesis, read_scenario
from bdfl.federation.keys import create_key
from bdfl.identity import Signer
from bdfl.localnet.processes import (
    COMMAND_LINE,
    GENESIS_FILE,
    GRACE_S,
    NETWORK_FILE,
    SCENARIO_FILE,
    BadNetwork,
    Child,
    NetworkFile,
    access_point_folder,
    end_all,
    node_folder,
    read_network,
    write_network,
)
from bdfl.node.access_point import CERTIFICATE_FILE, KEY_FILE, create_access_point
from bdfl.node.run_file import is_locked, lock_folder
from bdfl.node.status import NodeView, read_status
from bdfl.scenario import LiveMode, Scenario, dump_scenario
from bdfl.scenario.files import load_foreign_scenario, named_functions, refuse_function
from bdfl.storage import OWN_FOLDER, replace_file, write_record

OUTPUT_FILE = "output.log"
_LEAST_DISK = 256 * 2**20
_PORTS = range(20_000, 32_000)

# Maps a node's number and the access points' addresses to the addresses at which it reaches them.
Route: TypeAlias = Callable[[int, Sequence[str]], Sequence[str]]


class NetworkView(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a network at one moment."""

    folder: str
    scenario: str
    is_up: bool
    blocks: int | None
    nodes: tuple[NodeView, ...]
    access_points: tuple[NodeView, ...]

    @property
    def heights(self) -> list[int]:
        """Heights of the nodes that answer."""
        return [view.snapshot.height for view in self.nodes if view.snapshot is not None]

    @property
    def is_done(self) -> bool:
        """True if every node has the last block."""
        heights = self.heights
        return self.blocks is not None and len(heights) == len(self.nodes) and min(heights) >= self.blocks


def create_network(folder: Path, scenario: Scenario, num_access_points: int, blocks: int | None) -> NetworkFile:
    """Create a network in a new folder: a key for each member, certificates, and a fully signed genesis."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadNetwork(f"{folder}: exists already; go on with --resume {folder}, or choose another with --out")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _create(folder, scenario, num_access_points, blocks)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # it was empty before
        raise


def _create(folder: Path, scenario: Scenario, num_access_points: int, blocks: int | None) -> NetworkFile:
    signers: list[Signer] = []
    for number in range(scenario.clients.count):
        node_folder(folder, number).mkdir(mode=OWN_FOLDER)
        signers.append(create_key(node_folder(folder, number) / KEY_FILE))
    hosts = (LOOPBACK, "localhost")
    certificates = [
        create_access_point(access_point_folder(folder, number), f"ap-{number}", hosts)
        for number in range(num_access_points)
    ]
    genesis = create_federation(scenario, signers, access_points=certificates)
    write_record(folder / GENESIS_FILE, genesis)
    replace_file(folder / SCENARIO_FILE, dump_scenario(scenario).encode())
    made = NetworkFile(
        scenario=scenario.name,
        chain=genesis.chain.hex(),
        num_nodes=len(signers),
        num_access_points=num_access_points,
        blocks=blocks,
        functions=tuple(named_functions(scenario).values()),
    )
    write_network(folder, made)
    return made


def view_network(folder: Path) -> NetworkView:
    """Query the status of all processes of a network."""
    network = read_network(folder)
    nodes = [node_folder(folder, number) for number in range(network.num_nodes)]
    points = [access_point_folder(folder, number) for number in range(network.num_access_points)]
    with ThreadPoolExecutor(max(1, len(nodes)), thread_name_prefix="look") as pool:  # a hung node delays no other
        views = tuple(pool.map(read_status, nodes))
    return NetworkView(
        folder=str(folder),
        scenario=network.scenario,
        is_up=is_locked(folder),
        blocks=network.blocks,
        nodes=views,
        access_points=tuple(map(read_status, points)),
    )


def validate_network(folder: Path, allowed: frozenset[str]) -> None:
    """Raise `NotAllowed` if an untrusted network folder names a function that is not `allowed`."""
    for name in read_network(folder).functions:
        refuse_function(NETWORK_FILE, name, allowed)
    load_foreign_scenario(folder / SCENARIO_FILE, allowed)


@dataclass(eq=False, repr=False)
class LocalNetwork:
    """Supervisor of a network's processes, which exit when this process does, even if it crashes."""

    folder: Path
    network: NetworkFile
    restarts: bool  # restart any process that exits
    evaluates: bool  # node 0 evaluates every model on the test data
    route: Route | None
    modules: Mapping[int, str]  # nodes that run another module with the command line's arguments
    access_points: list[Child] = field(default_factory=list)
    nodes: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        functions = frozenset(self.network.functions)
        self.genesis: GenesisFile = read_genesis(self.folder / GENESIS_FILE, allowed=functions)

    def start(self) -> None:
        """Start all processes; fast ones wait for slow ones."""
        num_points, num_nodes = self.network.num_access_points, self.network.num_nodes
        ports = find_ports(num_points + num_nodes)
        point_ports, node_ports = ports[:num_points], ports[num_points:]
        for number in range(num_points):
            self.access_points.append(self._start_access_point(number, point_ports))
        for number in range(num_nodes):
            points = point_ports if self.route is None else self.route(number, point_ports)
            self.nodes.append(self._start_node(number, node_ports, points))

    def _start_access_point(self, number: int, ports: Sequence[str]) -> Child:
        place = access_point_folder(self.folder, number)
        arguments = [
            "ap", "--genesis", str(self.folder / GENESIS_FILE), "--key", str(place / KEY_FILE),
            "--certificate", str(place / CERTIFICATE_FILE), "--folder", str(place),
            "--listen", ports[number], "--while-input",
        ]  # fmt: skip
        if len(ports) > 1:  # a ring
            arguments += ["--peer", ports[(number + 1) % len(ports)]]
        return Child(f"ap {number}", arguments + self._allow(), place / OUTPUT_FILE)

    def _start_node(self, number: int, ports: Sequence[str], points: Sequence[str]) -> Child:
        place = node_folder(self.folder, number)
        arguments = [
            "node", "--genesis", str(self.folder / GENESIS_FILE), "--key", str(place / KEY_FILE),
            "--data", "dealt", "--folder", str(place), "--metrics", "0", "--while-input",
        ]  # fmt: skip
        if not points:  # otherwise only reachable through them, like a wireless client
            arguments += ["--listen", ports[number]]
        for peer in _peers_of(number, ports, points):
            arguments += ["--peer", peer]
        if self.network.blocks is not None:
            arguments += ["--rounds", str(self.network.blocks)]
        if self.evaluates and number == 0:
            arguments.append("--evaluate")
        module = self.modules.get(number, COMMAND_LINE)
        return Child(f"node {number}", arguments + self._allow(), place / OUTPUT_FILE, module)

    def _allow(self) -> list[str]:
        return [word for function in self.network.functions for word in ("--allow", function)]

    def look(self) -> NetworkView:
        """Return the status of all processes, after restarting those that exited if `restarts` is set."""
        if self.restarts:
            for child in (*self.access_points, *self.nodes):
                if not child.is_up:
                    child.restart()
        return view_network(self.folder)

    @property
    def fallen(self) -> list[Child]:
        """Nodes and access points that have exited."""
        return [child for child in (*self.access_points, *self.nodes) if not child.is_up]

    def stop(self, grace_s: float = GRACE_S) -> list[str]:
        """Stop all, nodes first; return the names of those that had to be killed."""
        return end_all(self.nodes, grace_s) + end_all(self.access_points, grace_s)


@contextmanager
def run_network(
    folder: Path,
    *,
    restarts: bool = False,
    evaluates: bool = True,
    blocks: int | None = None,
    route: Route | None = None,
    modules: Mapping[int, str] | None = None,
) -> Iterator[LocalNetwork]:
    """Run the network of a folder inside the `with` block; `blocks` changes the last block."""
    network = read_network(folder)
    with ExitStack() as resources:
        resources.enter_context(lock_folder(folder))
        _validate_disk(folder)
        changed = msgspec.structs.replace(network, pid=os.getpid(), blocks=blocks or network.blocks)
        running = LocalNetwork(folder, changed, restarts, evaluates, route, modules or {})
        _validate_blocks(running)
        write_network(folder, changed)
        resources.callback(write_network, folder, msgspec.structs.replace(changed, pid=None))
        resources.callback(running.stop)
        running.start()
        yield running


def find_ports(count: int) -> list[str]:
    """Return addresses on this machine whose ports were free a moment ago.

    Ports are below those that a system gives to outgoing connections, which could take one before a node listens.
    """
    found: list[str] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as one, suppress(OSError):
            one.bind((LOOPBACK, port))
            found.append(f"{LOOPBACK}:{port}")
        if len(found) == count:
            return found
    raise BadNetwork(f"{len(found)} free ports from {_PORTS[0]} to {_PORTS[-1]}, {count} needed")


def wait_until_over(folder: Path, timeout_s: float) -> bool:
    """Wait until no process runs the folder's network; return False after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while is_locked(folder):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _peers_of(number: int, ports: Sequence[str], points: Sequence[str]) -> list[str]:
    """Return a node's peers: the access points, its own first; or, if there are none, all nodes before it."""
    if not points:
        return list(ports[:number])
    first = number % len(points)
    return [*points[first:], *points[:first]]


def _validate_blocks(network: LocalNetwork) -> None:
    """Raise if an emulated network is asked for more blocks than it has rounds of training."""
    functions = frozenset(network.network.functions)
    scenario, blocks = read_scenario(network.genesis.scenario, functions), network.network.blocks
    if blocks is not None and blocks > scenario.rounds and scenario.live.mode is LiveMode.EMULATE:
        most = f"at most {scenario.rounds}, the rounds that its members agreed on"
        raise BadNetwork(f"{network.folder}: {blocks} blocks asked for, {most}; nobody would train after them")


def _validate_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _LEAST_DISK:
        raise BadNetwork(f"{folder}: {free // 2**20} MB free on its disk, at least {_LEAST_DISK // 2**20} expected")
