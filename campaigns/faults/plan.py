"""Fault plan of one trial: a network of 4 to 9 nodes and its faults, all drawn from one seed.

Under `majority` there are only crash and network faults; under `bft` fewer than a third of the members lie as well. In
two seeds of eight the members change. In four of sixteen, including two of these, nodes prune and one is away for long.
In four others as many members as may lie are selfish instead; in one of these the first of them is to be removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.ledger.costs import NANO
from bdfl.scenario.schema_learning import Behaviour, QuorumRule, ServerOptimizer
from bdfl.transports.faults import Crash, Freeze, Partition, Weather
from campaigns.faults.attacks import Attack

NUM_NODES = (4, 4, 5, 5, 6, 7, 8, 9)  # small networks more often: there a vote weighs most
SECOND_NS = NANO

# Behaviours of liars; the plans of consecutive seeds go through all of them.
LIES = tuple(kind for kind in Behaviour if kind is not Behaviour.HONEST)
_SCHEDULERS = ("drc", "exact", "all", "round-robin")
_CHANGING = 8, (4, 5)  # modulus and residues of seeds, with either quorum rule
_HOARDING = 16, (3, 13)  # likewise
_PRUNING = 16, (2, 3, 4, 5)  # likewise
_SELFISH = 16, (1, 7, 9, 15)  # likewise, where members may lie
_REMOVED = 9  # one of these
# These need a simulation or a comparison of their own: `campaigns.selfish`.
_PLAYED_ELSEWHERE = (Attack.FEIGN, Attack.CONFIDE, Attack.SPLIT, Attack.STALL, Attack.AFTER)
ATTACKS = tuple(attack for attack in Attack if attack not in _PLAYED_ELSEWHERE)
_NEVER = 10_000  # a height that no trial reaches
_RULES = (("mean", 0), ("mean", 0), ("median", 1), ("krum", 0))  # name, wrong updates it tolerates


@dataclass(frozen=True)
class Offer:
    """A membership change offered to some nodes; void if it expires early or too few members sign."""

    at_ns: int
    nodes: tuple[int, ...]
    member: int  # that leaves; that joins, if the number is new
    expires: int  # height
    is_agreed: bool = True  # signed by all members; else by one fewer than a quorum


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Complete description of one trial."""

    seed: int
    quorum: QuorumRule
    num_nodes: int  # at first
    scheduler: str
    min_selected: int = 2
    aggregation: str
    faulty: int  # wrong updates that the aggregation tolerates
    quiet_ns: int  # end of all network and machine faults
    calm_ns: int  # mean message delay without faults
    attempt_ns: int  # timeout of the first attempt
    resend_ns: int  # interval of re-sending
    weather: Weather = field(default_factory=Weather)
    partitions: tuple[Partition, ...] = ()
    crashes: tuple[Crash, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()  # node and slow-down factor
    liars: tuple[tuple[int, tuple[Behaviour, ...]], ...] = ()  # member and its behaviours, permanent
    camp: frozenset[int] = frozenset()  # receivers of the liars' second version
    hoarders: tuple[int, ...] = ()  # liars that also exhaust memory
    selfish: tuple[tuple[int, Attack], ...] = ()  # liars that break no rule, and their attacks
    offers: tuple[Offer, ...] = ()
    server: ServerOptimizer = ServerOptimizer.NONE
    keep_blocks: int = 0  # newest blocks with updates kept by the nodes; 0: all

    @property
    def num_keys(self) -> int:
        """Number of nodes, including those that may join."""
        return max([self.num_nodes, *(offer.member + 1 for offer in self.offers)])

    @property
    def honest(self) -> tuple[int, ...]:
        """Nodes that follow the protocol, including those that may join."""
        liars = {member for member, _ in self.liars}
        return tuple(node for node in range(self.num_keys) if node not in liars)


def draw_plan(seed: int, quorum: QuorumRule | None = None, *, most_liars: bool = False) -> FaultPlan:
    """Draw the plan of a seed; without a quorum rule, even seeds are `majority` and odd ones `bft`.

    With `most_liars` all are `bft` with the largest tolerated number of liars: selfish in three of four seeds, hoarding
    in the fourth.
    """
    if most_liars:
        quorum = QuorumRule.BFT
    elif quorum is None:
        quorum = QuorumRule.BFT if seed % 2 else QuorumRule.MAJORITY
    rng = stream(seed, Purpose.FAULTS)
    num_nodes = NUM_NODES[int(rng.integers(len(NUM_NODES)))]
    quiet_ns = _draw_ns(rng, 4.0, 9.0)
    pace = _draw_pace(rng, num_nodes)
    aggregation, faulty = _RULES[int(rng.integers(len(_RULES)))]
    plan = FaultPlan(
        seed=seed,
        quorum=quorum,
        num_nodes=num_nodes,
        scheduler=_SCHEDULERS[int(rng.integers(len(_SCHEDULERS)))],
        aggregation=aggregation,
        faulty=faulty,
        quiet_ns=quiet_ns,
        calm_ns=round(pace.calm_s * SECOND_NS),
        attempt_ns=round(pace.attempt_s * SECOND_NS),
        resend_ns=round(pace.resend_s * SECOND_NS),
        weather=Weather(pace.loss, _choose(rng, (0.0, 0.1, 0.3)), round(pace.delay_s * SECOND_NS)),
        partitions=tuple(_draw_partition(rng, num_nodes, quiet_ns) for _ in range(_draw_count(rng, pace.share, 3))),
        crashes=tuple(_draw_crash(rng, num_nodes, quiet_ns) for _ in range(_draw_count(rng, pace.share, 6))),
        freezes=tuple(_draw_freeze(rng, num_nodes, quiet_ns) for _ in range(_draw_count(rng, pace.share, 3))),
        slow=tuple((int(node), 10.0) for node in rng.permutation(num_nodes)[: _draw_count(rng, pace.share, 2)]),
    )
    if quorum is QuorumRule.BFT:
        plan = _add_most_liars(rng, plan) if most_liars else _add_some_liars(rng, plan)
    if seed % _CHANGING[0] in _CHANGING[1]:
        plan = _add_offers(plan)
    return _add_pruning(plan) if seed % _PRUNING[0] in _PRUNING[1] else plan


def _add_pruning(plan: FaultPlan) -> FaultPlan:
    """Add pruning, and a node that comes back after the faults have stopped."""
    rng = stream(plan.seed, Purpose.FAULTS, 3)
    crash = _draw_crash(rng, plan.num_nodes, plan.quiet_ns // 2)
    away = replace(crash, down_ns=plan.quiet_ns - crash.after_ns + _draw_ns(rng, 1.0, 6.0))
    return replace(plan, keep_blocks=int(rng.integers(1, 4)), crashes=(*plan.crashes, away))


def _add_some_liars(rng: np.random.Generator, plan: FaultPlan) -> FaultPlan:
    turn, seats = plan.seed % _SELFISH[0], _SELFISH[1]
    if turn in seats:
        return _add_selfish(rng, plan, len(seats) * (plan.seed // _SELFISH[0]) + seats.index(turn), turn == _REMOVED)
    num_liars = int(rng.integers(1, (plan.num_nodes - 1) // 3 + 1))
    return _add_liars(rng, plan, num_liars, hoards=plan.seed % _HOARDING[0] in _HOARDING[1])


def _add_most_liars(rng: np.random.Generator, plan: FaultPlan) -> FaultPlan:
    turn = plan.seed % 4
    if turn == 3:
        return _add_liars(rng, plan, (plan.num_nodes - 1) // 3, hoards=True)
    return _add_selfish(rng, plan, 3 * (plan.seed // 4) + turn, turn == 0)


def _add_liars(rng: np.random.Generator, plan: FaultPlan, num_liars: int, *, hoards: bool) -> FaultPlan:
    """Add so many liars; the first has a behaviour determined by the seed."""
    members = sorted(rng.permutation(plan.num_nodes)[:num_liars].tolist())
    first = LIES[plan.seed // 2 % len(LIES)]
    liars = []
    for place, member in enumerate(members):
        kind = first if place == 0 or rng.random() < 0.5 else _draw_lie(rng)
        more = (_draw_lie(rng),) if rng.random() < 0.3 else ()
        liars.append((member, tuple(dict.fromkeys((kind, *more)))))
    in_camp = rng.random(plan.num_nodes) < 0.5
    hoarders = tuple(members) if hoards else ()
    return replace(plan, liars=tuple(liars), camp=frozenset(np.flatnonzero(in_camp).tolist()), hoarders=hoarders)


def _add_selfish(rng: np.random.Generator, plan: FaultPlan, first: int, is_removed: bool) -> FaultPlan:
    """Add as many selfish members as the quorum tolerates, with attacks in turn from the given one."""
    members = sorted(rng.permutation(plan.num_nodes)[: (plan.num_nodes - 1) // 3].tolist())
    attacks = [ATTACKS[(first + place) % len(ATTACKS)] for place in range(len(members))]
    offers: tuple[Offer, ...] = ()
    if is_removed:
        everybody = tuple(range(plan.num_nodes))
        offers = (Offer(int(rng.uniform(0.0, 0.7) * plan.quiet_ns), everybody, members[0], _NEVER),)
    liars = tuple((member, ()) for member in members)
    return replace(plan, liars=liars, selfish=tuple(zip(members, attacks, strict=True)), offers=offers)


def _add_offers(plan: FaultPlan) -> FaultPlan:
    """Add members that join and leave; the rest of the plan is unchanged."""
    rng = stream(plan.seed, Purpose.FAULTS, 2)
    admitted, removed = plan.num_nodes, _draw_leaver(rng, plan)
    wanted = ((admitted,), (removed,), (admitted, removed), (admitted, admitted + 1))[int(rng.integers(4))]
    offers = [_draw_offer(rng, plan, member) for member in wanted]
    joins = any(member >= plan.num_nodes for member in wanted)
    crashes = [replace(_draw_crash(rng, 1, plan.quiet_ns), node=admitted)] if joins and rng.random() < 0.3 else []
    return replace(plan, offers=tuple(offers), crashes=(*plan.crashes, *crashes))


def _draw_leaver(rng: np.random.Generator, plan: FaultPlan) -> int:
    """Draw the member that leaves: a liar, if too few honest members would be left otherwise."""
    liars = [member for member, _ in plan.liars]
    member = int(rng.integers(plan.num_nodes))
    return member if member in liars or 3 * len(liars) < plan.num_nodes - 1 else liars[0]


def _draw_offer(rng: np.random.Generator, plan: FaultPlan, member: int) -> Offer:
    return Offer(
        at_ns=int(rng.uniform(0.0, 0.7) * plan.quiet_ns),
        nodes=tuple(sorted(rng.permutation(plan.num_nodes)[: int(rng.integers(1, 4))].tolist())),
        member=member,
        expires=(2, 4, _NEVER, _NEVER, _NEVER)[int(rng.integers(5))],
        is_agreed=bool(rng.random() < 0.85),
    )


def _draw_lie(rng: np.random.Generator) -> Behaviour:
    return LIES[int(rng.integers(len(LIES)))]


@dataclass(frozen=True)
class _Pace:
    """Relative durations, which determine the kind of faults that a trial can reveal."""

    attempt_s: float
    resend_s: float
    calm_s: float
    delay_s: float
    loss: float
    share: float  # of networks with each of the other faults


def _draw_pace(rng: np.random.Generator, num_nodes: int) -> _Pace:
    kind = rng.random()
    if kind < 0.1 and num_nodes <= 6:  # impatient: the first attempts end before any message can arrive
        return _Pace(0.004, 2.0, 0.012, 0.012, _choose(rng, (0.0, 0.2)), 0.5)
    if kind < 0.4:  # hasty: attempts end as messages arrive, and before lost ones are sent again
        pause_s = _choose(rng, (0.02, 0.05))
        return _Pace(pause_s, 2.0, 0.005, pause_s, _choose(rng, (0.0, 0.05, 0.2)), 0.15)
    attempt_s, resend_s = _choose(rng, (0.3, 1.0)), _choose(rng, (0.5, 2.0))
    delay_s, loss = _choose(rng, (0.005, 0.1, 0.3, 1.0)), _choose(rng, (0.0, 0.05, 0.2, 0.4))
    return _Pace(attempt_s, resend_s, 0.005, delay_s, loss, 0.6)


def _draw_partition(rng: np.random.Generator, num_nodes: int, quiet_ns: int) -> Partition:
    size = int(rng.integers(1, num_nodes // 2 + 1))
    start_ns = int(rng.integers(quiet_ns))
    return Partition(
        start_ns=start_ns,
        end_ns=min(quiet_ns, start_ns + _draw_ns(rng, 0.2, 4.0)),
        island=frozenset(rng.permutation(num_nodes)[:size].tolist()),
        is_one_way=bool(rng.random() < 0.25),
    )


def _draw_crash(rng: np.random.Generator, num_nodes: int, quiet_ns: int) -> Crash:
    return Crash(
        node=int(rng.integers(num_nodes)),
        after_ns=int(rng.integers(quiet_ns)),
        effects=int(rng.integers(30)),
        down_ns=_draw_ns(rng, 0.01, 2.0),
    )


def _draw_freeze(rng: np.random.Generator, num_nodes: int, quiet_ns: int) -> Freeze:
    start_ns = int(rng.integers(quiet_ns))
    return Freeze(int(rng.integers(num_nodes)), start_ns, min(quiet_ns - start_ns, _draw_ns(rng, 0.1, 3.0)))


def _choose(rng: np.random.Generator, values: Sequence[float]) -> float:
    return values[int(rng.integers(len(values)))]


def _draw_count(rng: np.random.Generator, share: float, most: int) -> int:
    """Draw 1 to `most` with probability `share`, else 0."""
    return int(rng.integers(1, most + 1)) if rng.random() < share else 0


def _draw_ns(rng: np.random.Generator, low_s: float, high_s: float) -> int:
    return int(rng.uniform(low_s, high_s) * SECOND_NS)
