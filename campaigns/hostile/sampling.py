"""Sampling of nodes under attack: blocks, memory, processor time and rejections."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import psutil

from bdfl.errors import BdflError
from bdfl.localnet.network import LocalNetwork
from bdfl.localnet.processes import node_folder
from bdfl.node.status import Snapshot, read_status

_POLL_S = 0.25
_ANSWER_S = 10.0
_STALLED_S = 180.0  # without a block: the network is down


class Stalled(BdflError):
    """A network that makes no blocks or has lost a node."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the honest nodes over a period."""

    rounds: int
    seconds: float
    node_cpu_s: float  # of all nodes, including their mining and training processes
    memory_before: int  # bytes, of the largest node
    memory_peak: int
    memory_after: int
    heard: int  # messages received by all nodes together
    refused: Mapping[str, int]  # by reason, of all nodes

    @property
    def rounds_per_min(self) -> float:
        return 60 * self.rounds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class _Counts:
    """Received and rejected messages, summed over all nodes."""

    heard: int
    refused: Counter[str]


class Watch:
    """Samples the nodes of a running network."""

    def __init__(self, network: LocalNetwork) -> None:
        self._network = network
        self._folders = [node_folder(network.folder, number) for number in range(len(network.nodes))]
        self._processes = [psutil.Process(child.pid) for child in network.nodes]

    def wait_for_height(self, height: int) -> None:
        """Block until the first node has that block."""
        self._wait_for_block(lambda found: found >= height)

    def wait_unmuted(self) -> None:
        """Block until no node mutes or throttles any member."""
        for number in range(len(self._folders)):
            while any(self._snapshot(number).queues.get(name) for name in ("muted", "slowed")):
                time.sleep(_POLL_S)

    def measure(
        self, rounds: int, is_over: Callable[[], bool] = lambda: True, begin: Callable[[], None] = lambda: None
    ) -> Phase:
        """Measure from the next block, where `begin` is called, for at least `rounds` rounds and until `is_over`."""
        earlier = self._count()
        first, began_s = self._wait_for_block(_any_new(self._read_height()[0]))
        begin()
        cpu_before_s, memory_before = self._cpu_s(), self._memory()
        peak = memory_before
        height, commit_s = first, began_s
        while height < first + rounds or not is_over():
            time.sleep(_POLL_S)
            peak = max(peak, self._memory())
            newest = self._read_height()
            if newest[0] == height and time.monotonic() - commit_s > _STALLED_S:
                break
            height, commit_s = newest
        cpu_after_s, memory_after = self._cpu_s(), self._memory()
        later = self._count()
        return Phase(
            rounds=height - first,
            seconds=commit_s - began_s if height > first else _STALLED_S,
            node_cpu_s=cpu_after_s - cpu_before_s,
            memory_before=memory_before,
            memory_peak=max(peak, memory_after),
            memory_after=memory_after,
            heard=later.heard - earlier.heard,
            refused=dict(later.refused - earlier.refused),
        )

    def _wait_for_block(self, is_it: Callable[[int], bool]) -> tuple[int, float]:
        deadline_s = time.monotonic() + _STALLED_S
        while True:
            height, commit_s = self._read_height()
            if is_it(height):
                return height, commit_s
            if time.monotonic() > deadline_s:
                raise Stalled(f"{self._network.folder}: no block after {height} within {_STALLED_S:.0f} s")
            time.sleep(_POLL_S)

    def _read_height(self) -> tuple[int, float]:
        """Return the first node's height and the time of its last commit."""
        found = self._snapshot(0)
        age_s = None if found.last_block is None else found.last_block.age_s
        return found.height, time.monotonic() - (age_s or 0.0)

    def _count(self) -> _Counts:
        """Query all nodes in turn, which is slow if they are busy."""
        snapshots = [self._snapshot(number) for number in range(len(self._folders))]
        refused: Counter[str] = Counter()
        for found in snapshots:
            refused.update(found.refused)
        return _Counts(sum(found.counters.get("heard", 0) for found in snapshots), refused)

    def _snapshot(self, number: int) -> Snapshot:
        deadline_s = time.monotonic() + _STALLED_S
        while True:
            found = read_status(self._folders[number], _ANSWER_S).snapshot
            if found is not None:
                return found
            child = self._network.nodes[number]
            if not child.is_up or time.monotonic() > deadline_s:
                raise Stalled(f"{child.name}: does not answer; it said: {child.last_words()}")
            time.sleep(_POLL_S)

    def _memory(self) -> int:
        with self._expecting_nodes():
            return max(int(process.memory_info().rss) for process in self._processes)

    @contextmanager
    def _expecting_nodes(self) -> Iterator[None]:
        try:
            yield
        except psutil.NoSuchProcess:
            fallen = [f"{child.name} ended; it said: {child.last_words()}" for child in self._network.fallen]
            raise Stalled("; ".join(fallen)) from None

    def _cpu_s(self) -> float:
        with self._expecting_nodes():
            families = [(process, *process.children(recursive=True)) for process in self._processes]
        total = 0.0
        for family in families:
            for one in family:
                try:
                    times = one.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                total += times.user + times.system
        return total


def _any_new(height: int) -> Callable[[int], bool]:
    return lambda found: found > height
