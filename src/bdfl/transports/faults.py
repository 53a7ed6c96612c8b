"""Faults of a scenario: loss, delay, duplication, partitions, crashes, frozen and slow nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.ledger.costs import NANO
from bdfl.scenario import Scenario
from bdfl.scenario.schema_learning import Behaviour
from bdfl.transports.byzantine import (
    BAD_MODELS,
    ByzantineMember,
    Forgery,
    Misbehaviour,
    OtherUpdate,
    Replay,
    Silence,
    TwoVotes,
    negated_model,
)
from bdfl.transports.byzantine_blocks import (
    FalseBlocks,
    block_with_false_accusation,
    block_with_false_work,
    block_with_own_schedule,
    block_with_stale_updates,
    block_with_wrong_model,
    block_without_others,
    twin_block,
)
from bdfl.transports.interfaces import Delivery, Parcel, Tamper
from bdfl.transports.simulated import Network

# Network faults: loss, delay, duplication and reordering of messages, and partitions.

_AT_ONCE = (0,)
_LOST = ()


@dataclass(frozen=True)
class Weather:
    """Random faults of every message."""

    loss: float = 0.0  # share that never arrives
    duplication: float = 0.0  # share that arrives twice
    delay_ns: int = 0  # mean of the extra delay, exponential: later messages overtake earlier ones


@dataclass(frozen=True)
class Partition:
    """A temporary network partition: no message passes between an island and the rest, or leaves the island."""

    start_ns: int
    end_ns: int
    island: frozenset[int]
    is_one_way: bool = False  # messages still reach the island

    def cuts(self, now_ns: int, sender: int, receiver: int) -> bool:
        """Return whether a message from `sender` to `receiver` is lost now."""
        if not self.start_ns <= now_ns < self.end_ns:
            return False
        leaves = sender in self.island and receiver not in self.island
        enters = sender not in self.island and receiver in self.island
        return leaves or (enters and not self.is_one_way)


@dataclass(frozen=True, eq=False)
class FaultyDelivery:
    """A `Delivery` with random faults and partitions; draws from one random stream, in order of calls."""

    weather: Weather
    partitions: Sequence[Partition]
    rng: np.random.Generator
    _: KW_ONLY
    until_ns: int | None = None  # the end of all faults
    last_height: int | None = None  # above it no random ones
    calm_ns: int = 0  # mean delay after the faults

    def deliveries(self, now_ns: int, sender: int, receiver: int, parcel: Parcel) -> Sequence[int]:
        """Extra delay (ns) of every copy that arrives; empty: the message is lost."""
        if self.until_ns is not None and now_ns >= self.until_ns:
            return self._in_calm()
        if any(partition.cuts(now_ns, sender, receiver) for partition in self.partitions):
            return _LOST
        if self.last_height is not None and parcel.height > self.last_height:
            return self._in_calm()
        weather, draw = self.weather, self.rng.random
        if weather.loss and draw() < weather.loss:
            return _LOST
        copies = 2 if weather.duplication and draw() < weather.duplication else 1
        if not weather.delay_ns:
            return _AT_ONCE * copies
        return tuple(int(self.rng.exponential(weather.delay_ns)) for _ in range(copies))

    def _in_calm(self) -> Sequence[int]:
        return (int(self.calm_ns * self.rng.uniform(0.5, 1.5)),) if self.calm_ns else _AT_ONCE


# Fault injection from a scenario's settings: network faults, crashed, frozen or slow nodes, Byzantine members.

SLOWNESS = 10.0
MESSAGES = 0  # random stream of a seed: 0 for messages, a member's number plus 1 for its lies


@dataclass(frozen=True)
class Crash:
    """A crash of a node before one of its effects, and a restart from its store."""

    node: int
    after_ns: int  # earliest
    effects: int  # number that it still carries out from then on
    down_ns: int


@dataclass(frozen=True)
class Freeze:
    """A freeze of a node: its events are held back."""

    node: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, eq=False)
class FaultInjection:
    """All faults of a network; construct the network with the `delivery`."""

    delivery: Delivery
    tampers: Mapping[int, Tamper]
    crashes: Sequence[Crash] = ()
    freezes: Sequence[Freeze] = ()
    slow: Sequence[tuple[int, float]] = ()
    quiet_ns: int | None = None  # when slow nodes recover and pending crashes are cancelled; none: never

    def bring_to(self, network: Network) -> None:
        """Schedule everything but the delivery in a network that does not run yet."""
        for member, tamper in self.tampers.items():
            network.nodes[member].tamper = tamper
        for crash in self.crashes:
            network.at(crash.after_ns, partial(network.crash_later, crash.node, crash.effects, crash.down_ns))
        for freeze in self.freezes:
            network.at(freeze.start_ns, partial(network.freeze, freeze.node, freeze.duration_ns))
        for node, slowness in self.slow:
            network.nodes[node].slowness = slowness
        if self.quiet_ns is not None:
            network.at(self.quiet_ns, partial(_calm, network))


def _calm(network: Network) -> None:
    """End the slowness of all nodes, and cancel pending crashes."""
    for node in network.nodes:
        node.slowness = 1.0
        node.effects_left = None


def faults_of(scenario: Scenario, round_ns: int) -> FaultInjection | None:
    """The faults of a scenario's `[faults]` and `[adversaries]`; none if there are none.

    `round_ns` is the approximate length of a round; incidents are spread over the rounds that have faults. Members that
    only poison their models follow the protocol, and are honest here.
    """
    faults, lies = scenario.faults, scenario.adversaries
    num_nodes = scenario.clients.count
    num_rounds = faults.until_round or scenario.rounds
    quiet_ns = num_rounds * round_ns
    rng = stream(scenario.seed, Purpose.FAULTS)
    mean_ns = round(faults.duration_s * NANO)
    partitions = [_draw_partition(rng, num_nodes, quiet_ns, mean_ns) for _ in range(faults.partitions)]
    crashes = [_draw_crash(rng, num_nodes, quiet_ns, mean_ns) for _ in range(faults.crashes)]
    freezes = [_draw_freeze(rng, num_nodes, quiet_ns, mean_ns) for _ in range(faults.freezes)]
    slow = [(int(node), SLOWNESS) for node in rng.permutation(num_nodes)[: faults.slow]]
    weather = Weather(faults.loss, faults.duplication, round(faults.delay_s * NANO))
    camp = frozenset(range(0, num_nodes, 2))
    tampers = {
        member: make_liar(scenario.seed, member, (lies.kind,), camp)
        for member in lies.members
        if _make_lies(lies.kind, camp, rng)
    }
    if weather == Weather() and not (partitions or crashes or freezes or slow or tampers):
        return None
    delivery = FaultyDelivery(
        weather,
        partitions,
        stream(scenario.seed, Purpose.FAULTS, 1, MESSAGES),
        last_height=faults.until_round or None,
    )
    return FaultInjection(delivery, tampers, crashes, freezes, slow, quiet_ns if faults.until_round else None)


def make_liar(seed: int, member: int, kinds: Sequence[Behaviour], camp: frozenset[int]) -> ByzantineMember:
    """A Byzantine member with these behaviours; `camp` are the receivers that it equivocates to."""
    rng = stream(seed, Purpose.FAULTS, 1, member + 1)
    return ByzantineMember([lie for kind in kinds for lie in _make_lies(kind, camp, rng)])


def _make_lies(kind: Behaviour, camp: frozenset[int], rng: np.random.Generator) -> Sequence[Misbehaviour]:
    """The lies of a Byzantine behaviour; none if it only poisons its models."""
    match kind:
        case Behaviour.SILENT:
            return (Silence(),)
        case Behaviour.FORGE:
            return Forgery(), FalseBlocks(block_with_false_accusation)
        case Behaviour.REPLAY:
            return (Replay(rng),)
        case Behaviour.TWO_VOTES:
            return (TwoVotes(camp),)
        case Behaviour.TWO_UPDATES:
            return (OtherUpdate(negated_model, camp),)
        case Behaviour.BAD_BLOB:
            return (OtherUpdate(BAD_MODELS[int(rng.integers(len(BAD_MODELS)))]),)
        case Behaviour.TWO_BLOCKS:
            return (FalseBlocks(twin_block, camp),)
        case Behaviour.WRONG_MODEL:
            return (FalseBlocks(block_with_wrong_model),)
        case Behaviour.WRONG_SCHEDULE:
            return (FalseBlocks(block_with_own_schedule),)
        case Behaviour.STALE_UPDATES:
            return (FalseBlocks(block_with_stale_updates),)
        case Behaviour.FALSE_WORK:
            return (FalseBlocks(block_with_false_work),)
        case Behaviour.DROP_UPDATES:
            return (FalseBlocks(block_without_others),)
    return ()


def _draw_partition(rng: np.random.Generator, num_nodes: int, end_ns: int, mean_ns: int) -> Partition:
    start_ns = int(rng.integers(end_ns))
    size = int(rng.integers(1, max(2, num_nodes // 2 + 1)))
    island = frozenset(rng.permutation(num_nodes)[:size].tolist())
    return Partition(start_ns, min(end_ns, start_ns + int(rng.exponential(mean_ns))), island)


def _draw_crash(rng: np.random.Generator, num_nodes: int, end_ns: int, mean_ns: int) -> Crash:
    node, after_ns = int(rng.integers(num_nodes)), int(rng.integers(end_ns))
    return Crash(node, after_ns, int(rng.integers(10)), int(rng.exponential(mean_ns)))


def _draw_freeze(rng: np.random.Generator, num_nodes: int, end_ns: int, mean_ns: int) -> Freeze:
    return Freeze(int(rng.integers(num_nodes)), int(rng.integers(end_ns)), int(rng.exponential(mean_ns)))
