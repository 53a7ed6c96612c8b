"""One trial: run a tiny network with faults, then without, and check the laws."""

import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.member_set import read_member_set
from bdfl.protocol.state import Timing
from bdfl.scenario.schema_learning import QuorumRule
from bdfl.transports.byzantine import ByzantineMember
from bdfl.transports.faults import FaultInjection, FaultyDelivery, make_liar
from bdfl.transports.interfaces import Tamper
from bdfl.transports.simulated import Network, SimulatedNode
from campaigns.faults.attacks import delay_late, make_attack
from campaigns.faults.hoarding import Hoarder
from campaigns.faults.laws import (
    ENTRY_BLOCKS,
    Breach,
    Trial,
    count_changes,
    expected_height,
    find_breaches,
    share_of_selfish,
)
from campaigns.faults.plan import SECOND_NS, FaultPlan, draw_plan
from campaigns.faults.recorder import Recorder
from campaigns.faults.timeline import Storyteller, describe_plan, render_timeline
from campaigns.faults.world import TinyCostModel, message_stream
from tests.transports.simulated_nodes import make_nodes

GRACE_NS = 3 * SECOND_NS // 10
PATIENCE_NS = 30 * SECOND_NS  # for three rounds after the faults stopped
_MAX_EVENTS = 60_000  # limit for a network that never settles


@dataclass(frozen=True)
class Verdict:
    """Result of one seed."""

    seed: int
    quorum: QuorumRule
    breaches: tuple[Breach, ...]
    num_nodes: int
    num_liars: int
    num_crashes: int
    num_changes: int  # of membership that were made
    height: int  # of the highest honest node at the end
    won: int  # blocks won by selfish members after the faults stopped
    winnable: int  # blocks they could have won
    expected: float  # blocks in proportion to their hashing
    recovery_s: float  # virtual, from the end of the faults until all honest nodes are three rounds further
    num_events: int
    story: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.breaches


@dataclass(frozen=True, eq=False)
class Tools:
    """Caches that trials may share: one for the nodes, another for the laws."""

    nodes: VerificationCache = field(default_factory=VerificationCache)
    judge: VerificationCache = field(default_factory=VerificationCache)


def try_seed(
    seed: int,
    quorum: QuorumRule | None = None,
    *,
    most_liars: bool = False,
    with_story: bool = False,
    tools: Tools | None = None,
) -> Verdict:
    """Run and judge the network of a seed."""
    return judge_plan(draw_plan(seed, quorum, most_liars=most_liars), tools or Tools(), with_story=with_story)


def judge_plan(
    plan: FaultPlan, tools: Tools, *, with_story: bool = False, applied: AbstractContextManager[None] | None = None
) -> Verdict:
    """Run and judge a plan's network; only the run happens inside `applied`."""
    recorder = Storyteller(plan) if with_story else Recorder(plan.num_keys)
    with applied or nullcontext():
        trial, num_events, error = play(plan, recorder, tools.nodes)
    breaches = find_breaches(trial, tools.judge) if error is None else [error]
    story: tuple[str, ...] = ()
    if isinstance(recorder, Storyteller):
        story = (*describe_plan(plan), "", *render_timeline(recorder.lines))
    won, winnable, expected = share_of_selfish(trial)
    return Verdict(
        seed=plan.seed,
        quorum=plan.quorum,
        breaches=tuple(breaches),
        num_nodes=plan.num_nodes,
        num_liars=len(plan.liars),
        num_crashes=recorder.num_crashes,
        num_changes=count_changes(trial),
        height=max(trial.heights[node] for node in plan.honest),
        won=won,
        winnable=winnable,
        expected=expected,
        recovery_s=(trial.end_ns - plan.quiet_ns) / SECOND_NS,
        num_events=num_events,
        story=story,
    )


def play(plan: FaultPlan, recorder: Recorder, cache: VerificationCache) -> tuple[Trial, int, Breach | None]:
    """Run a plan's network; return its record, the number of events, and a breach if a node raised an exception."""
    world = TinyCostModel(plan, cache)
    trouble = _make_trouble(plan)
    timing = Timing(grace_ns=GRACE_NS, attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes: list[SimulatedNode] = make_nodes(
        world.genesis, world.initial_model, world.signers, timing, cache=cache, keep_blocks=plan.keep_blocks
    )
    network = Network(nodes, world, delivery=trouble.delivery, observer=recorder)
    trouble.bring_to(network)
    for offer in plan.offers:
        change = world.make_change(offer)
        for node in offer.nodes:
            network.at(offer.at_ns, partial(network.offer, node, change))
    quiet_height, end_ns, error = 0, 0, None

    def best_node() -> SimulatedNode:
        return max((nodes[node] for node in plan.honest), key=lambda node: node.height)

    def is_done() -> bool:
        roll = read_member_set(world.genesis, best_node().store.blocks())
        return all(nodes[node].height >= expected_height(roll, node, quiet_height) for node in plan.honest)

    def find_blob(blob: bytes) -> bytes | None:
        if blob == world.genesis.model.initial:
            return world.initial_model
        found = (recorder.nodes[node].blobs.get(blob) for node in plan.honest)
        return next((data for data in found if data is not None), None)

    try:
        network.run(until_ns=plan.quiet_ns, max_events=_MAX_EVENTS)
        quiet_height = best_node().height
        network.run(is_done, until_ns=plan.quiet_ns + PATIENCE_NS, max_events=_MAX_EVENTS)
        end_ns = network.now_ns
        if is_done():
            last = best_node().height + ENTRY_BLOCKS + 1

            def is_settled() -> bool:
                return best_node().height >= last or not any(recorder.nodes[node].entries for node in plan.honest)

            network.run(is_settled, until_ns=end_ns + PATIENCE_NS, max_events=_MAX_EVENTS)
    except Exception as failure:  # a node must never raise, whatever its input
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        error = Breach("no failure", f"{type(failure).__name__} at {where}: {failure}")
    trial = Trial(
        plan=plan,
        genesis=world.genesis,
        record=recorder,
        find_blob=find_blob,
        quiet_height=quiet_height,
        heights=tuple(node.height for node in nodes),
        end_ns=end_ns or network.now_ns,
    )
    return trial, network.num_events, error


def _make_trouble(plan: FaultPlan) -> FaultInjection:
    rng = message_stream(plan.seed)
    delivery = FaultyDelivery(plan.weather, plan.partitions, rng, until_ns=plan.quiet_ns, calm_ns=plan.calm_ns)
    tampers: dict[int, Tamper] = {
        member: make_liar(plan.seed, member, kinds, plan.camp) for member, kinds in plan.liars
    }
    tampers |= {member: Hoarder(tampers[member]) for member in plan.hoarders}
    attacks = {member: make_attack(attack) for member, attack in plan.selfish}
    tampers |= {member: ByzantineMember(lies) for member, lies in attacks.items()}
    return FaultInjection(delay_late(delivery, attacks), tampers, plan.crashes, plan.freezes, plan.slow, plan.quiet_ns)


def replay_command(seed: int, quorum: QuorumRule | None, *, most_liars: bool = False) -> str:
    """Return the command that shows a seed's timeline; `quorum` as on the command line."""
    choice = " --most-liars" if most_liars else "" if quorum is None else f" --quorum {quorum}"
    return f"python -m campaigns faults --seeds 1 --first {seed}{choice} --timeline"
