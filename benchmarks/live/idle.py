"""What nodes that have nothing to do write and compute: a network that is finished, and one that lacks its quorum."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bdfl.federation.genesis_file import load_live_scenario
from bdfl.localnet.network import LocalNetwork, create_network, run_network
from bdfl.localnet.processes import Child, end_all, node_folder
from bdfl.node.run_file import folder_bytes
from bdfl.scenario.files import find_scenario
from benchmarks.results import Result, make_result

Report = Callable[[str], None]
MINUTES = 10.0
_NUM_NODES = 3
_BLOCKS = 5
_LIMIT_S = 300.0
_POLL_S = 0.5
_SETTLING_S = 20.0  # for what is still on its way, and for the others' noticing that a node is gone
_HOUR_S = 3600.0


class NotIdle(Exception):
    """A network that did not come to where it was to be measured."""


@dataclass(frozen=True)
class IdleRow:
    """One node and its training process, over the time measured; per hour beside it, at the same rate."""

    case: str
    node: int
    minutes: float
    blocks: int  # made meanwhile
    disk_bytes: int  # that the system was given for its disks
    grown_bytes: int  # by which the node's folder grew
    cpu_s: float
    disk_bytes_per_h: float
    cpu_s_per_h: float


@dataclass(frozen=True)
class _Reading:
    moment_s: float
    disk_bytes: int
    folder_bytes: int
    cpu_s: float


def measure_idle(minutes: float, report: Report) -> list[Result]:
    """A table of three nodes that are finished, and of the two that are left when a quorum needs three."""
    rows: list[IdleRow] = []
    with tempfile.TemporaryDirectory(prefix="bdfl-idle-") as folder:
        with _network(Path(folder) / "finished", blocks=_BLOCKS) as network:
            report(f"idle: {_NUM_NODES} nodes after their last block, {minutes:g} minutes")
            rows += _watch(network, "finished", range(_NUM_NODES), minutes)
        with _network(Path(folder) / "quorum", blocks=None) as network:
            end_all([network.nodes[-1]])
            report(f"idle: {_NUM_NODES - 1} nodes without their quorum, {minutes:g} minutes")
            rows += _watch(network, "no quorum", range(_NUM_NODES - 1), minutes)
    notes = (
        f"Real processes, a quorum of {_NUM_NODES} of {_NUM_NODES} members (bft), nobody who asks for their status.",
        "Disk bytes: write_bytes of /proc/PID/io, whole pages. CPU: user and system time.",
        "Per hour: what was measured, at the same rate; measured over an hour with --minutes 60.",
    )
    return [make_result("idle", "Nodes with nothing to do", rows, notes)]


@contextmanager
def _network(folder: Path, *, blocks: int | None) -> Iterator[LocalNetwork]:
    """Inside, all nodes of a network have made the first blocks."""
    changes = [f"clients.count={_NUM_NODES}", "clients.min_selected=1", "ledger.quorum=bft", "live.time_scale=0"]
    changes += [f"rounds={blocks or 100_000}"]
    create_network(folder, load_live_scenario(find_scenario("live"), changes), 0, blocks)
    with run_network(folder, evaluates=False) as network:
        give_up_s = time.monotonic() + _LIMIT_S
        while min(network.look().heights or [0]) < _BLOCKS or len(network.look().heights) < _NUM_NODES:
            if network.fallen or time.monotonic() > give_up_s:
                words = "; ".join(child.last_words() for child in network.fallen)
                raise NotIdle(f"{folder}: block {_BLOCKS} not within {_LIMIT_S:.0f} s; {words}")
            time.sleep(_POLL_S)
        yield network


def _watch(network: LocalNetwork, case: str, numbers: Sequence[int], minutes: float) -> list[IdleRow]:
    heights = network.look().heights
    time.sleep(_SETTLING_S)
    before = [_read(network, number) for number in numbers]
    time.sleep(60.0 * minutes)
    after = [_read(network, number) for number in numbers]
    blocks = [now - then for now, then in zip(network.look().heights, heights, strict=True)]
    return [_make_row(case, number, *rest) for number, *rest in zip(numbers, blocks, before, after, strict=True)]


def _make_row(case: str, number: int, blocks: int, before: _Reading, after: _Reading) -> IdleRow:
    seconds = after.moment_s - before.moment_s
    disk_bytes, cpu_s = after.disk_bytes - before.disk_bytes, after.cpu_s - before.cpu_s
    return IdleRow(
        case=case,
        node=number,
        minutes=seconds / 60.0,
        blocks=blocks,
        disk_bytes=disk_bytes,
        grown_bytes=after.folder_bytes - before.folder_bytes,
        cpu_s=cpu_s,
        disk_bytes_per_h=disk_bytes * _HOUR_S / seconds,
        cpu_s_per_h=cpu_s * _HOUR_S / seconds,
    )


def _read(network: LocalNetwork, number: int) -> _Reading:
    disk_bytes, cpu_s = 0, 0.0
    for process in _processes(network.nodes[number]):
        with suppress(psutil.NoSuchProcess), process.oneshot():
            disk_bytes += process.io_counters().write_bytes
            times = process.cpu_times()
            cpu_s += times.user + times.system
    return _Reading(time.monotonic(), disk_bytes, folder_bytes(node_folder(network.folder, number)), cpu_s)


def _processes(child: Child) -> list[psutil.Process]:
    node = psutil.Process(child.pid)
    return [node, *node.children(recursive=True)]
