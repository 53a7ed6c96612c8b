"""The schedule of a round in integers, and the clients eligible for it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, isfinite
from types import MappingProxyType

import msgspec
import numpy as np

from bdfl.encoding import INT_LIMIT, Digest, Positive, Record, record_digest
from bdfl.ledger.block import MAX_TEXT, Conditions, MemberNumbers, PerMember, Schedule, SignedReport
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import ChainParams, problem_of
from bdfl.ledger.costs import MICROWATT, NANO, Assessment, assess_schedule
from bdfl.ledger.errors import BadSchedule, NotVotable, require_equal
from bdfl.scheduling.problem import Decision, RoundProblem

# Scheduling in integers: from the chain's state to a scheduler's problem, and from its decision to a schedule.

INTEGER_TOLERANCE = 1_000_000  # votable: integers that differ by at most this fraction, 1 in 1,000,000, or by 1
OBJECTIVE_TOLERANCE = 1_000_000  # votable: objectives worse by at most this fraction of V d, doubled in each attempt
_EXACT = "exact"  # schedulers with this prefix are judged by their objective
_MAX_DOUBLINGS = 64
_REACHED = 1e-12  # relative error by which a float may fall below the whole number it stands for


@dataclass(frozen=True, eq=False)
class Prospect:
    """The scheduler's input for a round, in the chain's integers."""

    parent: bytes  # digest of the block before it; the chain's id for round 1
    round: int
    queue_nano: Sequence[int]
    candidates: Mapping[int, Conditions]  # eligible clients and their conditions
    memory: object | None  # the scheduler's memory from the round before


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule by the chain's own scheduler, and the decision that it was rounded from."""

    schedule: Schedule
    decision: Decision  # with the scheduler's memory, bound and iterations


class _Question(Record, frozen=True):
    """The cache key of a decision: all that it depends on; the scheduler's memory follows from the parent."""

    params: Digest
    parent: Digest
    round: Positive
    queue_nano: PerMember
    clients: MemberNumbers
    conditions: tuple[Conditions, ...]


def round_problem(params: ChainParams, prospect: Prospect) -> RoundProblem:
    """The problem given to the scheduler; clients that are no candidates are unreachable in it."""
    problem = problem_of(params.problem, prospect.round, prospect.queue_nano, prospect.candidates)
    return replace(problem, memory=prospect.memory)


def plan_round(params: ChainParams, prospect: Prospect, cache: VerificationCache) -> Plan:
    """The plan of the chain's scheduler for this prospect, cached."""
    question = _Question(
        params.name,
        prospect.parent,
        prospect.round,
        tuple(prospect.queue_nano),
        tuple(prospect.candidates),
        tuple(prospect.candidates.values()),
    )
    return cache.recall(("plan", record_digest(question)), lambda: _plan(params, prospect, cache))


def _plan(params: ChainParams, prospect: Prospect, cache: VerificationCache) -> Plan:
    """Plan without clients whose exchange would exceed the law's limit, so that no report can stop a round."""
    while True:
        decision = params.scheduler(round_problem(params, prospect))
        schedule, too_slow = plan_schedule(params, prospect, decision, cache)
        if not too_slow:
            return Plan(schedule, decision)
        others = {client: found for client, found in prospect.candidates.items() if client not in too_slow}
        prospect = replace(prospect, candidates=others)


def plan_schedule(
    params: ChainParams, prospect: Prospect, decision: Decision, cache: VerificationCache
) -> tuple[Schedule, frozenset[int]]:
    """The decision in integers, frequencies and powers rounded down; and clients whose exchange exceeds the limit.

    The schedule is idle if the decision is, or if it violates a constraint after rounding.
    """
    if decision.reason is not None:
        return idle_schedule(prospect.round, params.num_members, decision.reason), frozenset()
    selected = [int(client) for client in np.flatnonzero(decision.selected)]
    limits = [member.limits for member in params.members]
    schedule = Schedule(
        round=prospect.round,
        selected=tuple(selected),
        cpu_hz=tuple(_round_down(decision.cpu_hz[one], limits[one].cpu_max_hz, least=1) for one in selected),
        power_uw=tuple(
            _round_down(decision.power_w[one] * MICROWATT, max(limits[one].power_uw, limits[one].power_max_uw), least=1)
            for one in selected
        ),
        mining_hz=tuple(_round_down(hz, one.mining_max_hz) for hz, one in zip(decision.mining_hz, limits, strict=True)),
        objective_nano=0,
        reason="",
    )
    assessment = assess(params, prospect, schedule, cache)
    if assessment.breaches:
        breach = assessment.breaches[0]
        reason = f"in whole units {breach.constraint} is broken, {breach}, allowed {breach.allowed}"
        too_slow = frozenset(
            one.client for one in assessment.breaches if one.constraint == "exchange" and one.client is not None
        )
        return idle_schedule(prospect.round, params.num_members, reason), too_slow
    return msgspec.structs.replace(schedule, objective_nano=assessment.objective_nano), frozenset()


def idle_schedule(round: int, num_members: int, reason: str) -> Schedule:
    """A schedule in which no client trains or mines, because of `reason`."""
    return Schedule(round, (), (), (), (0,) * num_members, 0, (reason or "no reason given")[:MAX_TEXT])


def assess(params: ChainParams, prospect: Prospect, schedule: Schedule, cache: VerificationCache) -> Assessment:
    """Costs and breaches of a well-formed schedule, cached; its stated objective is ignored."""
    bare = msgspec.structs.replace(schedule, objective_nano=0)
    queue_nano = tuple(prospect.queue_nano)
    key = "assessment", params.name, bare, tuple(prospect.candidates.items()), queue_nano
    return cache.recall(
        key, lambda: assess_schedule(params.genesis, params.members, bare, prospect.candidates, queue_nano)
    )


def validate_schedule(params: ChainParams, prospect: Prospect, schedule: Schedule, cache: VerificationCache) -> None:
    """Raise `BadSchedule` unless the schedule fits the round, keeps C1 to C3 and all caps, and states its objective."""
    _validate_form(schedule, prospect.round, params.num_members)
    assessment = assess(params, prospect, schedule, cache)
    for breach in assessment.breaches:
        raise BadSchedule(f"schedule-{breach.constraint}", breach.allowed, breach)
    require_equal(BadSchedule, "schedule-objective", assessment.objective_nano, schedule.objective_nano)


def judge_plan(params: ChainParams, own: Schedule, found: Schedule, own_delay_ns: int, attempt: int) -> None:
    """Raise `NotVotable` if a valid schedule is worse than the voter's own.

    With an exact scheduler the objective may be at most 1e-6 V d worse, doubled in each attempt. With any other the
    selected set must be the same, and every integer within one part in a million or one unit.
    """
    if found.is_feasible != own.is_feasible and not (found.is_feasible and _is_exact(params)):
        raise NotVotable("own-schedule", own.reason or f"clients {own.selected} train", found.reason or found.selected)
    if not own.is_feasible or not found.is_feasible:
        return
    if _is_exact(params):
        doublings = min(attempt - 1, _MAX_DOUBLINGS)
        slack_nano = params.genesis.physics.tradeoff_nano * own_delay_ns * 2**doublings // (NANO * OBJECTIVE_TOLERANCE)
        if found.objective_nano > own.objective_nano + slack_nano:
            most = f"objective of at most {own.objective_nano} + {slack_nano}"
            raise NotVotable("own-schedule", most, found.objective_nano)
        return
    require_equal(NotVotable, "own-selection", own.selected, found.selected)
    for name in ("cpu_hz", "power_uw", "mining_hz"):
        for mine, theirs in zip(getattr(own, name), getattr(found, name), strict=True):
            if abs(mine - theirs) > max(1, mine // INTEGER_TOLERANCE):
                raise NotVotable(f"own-{name.replace('_', '-')}", mine, theirs)


def _is_exact(params: ChainParams) -> bool:
    return params.genesis.scheduler.name.startswith(_EXACT)


def _validate_form(schedule: Schedule, round: int, num_members: int) -> None:
    require_equal(BadSchedule, "schedule-round", round, schedule.round)
    selected = schedule.selected
    if any(former >= latter for former, latter in pairwise(selected)):
        raise BadSchedule("schedule-form", "clients in ascending order", selected)
    if selected and not 0 <= selected[0] <= selected[-1] < num_members:
        raise BadSchedule("schedule-form", f"clients 0 to {num_members - 1}", selected)
    for name, length in (("cpu_hz", len(selected)), ("power_uw", len(selected)), ("mining_hz", num_members)):
        require_equal(BadSchedule, "schedule-form", f"{length} of {name}", f"{len(getattr(schedule, name))} of {name}")
    if not schedule.is_feasible:
        idle = idle_schedule(round, num_members, schedule.reason)
        require_equal(BadSchedule, "schedule-form", idle, schedule)


def _round_down(value: float, cap: int | None, least: int = 0) -> int:
    """The whole number at or just below `value`, within the cap; 0 for NaN, and for infinity without a cap.

    A value above 0 becomes at least `least`: a client that waits for a slower one may be given less than a unit, and
    with zero it would never finish.
    """
    most = INT_LIMIT if cap is None else cap
    if not isfinite(value):
        return most if value > 0 and cap is not None else 0
    return min(max(floor(value * (1 + _REACHED)), least if value > 0 else 0), most)


# Eligibility for a round: members that reported, are reachable and are not in back-off after missed updates.

MAX_REST = 63  # rounds: longest back-off


def find_candidates(
    conditions: Mapping[int, Conditions], rests_until: Sequence[int], round: int, min_clients: int
) -> Mapping[int, Conditions]:
    """Conditions of the clients eligible in a round, by client: reported, reachable and not in back-off.

    Back-off is ignored where too few clients would be left: else one that never trains could stop all others.
    """
    reachable = {client: found for client, found in sorted(conditions.items()) if found.is_reachable}
    rested = {client: found for client, found in reachable.items() if rests_until[client] < round}
    return MappingProxyType(rested if len(rested) >= min_clients else reachable)


def settle_conditions(
    reports: Sequence[SignedReport], staying: Collection[int], offenders: Collection[int]
) -> Mapping[int, Conditions]:
    """Conditions for the round after, by client: those reported by members that stay and are no offenders."""
    return MappingProxyType(
        {
            signed.report.client: signed.report.conditions
            for signed in reports
            if signed.report.client in staying and signed.report.client not in offenders
        }
    )


def settle_misses(
    selected: Sequence[int],
    heard: Collection[int],
    misses: Sequence[int],
    rests_until: Sequence[int],
    round: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Misses in a row and last rounds of back-off, by client: the k-th miss excludes a member for 2^k - 1 rounds.

    A member that declined was heard, and misses nothing.
    """
    now_misses, now_rests_until = list(misses), list(rests_until)
    for client in selected:
        if client in heard:
            now_misses[client] = 0
        else:
            now_misses[client] += 1
            now_rests_until[client] = round + min(2 ** now_misses[client] - 1, MAX_REST)
    return tuple(now_misses), tuple(now_rests_until)
