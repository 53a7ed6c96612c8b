"""Selfish members judged: a network with one of them beside the same network without.

Three laws. Share: a member wins no more blocks than its share of the hashing, beyond chance. Pace: after the first
rounds the mean round lasts at most twice as long as without it. Entry: a removal that a quorum signed is on the chain
within five blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

from scipy.stats import binom

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.roll import find_change
from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import NANO
from bdfl.protocol.state import Timing
from bdfl.scenario.ledger import QuorumRule
from bdfl.transports.faults.liar import Liar
from bdfl.transports.faults.postman import FaultyPostman, Weather
from bdfl.transports.simulated import Network
from bdfl.transports.simulated_node import make_nodes
from campaigns.faults.attacks import Attack, Late, LatePostman, make_attack
from campaigns.faults.plan import FaultPlan, Offer
from campaigns.faults.world import TinyWorld, message_stream

FIRST_ROUNDS = 10  # in which the others learn whom they deal with
MAX_SLOWDOWN = 2.0
ENTRY_BLOCKS = 5
CHANCE = 1e-6  # that a share is found too large though it is not
_NEVER = 10_000
_MAX_EVENTS = 2_000_000


@dataclass(frozen=True)
class Setting:
    """One network of a comparison; the last member is the selfish one."""

    seed: int
    num_nodes: int
    scheduler: str = "exact"
    min_selected: int = 2
    attack: Attack | None = None  # none: the control, in which all are honest
    num_blocks: int = 60
    grace_s: float = 5.0  # a live network's least
    latency_s: float = 0.001  # a fiftieth of the mean time that mining takes
    is_removed: bool = False  # a removal of the selfish member is offered to all others at once

    @property
    def member(self) -> int:
        return self.num_nodes - 1


@dataclass(frozen=True)
class Play:
    """What came of it."""

    setting: Setting
    proposers: tuple[int, ...]  # of the blocks, in order
    times_s: tuple[float, ...]  # virtual, when the first honest node committed each
    removed_at: int | None  # height of the block with the removal

    @property
    def mean_round_s(self) -> float:
        """Mean length of a round after the first ones."""
        first = min(FIRST_ROUNDS, len(self.times_s) - 2)
        return (self.times_s[-1] - self.times_s[first]) / (len(self.times_s) - 1 - first)

    @property
    def num_won(self) -> int:
        return self.proposers.count(self.setting.member)


def play(setting: Setting, toolbox: Toolbox | None = None) -> Play:
    """Plays a network until its honest members have committed so many blocks."""
    toolbox = toolbox or Toolbox()
    plan = _plan(setting)
    world = TinyWorld(plan, toolbox)
    timing = Timing(grace_ns=round(setting.grace_s * NANO), attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes = make_nodes(world.genesis, world.initial_model, world.signers, timing, toolbox=toolbox)
    postman = FaultyPostman(Weather(), (), message_stream(plan.seed), until_ns=0, calm_ns=plan.calm_ns)
    proposers: dict[int, int] = {}
    times_ns: dict[int, int] = {}
    removed_at: list[int] = []

    def on_commit(node: int, block: Block, certificate: Certificate) -> None:
        height = block.header.height
        if node == setting.member or height in proposers:
            return
        proposers[height], times_ns[height] = block.header.proposer, network.now_ns
        if find_change(block.body.entries) is not None:
            removed_at.append(height)

    lie = None if setting.attack is None else make_attack(setting.attack)
    late = {setting.member: lie} if isinstance(lie, Late) else {}
    network = Network(nodes, world, postman=LatePostman(postman, late), on_commit=on_commit)
    if lie is not None:
        nodes[setting.member].tamper = Liar([lie])
    if setting.is_removed:
        change = world.make_change(Offer(0, (), setting.member, _NEVER))
        for node in range(setting.member):
            network.at(0, partial(network.offer, node, change))
    network.run(lambda: len(proposers) >= setting.num_blocks, max_events=_MAX_EVENTS)
    heights = sorted(proposers)
    return Play(
        setting=setting,
        proposers=tuple(proposers[height] for height in heights),
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


def share_excess(plays: Sequence[Play]) -> tuple[int, float, float]:
    """Blocks that selfish members won, how many their share of the hashing is, and the deviation of that by chance."""
    won = sum(play.num_won for play in plays)
    shares = [(len(play.proposers), 1 / play.setting.num_nodes) for play in plays]
    expected = sum(count * share for count, share in shares)
    return won, expected, sqrt(sum(count * share * (1 - share) for count, share in shares))


def is_share_too_large(play: Play) -> bool:
    """Tells if the selfish member won more blocks than chance explains; everybody hashes alike."""
    return bool(binom.sf(play.num_won - 1, len(play.proposers), 1 / play.setting.num_nodes) < CHANCE)


def slowdown(attacked: Play) -> float:
    """Mean round with the selfish member over that of the same network without."""
    control = play(replace(attacked.setting, attack=None))
    return attacked.mean_round_s / control.mean_round_s
