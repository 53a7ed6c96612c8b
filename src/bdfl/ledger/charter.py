"""What a genesis means, worked out once: the names in it become functions, its integers the numbers to compute with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from bdfl.aggregation import SAMPLES_LIMIT, get_aggregator, min_updates, validate_crowd
from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, encode_weights
from bdfl.ledger.block import FORMAT, MAX_BUDGET_PJ, Genesis, ModelForm, Physics, SchedulerName, chain_id
from bdfl.ledger.errors import InvalidGenesis, require_equal
from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import CAPACITANCE, MICROWATT, NANO, NOISE, ONE, to_cap, to_measure
from bdfl.scenario.learning import Aggregation, is_function
from bdfl.scenario.ledger import QuorumRule
from bdfl.scheduling.problem import RoundProblem, Scheduler, make_problem
from bdfl.scheduling.registry import ParameterValue, get_scheduler

MAX_MODEL_SIZE = 2**31  # bytes


@dataclass(frozen=True, eq=False)
class Charter:
    """A genesis and what follows from it alone."""

    genesis: Genesis
    chain: bytes  # the chain's id
    quorum: int
    layout: Layout
    aggregation: Aggregation
    scheduler: Scheduler
    problem: RoundProblem  # of no round: queues empty, nobody reachable

    @property
    def num_members(self) -> int:
        return len(self.genesis.members)

    @cached_property
    def rate_nano(self) -> tuple[int, ...]:
        """Participation rates beta_i."""
        return tuple(member.limits.rate_nano for member in self.genesis.members)


def quorum_size(rule: QuorumRule, num_members: int) -> int:
    """Votes that make a block final: more than half of the members, or more than two thirds."""
    return num_members // 2 + 1 if rule is QuorumRule.MAJORITY else 2 * num_members // 3 + 1


def read_charter(genesis: Genesis, toolbox: Toolbox) -> Charter:
    """What the genesis means; raises `InvalidGenesis` where it means nothing. Its first schedule is not judged here."""
    chain = chain_id(genesis)
    return toolbox.recall(("charter", chain, toolbox.own_functions), lambda: _read_charter(genesis, chain, toolbox))


def _read_charter(genesis: Genesis, chain: bytes, toolbox: Toolbox) -> Charter:
    require_equal(InvalidGenesis, "format", FORMAT, genesis.format)
    _validate_members(genesis)
    return Charter(
        genesis=genesis,
        chain=chain,
        quorum=quorum_size(genesis.law.quorum, len(genesis.members)),
        layout=read_layout(genesis.model),
        aggregation=_read_aggregation(genesis, toolbox.own_functions),
        scheduler=toolbox.recall(
            ("scheduler", genesis.scheduler.name, genesis.scheduler.parameters),
            lambda: _read_scheduler(genesis.scheduler),
        ),
        problem=_read_problem(genesis),
    )


def _validate_members(genesis: Genesis) -> None:
    numbers: dict[bytes, int] = {}
    for number, member in enumerate(genesis.members):
        other = numbers.setdefault(member.public_key, number)
        if other != number:
            raise InvalidGenesis("public-keys", f"another key for member {number}", f"that of member {other}")
        limits = member.limits
        if limits.samples >= SAMPLES_LIMIT:
            raise InvalidGenesis("samples", f"less than {SAMPLES_LIMIT} for member {number}", limits.samples)
        if limits.rate_nano > NANO:
            raise InvalidGenesis("rates", f"at most 1 for member {number}", limits.rate_nano / NANO)
        budget_pj = member.conditions.energy_budget_pj
        if budget_pj > MAX_BUDGET_PJ:
            raise InvalidGenesis("budgets", f"at most {MAX_BUDGET_PJ} pJ for member {number}", budget_pj)


def read_layout(form: ModelForm) -> Layout:
    """The layout of the chain's models; raises `InvalidGenesis` unless a model of it has the size that is stated."""
    layout = Layout(tuple(tensor.name for tensor in form.tensors), tuple(tensor.shape for tensor in form.tensors))
    if len(set(layout.names)) < len(layout.names):
        raise InvalidGenesis("model-tensors", "different names", ", ".join(sorted(layout.names)))
    least = 4 * layout.num_parameters
    if not least < form.size <= MAX_MODEL_SIZE:
        raise InvalidGenesis("model-size", f"{least} to {MAX_MODEL_SIZE} bytes for these tensors", form.size)
    size = len(encode_weights(np.zeros(layout.num_parameters, np.float32), layout))
    require_equal(InvalidGenesis, "model-size", size, form.size)
    return layout


def _read_aggregation(genesis: Genesis, own_functions: frozenset[str]) -> Aggregation:
    law = genesis.law
    choice = Aggregation(rule=law.aggregation, faulty=law.faulty)
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
    return choice


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


def _read_problem(genesis: Genesis) -> RoundProblem:
    limits = [member.limits for member in genesis.members]
    physics: Physics = genesis.physics
    nobody = np.zeros(len(limits))
    try:
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
            overhead_s=physics.overhead_ns / NANO,
            seed=genesis.scheduler.seed,
        )
    except BdflError as error:
        raise InvalidGenesis("physics", "numbers that a round can be computed with", error) from None
