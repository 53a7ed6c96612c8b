"""Parameters of a chain, derived once from its genesis for each of its member sets, and the round's problem they pose.

Names become functions, and integers become floats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from bdfl.aggregation import SAMPLES_LIMIT, get_aggregator, min_updates, validate_crowd
from bdfl.encoding import Digest, Positive, Record, record_digest
from bdfl.errors import BdflError
from bdfl.identity import is_public_key
from bdfl.learning.weights import Layout, file_size
from bdfl.ledger.block import (
    FORMAT,
    MAX_BUDGET_PJ,
    MAX_MEMBERS,
    Admission,
    Change,
    Conditions,
    Genesis,
    Member,
    ModelForm,
    Schedule,
    SchedulerName,
    chain_id,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.costs import ATTO, CAPACITANCE, MICROWATT, NANO, NOISE, ONE, PICOJOULE, to_cap, to_measure
from bdfl.ledger.errors import BadChange, InvalidGenesis, RuleBroken, require_equal
from bdfl.ledger.member_set import MemberSet, first_member_set, quorum_size
from bdfl.scenario.schema_learning import Aggregation, is_function
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler, make_problem
from bdfl.scheduling.registry import ParameterValue, get_scheduler
from bdfl.server_optimizer import ServerSettings, read_rule

# A scheduler's problem and decision, in floats, from the chain's integers.


def base_problem(genesis: Genesis, members: Sequence[Member]) -> RoundProblem:
    """The template of every round's problem: queues empty, no client reachable; raises `InvalidProblem`."""
    limits = [member.limits for member in members]
    physics = genesis.physics
    nobody = np.zeros(len(limits))
    return make_problem(
        min_clients=physics.min_clients,
        tradeoff=physics.tradeoff_nano / NANO,
        work_cycles=float(physics.work_cycles),
        bandwidth_hz=float(physics.bandwidth_hz),
        noise_w_per_hz=physics.noise / NOISE,
        queue=nobody,
        cycles=to_measure((one.cycles for one in limits), ONE),
        capacitance=to_measure((one.capacitance for one in limits), CAPACITANCE),
        energy_budget_j=nobody,
        gain=nobody,
        power_w=to_measure((one.power_uw for one in limits), MICROWATT),
        power_max_w=to_measure((one.power_max_uw for one in limits), MICROWATT),
        model_bits=to_measure((one.model_bits for one in limits), ONE),
        cpu_max_hz=to_cap(one.cpu_max_hz for one in limits),
        mining_max_hz=to_cap(one.mining_max_hz for one in limits),
        initial_cpu_hz=to_measure((one.initial_cpu_hz for one in limits), ONE),
        initial_mining_hz=to_measure((one.initial_mining_hz for one in limits), ONE),
        reachable=np.zeros(len(limits), dtype=np.bool_),
        participation_rate=to_measure((one.rate_nano for one in limits), NANO),
        samples=to_measure((one.samples for one in limits), ONE),
        overhead_s=physics.overhead_ns / NANO,
        seed=genesis.scheduler.seed,
    )


def problem_of(
    base: RoundProblem, round: int, queue_nano: Sequence[int], candidates: Mapping[int, Conditions]
) -> RoundProblem:
    """The problem of a round with these queues; clients that are no candidates are unreachable."""
    num = base.num_clients
    reachable = np.zeros(num, dtype=np.bool_)
    gain, budget_j = np.zeros(num), np.zeros(num)
    who = list(candidates)
    reachable[who] = True
    gain[who] = to_measure((found.gain_atto for found in candidates.values()), ATTO)
    budget_j[who] = to_measure((found.energy_budget_pj for found in candidates.values()), PICOJOULE)
    queue = to_measure(queue_nano, NANO)
    for values in (reachable, gain, budget_j, queue):
        values.setflags(write=False)
    return replace(
        base,
        round=round,
        queue=queue,
        reachable=reachable,
        gain=gain,
        energy_budget_j=budget_j,
    )


def read_decision(schedule: Schedule) -> Decision:
    """A schedule of the chain as a scheduler's decision, in floats."""
    num = len(schedule.mining_hz)
    chosen = list(schedule.selected)
    selected, cpu_hz, power_w = np.zeros(num, dtype=np.bool_), np.zeros(num), np.zeros(num)
    selected[chosen] = True
    cpu_hz[chosen] = schedule.cpu_hz
    power_w[chosen] = np.array(schedule.power_uw, dtype=np.float64) / MICROWATT
    return Decision(
        selected=selected,
        cpu_hz=cpu_hz,
        mining_hz=np.array(schedule.mining_hz, dtype=np.float64),
        power_w=power_w,
        reason=schedule.reason or None,
    )


MAX_MODEL_SIZE = 2**31  # bytes
_METADATA = "__metadata__"


@dataclass(frozen=True, eq=False)
class ChainParams:
    """The parameters and the member set in force: all that follows from genesis and members alone."""

    genesis: Genesis
    chain: bytes  # the chain's id
    name: bytes  # digest of this member set and its history; the chain's id for that of genesis
    member_set: MemberSet
    quorum: int  # of the active members
    layout: Layout
    aggregation: Aggregation
    server: ServerSettings | None  # none: the aggregate is the next model
    scheduler: Scheduler
    problem: RoundProblem  # template: queues empty, no client reachable

    @property
    def members(self) -> tuple[Member, ...]:
        """All members by number, present and past."""
        return self.member_set.members

    @property
    def num_members(self) -> int:
        """Numbers ever assigned: the length of all per-member tuples."""
        return len(self.member_set.members)

    @property
    def active(self) -> frozenset[int]:
        """Numbers of the present members."""
        return self.member_set.active

    @cached_property
    def rate_nano(self) -> tuple[int, ...]:
        """Participation rates beta_i."""
        return tuple(member.limits.rate_nano for member in self.member_set.members)


class _Amendment(Record, frozen=True):
    """The preimage of an amended parameters' `name`."""

    before: Digest
    change: Change
    height: Positive


def read_params(genesis: Genesis, cache: VerificationCache) -> ChainParams:
    """The parameters of a genesis; raises `InvalidGenesis`. The first schedule is not checked here."""
    chain = chain_id(genesis)
    return cache.recall(("params", chain, cache.own_functions), lambda: _read_params(genesis, chain, cache))


def _read_params(genesis: Genesis, chain: bytes, cache: VerificationCache) -> ChainParams:
    require_equal(InvalidGenesis, "format", FORMAT, genesis.format)
    member_set = first_member_set(genesis)
    _validate_members(member_set.members)
    aggregation, server = _read_aggregation(genesis, cache.own_functions)
    return ChainParams(
        genesis=genesis,
        chain=chain,
        name=chain,
        member_set=member_set,
        quorum=quorum_size(genesis.law.quorum, len(member_set.active)),
        layout=read_layout(genesis.model),
        aggregation=aggregation,
        server=server,
        scheduler=cache.recall(
            ("scheduler", genesis.scheduler.name, genesis.scheduler.parameters),
            lambda: _read_scheduler(genesis.scheduler),
        ),
        problem=_read_problem(genesis, member_set.members),
    )


def amend_params(params: ChainParams, change: Change, height: int, cache: VerificationCache) -> ChainParams:
    """The parameters from that height on, after a change of membership; raises `BadChange` if that is impossible."""
    name = record_digest(_Amendment(params.name, change, height))
    return cache.recall(("params", name, cache.own_functions), lambda: _amend(params, change, height, name))


def _amend(params: ChainParams, change: Change, height: int, name: bytes) -> ChainParams:
    if isinstance(change, Admission):
        _validate_admission(params, change)
    else:
        _validate_removal(params, change.number)
    member_set = params.member_set.after(change, height)
    try:
        _validate_members(member_set.members)
        problem = _read_problem(params.genesis, member_set.members)
        validate_crowd(params.aggregation, len(member_set.active))
    except RuleBroken as error:
        raise BadChange(f"change-{error.rule}", error.expected, error.found) from None
    except BdflError as error:
        raise BadChange("change-aggregation", f"as many members as {params.aggregation.rule} bears", error) from None
    quorum = quorum_size(params.genesis.law.quorum, len(member_set.active))
    return replace(params, name=name, member_set=member_set, quorum=quorum, problem=problem)


def _validate_admission(params: ChainParams, change: Admission) -> None:
    if change.number != params.num_members or change.number >= MAX_MEMBERS:
        raise BadChange("change-number", f"the next number, {params.num_members}, below {MAX_MEMBERS}", change.number)


def _validate_removal(params: ChainParams, number: int) -> None:
    if number not in params.active:
        raise BadChange("change-number", "one of the members", number)
    least = max(params.genesis.physics.min_clients, params.genesis.law.min_updates)
    left = len(params.active) - 1
    if left < least:
        raise BadChange("change-too-few", f"at least {least} members left, as many as a round needs", left)


def _validate_members(members: Sequence[Member]) -> None:
    numbers: dict[bytes, int] = {}
    for number, member in enumerate(members):
        other = numbers.setdefault(member.public_key, number)
        if other != number:
            raise InvalidGenesis("public-keys", f"another key for member {number}", f"that of member {other}")
        if not is_public_key(member.public_key):
            expected = f"a canonical point of edwards25519, not of small order, for member {number}"
            raise InvalidGenesis("public-keys", expected, member.public_key.hex())
        limits = member.limits
        if limits.samples >= SAMPLES_LIMIT:
            raise InvalidGenesis("samples", f"less than {SAMPLES_LIMIT} for member {number}", limits.samples)
        if limits.rate_nano > NANO:
            raise InvalidGenesis("rates", f"at most 1 for member {number}", limits.rate_nano / NANO)
        budget_pj = member.conditions.energy_budget_pj
        if budget_pj > MAX_BUDGET_PJ:
            raise InvalidGenesis("budgets", f"at most {MAX_BUDGET_PJ} pJ for member {number}", budget_pj)


def read_layout(form: ModelForm) -> Layout:
    """The layout of the chain's models; raises `InvalidGenesis` unless its safetensors size is the one stated."""
    layout = Layout(tuple(tensor.name for tensor in form.tensors), tuple(tensor.shape for tensor in form.tensors))
    if len(set(layout.names)) < len(layout.names):
        raise InvalidGenesis("model-tensors", "different names", ", ".join(sorted(layout.names)))
    if _METADATA in layout.names:
        raise InvalidGenesis("model-tensors", f"names other than {_METADATA}, which is safetensors' own", _METADATA)
    if any(0 in shape for shape in layout.shapes):  # the size would not limit its other dimensions
        raise InvalidGenesis("model-tensors", "dimensions of at least 1", "one of 0")
    least = 4 * layout.num_parameters
    if not least < form.size <= MAX_MODEL_SIZE:
        raise InvalidGenesis("model-size", f"{least} to {MAX_MODEL_SIZE} bytes for these tensors", form.size)
    require_equal(InvalidGenesis, "model-size", file_size(layout), form.size)
    return layout


def blob_limit(genesis: Genesis) -> int:
    """Size (bytes) of the largest blob of a chain: a global model, with any moments of the server's optimizer."""
    server = read_rule(genesis.law.aggregation)[1]
    return min(genesis.model.size, MAX_MODEL_SIZE) * (1 if server is None else 1 + server.num_moments)


def weights_file(genesis: Genesis, model: bytes) -> bytes:
    """The file of the weights alone of a global model."""
    return model[: genesis.model.size]


def _read_aggregation(genesis: Genesis, own_functions: frozenset[str]) -> tuple[Aggregation, ServerSettings | None]:
    law = genesis.law
    rule, server = read_rule(law.aggregation)
    choice = Aggregation(rule=rule, faulty=law.faulty)
    if is_function(choice.rule) and choice.rule not in own_functions:
        raise InvalidGenesis("aggregation", "a rule of bdfl, or a function that is allowed to run here", choice.rule)
    try:
        get_aggregator(choice)
        least = min_updates(choice)
        validate_crowd(choice, len(genesis.members))
    except BdflError as error:
        raise InvalidGenesis("aggregation", "a rule that exists and can be worked out", error) from None
    if law.min_updates < least:
        raise InvalidGenesis("min-updates", f"at least {least} for {choice.rule}", law.min_updates)
    return choice, server


def _read_scheduler(name: SchedulerName) -> Scheduler:
    try:
        return get_scheduler(name.name, _read_parameters(name))
    except (BdflError, msgspec.DecodeError) as error:
        raise InvalidGenesis("scheduler", "one that is installed, with its parameters as JSON", error) from None


def _read_parameters(name: SchedulerName) -> Mapping[str, ParameterValue]:
    keys = [key for key, _ in name.parameters]
    if keys != sorted(set(keys)):
        raise InvalidGenesis("scheduler", "parameters in the order of their names", ", ".join(keys))
    return {key: msgspec.json.decode(text, type=ParameterValue) for key, text in name.parameters}


def _read_problem(genesis: Genesis, members: Sequence[Member]) -> RoundProblem:
    try:
        return base_problem(genesis, members)
    except BdflError as error:
        raise InvalidGenesis("physics", "numbers that a round can be computed with", error) from None
