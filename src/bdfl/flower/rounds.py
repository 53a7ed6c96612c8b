"""Scheduled rounds of a Flower server, the assignment of its nodes to clients, and Flower's arrays as a flat model.

Data from clients are untrusted until checked: first the size, then the form, then the numbers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.aggregation import Update, aggregate, get_aggregator, min_updates
from bdfl.errors import BdflError, one_line
from bdfl.experiment.run_folder import BadRunFolder, write_record_files, write_scenario
from bdfl.experiment.simulation import Draws, PlannedRound, collect_rounds, draw_run, play_rounds
from bdfl.flower.audit_chain import ServerChain, server_keys
from bdfl.learning.flower_clients import ArrayForm, BadArrays, form_of
from bdfl.learning.weights import Layout, Vector, is_finite
from bdfl.records import RoundRecord, RunRecord
from bdfl.records.learning import CHAIN_FOLDER
from bdfl.scenario import Scenario
from bdfl.scheduling.registry import get_scheduler
from bdfl.server_optimizer import ModelState, first_state, settings_of, take_step
from bdfl.types import PerClientMask

# Rounds of a scenario for a server with real clients: selection, costs and aggregation.

Config = dict[str, int | float]


class OutOfTurn(BdflError):
    """A round out of order, or beyond the scenario's last one."""


class NotOurTraining(BdflError):
    """A guarantee of the scenario that only bdfl's own training can provide."""


@dataclass(frozen=True)
class Order:
    """Instructions of one client for a round."""

    client: int
    frequency_hz: float  # f_i: planned training frequency
    power_w: float  # P_i of its upload
    local_updates: int  # H, as in the cost model

    @property
    def config(self) -> Config:
        """The instructions as a config of a Flower client."""
        return {
            "bdfl-client": self.client,
            "bdfl-frequency-hz": self.frequency_hz,
            "bdfl-power-w": self.power_w,
            "bdfl-local-updates": self.local_updates,
        }


@dataclass(frozen=True, eq=False)
class Settled:
    """Result of a round."""

    weights: Vector | None  # the next global model; None: too few updates, it stays
    record: RoundRecord

    @property
    def costs(self) -> dict[str, int | float]:
        """The round's delay, total energy, and number of updates delivered."""
        return {
            "bdfl-delay-s": float(self.record.delay_s),
            "bdfl-energy-j": float(np.sum(self.record.energy_j)),
            "bdfl-delivered": int(np.count_nonzero(self.record.delivered)),
        }


class ScheduledRounds:
    """Plans every round by the scenario's scheduler and settles it with the delivered updates.

    It must be closed, unless all rounds of the scenario are played: then it closes itself.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        draws: Draws | None = None,
        folder: Path | None = None,
        chain: bool = True,
        secret: bytes | None = None,
    ) -> None:
        """Default `draws` are those of `bdfl simulate`.

        With a `folder`, which must be new, the scenario and the records are written there, and with `chain` the audit
        chain. The members' keys are derived from `secret`, or else from the public seed, which makes them reproducible.
        """
        if scenario.privacy.is_on:
            raise NotOurTraining(
                "privacy: on, but Flower's clients train by themselves: what they spend is not known here; leave"
                " [privacy] out, or run the scenario with bdfl run"
            )
        scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
        self._aggregator = get_aggregator(scenario.learning.aggregation)
        self._server = settings_of(scenario.learning.aggregation)
        self._state: ModelState | None = None  # of the server, where it has an optimizer
        if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadRunFolder(f"{folder}: exists already and is not empty, a new folder expected")
        self.scenario = scenario
        self.draws = draw_run(scenario) if draws is None else draws
        self._rounds = play_rounds(scenario, scheduler, self.draws)
        self._folder = folder
        self._signers = server_keys(scenario, secret) if folder is not None and chain else None
        self._is_simulated = secret is None
        self._chain: ServerChain | None = None
        self._planned: PlannedRound | None = None
        self._records: list[RoundRecord] = []
        self._doubted: set[int] = set()
        self._is_closed = False

    @property
    def record(self) -> RunRecord:
        """The record of the settled rounds; raises `InvalidRecord` if there are none."""
        return collect_rounds(self.scenario, self.draws, self._records)

    @property
    def is_waiting(self) -> bool:
        """True if a round is planned and not settled."""
        return self._planned is not None

    def samples_of(self, client: int) -> int:
        """Size |D_i| of the client's data set, the weight of its update."""
        return int(self.draws.federation.samples[client])

    def doubt_samples(self, client: int, found: object) -> str | None:
        """Return a warning, once, about a client that trained on another number of samples than the scenario's."""
        expected = self.samples_of(client)
        if found == expected or client in self._doubted:
            return None
        self._doubted.add(client)
        return f"client {client} trained on {found} samples, the scenario has {expected} for it, which weigh its update"

    def validate_rounds(self, num_rounds: int) -> None:
        """Raise `OutOfTurn` if the scenario has fewer rounds."""
        if num_rounds > self.scenario.rounds:
            raise OutOfTurn(f"{num_rounds} rounds asked for, the scenario has {self.scenario.rounds}")

    def plan(self, round: int, layout: Layout, weights: Vector) -> list[Order]:
        """Return the instructions of every selected client, in client order; all start from `weights`.

        A planned round without results is settled first, with no updates delivered.
        """
        if self._planned is not None:
            self.settle(self._planned.state.round, {})
        self.validate_rounds(round)
        if self._is_closed or round != len(self._records) + 1:
            next_one = "nothing, all is closed," if self._is_closed else f"round {len(self._records) + 1}"
            raise OutOfTurn(f"round {round} asked for, {next_one} comes next")
        if round == 1:
            self._begin(layout, weights)
            if self._server is not None:
                self._state = first_state(self._server, weights)
        self._planned = planned = self._bind(next(self._rounds))
        decision = planned.decision
        return [
            Order(
                client,
                float(decision.cpu_hz[client]),
                float(decision.power_w[client]),
                self.scenario.compute.local_updates,
            )
            for client in planned.clients
        ]

    def settle(self, round: int, trained: Mapping[int, Vector]) -> Settled:
        """Settle the planned round with these models, by client.

        A selected client without a model, or with one that is not finite, has not delivered: its queue grows.
        """
        planned = self._planned
        if planned is None or planned.state.round != round:
            asked = "none is planned" if planned is None else f"round {planned.state.round} is planned"
            raise OutOfTurn(f"round {round} to be settled, {asked}")
        arrived = [client for client in planned.clients if client in trained and is_finite(trained[client])]
        counted = {client: trained[client] for client in arrived}
        weights = self._aggregate(counted) if self._chain is None else self._chain.append(counted)
        delivered: PerClientMask = np.zeros(self.scenario.clients.count, dtype=np.bool_)
        delivered[list(counted)] = True
        record = planned.settle(delivered)
        self._records.append(record)
        self._planned = None
        if round == self.scenario.rounds:
            self.close()
        return Settled(weights, record)

    def close(self) -> None:
        """Write the records of the settled rounds and end the chain; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._chain is not None:
            self._chain.close()
        if self._folder is not None and self._records:
            write_record_files(self.scenario, self.record, self._folder)

    def _begin(self, layout: Layout, weights: Vector) -> None:
        if self._folder is None:
            return
        write_scenario(self.scenario, self._folder)
        if self._signers is not None:
            path = self._folder / CHAIN_FOLDER
            self._chain = ServerChain(
                self.scenario, self.draws, self._signers, path, layout, weights, is_simulated=self._is_simulated
            )

    def _bind(self, planned: PlannedRound) -> PlannedRound:
        """Return the round as scheduled on the chain, if any: in whole units a tie may select another set."""
        if self._chain is None or self._chain.selected == tuple(planned.clients):
            return planned
        planned.decision = replace(self._chain.decision, memory=planned.decision.memory)
        return planned

    def _aggregate(self, counted: Mapping[int, Vector]) -> Vector | None:
        updates = [Update(client, vector, self.samples_of(client)) for client, vector in counted.items()]
        updates = [update for update in updates if update.samples > 0]
        if len(updates) < min_updates(self.scenario.learning.aggregation):
            return None
        aggregated = aggregate(self._aggregator, updates)
        if self._server is None or self._state is None:
            return aggregated
        self._state = take_step(self._server, self._state, aggregated)
        weights: Vector = self._state[0]
        return weights


# Assignment of Flower's nodes to the scenario's clients.


class Roster:
    """Client numbers by node. A node keeps its number while connected; afterwards the number is free."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._told: dict[int, int | None] = {}  # number requested by a node; None: not specified
        self._client_of: dict[int, int] = {}
        self._present: frozenset[int] = frozenset()

    def find_strangers(self, present: Collection[int]) -> list[int]:
        """Return the nodes not yet queried for their number, in order."""
        return sorted(node for node in present if node not in self._told)

    def enrol(self, present: Collection[int], told: Mapping[int, int | None]) -> list[int]:
        """Assign numbers to new nodes: the requested one if free, else the lowest that is still free.

        `told` are the answers of all new nodes. Returns the nodes for which no number is left.
        """
        self._present = frozenset(present)
        self._told |= {node: told.get(node) for node in self.find_strangers(present)}
        self._client_of = {node: client for node, client in self._client_of.items() if node in self._present}
        newcomers = sorted(self._present - self._client_of.keys())
        free = set(range(self._num_clients)) - set(self._client_of.values())
        for node in newcomers:
            wanted = self._told[node]
            if wanted is not None and wanted in free:
                self._client_of[node] = wanted
                free.remove(wanted)
        waiting = [node for node in newcomers if node not in self._client_of]
        self._client_of |= dict(zip(waiting, sorted(free), strict=False))
        return waiting[len(free) :]

    def node_of(self, client: int) -> int | None:
        """Return the node of the client; None if there is none now."""
        return next((node for node, number in self._client_of.items() if number == client), None)


_WIDEST = 8  # bytes of the widest number type
_HEAD = 4096  # limit on numpy's header, in bytes


def find_form(arrays: Mapping[str, bytes]) -> tuple[ArrayForm, Vector]:
    """Return the form of the model in the server's own arrays, and its weights; raise `BadArrays`."""
    form = form_of({name: _decode(name, data) for name, data in arrays.items()})
    return form, read_arrays(form, arrays)


def read_arrays(form: ArrayForm, arrays: Mapping[str, bytes]) -> Vector:
    """Read the model in a client's arrays, (parameters,), of any numeric type. Raises `BadArrays`."""
    most = dict(zip(form.layout.names, form.layout.sizes, strict=True))
    for name, data in arrays.items():
        allowed = most.get(name, 0) * _WIDEST + _HEAD
        if len(data) > allowed:
            raise BadArrays(f"array {name!r} of {len(data)} bytes given, expected at most {allowed}")
    weights = form.join({name: _decode(name, data) for name, data in arrays.items()})
    if not is_finite(weights):
        raise BadArrays("weights that are not all finite given, expected a model that can be averaged")
    return weights


def _decode(name: str, data: bytes) -> NDArray[Any]:
    try:
        found = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise BadArrays(f"array {name!r} is not in numpy's format: {one_line(error)}") from None
    if not isinstance(found, np.ndarray):
        raise BadArrays(f"array {name!r} is a {type(found).__name__}, expected one array in numpy's format")
    return found
