"""Soak test: run a network for many rounds and check that memory, files and threads do not grow."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
import psutil

from bdfl.errors import BdflError
from bdfl.localnet.network import LocalNetwork, create_network, run_network
from bdfl.localnet.verdict import verify_network
from bdfl.scenario import Scenario

MAX_MEMORY_PER_ROUND = 8 * 1024  # bytes per node; a block's header, votes and statements take a few kB
MAX_FILES_PER_ROUND = 0.01
MAX_THREADS_PER_ROUND = 0.01
_MOMENTS = 250  # approximate number of samples
_WARM_SHARE = 0.2  # fraction of the rounds in which caches fill
_POLL_S = 0.25
_STALLED_S = 300.0

Progress = Callable[[int, int], None]


class SoakFailed(BdflError):
    """A network that did not reach its last round."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Means over all nodes at one moment."""

    height: int  # the lowest of all nodes
    seconds: float  # since the first sample
    memory: float  # resident bytes of the node process
    work_memory: float  # of its training and mining processes
    files: float  # open, of all these processes
    threads: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity at start and end of a soak test, after warm-up."""

    name: str
    first: float
    last: float
    per_round: float
    allowed: float

    @property
    def is_good(self) -> bool:
        return self.per_round <= self.allowed


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a soak test."""

    num_nodes: int
    num_access_points: int
    rounds: int
    moments: tuple[Moment, ...]
    disk_bytes: int  # of a node's folder at the end; the chain itself grows
    failures: tuple[str, ...]  # chains that are invalid or differ, processes that had to be killed

    @property
    def growths(self) -> list[Growth]:
        return [
            _growth_of(self.moments, "memory", lambda moment: moment.memory, MAX_MEMORY_PER_ROUND),
            _growth_of(self.moments, "memory of its work", lambda moment: moment.work_memory, MAX_MEMORY_PER_ROUND),
            _growth_of(self.moments, "open files", lambda moment: moment.files, MAX_FILES_PER_ROUND),
            _growth_of(self.moments, "threads", lambda moment: moment.threads, MAX_THREADS_PER_ROUND),
        ]

    @property
    def is_good(self) -> bool:
        return not self.failures and all(growth.is_good for growth in self.growths)


def run_soak(
    folder: Path, scenario: Scenario, *, num_access_points: int, rounds: int, on_progress: Progress | None = None
) -> Soak:
    """Create a network, let it make so many blocks, and sample its processes meanwhile."""
    network = create_network(folder, scenario, num_access_points, rounds)
    with run_network(folder, evaluates=False) as running:
        moments = _watch(running, rounds, on_progress)
        stubborn = running.stop()
    verdict = verify_network(folder, own_functions=frozenset(network.functions))
    failures = [*(f"{name} had to be killed" for name in stubborn), *verdict.problems]
    return Soak(
        num_nodes=network.num_nodes,
        num_access_points=num_access_points,
        rounds=rounds,
        moments=tuple(moments),
        disk_bytes=sum(path.stat().st_size for path in folder.glob("node-0/**/*") if path.is_file()),
        failures=tuple(failures),
    )


def _watch(network: LocalNetwork, rounds: int, on_progress: Progress | None) -> list[Moment]:
    """Sample at roughly equal distances in rounds, including the last."""
    began_s = newest_s = time.monotonic()
    distance, moments, height = max(1, rounds // _MOMENTS), list[Moment](), -1
    while height < rounds:
        heights = network.look().heights
        lowest = min(heights) if len(heights) == len(network.nodes) else height
        now_s = time.monotonic()
        if lowest > height:
            height, newest_s = lowest, now_s
            if on_progress is not None:
                on_progress(min(height, rounds), rounds)
        if not moments or height >= min(rounds, moments[-1].height + distance):
            moments.append(_look(network, height, now_s - began_s))
        if network.fallen or now_s - newest_s > _STALLED_S:
            fallen = "".join(f"; {child.name} ended: {child.last_words()}" for child in network.fallen)
            raise SoakFailed(f"{network.folder}: block {height} of {rounds}, no more{fallen}")
        time.sleep(_POLL_S)
    return moments


def _look(network: LocalNetwork, height: int, seconds: float) -> Moment:
    memory = work_memory = files = threads = 0
    for child in network.nodes:
        node = psutil.Process(child.pid)
        for process in (node, *node.children(recursive=True)):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                resident = int(process.memory_info().rss)
                memory += resident if process is node else 0
                work_memory += 0 if process is node else resident
                files += process.num_fds()
                threads += process.num_threads()
    count = len(network.nodes)
    return Moment(
        height=height,
        seconds=seconds,
        memory=memory / count,
        work_memory=work_memory / count,
        files=files / count,
        threads=threads / count,
    )


def _growth_of(moments: Sequence[Moment], name: str, choose: Callable[[Moment], float], allowed: float) -> Growth:
    """Compare medians of the first and last fifth of the samples after warm-up, robust to outliers."""
    warm = [moment for moment in moments if moment.height >= _WARM_SHARE * moments[-1].height]
    share = max(1, len(warm) // 5)
    early, late = warm[:share], warm[-share:]
    first, last = median(map(choose, early)), median(map(choose, late))
    distance = median(moment.height for moment in late) - median(moment.height for moment in early)
    per_round = (last - first) / distance if distance else 0.0
    return Growth(name=name, first=first, last=last, per_round=per_round, allowed=allowed)
