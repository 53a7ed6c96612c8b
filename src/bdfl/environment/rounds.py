"""Constants of a run's clients and the state of each round: the same for every scheduler."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from bdfl.compute import training_cycles
from bdfl.environment.draws import (
    Purpose,
    draw_availability,
    draw_fading,
    draw_shadowing,
    draw_values,
    read_energy_trace,
    read_gain_trace,
    stream,
)
from bdfl.environment.geometry import (
    AccessPoint,
    Attachment,
    Points,
    Topology,
    attach_clients,
    find_topology,
    link_nodes,
    move_clients,
    place_clients,
)
from bdfl.radio import channel_gain
from bdfl.scenario import PerClientValue, Scenario
from bdfl.scenario.distributions import Drawn
from bdfl.types import PerClient, PerClientMask

_Element = TypeVar("_Element", bound=np.generic)


@dataclass(frozen=True, eq=False, kw_only=True)
class Federation:
    """Quantities constant over a run; arrays are read-only and in client order, (clients,) unless noted otherwise."""

    samples: PerClient  # |D_i|, whole numbers
    cycles: PerClient  # c_i = phi_i H |D_i|
    capacitance: PerClient  # chi_i
    power_w: PerClient  # P_i
    power_max_w: PerClient
    model_bits: PerClient  # m_i
    cpu_max_hz: PerClient  # infinity: no cap
    mining_max_hz: PerClient  # infinity: no cap
    initial_cpu_hz: PerClient
    initial_mining_hz: PerClient
    start_m: Points  # (clients, 2): positions in round 1
    access_point_m: Points  # (access points, 2)
    shadowing: NDArray[np.float64]  # (access points, clients): power gain, fixed for the run

    @property
    def num_clients(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundState:
    """State of a round, independent of all decisions; arrays are read-only and in client order."""

    round: int  # from 1
    gain: PerClient  # h_i(t)
    energy_budget_j: PerClient  # E_i^max(t); under `horizon = "run"` what the battery receives
    available: PerClientMask  # there; the others are away
    reachable: PerClientMask  # may be scheduled: available, and in the component with the most clients
    connectivity: float  # lambda_2, see Topology
    is_connected: bool  # C1
    position_m: Points  # (clients, 2)
    access_point: AccessPoint  # the access point that serves the client


def draw_federation(scenario: Scenario, samples: PerClient | None = None) -> Federation:
    """Draw the clients and access points of a run; `samples` are the sizes of real data sets, if there are any."""
    num_clients, seed = scenario.clients.count, scenario.seed
    radio, compute, mining = scenario.radio, scenario.compute, scenario.mining

    def draw(purpose: Purpose, value: PerClientValue) -> PerClient:
        return draw_values(stream(seed, purpose), value, num_clients)

    unlimited = np.full(num_clients, np.inf)
    samples = draw_samples(scenario) if samples is None else samples
    cycles_per_sample = draw(Purpose.CYCLES_PER_SAMPLE, compute.cycles_per_sample)
    power_w = draw(Purpose.POWER, radio.power_w)
    access_point_m = np.array(scenario.geometry.access_points_m, dtype=np.float64)
    shadowing = np.broadcast_to(1.0, (len(access_point_m), num_clients))
    if radio.shadowing_db > 0:
        streams = (stream(seed, Purpose.SHADOWING, number) for number in range(len(access_point_m)))
        shadowing = np.stack([draw_shadowing(rng, radio.shadowing_db, num_clients) for rng in streams])
    return Federation(
        samples=_freeze(samples),
        cycles=_freeze(training_cycles(cycles_per_sample, compute.local_updates, samples)),
        capacitance=_freeze(draw(Purpose.CAPACITANCE, compute.capacitance)),
        power_w=_freeze(power_w),
        power_max_w=_freeze(power_w if radio.power_max_w is None else draw(Purpose.POWER_MAX, radio.power_max_w)),
        model_bits=_freeze(draw(Purpose.MODEL_BITS, radio.model_bits)),
        cpu_max_hz=_freeze(unlimited if compute.max_hz is None else draw(Purpose.CPU_MAX, compute.max_hz)),
        mining_max_hz=_freeze(unlimited if mining.max_hz is None else draw(Purpose.MINING_MAX, mining.max_hz)),
        initial_cpu_hz=_freeze(draw(Purpose.INITIAL_CPU, compute.initial_hz)),
        initial_mining_hz=_freeze(draw(Purpose.INITIAL_MINING, mining.initial_hz)),
        start_m=_freeze(place_clients(scenario.geometry, num_clients, seed)),
        access_point_m=_freeze(access_point_m),
        shadowing=_freeze(shadowing),
    )


def draw_samples(scenario: Scenario) -> PerClient:
    """Size |D_i| of every client's data set as the scenario sets it: whole numbers of at least 1, (clients,)."""
    drawn = draw_values(stream(scenario.seed, Purpose.SAMPLES), scenario.clients.samples, scenario.clients.count)
    return np.maximum(np.rint(drawn), 1.0)


def draw_rounds(scenario: Scenario, federation: Federation) -> Iterator[RoundState]:
    """Draw the states of rounds 1 to T in order: the same for every scheduler.

    Gains, energies and presence are drawn or read from traces. A bad trace raises `BadTrace` in this call, not in a
    later round.
    """
    trace = energy_j = None
    if scenario.radio.trace is not None:
        trace = read_gain_trace(Path(scenario.radio.trace), scenario.rounds, federation.num_clients)
    if scenario.energy.trace is not None:
        energy_j = read_energy_trace(Path(scenario.energy.trace), scenario.rounds, federation.num_clients)
    return _draw_rounds(scenario, federation, trace, energy_j, draw_availability(scenario))


def owed_participation(scenario: Scenario, rate: PerClient, num_rounds: int) -> PerClient:
    """Share of the first rounds in which each client should take part, (clients,).

    A client owes its `rate` of the rounds in which it is there.
    """
    if not scenario.availability.is_on:
        return rate
    num_present = sum(islice(draw_availability(scenario), num_rounds), np.zeros(len(rate)))
    return rate * (num_present / num_rounds)


class DrawnRounds(Sequence[RoundState]):
    """States of rounds 1 to T, drawn again at every iteration and never stored: always the same rounds.

    Iterating over all costs the same as `draw_rounds`. Round t alone costs the draws of rounds 1 to t.
    """

    def __init__(self, scenario: Scenario, federation: Federation) -> None:
        self._scenario = scenario
        self._federation = federation

    def __len__(self) -> int:
        return self._scenario.rounds

    def __iter__(self) -> Iterator[RoundState]:
        return draw_rounds(self._scenario, self._federation)

    @overload
    def __getitem__(self, place: int) -> RoundState: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[RoundState]: ...
    def __getitem__(self, place: int | slice) -> RoundState | Sequence[RoundState]:
        if isinstance(place, slice):
            return list(self)[place]
        wanted = range(len(self))[place]  # raises IndexError if there is no such round
        return next(islice(self, wanted, None))


def _draw_rounds(
    scenario: Scenario,
    federation: Federation,
    trace: NDArray[np.float64] | None,
    energy_j: NDArray[np.float64] | None,
    availability: Iterator[PerClientMask],
) -> Iterator[RoundState]:
    budget_j = _draw_budget(scenario, federation.num_clients, 0)
    network: _Network | None = None
    places = move_clients(scenario.geometry, federation.start_m, scenario.seed, scenario.rounds)
    for round, (position_m, available) in enumerate(zip(places, availability, strict=True), start=1):
        network = _find_network(scenario, federation, position_m, available, network)
        attachment, topology = network.attachment, network.topology
        if isinstance(scenario.energy.budget_j, Drawn) and scenario.energy.budget_j.each_round:
            budget_j = _draw_budget(scenario, federation.num_clients, round)
        if energy_j is not None:
            budget_j = _freeze(energy_j[round - 1])
        yield RoundState(
            round=round,
            gain=_freeze(_draw_gain(scenario, attachment, round) if trace is None else trace[round - 1]),
            energy_budget_j=budget_j,
            available=_freeze(available),
            reachable=_freeze(topology.reachable),
            connectivity=topology.connectivity,
            is_connected=topology.is_connected,
            position_m=_freeze(position_m),
            access_point=_freeze(attachment.access_point),
        )


@dataclass(frozen=True, eq=False)
class _Network:
    """Positions, presence, attachments and links of one round."""

    position_m: Points
    available: PerClientMask
    attachment: Attachment
    topology: Topology


def _find_network(
    scenario: Scenario, federation: Federation, position_m: Points, available: PerClientMask, last: _Network | None
) -> _Network:
    """Return the network of the clients at these positions; parts unchanged since the `last` round are reused."""
    is_same = last is not None and np.array_equal(available, last.available)
    if last is not None and is_same and position_m is last.position_m:
        return last
    geometry, access_point_m = scenario.geometry, federation.access_point_m
    attachment = attach_clients(
        scenario.radio, position_m, access_point_m, federation.shadowing, geometry.access_range_m
    )
    links = link_nodes(geometry, position_m, attachment)
    if last is not None and is_same and np.array_equal(links, last.topology.links):
        return _Network(position_m, available, attachment, last.topology)
    topology = find_topology(links, federation.num_clients, len(access_point_m), available)
    return _Network(position_m, available, attachment, topology)


def _draw_gain(scenario: Scenario, attachment: Attachment, round: int) -> PerClient:
    """Power gain of every client to its access point in one round (dimensionless), (clients,)."""
    radio = scenario.radio
    fading = draw_fading(stream(scenario.seed, Purpose.FADING, round), radio.fading, len(attachment.distance_m))
    return channel_gain(
        radio.reference_gain,
        fading * attachment.shadowing,
        attachment.distance_m,
        radio.reference_distance_m,
        radio.path_loss_exponent,
    )


def _draw_budget(scenario: Scenario, num_clients: int, round: int) -> PerClient:
    return _freeze(
        draw_values(stream(scenario.seed, Purpose.ENERGY_BUDGET, round), scenario.energy.budget_j, num_clients)
    )


def _freeze(values: NDArray[_Element]) -> NDArray[_Element]:
    values.setflags(write=False)
    return values
