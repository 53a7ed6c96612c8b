"""A network of real processes that trouble is made in: started, looked at, hurt and healed by one hand."""

import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.ledger.roll import quorum_size
from bdfl.operation.children import Child
from bdfl.operation.live_scenario import load_live_scenario
from bdfl.operation.local_network import LocalNetwork, Route, found_network, run_network
from bdfl.operation.network_file import node_folder
from bdfl.records.round_times import ROUNDS_FILE, BadRoundsFile, read_rounds
from bdfl.scenario import QuorumRule, Scenario
from bdfl.scenario.shipped import find_scenario
from bdfl.transports.live.waits import live_timing
from campaigns import importable
from campaigns.live_faults.log_reader import Diary, worst_gap_s
from campaigns.live_faults.node import NODE_MODULE

STORY_FILE = "story.log"
PATIENCE_S = 600.0
_ROUNDS = 100_000  # more than any of these networks plays
_POLL_S = 0.1
_CALM_BLOCKS = 3  # that a network has made before it is hurt


class NotInTime(BdflError):
    """Something that did not happen, though there was plenty of time."""


@dataclass(frozen=True)
class Setting:
    """All that a network in trouble depends on."""

    seed: int = 0
    num_nodes: int = 8
    quorum: QuorumRule = QuorumRule.BFT
    time_scale: float = 5.0  # rounds of about 4 s: a node is away for a few of them while it is started again
    changes: tuple[str, ...] = ()  # of the scenario `live`
    patience_s: float = PATIENCE_S  # with what must happen, on a busy machine

    @property
    def scenario(self) -> Scenario:
        own = [f"clients.count={self.num_nodes}", f"ledger.quorum={self.quorum.value}", f"seed={self.seed}"]
        own += [f"live.time_scale={self.time_scale}", f"rounds={_ROUNDS}"]
        return load_live_scenario(find_scenario("live"), [*own, *self.changes])

    @property
    def num_spare(self) -> int:
        """How many members a quorum can do without."""
        return self.num_nodes - quorum_size(self.quorum, self.num_nodes)


@dataclass(frozen=True)
class Left:
    """The chain that a node had on its disk when it ended."""

    node: int
    height: int
    tip: bytes  # none: it had no block
    moment_s: float


class Arena:
    """A running network, and what is done to it. Every moment is told in its story, in seconds since it began."""

    def __init__(self, network: LocalNetwork, setting: Setting) -> None:
        self.network = network
        self.setting = setting
        self.random = random.Random(setting.seed)
        self.diaries = [Diary(node_folder(network.folder, number)) for number in self.numbers]
        self._timing = live_timing(setting.scenario, network.genesis.genesis.model.size)
        self.began_s = time.monotonic()  # on the machine's clock
        self.left: list[Left] = []
        self._may_end: set[int] = set()  # nodes that are down, or will be
        self._num_joinings: dict[int, int] = {}  # of nodes that were started again, before that

    @property
    def folder(self) -> Path:
        return self.network.folder

    @property
    def numbers(self) -> range:
        return range(self.network.network.num_nodes)

    @property
    def up(self) -> list[int]:
        """Nodes that run."""
        return [number for number in self.numbers if self.node(number).is_up]

    @property
    def moment_s(self) -> float:
        """Seconds since the network began."""
        return time.monotonic() - self.began_s

    def node(self, number: int) -> Child:
        return self.network.nodes[number]

    def tell(self, what: str) -> None:
        """Adds a line to the story."""
        with (self.folder / STORY_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{self.moment_s:9.3f} {what}\n")

    # What is seen

    def diary(self, number: int) -> Diary:
        """What a node has written down by now."""
        return self.diaries[number].read()

    def height_of(self, numbers: Collection[int] | None = None) -> int:
        """The highest block that any of these nodes has, or of all."""
        return max(self.diary(number).height for number in self.numbers if numbers is None or number in numbers)

    def others(self, *numbers: int) -> list[int]:
        return [number for number in self.numbers if number not in numbers]

    def worst_gap_s(self, numbers: Collection[int], since_s: float, until_s: float) -> float:
        """The longest that any of these nodes had no new block, between two times on the machine's clock."""
        return worst_gap_s([self.diary(number) for number in numbers], since_s, until_s)

    def deadline_s(self) -> float:
        """How long a round may take beyond what it takes anyway, if somebody is silent.

        That is twice the modelled exchange, the grace and a first attempt to agree.
        """
        timing = self._timing
        modelled_ns = 0
        for number in self.numbers:
            with suppress(BadRoundsFile):
                rounds = read_rounds(node_folder(self.folder, number) / ROUNDS_FILE)
                modelled_ns = max(modelled_ns, *(2 * row.modelled.exchange_ns for row in rounds), 0)
        return (modelled_ns + timing.grace_ns + 1.5 * timing.attempt_ns) / 1e9

    # What is waited for

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Until something is so; raises `NotInTime`."""
        deadline_s = time.monotonic() + self.setting.patience_s
        while not is_so():
            self._refuse_fallen()
            if time.monotonic() > deadline_s:
                raise NotInTime(f"{what}: not within {self.setting.patience_s:.0f} s")
            time.sleep(_POLL_S)

    def _refuse_fallen(self) -> None:
        """Raises if a node ended by itself that had no reason to."""
        for number in self.others(*self._may_end):
            child = self.node(number)
            if not child.is_up:
                raise NotInTime(f"node {number} ended with exit code {child.exit_code}: {child.last_words()}")

    def wait_for_blocks(self, count: int, numbers: Collection[int] | None = None) -> None:
        """Until each of these nodes, or all, has so many more blocks than the highest of them has now."""
        those = self.numbers if numbers is None else numbers
        goal = self.height_of(those) + count
        self.tell(f"waiting for block {goal} at {_list(those)}")
        self.wait_for(
            lambda: all(self.diary(number).height >= goal for number in those), f"block {goal} at {_list(those)}"
        )

    def wait_for_calm(self) -> None:
        """Until all nodes are up and make blocks together."""
        self.wait_for_blocks(_CALM_BLOCKS)

    # What is done

    def kill(self, number: int) -> None:
        """As kill -9 does; what the node started is left to notice that by itself."""
        self.tell(f"kill -9 of node {number}")
        self._may_end.add(number)
        child = self.node(number)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.process.wait()

    def restart(self, number: int, variables: Mapping[str, str] | None = None, *, may_end: bool = False) -> None:
        """Starts a node again; one that `may_end` will do so by itself."""
        with_these = "".join(f", {name}={value}" for name, value in (variables or {}).items())
        self.tell(f"start of node {number}{with_these}")
        self._num_joinings[number] = len(self.diary(number).joinings)
        self.node(number).restart(variables)
        if not may_end:
            self._may_end.discard(number)

    def end(self, number: int) -> None:
        """Asks a node to end, and waits until it has."""
        self.tell(f"end of node {number}")
        self._may_end.add(number)
        self.node(number).ask_to_end()
        self.wait_for_end(number)

    def wait_for_end(self, number: int) -> None:
        """Until a node has ended by itself."""
        self.wait_for(lambda: not self.node(number).is_up, f"the end of node {number}")

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """Inside, a node and all that it started stand still."""
        group = self.node(number).pid  # its session is its own
        self.tell(f"stop of node {number}")
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            self.tell(f"continuing of node {number}")
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)

    def wait_for_return(self, number: int) -> None:
        """Until a node that was started again takes part, and all have two blocks more than anybody had then."""
        before = self._num_joinings[number]
        self.wait_for(lambda: len(self.diary(number).joinings) > before, f"node {number} to take part again")
        self.wait_for_blocks(2)


@contextmanager
def open_arena(
    folder: Path, setting: Setting, *, num_access_points: int = 0, route: Route | None = None
) -> Iterator[Arena]:
    """Founds a network in a new folder and runs it; inside, it is up and has made a few blocks."""
    found_network(folder, setting.scenario, num_access_points, None)
    modules = dict.fromkeys(range(setting.num_nodes), NODE_MODULE)
    with importable(), run_network(folder, evaluates=False, route=route, modules=modules) as network:
        arena = Arena(network, setting)
        arena.wait_for_calm()
        yield arena


def _list(numbers: Collection[int]) -> str:
    return "nodes " + ", ".join(map(str, sorted(numbers)))
