"""The tables of a scenario: clients, radio, compute, scheduling, live network.

The sections of a scenario, one frozen value each.

Defaults are the paper's CIFAR-10 experiment [Li24, Section VI-A]. Limits, units, sources and meanings are defined at
the fields only; `Scenario` always validates them.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, get_type_hints

from msgspec import Meta, inspect

from bdfl.scenario.distributions import (
    Drawn,
    Fraction,
    NotNegative,
    Parameter,
    PerClientFraction,
    PerClientNotNegative,
    PerClientPositive,
    PerClientWhole,
    Point,
    Positive,
    Probability,
    Sides,
    WholePositive,
    about,
    check_per_client,
    is_per_client,
)
from bdfl.scenario.schema_learning import (
    OPTIMIZATION_KEYS,
    Adversaries,
    Behaviour,
    DataChoice,
    Engine,
    Faults,
    Learning,
    Ledger,
    PartitionChoice,
    Privacy,
    is_function,
    validate_partition,
)
from bdfl.scenario.validation import Annotation, ScenarioError, Section, Text, check_value, refuse_value, type_info

# Settings of a live network: durations and timeouts.


class LiveMode(StrEnum):
    """Source of a live node's conditions and durations."""

    EMULATE = "emulate"  # the scenario's cost model, scaled: training, upload and mining take the modelled time
    MEASURED = "measured"  # the machine it runs on


class Live(Section, frozen=True, kw_only=True):
    """Settings of live nodes. The five timeouts are derived from the scenario unless given."""

    mode: Annotated[LiveMode, about("emulate the scenario's radio and processors, or measure")] = LiveMode.EMULATE
    time_scale: Annotated[NotNegative, about("real seconds per modelled second; 0: no artificial delays")] = 20.0
    block_s: Annotated[Positive, about("target mining time in mode measured", "s")] = 2.0
    grace_s: Annotated[Positive | None, about("wait for updates and reports beyond the planned time", "s")] = None
    attempt_s: Annotated[Positive | None, about("first consensus attempt lasts 1.5 times this", "s")] = None
    resend_s: Annotated[Positive | None, about("interval at which a node resends its messages", "s")] = None
    fetch_s: Annotated[Positive | None, about("least wait for a piece before the next peer", "s")] = None
    lease_s: Annotated[Positive | None, about("silence after which a peer counts as disconnected", "s")] = None


class Preference(StrEnum):
    """Effect of the data distribution on participation."""

    LITERAL = "literal"  # the paper's wording: clients whose labels differ most take part most
    SIMILAR = "similar"  # the opposite sign


class FadingKind(StrEnum):
    """Law of the small-scale fading, always a power gain with mean 1."""

    NONE = "none"
    RAYLEIGH = "rayleigh"
    RICIAN = "rician"
    NAKAGAMI = "nakagami"


class MiningMode(StrEnum):
    """Model of the mining time of a block."""

    QUANTILE = "quantile"  # the time by which it is found with probability p0
    SAMPLED = "sampled"  # an exponential draw


class Horizon(StrEnum):
    """Time over which a client's energy is limited."""

    ROUND = "round"  # the paper's C3: by a budget in every round
    RUN = "run"  # by a battery that every round charges


class Placement(StrEnum):
    """Placement of the clients in round 1."""

    RING = "ring"  # at distance_m from access point i modulo their number, in a drawn direction
    UNIFORM = "uniform"  # anywhere in the area
    LISTED = "listed"  # at client_positions_m


class MobilityModel(StrEnum):
    """Movement of the clients between rounds."""

    STATIC = "static"
    REDRAWN = "redrawn"  # placed again in every round
    RANDOM_WAYPOINT = "random-waypoint"


class Clients(Section, frozen=True, kw_only=True):
    """Number of clients and size of their data sets."""

    count: Annotated[int, Meta(ge=1, le=10_000_000), about("number of clients U", source="paper")] = 8
    min_selected: Annotated[WholePositive, about("least number m of clients that train in a round", source="paper")] = 3
    samples: Annotated[PerClientWhole, about("size |D_i| of a client's data set", source="paper")] = 3000


class Participation(Section, frozen=True, kw_only=True):
    """Target participation rates of the clients."""

    mean: Annotated[Fraction, about("mean of the participation rates beta_i", source="calibrated")] = 0.4
    spread: Annotated[NotNegative, about("standard deviation of the rates before clipping", source="calibrated")] = 0.05
    floor: Annotated[Fraction, about("least rate of any client")] = 0.2
    preference: Annotated[Preference, about("whether skewed (literal) or typical data train more", source="paper")] = (
        Preference.LITERAL
    )
    rates: Annotated[PerClientFraction | None, about("given participation rates, not from labels")] = None


class Fading(Section, frozen=True, kw_only=True):
    """Small-scale fading rho_i(t), drawn for every client and round."""

    kind: Annotated[FadingKind, about("law of the fading, as a power gain with mean 1", source="calibrated")] = (
        FadingKind.RICIAN
    )
    k_factor: Annotated[NotNegative, about("Rician K: direct over scattered power, linear", source="calibrated")] = 20.0
    shape: Annotated[float, Meta(ge=0.5), about("Nakagami m; 1 is Rayleigh")] = 2.0


class Sharing(StrEnum):
    """Use of the uplink's bandwidth."""

    DEDICATED = "dedicated"  # the paper's: every client has it for itself
    EQUAL = "equal"  # every access point has it, divided equally among those who upload through it


class Radio(Section, frozen=True, kw_only=True):
    """The uplink from client to access point."""

    bandwidth_hz: Annotated[Positive, about("bandwidth B of a client's uplink", "Hz", source="paper")] = 180e3
    sharing: Annotated[
        Sharing, about("bandwidth_hz of each client, or of an access point and divided equally", source="paper")
    ] = Sharing.DEDICATED
    noise_w_per_hz: Annotated[Positive, about("noise power density N0", "W/Hz", source="paper")] = 1e-16
    power_w: Annotated[PerClientPositive, about("transmit power P_i", "W", source="calibrated")] = 0.2
    power_max_w: Annotated[
        PerClientPositive | None, about("greatest power exact-power may choose; none: power_w", "W")
    ] = None
    model_bits: Annotated[PerClientNotNegative, about("size m_i of an uploaded model", "bit", source="paper")] = 1e6
    reference_gain: Annotated[Positive, about("power gain h0 at the reference distance", source="paper")] = 1e-3
    reference_distance_m: Annotated[Positive, about("reference distance d0", "m", source="paper")] = 1.0
    path_loss_exponent: Annotated[NotNegative, about("path loss exponent v", source="calibrated")] = 2.0
    fading: Fading = Fading()
    shadowing_db: Annotated[
        float, Meta(ge=0, le=50), about("standard deviation of log-normal shadowing, fixed per link", "dB")
    ] = 0.0
    trace: Annotated[Text | None, about("file of recorded gains, CSV or Parquet, beside the scenario; none: drawn")] = (
        None
    )


class Compute(Section, frozen=True, kw_only=True):
    """Local training."""

    cycles_per_sample: Annotated[
        PerClientNotNegative, about("CPU cycles phi_i per sample", "cycle", source="paper")
    ] = 5e3
    local_updates: Annotated[WholePositive, about("local updates H in a round", source="paper")] = 20
    capacitance: Annotated[
        PerClientPositive, about("switched capacitance chi_i of the processor", "W s^3", source="calibrated")
    ] = 5.4e-28
    initial_hz: Annotated[
        PerClientPositive, about("training frequency drc and baselines start at", "Hz", source="paper")
    ] = 1e9
    max_hz: Annotated[PerClientPositive | None, about("greatest training frequency; none: no cap", "Hz")] = None


class Mining(Section, frozen=True, kw_only=True):
    """Proof of work."""

    difficulty: Annotated[Positive, about("mean cycles alpha to find a block", "cycle", source="paper")] = 3e7
    miss_probability: Annotated[
        Probability, about("1 - p0: chance a block takes longer than planned; the paper prints it as p0")
    ] = 1e-10
    mode: Annotated[MiningMode, about("mining time at its quantile p0, or sampled", source="paper")] = (
        MiningMode.QUANTILE
    )
    initial_hz: Annotated[
        PerClientPositive, about("mining frequency drc and baselines start at", "Hz", source="paper")
    ] = 1.5e9
    max_hz: Annotated[PerClientNotNegative | None, about("greatest mining frequency; none: no cap", "Hz")] = None


class Protocol(Section, frozen=True, kw_only=True):
    """Overhead of a round beside training, upload and mining; the paper neglects it."""

    downlink_s: Annotated[NotNegative, about("time until all nodes have all updates and the block", "s")] = 0.0
    verification_s: Annotated[NotNegative, about("time to verify updates and block", "s")] = 0.0
    voting_s: Annotated[NotNegative, about("time to vote and commit", "s")] = 0.0


class Energy(Section, frozen=True, kw_only=True):
    """Energy budget of the clients, their batteries, and a price on energy."""

    budget_j: Annotated[
        PerClientNotNegative,
        about("energy budget E_i^max of a round; each_round = true redraws it", "J", source="paper"),
    ] = 0.4
    horizon: Annotated[Horizon, about("budget of each round, or a battery charged by it", source="paper")] = (
        Horizon.ROUND
    )
    trace: Annotated[
        Text | None, about("file of recorded energies, CSV or Parquet, beside the scenario; none: budget_j")
    ] = None
    charge_j: Annotated[PerClientNotNegative, about("charge of the battery before the first round", "J")] = 0.0
    capacity_j: Annotated[PerClientPositive | None, about("most that a battery holds; none: unlimited", "J")] = None
    price: Annotated[NotNegative, about("price of energy in the objective of a round, for exact", "1/J")] = 0.0


class Mobility(Section, frozen=True, kw_only=True):
    """Movement of the clients; independent of the scheduler."""

    model: Annotated[MobilityModel, about("movement of the clients between rounds")] = MobilityModel.STATIC
    min_speed_m_per_s: Annotated[Positive, about("least speed towards a waypoint", "m/s")] = 1.0
    max_speed_m_per_s: Annotated[Positive, about("greatest speed towards a waypoint", "m/s")] = 2.0
    pause_rounds: Annotated[int, Meta(ge=0), about("rounds a client rests at a waypoint")] = 0
    seconds_per_round: Annotated[Positive, about("nominal time between rounds in which clients move", "s")] = 1.0


class Geometry(Section, frozen=True, kw_only=True):
    """Positions of clients and access points on the plane, and their radio ranges."""

    placement: Annotated[Placement, about("placement of the clients in round 1", source="paper")] = Placement.RING
    distance_m: Annotated[PerClientPositive, about("distance d_i of placement ring", "m", source="paper")] = 200.0
    area_m: Annotated[Sides, about("width and height, from (0, 0), of the clients' area", "m")] = (
        1000.0,
        1000.0,
    )
    client_positions_m: Annotated[tuple[Point, ...] | None, about("x, y of every client, if listed", "m")] = None
    access_points_m: Annotated[tuple[Point, ...], Meta(min_length=1), about("x, y of every access point", "m")] = (
        (500.0, 500.0),
    )
    access_range_m: Annotated[
        Positive | None, about("greatest distance of a client to its access point; none: unlimited", "m")
    ] = None
    backbone_range_m: Annotated[
        Positive | None, about("greatest distance of linked access points; none: all are linked", "m")
    ] = None
    peer_range_m: Annotated[Positive | None, about("greatest distance of linked clients; none: never", "m")] = None
    mobility: Mobility = Mobility()


class Availability(Section, frozen=True, kw_only=True):
    """Presence of the clients, independent of the scheduler: a two-state Markov chain each, or a trace."""

    leave_probability: Annotated[
        PerClientFraction, about("chance that a client is away in the round after one it is there")
    ] = 0.0
    return_probability: Annotated[
        PerClientFraction, about("chance that a client is back in the round after one it is away")
    ] = 1.0
    trace: Annotated[
        Text | None, about("file of the rounds from which to which clients are there, CSV or Parquet; none: drawn")
    ] = None

    @property
    def is_on(self) -> bool:
        """True if a client may be away in some round."""
        return self.trace is not None or self.leave_probability != 0.0


class SchedulerChoice(Section, frozen=True, kw_only=True):
    """The scheduler and its parameters."""

    name: Annotated[Text, about("scheduler, by the name it is registered under", source="paper")] = "drc"
    tradeoff: Annotated[Positive, about("weight V of delay against the queues", "1/s", source="calibrated")] = 100.0
    parameters: Annotated[dict[str, Parameter], about("the scheduler's own parameters, checked by the scheduler")] = {}  # noqa: RUF012 (every scenario gets a copy)


class Scenario(Section, frozen=True, kw_only=True):
    """Complete description of a run. Raises `ScenarioError` on any value outside its limits."""

    name: Annotated[Text, about("name of the scenario")] = "scenario"
    description: Annotated[str, about("purpose of the scenario, in one sentence")] = ""
    rounds: Annotated[WholePositive, about("number of rounds T", source="paper")] = 100
    seed: Annotated[int, Meta(ge=0), about("all draws of a run derive from it")] = 0
    clients: Clients = Clients()
    data: DataChoice = DataChoice()
    partition: PartitionChoice = PartitionChoice()
    participation: Participation = Participation()
    radio: Radio = Radio()
    compute: Compute = Compute()
    mining: Mining = Mining()
    protocol: Protocol = Protocol()
    energy: Energy = Energy()
    geometry: Geometry = Geometry()
    availability: Availability = Availability()
    scheduler: SchedulerChoice = SchedulerChoice()
    learning: Learning = Learning()
    privacy: Privacy = Privacy()
    ledger: Ledger = Ledger()
    faults: Faults = Faults()
    adversaries: Adversaries = Adversaries()
    live: Live = Live()

    def __post_init__(self) -> None:
        validate_scenario(self)


def walk_keys(section: Section, prefix: str = "") -> Iterator[tuple[str, inspect.Field, object]]:
    """Yield every dotted key with its field and value, in the order of the file."""
    node = type_info(type(section))
    for field in node.fields if isinstance(node, inspect.StructType) else ():
        value = getattr(section, field.name)
        if isinstance(value, Section):
            yield from walk_keys(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


@cache
def _annotations() -> dict[str, Annotation]:
    return get_type_hints(Scenario, include_extras=True)


def validate_scenario(scenario: Scenario) -> None:
    """Raise `ScenarioError` for the first value that is out of its limits or inconsistent with others."""
    for name, annotation in _annotations().items():
        check_value(getattr(scenario, name), annotation, name)
    clients = scenario.clients
    if clients.min_selected > clients.count:
        allowed = f"at most clients.count, which is {clients.count}"
        raise refuse_value("clients.min_selected", clients.min_selected, allowed)
    for key, field, value in walk_keys(scenario):
        if is_per_client(field.type):
            check_per_client(value, field.type, key, clients.count)
        if isinstance(value, Drawn) and value.each_round and key != "energy.budget_j":
            raise refuse_value(f"{key}.each_round", True, "false: only energy.budget_j is drawn in each round")
    _validate_geometry(scenario.geometry, clients.count)
    if scenario.availability.trace is not None and scenario.availability.leave_probability != 0.0:
        raise refuse_value("availability.trace", scenario.availability.trace, "none where leave_probability is given")
    if scenario.energy.horizon is Horizon.ROUND:
        _refuse_keys(scenario.energy, ("charge_j", "capacity_j"), 'no such key where energy.horizon is "round"')
    validate_partition(scenario.partition)
    _validate_flower(scenario)
    _validate_privacy(scenario)
    learning = scenario.learning
    if learning.personal and learning.gradient_every:
        allowed = "0 where layers are personal: the loss of Lemma 1 is that of one model for all"
        raise refuse_value("learning.gradient_every", learning.gradient_every, allowed)
    for member in scenario.adversaries.members:
        if not 0 <= member < clients.count:
            raise refuse_value("adversaries.members", member, f"client numbers, 0 to {clients.count - 1}")


def _validate_flower(scenario: Scenario) -> None:
    learning, adversaries = scenario.learning, scenario.adversaries
    for key in ("flower", "flower_model"):
        name: str | None = getattr(learning, key)
        if name is not None and not is_function(name):
            raise refuse_value(f"learning.{key}", name, "a name such as mypackage.client:client_fn")
    if learning.flower is None:
        return
    if learning.gradient_every:
        raise refuse_value("learning.gradient_every", learning.gradient_every, "0: a Flower client gives no gradients")
    own = "no such key: a Flower client has its own layers, optimizer and device"
    _refuse_keys(learning, OPTIMIZATION_KEYS, own)
    if adversaries.kind is Behaviour.LABEL_FLIP and adversaries.members:
        raise refuse_value("adversaries.kind", adversaries.kind, "another: a Flower client keeps its labels to itself")


def _validate_privacy(scenario: Scenario) -> None:
    privacy = scenario.privacy
    if privacy.noise_multiplier is not None and privacy.epsilon is not None:
        allowed = "one of privacy.noise_multiplier and privacy.epsilon, which finds the noise"
        raise refuse_value("privacy.epsilon", privacy.epsilon, allowed)
    if not privacy.is_on:
        return
    if scenario.learning.engine is Engine.VMAP:
        raise refuse_value("learning.engine", "vmap", "loop where training is private")
    unknown = ("proximal", "clip_norm", "augment", "personal", "precision")
    _refuse_keys(scenario.learning, unknown, "no such key where training is private")
    if scenario.learning.flower is not None:
        allowed = "none where training is private: clipping and noise of a Flower client cannot be enforced"
        raise refuse_value("learning.flower", scenario.learning.flower, allowed)


def _refuse_keys(section: Learning | Energy, keys: Sequence[str], allowed: str) -> None:
    for key in keys:
        if getattr(section, key) != getattr(type(section)(), key):
            raise refuse_value(f"{type(section).__name__.lower()}.{key}", getattr(section, key), allowed)


def _validate_geometry(geometry: Geometry, num_clients: int) -> None:
    key = "geometry.client_positions_m"
    positions = geometry.client_positions_m
    if geometry.placement is Placement.LISTED:
        if positions is None or len(positions) != num_clients:
            found = "missing" if positions is None else f"a list of {len(positions)} given"
            raise ScenarioError(key, found, f"allowed is one [x, y] for each of the {num_clients} clients")
    elif positions is not None:
        raise ScenarioError(key, f"positions given with placement {geometry.placement}", 'allowed with "listed" only')
    mobility = geometry.mobility
    if mobility.min_speed_m_per_s > mobility.max_speed_m_per_s:
        allowed = f"at most max_speed_m_per_s, which is {mobility.max_speed_m_per_s!r}"
        raise refuse_value("geometry.mobility.min_speed_m_per_s", mobility.min_speed_m_per_s, allowed)
    if mobility.model is MobilityModel.REDRAWN and geometry.placement is Placement.LISTED:
        raise refuse_value("geometry.mobility.model", "redrawn", "static or random-waypoint for listed positions")
