"""Test harness: a local network with fault injection."""

import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.federation.genesis_file import load_live_scenario
from bdfl.ledger.member_set import quorum_size
from bdfl.localnet.network import LocalNetwork, Route, create_network, run_network
from bdfl.localnet.processes import Child, node_folder
from bdfl.records.files import ROUNDS_FILE, BadRoundsFile, read_rounds
from bdfl.scenario import QuorumRule, Scenario
from bdfl.scenario.files import find_scenario
from bdfl.transports.live.timeouts import live_waits
from campaigns import importable
from campaigns.live_faults.log_reader import Diary, worst_gap_s
from campaigns.live_faults.node import NODE_MODULE

STORY_FILE = "story.log"
PATIENCE_S = 600.0
_ROUNDS = 100_000  # more than any of these networks reaches
_POLL_S = 0.1
_CALM_BLOCKS = 3  # made before the first fault


class NotInTime(BdflError):
    """An expected event that timed out."""


@dataclass(frozen=True)
class Setting:
    """Parameters of a network under test."""

    seed: int = 0
    num_nodes: int = 8
    quorum: QuorumRule = QuorumRule.BFT
    time_scale: float = 5.0  # rounds of about 4 s: a restarting node misses a few of them
    changes: tuple[str, ...] = ()  # of the scenario `live`
    patience_s: float = PATIENCE_S  # timeout for expected events, on a busy machine

    @property
    def scenario(self) -> Scenario:
        own = [f"clients.count={self.num_nodes}", f"ledger.quorum={self.quorum.value}", f"seed={self.seed}"]
        own += [f"live.time_scale={self.time_scale}", f"rounds={_ROUNDS}"]
        return load_live_scenario(find_scenario("live"), [*own, *self.changes])

    @property
    def num_spare(self) -> int:
        """Number of members that the quorum tolerates to be absent."""
        return self.num_nodes - quorum_size(self.quorum, self.num_nodes)


@dataclass(frozen=True)
class Left:
    """The chain that a node had on disk when it ended."""

    node: int
    height: int
    tip: bytes  # empty: no block
    moment_s: float


class Arena:
    """A running network under test. Every action is logged with its time in seconds since the start."""

    def __init__(self, network: LocalNetwork, setting: Setting) -> None:
        self.network = network
        self.setting = setting
        self.random = random.Random(setting.seed)
        self.diaries = [Diary(node_folder(network.folder, number)) for number in self.numbers]
        self._timing = live_waits(setting.scenario, network.genesis.genesis.model.size).timing
        self.began_s = time.monotonic()  # monotonic clock
        self.left: list[Left] = []
        self._may_end: set[int] = set()  # nodes that are down or expected to end
        self._num_joinings: dict[int, int] = {}  # of restarted nodes, before the restart

    @property
    def folder(self) -> Path:
        return self.network.folder

    @property
    def numbers(self) -> range:
        return range(self.network.network.num_nodes)

    @property
    def up(self) -> list[int]:
        """Running nodes."""
        return [number for number in self.numbers if self.node(number).is_up]

    @property
    def moment_s(self) -> float:
        """Seconds since the start of the network."""
        return time.monotonic() - self.began_s

    def node(self, number: int) -> Child:
        return self.network.nodes[number]

    def tell(self, what: str) -> None:
        """Append a line to the action log."""
        with (self.folder / STORY_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{self.moment_s:9.3f} {what}\n")

    # Observation

    def diary(self, number: int) -> Diary:
        """Return a node's log, read up to now."""
        return self.diaries[number].read()

    def height_of(self, numbers: Collection[int] | None = None) -> int:
        """Return the greatest height of these nodes; of all by default."""
        return max(self.diary(number).height for number in self.numbers if numbers is None or number in numbers)

    def others(self, *numbers: int) -> list[int]:
        return [number for number in self.numbers if number not in numbers]

    def worst_gap_s(self, numbers: Collection[int], since_s: float, until_s: float) -> float:
        """Return the longest time any of these nodes was without a new block, between two monotonic times."""
        return worst_gap_s([self.diary(number) for number in numbers], since_s, until_s)

    def deadline_s(self) -> float:
        """Return the extra time that a round may take because of silent members.

        It is twice the modelled exchange, the grace period and 1.5 attempts.
        """
        timing = self._timing
        modelled_ns = 0
        for number in self.numbers:
            with suppress(BadRoundsFile):
                rounds = read_rounds(node_folder(self.folder, number) / ROUNDS_FILE)
                modelled_ns = max(modelled_ns, *(2 * row.modelled.exchange_ns for row in rounds), 0)
        return (modelled_ns + timing.grace_ns + 1.5 * timing.attempt_ns) / 1e9

    # Waiting

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Block until the condition holds; raises `NotInTime`."""
        deadline_s = time.monotonic() + self.setting.patience_s
        while not is_so():
            self._refuse_fallen()
            if time.monotonic() > deadline_s:
                raise NotInTime(f"{what}: not within {self.setting.patience_s:.0f} s")
            time.sleep(_POLL_S)

    def _refuse_fallen(self) -> None:
        """Raise if a node ended unexpectedly."""
        for number in self.others(*self._may_end):
            child = self.node(number)
            if not child.is_up:
                raise NotInTime(f"node {number} ended with exit code {child.exit_code}: {child.last_words()}")

    def wait_for_blocks(self, count: int, numbers: Collection[int] | None = None) -> None:
        """Block until each of these nodes, or all, has `count` more blocks than the highest of them has now."""
        those = self.numbers if numbers is None else numbers
        goal = self.height_of(those) + count
        self.tell(f"waiting for block {goal} at {_list(those)}")
        self.wait_for(
            lambda: all(self.diary(number).height >= goal for number in those), f"block {goal} at {_list(those)}"
        )

    def wait_for_calm(self) -> None:
        """Block until all nodes are up and make blocks together."""
        self.wait_for_blocks(_CALM_BLOCKS)

    # Faults

    def kill(self, number: int) -> None:
        """Kill a node with SIGKILL; its child processes have to notice that themselves."""
        self.tell(f"kill -9 of node {number}")
        self._may_end.add(number)
        child = self.node(number)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.process.wait()

    def restart(self, number: int, variables: Mapping[str, str] | None = None, *, may_end: bool = False) -> None:
        """Restart a node; `may_end` allows it to end by itself."""
        with_these = "".join(f", {name}={value}" for name, value in (variables or {}).items())
        self.tell(f"start of node {number}{with_these}")
        self._num_joinings[number] = len(self.diary(number).joinings)
        self.node(number).restart(variables)
        if not may_end:
            self._may_end.discard(number)

    def end(self, number: int) -> None:
        """Terminate a node and wait for its end."""
        self.tell(f"end of node {number}")
        self._may_end.add(number)
        self.node(number).ask_to_end()
        self.wait_for_end(number)

    def wait_for_end(self, number: int) -> None:
        """Block until a node has ended."""
        self.wait_for(lambda: not self.node(number).is_up, f"the end of node {number}")

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """Freeze a node and its child processes inside the `with` block."""
        group = self.node(number).pid  # it leads its own session
        self.tell(f"stop of node {number}")
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            self.tell(f"continuing of node {number}")
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)

    def wait_for_return(self, number: int) -> None:
        """Block until a restarted node takes part, and all nodes have two more blocks."""
        before = self._num_joinings[number]
        self.wait_for(lambda: len(self.diary(number).joinings) > before, f"node {number} to take part again")
        self.wait_for_blocks(2)


@contextmanager
def open_arena(
    folder: Path, setting: Setting, *, num_access_points: int = 0, route: Route | None = None
) -> Iterator[Arena]:
    """Create and run a network; yield it once it has made a few blocks."""
    create_network(folder, setting.scenario, num_access_points, None)
    modules = dict.fromkeys(range(setting.num_nodes), NODE_MODULE)
    with importable(), run_network(folder, evaluates=False, route=route, modules=modules) as network:
        arena = Arena(network, setting)
        arena.wait_for_calm()
        yield arena


def _list(numbers: Collection[int]) -> str:
    return "nodes " + ", ".join(map(str, sorted(numbers)))
