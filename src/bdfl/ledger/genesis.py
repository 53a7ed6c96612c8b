"""Making and validating a genesis: a scenario and its first round in the chain's integers."""

from collections.abc import Sequence
from types import MappingProxyType

import msgspec

from bdfl import __version__
from bdfl.aggregation import min_updates
from bdfl.compute import mining_work
from bdfl.encoding import INT_LIMIT, BadEncoding, decode, digest, encode
from bdfl.environment import Federation, RoundState
from bdfl.learning.training import num_local_steps
from bdfl.learning.weights import InvalidWeights, Layout, decode_weights
from bdfl.ledger.block import (
    FORMAT,
    MAX_BLOCK_SIZE,
    MAX_BUDGET_PJ,
    MAX_MEMBERS,
    MAX_TEXT,
    AccessPoint,
    Conditions,
    Genesis,
    Law,
    Limits,
    Member,
    ModelForm,
    Physics,
    Privacy,
    SchedulerName,
    Tensor,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import ChainParams, read_params
from bdfl.ledger.costs import (
    ATTO,
    CAPACITANCE,
    MICROWATT,
    NANO,
    NOISE,
    ONE,
    PICOJOULE,
    count_capped,
    count_units,
    slowest_exchange_ns,
)
from bdfl.ledger.errors import BadSchedule, InvalidGenesis
from bdfl.ledger.schedule import Prospect, find_candidates, idle_schedule, plan_round, validate_schedule
from bdfl.scenario import Horizon, Scenario, Sharing, scenario_digest
from bdfl.scenario.schema_learning import ServerOptimizer, is_function
from bdfl.scenario.validation import refuse_value
from bdfl.scheduling.registry import takes_parameter
from bdfl.server_optimizer import write_rule
from bdfl.types import PerClient

_UNKNOWN_EXCHANGE_NS = 3600 * NANO  # if no client is reachable yet
SIMULATED_TIME_MS = 1_767_225_600_000  # the beginning of 2026, the genesis time of every simulated network


def make_genesis(
    scenario: Scenario,
    federation: Federation,
    participation_rate: PerClient,
    first: RoundState,
    public_keys: Sequence[bytes],
    layout: Layout,
    initial_model: bytes,
    cache: VerificationCache | None = None,
    *,
    noise_micro: int | None = None,
    time_ms: int = SIMULATED_TIME_MS,
) -> Genesis:
    """The genesis of a scenario's chain at constant difficulty, with the schedule of round 1.

    `noise_micro` is the noise multiplier calibrated to an epsilon; none: that of the scenario.
    `time_ms` is the creation time of the network.

    The default cache may run the scenario's own aggregation rule. Raises `DoesNotFit` for a value that the chain's
    integers cannot hold, and `InvalidGenesis` where the parts are inconsistent.
    """
    num_members = federation.num_clients
    if not num_members == len(public_keys) == len(participation_rate) <= MAX_MEMBERS:
        found = f"{len(public_keys)} keys and {len(participation_rate)} rates for {num_members} clients"
        raise InvalidGenesis("members", f"one of each for at most {MAX_MEMBERS} clients", found)
    members = [
        Member(
            public_key=public_keys[client],
            limits=limits_of(federation, float(participation_rate[client]), client),
            conditions=conditions_of(first, client),
        )
        for client in range(num_members)
    ]
    draft = draft_genesis(scenario, members, layout, initial_model, noise_micro=noise_micro, time_ms=time_ms)
    return plan_first_round(draft, make_toolbox(scenario) if cache is None else cache)


def draft_genesis(
    scenario: Scenario,
    members: Sequence[Member],
    layout: Layout,
    initial_model: bytes,
    *,
    target_ms: int = 0,
    access_points: Sequence[AccessPoint] = (),
    noise_micro: int | None = None,
    time_ms: int = SIMULATED_TIME_MS,
) -> Genesis:
    """The genesis of a scenario's chain with these members and an idle first round.

    `target_ms` is the target time to mine a block in a live network; 0: the difficulty is constant.
    """
    _validate_initial_model(initial_model, layout)
    validate_server(scenario, layout)
    return Genesis(
        format=FORMAT,
        name=scenario.name[:MAX_TEXT],
        time_ms=time_ms,
        scenario=bytes.fromhex(scenario_digest(scenario)),
        members=tuple(members),
        physics=physics_of(scenario),
        scheduler=_scheduler_of(scenario),
        law=_law_of(scenario, target_ms, members),
        model=ModelForm(
            initial=digest(initial_model),
            size=len(initial_model),
            tensors=tuple(map(Tensor, layout.names, layout.shapes)),
        ),
        schedule=idle_schedule(1, len(members), "not planned yet"),
        access_points=tuple(access_points),
        privacy=_privacy_of(scenario, noise_micro),
    )


def validate_server(scenario: Scenario, layout: Layout) -> None:
    """Raise `ScenarioError` for a server's optimizer of a model that shares a running variance.

    A step goes beyond the aggregate: below 0, where batch normalisation has no root.
    """
    server = scenario.learning.aggregation.server
    shared = next((name for name in layout.names if name.rpartition(".")[2] == "running_var"), None)
    if server is not ServerOptimizer.NONE and shared is not None:
        allowed = f"none where {shared} is shared, which a step can make negative: personal, or group norm"
        raise refuse_value("learning.aggregation.server", server, allowed)


def plan_first_round(draft: Genesis, cache: VerificationCache) -> Genesis:
    """The same genesis with its scheduler's schedule for round 1."""
    params = read_params(draft, cache)
    plan = plan_round(params, first_prospect(params), cache)
    return _validate_encoding(msgspec.structs.replace(draft, schedule=plan.schedule))


def make_toolbox(scenario: Scenario) -> VerificationCache:
    """A cache that may run the scenario's own aggregation rule, if it has one."""
    rule = scenario.learning.aggregation.rule
    return VerificationCache(own_functions=frozenset([rule] if is_function(rule) else []))


def conditions_of(state: RoundState, client: int) -> Conditions:
    """A client's conditions in a drawn round, in the chain's units."""
    return Conditions(
        gain_atto=count_units(state.gain[client], ATTO, f"gain of client {client}"),
        energy_budget_pj=count_units(
            state.energy_budget_j[client], PICOJOULE, f"energy budget of client {client}", most=MAX_BUDGET_PJ
        ),
        is_reachable=bool(state.reachable[client]),
    )


def validate_genesis(genesis: Genesis, cache: VerificationCache) -> ChainParams:
    """The parameters of a genesis; raises `InvalidGenesis` unless it and its first schedule are valid."""
    params = read_params(genesis, cache)
    try:
        validate_schedule(params, first_prospect(params), genesis.schedule, cache)
    except BadSchedule as error:
        raise InvalidGenesis(f"first-{error.rule}", error.expected, error.found) from None
    return params


def validate_initial_model(genesis: Genesis, data: bytes, cache: VerificationCache) -> None:
    """Raise `InvalidGenesis` unless the bytes are the chain's initial model."""
    params = read_params(genesis, cache)
    if len(data) != genesis.model.size or digest(data) != genesis.model.initial:
        raise InvalidGenesis("initial-model", genesis.model.initial, digest(data))
    _validate_initial_model(data, params.layout)


def first_prospect(params: ChainParams) -> Prospect:
    """The scheduler's input for round 1."""
    num_members = params.num_members
    nothing = (0,) * num_members
    conditions = MappingProxyType({client: member.conditions for client, member in enumerate(params.members)})
    return Prospect(
        parent=params.chain,
        round=1,
        queue_nano=nothing,
        candidates=find_candidates(conditions, nothing, 1, params.genesis.physics.min_clients),
        memory=None,
    )


def limits_of(federation: Federation, rate: float, client: int) -> Limits:
    """A client's constants in the chain's units, with its participation rate."""

    def count(name: str, values: PerClient, per_one: int, least: int = 0) -> int:
        return count_units(float(values[client]), per_one, f"{name} of client {client}", least=least)

    return Limits(
        samples=count("samples", federation.samples, ONE),
        rate_nano=count_units(rate, NANO, f"participation rate of client {client}"),
        cycles=count("cycles", federation.cycles, ONE),
        capacitance=count("capacitance", federation.capacitance, CAPACITANCE, 1),
        power_uw=count("power_w", federation.power_w, MICROWATT),
        power_max_uw=count("power_max_w", federation.power_max_w, MICROWATT),
        model_bits=count("model_bits", federation.model_bits, ONE, 1),
        cpu_max_hz=count_capped(float(federation.cpu_max_hz[client]), ONE, f"compute.max_hz of client {client}"),
        mining_max_hz=count_capped(float(federation.mining_max_hz[client]), ONE, f"mining.max_hz of client {client}"),
        initial_cpu_hz=count("compute.initial_hz", federation.initial_cpu_hz, ONE, 1),
        initial_mining_hz=count("mining.initial_hz", federation.initial_mining_hz, ONE, 1),
    )


def physics_of(scenario: Scenario) -> Physics:
    """The scenario's constants of the cost model, in the chain's units."""
    mining, protocol, energy = scenario.mining, scenario.protocol, scenario.energy
    if energy.horizon is Horizon.RUN:
        raise refuse_value("energy.horizon", energy.horizon, "round on a chain: simulate and compare know batteries")
    if energy.price > 0:
        raise refuse_value("energy.price", energy.price, "0 on a chain: simulate and compare know prices on energy")
    if scenario.radio.sharing is not Sharing.DEDICATED:
        raise refuse_value(
            "radio.sharing", scenario.radio.sharing, "dedicated on a chain, whose costs share no spectrum"
        )
    work_cycles = mining_work(mining.difficulty, mining.miss_probability)
    overhead_s = protocol.downlink_s + protocol.verification_s + protocol.voting_s
    return Physics(
        min_clients=scenario.clients.min_selected,
        tradeoff_nano=count_units(scenario.scheduler.tradeoff, NANO, "scheduler.tradeoff", least=1),
        work_cycles=count_units(work_cycles, ONE, "mining work", least=1),
        bandwidth_hz=count_units(scenario.radio.bandwidth_hz, ONE, "radio.bandwidth_hz", least=1),
        noise=count_units(scenario.radio.noise_w_per_hz, NOISE, "radio.noise_w_per_hz", least=1),
        overhead_ns=count_units(overhead_s, NANO, "protocol overhead"),
    )


def _scheduler_of(scenario: Scenario) -> SchedulerName:
    choice = scenario.scheduler
    given = dict(choice.parameters)
    if takes_parameter(choice.name, "rounds"):  # the length of the run, which is nowhere else in a genesis
        given.setdefault("rounds", scenario.rounds)
    parameters = tuple((key, msgspec.json.encode(value).decode()) for key, value in sorted(given.items()))
    return SchedulerName(choice.name, __version__, parameters, count_units(scenario.seed, ONE, "seed"))


def _law_of(scenario: Scenario, target_ms: int, members: Sequence[Member]) -> Law:
    ledger, aggregation = scenario.ledger, scenario.learning.aggregation
    return Law(
        quorum=ledger.quorum,
        work=ledger.work,
        difficulty=max(1, count_units(scenario.mining.difficulty / ledger.cycles_per_hash, ONE, "ledger difficulty")),
        target_ms=target_ms,
        aggregation=write_rule(aggregation),
        faulty=aggregation.faulty,
        min_updates=min_updates(aggregation),
        max_exchange_ns=_max_exchange_ns(scenario, members),
    )


def _max_exchange_ns(scenario: Scenario, members: Sequence[Member]) -> int:
    """Longest time of training and upload: the scenario's, else twice that of the slowest member now."""
    if scenario.ledger.max_exchange_s is not None:
        return count_units(scenario.ledger.max_exchange_s, NANO, "ledger.max_exchange_s", least=1)
    return min(2 * slowest_exchange_ns(physics_of(scenario), members), INT_LIMIT) or _UNKNOWN_EXCHANGE_NS


def _privacy_of(scenario: Scenario, noise_micro: int | None) -> Privacy | None:
    """Parameters of private training in the chain's units; none if training is not private."""
    choice, learning = scenario.privacy, scenario.learning
    if not choice.is_on:
        return None
    noise_micro = choice.noise_micro if noise_micro is None else noise_micro
    if noise_micro is None:
        found = f"privacy.epsilon = {choice.epsilon:g}"
        raise InvalidGenesis("privacy", "privacy.noise_multiplier: members and rounds are not known yet", found)
    return Privacy(
        noise_micro=noise_micro,
        clip_micro=choice.clip_micro,
        delta_atto=choice.delta_atto,
        accountant=choice.accountant,
        batch=learning.batch,
        steps=num_local_steps(scenario),
        unit=learning.unit,
    )


def _validate_encoding(genesis: Genesis) -> Genesis:
    """The same genesis, if other nodes can decode it: limits of length are checked when decoding."""
    try:
        return decode(encode(genesis), Genesis, MAX_BLOCK_SIZE)
    except BadEncoding as error:
        raise InvalidGenesis("encoding", "what others can decode", error) from None


def _validate_initial_model(data: bytes, layout: Layout) -> None:
    try:
        decode_weights(data, layout)
    except InvalidWeights as error:
        raise InvalidGenesis("initial-model", "a model of the chain's layout", error) from None
