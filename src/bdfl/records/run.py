"""Decisions and costs of a run as typed columns.

As JSON a run is one object: `scenario`, `scheduler`, `seed` and so on, a `summary`, and `rounds`. `rounds` is a list
with one object per round, with the fields of `RoundRecord`. Names contain the units. Unknown values (a gap without a
proven bound, the objective of an infeasible round) are `null` there and NaN here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.compute import round_delay
from bdfl.errors import BdflError
from bdfl.scheduling.problem import Status
from bdfl.types import PerClient, PerClientMask


class InvalidRecord(BdflError):
    """A round that a run does not have, or a run without rounds."""


NOBODY = -1  # in place of a client's number: no slowest client, no winner

PerRound = NDArray[np.float64]  # (rounds,)
PerRoundCount = NDArray[np.int64]  # (rounds,)
PerRoundMask = NDArray[np.bool_]  # (rounds,)
PerRoundClient = NDArray[np.float64]  # (rounds, clients)
PerRoundClientMask = NDArray[np.bool_]  # (rounds, clients)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord:
    """One round: state, decision, costs and queues.

    An infeasible round has a reason, takes no time, costs nothing and selects no client.
    """

    round: int  # 1-based
    status: Status
    reason: str | None
    selected: PerClientMask
    delivered: PerClientMask  # clients whose update counts: all selected ones, unless their training failed
    cpu_hz: PerClient
    mining_hz: PerClient
    power_w: PerClient
    training_j: PerClient
    upload_j: PerClient
    mining_j: PerClient
    energy_budget_j: PerClient
    slowest: int  # the client that uploads last; NOBODY where infeasible
    training_s: float  # of the slowest client
    upload_s: float  # of the slowest client
    planned_mining_s: float  # expected by the scheduler; `mining_s` is the actual time
    mining_s: float
    overhead_s: float  # downlink, verification and voting
    winner: int  # client that found the block; NOBODY unless mining is sampled
    objective: float  # as planned; NaN where infeasible
    gap: float  # proven; NaN where no bound is known
    iterations: int  # K
    queue: PerClient  # before the round
    next_queue: PerClient  # after it
    lyapunov: float  # of the queues before the round, Eq. 18
    drift: float  # Eq. 19
    drift_bound: float  # Eq. 21
    connectivity: float  # second eigenvalue of the topology's Laplacian
    is_connected: bool
    num_reachable: int

    @property
    def took_place(self) -> bool:
        return self.status is not Status.INFEASIBLE

    @property
    def exchange_s(self) -> float:
        """Time until the last selected client has uploaded (s)."""
        return self.training_s + self.upload_s

    @property
    def delay_s(self) -> float:
        """Round delay (s): exchange, mining and overhead."""
        return round_delay(self.exchange_s, self.mining_s, self.overhead_s)

    @property
    def energy_j(self) -> PerClient:
        """Energy of every client (J), (clients,)."""
        return self.training_j + self.upload_j + self.mining_j


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord:
    """A whole run as columns, one row per round: the fields of `RoundRecord` under the same names."""

    scenario: str
    scenario_digest: str
    scheduler: str
    tradeoff: float  # V
    seed: int
    participation_rate: PerClient  # beta_i
    drift_constant: float  # Q of Eq. 21
    round: PerRoundCount
    status: tuple[Status, ...]
    reason: tuple[str | None, ...]
    selected: PerRoundClientMask
    delivered: PerRoundClientMask
    cpu_hz: PerRoundClient
    mining_hz: PerRoundClient
    power_w: PerRoundClient
    training_j: PerRoundClient
    upload_j: PerRoundClient
    mining_j: PerRoundClient
    energy_budget_j: PerRoundClient
    slowest: PerRoundCount
    training_s: PerRound
    upload_s: PerRound
    planned_mining_s: PerRound
    mining_s: PerRound
    overhead_s: PerRound
    winner: PerRoundCount
    objective: PerRound
    gap: PerRound
    iterations: PerRoundCount
    queue: PerRoundClient
    next_queue: PerRoundClient
    lyapunov: PerRound
    drift: PerRound
    drift_bound: PerRound
    connectivity: PerRound
    is_connected: PerRoundMask
    num_reachable: PerRoundCount

    @property
    def num_rounds(self) -> int:
        return len(self.round)

    @property
    def num_clients(self) -> int:
        return len(self.participation_rate)

    @cached_property
    def took_place(self) -> PerRoundMask:
        """True for each round that took place, (rounds,); the others were infeasible."""
        return np.array([status is not Status.INFEASIBLE for status in self.status], dtype=np.bool_)

    @cached_property
    def exchange_s(self) -> PerRound:
        """Time until the last selected client has uploaded (s), (rounds,)."""
        return self.training_s + self.upload_s

    @cached_property
    def delay_s(self) -> PerRound:
        """Round delay (s), (rounds,); zero where infeasible."""
        return round_delay(self.exchange_s, self.mining_s, self.overhead_s)

    @cached_property
    def energy_j(self) -> PerRoundClient:
        """Energy of every client in every round (J), (rounds, clients)."""
        return self.training_j + self.upload_j + self.mining_j

    def share_of_budget(self, energy_j: PerRoundClient) -> PerRoundClient:
        """Return an energy (J) as a share of the round's budget, (rounds, clients); zero where there is no budget."""
        return np.divide(energy_j, self.energy_budget_j, out=np.zeros_like(energy_j), where=self.energy_budget_j > 0)

    @property
    def num_selected(self) -> PerRoundCount:
        """Number of clients that trained, (rounds,)."""
        count: PerRoundCount = np.count_nonzero(self.selected, axis=1)
        return count

    @property
    def num_infeasible(self) -> int:
        return int(np.count_nonzero(~self.took_place))

    @property
    def total_delay_s(self) -> float:
        """Time of all rounds that took place (s)."""
        return float(np.sum(self.delay_s))

    @property
    def mean_delay_s(self) -> float:
        """Mean delay of the rounds that took place (s); NaN if none did."""
        return _mean(self.delay_s[self.took_place])

    @property
    def participation(self) -> PerClient:
        """Share of all rounds in which each client took part with an update that counts, (clients,)."""
        share: PerClient = np.mean(self.delivered, axis=0)
        return share

    @property
    def worst_shortfall(self) -> float:
        """Largest shortfall of any client from its participation rate: max_i (beta_i - share_i), at least 0."""
        return max(float(np.max(self.participation_rate - self.participation)), 0.0)

    @property
    def mean_energy_use(self) -> float:
        """Mean share of the energy budgets spent in rounds that took place; NaN if none did."""
        budget_j = self.energy_budget_j[self.took_place]
        spent_j = self.energy_j[self.took_place]
        return _mean(spent_j[budget_j > 0] / budget_j[budget_j > 0])

    @property
    def mean_iterations(self) -> float:
        """Mean K of the rounds that took place; NaN if none did."""
        return _mean(self.iterations[self.took_place].astype(np.float64))

    @property
    def mean_gap(self) -> float:
        """Mean proven gap of the rounds that have one; NaN if none has."""
        return _mean(self.gap[np.isfinite(self.gap)])

    def round_record(self, round: int) -> RoundRecord:
        """Return one round (1-based) of the run."""
        row = round - 1
        if not 0 <= row < self.num_rounds:
            raise InvalidRecord(f"round: {round} asked for, the run has 1 to {self.num_rounds}")
        cells = {name: getattr(self, name)[row] for name in _COLUMNS}
        return RoundRecord(
            **{name: cell.item() if isinstance(cell, np.generic) else cell for name, cell in cells.items()}
        )

    @property
    def rounds(self) -> list[RoundRecord]:
        """All rounds, in order."""
        return [self.round_record(round) for round in range(1, self.num_rounds + 1)]


_COLUMNS = tuple(item.name for item in fields(RoundRecord))


def collect_run(
    rounds: Sequence[RoundRecord],
    *,
    scenario: str,
    scenario_digest: str,
    scheduler: str,
    tradeoff: float,
    seed: int,
    participation_rate: PerClient,
    drift_constant: float,
) -> RunRecord:
    """Return a run from its rounds, in order; at least one is needed."""
    if not rounds:
        raise InvalidRecord("rounds: a run needs at least one, none given")
    columns = {name: [getattr(record, name) for record in rounds] for name in _COLUMNS}
    return RunRecord(
        scenario=scenario,
        scenario_digest=scenario_digest,
        scheduler=scheduler,
        tradeoff=tradeoff,
        seed=seed,
        participation_rate=participation_rate,
        drift_constant=drift_constant,
        status=tuple(columns.pop("status")),
        reason=tuple(columns.pop("reason")),
        **{name: np.array(values) for name, values in columns.items()},
    )


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a few numbers; `null` where a number has no meaning (no round took place, no bound is known)."""

    rounds: int
    infeasible_rounds: int
    total_delay_s: float
    mean_delay_s: float
    worst_shortfall: float
    mean_energy_use: float
    mean_selected: float
    mean_iterations: float
    mean_gap: float
    final_queue_mean: float


def summarise_run(record: RunRecord) -> RunSummary:
    """Return the run's means over the rounds that took place."""
    return RunSummary(
        rounds=record.num_rounds,
        infeasible_rounds=record.num_infeasible,
        total_delay_s=record.total_delay_s,
        mean_delay_s=record.mean_delay_s,
        worst_shortfall=record.worst_shortfall,
        mean_energy_use=record.mean_energy_use,
        mean_selected=_mean(record.num_selected[record.took_place].astype(np.float64)),
        mean_iterations=record.mean_iterations,
        mean_gap=record.mean_gap,
        final_queue_mean=float(np.mean(record.next_queue[-1])),
    )


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """JSON form of a `RoundRecord`."""

    round: int
    status: Status
    reason: str | None
    selected: list[int]  # numbers of the clients that train
    delivered: list[int]  # those of them whose update counts
    cpu_hz: list[float]  # from here on one entry per client in every list
    mining_hz: list[float]
    power_w: list[float]
    training_j: list[float]
    upload_j: list[float]
    mining_j: list[float]
    energy_j: list[float]
    energy_budget_j: list[float]
    slowest: int | None
    training_s: float
    upload_s: float
    exchange_s: float
    planned_mining_s: float
    mining_s: float
    overhead_s: float
    delay_s: float
    winner: int | None
    objective: float | None
    gap: float | None
    iterations: int
    queue: list[float]
    next_queue: list[float]
    lyapunov: float
    drift: float
    drift_bound: float
    connectivity: float
    is_connected: bool
    num_reachable: int


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """JSON form of a `RunRecord`."""

    scenario: str
    scenario_digest: str
    scheduler: str
    tradeoff: float
    seed: int
    participation_rate: list[float]
    drift_constant: float
    summary: RunSummary
    rounds: list[RoundRow]


def encode_run(record: RunRecord) -> bytes:
    """Return the run as JSON: a `RunDocument`."""
    document = RunDocument(
        scenario=record.scenario,
        scenario_digest=record.scenario_digest,
        scheduler=record.scheduler,
        tradeoff=record.tradeoff,
        seed=record.seed,
        participation_rate=record.participation_rate.tolist(),
        drift_constant=record.drift_constant,
        summary=summarise_run(record),
        rounds=[_row_of(round_record) for round_record in record.rounds],
    )
    return msgspec.json.encode(document)


def _row_of(record: RoundRecord) -> RoundRow:
    cells = {name: getattr(record, name) for name in RoundRow.__struct_fields__}
    for name in ("selected", "delivered"):
        cells[name] = np.flatnonzero(cells[name])
    for name in ("slowest", "winner"):
        cells[name] = None if cells[name] == NOBODY else cells[name]
    plain = {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in cells.items()}
    return RoundRow(**plain)


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.mean(values)) if values.size else float("nan")
