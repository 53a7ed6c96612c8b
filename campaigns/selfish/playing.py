"""Simulate one network with or without a selfish member, and measure recovery after members ran ahead."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.ledger.costs import NANO
from bdfl.ledger.member_set import find_change
from bdfl.protocol.state import Timing
from bdfl.scenario.schema_learning import QuorumRule
from bdfl.transports.byzantine import ByzantineMember, Silence
from bdfl.transports.faults import FaultyDelivery, Weather
from bdfl.transports.interfaces import BlobRequest, Parcel
from bdfl.transports.simulated import Network
from campaigns.faults.attacks import Attack, delay_late, make_attack
from campaigns.faults.plan import FaultPlan, Offer
from campaigns.faults.shares import hashing_share, share_beside
from campaigns.faults.world import TinyCostModel, message_stream
from tests.transports.simulated_nodes import make_nodes

FIRST_ROUNDS = 10  # until the others have adapted
_NEVER = 10_000
_MAX_EVENTS = 2_000_000


@dataclass(frozen=True)
class Setting:
    """One network of a comparison; the last member is the selfish one."""

    seed: int
    num_nodes: int
    scheduler: str = "exact"
    min_selected: int = 2
    attack: Attack | None = None  # none: the control, with all members honest
    num_blocks: int = 60
    grace_s: float = 5.0  # the minimum of a live network
    latency_s: float = 0.001  # a fiftieth of the mean mining time
    is_removed: bool = False  # the selfish member's removal is offered to all others at the start

    @property
    def member(self) -> int:
        return self.num_nodes - 1

    @property
    def is_veto(self) -> bool:
        """True if all must train, so that any member can stop the training."""
        return self.min_selected == self.num_nodes


@dataclass(frozen=True)
class Play:
    """Results of one simulated network."""

    setting: Setting
    proposers: tuple[int, ...]  # of the blocks, in order
    shares: tuple[float, ...]  # the selfish member's share of the hashing by schedule, for each block
    fair: tuple[float, ...]  # blocks due to each member by its hashing, without that of the selfish one beside it
    times_s: tuple[float, ...]  # virtual commit times at the first honest node
    removed_at: int | None  # height of the block with the removal

    @property
    def mean_round_s(self) -> float:
        """Mean duration of a round after the first ones."""
        first = min(FIRST_ROUNDS, len(self.times_s) - 2)
        return (self.times_s[-1] - self.times_s[first]) / (len(self.times_s) - 1 - first)

    @property
    def num_won(self) -> int:
        return self.proposers.count(self.setting.member)


class _FeignedWorld(TinyCostModel):
    """Cost model in which the last member trains and uploads in no time."""

    def __init__(self, plan: FaultPlan, cache: VerificationCache) -> None:
        super().__init__(plan, cache)
        self._fast = plan.num_nodes - 1

    def training_ns(self, client: int, chain: ChainState) -> int:
        return 0 if client == self._fast else super().training_ns(client, chain)

    def upload_ns(self, client: int, chain: ChainState) -> int:
        return 0 if client == self._fast else super().upload_ns(client, chain)


def play(setting: Setting, cache: VerificationCache | None = None) -> Play:
    """Simulate a network until its honest members have committed so many blocks."""
    cache = cache or VerificationCache()
    plan = _plan(setting)
    world = _FeignedWorld(plan, cache) if setting.attack is Attack.FEIGN else TinyCostModel(plan, cache)
    timing = Timing(grace_ns=round(setting.grace_s * NANO), attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes = make_nodes(world.genesis, world.initial_model, world.signers, timing, cache=cache)
    delivery = FaultyDelivery(Weather(), (), message_stream(plan.seed), until_ns=0, calm_ns=plan.calm_ns)
    schedules = {1: world.genesis.schedule}
    proposers: dict[int, int] = {}
    times_ns: dict[int, int] = {}
    removed_at: list[int] = []

    def on_commit(node: int, block: Block, certificate: Certificate) -> None:
        height = block.header.height
        if node == setting.member or height in proposers:
            return
        proposers[height], times_ns[height] = block.header.proposer, network.now_ns
        schedules[height + 1] = block.body.next_schedule
        if find_change(block.body.entries) is not None:
            removed_at.append(height)

    lies = () if setting.attack is None else make_attack(setting.attack)
    network = Network(nodes, world, delivery=delay_late(delivery, {setting.member: lies}), on_commit=on_commit)
    nodes[setting.member].tamper = ByzantineMember(lies)
    if setting.is_removed:
        change = world.make_change(Offer(0, (), setting.member, _NEVER))
        for node in range(setting.member):
            network.at(0, partial(network.offer, node, change))
    network.run(lambda: len(proposers) >= setting.num_blocks, max_events=_MAX_EVENTS)
    heights = sorted(proposers)
    return Play(
        setting=setting,
        proposers=tuple(proposers[height] for height in heights),
        shares=tuple(hashing_share(schedules[height], setting.member) for height in heights),
        fair=tuple(
            sum(share_beside(schedules[height], one, {setting.member}) for height in heights)
            for one in range(setting.num_nodes)
        ),
        times_s=tuple(times_ns[height] / NANO for height in heights),
        removed_at=removed_at[0] if removed_at else None,
    )


def _plan(setting: Setting) -> FaultPlan:
    return FaultPlan(
        seed=setting.seed,
        quorum=QuorumRule.BFT,
        num_nodes=setting.num_nodes,
        scheduler=setting.scheduler,
        min_selected=setting.min_selected,
        aggregation="mean",
        faulty=0,
        quiet_ns=0,
        calm_ns=round(setting.latency_s * NANO),
        attempt_ns=2 * NANO,
        resend_ns=NANO,
    )


# Members that ran ahead

AHEAD = (4, 7)
ATTEMPT_S = 2.0
_SILENT = 0
_SETTLED = 4  # blocks, after which no member waits for the silent one any more
_LATENCY_NS = NANO // 200
_MAX_RECOVERY_NS = 1000 * NANO


class _Unheard:
    """Drops all messages of two members to the others for a while, except requests for models."""

    def __init__(self) -> None:
        self.until_ns = 0

    def deliveries(self, now_ns: int, sender: int, receiver: int, parcel: Parcel) -> Sequence[int]:
        is_lost = sender in AHEAD and receiver not in AHEAD and now_ns < self.until_ns
        return () if is_lost and not isinstance(parcel, BlobRequest) else (_LATENCY_NS,)


def recovery_s(lead_s: float) -> float:
    """Return the time (s) from the end of the loss to the next block, after two members ran ahead by `lead_s`.

    One of eight members is silent; the grace period is just below the lead.
    """
    plan = replace(
        _plan(Setting(seed=11, num_nodes=8, scheduler="all", min_selected=3)),
        attempt_ns=round(ATTEMPT_S * NANO),
        calm_ns=_LATENCY_NS,
    )
    cache = VerificationCache()
    world = TinyCostModel(plan, cache)
    timing = Timing(grace_ns=round(0.9 * lead_s * NANO), attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes = make_nodes(world.genesis, world.initial_model, world.signers, timing, cache=cache)
    nodes[_SILENT].tamper = ByzantineMember([Silence()])
    unheard = _Unheard()
    network = Network(nodes, world, delivery=unheard)
    others = [node for node in nodes if node.number not in (_SILENT, *AHEAD)]
    network.run(lambda: min(node.height for node in others) >= _SETTLED)
    unheard.until_ns = network.now_ns + round(lead_s * NANO)
    network.run(until_ns=unheard.until_ns)
    network.reconnect()
    height = min(node.height for node in others)
    network.run(lambda: min(node.height for node in others) > height, until_ns=unheard.until_ns + _MAX_RECOVERY_NS)
    is_again = min(node.height for node in others) > height
    return (network.now_ns - unheard.until_ns) / NANO if is_again else inf
