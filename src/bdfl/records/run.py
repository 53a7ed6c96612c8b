"""Decisions and costs of a run as typed columns.

As JSON a run is one object: `scenario`, `scheduler`, `seed` and so on, a `summary`, and `rounds`. `rounds` is a list
with one object per round, with the fields of `RoundRecord`. Names contain the units. Unknown values (a gap without a
proven bound, the objective of an infeasible round) are `null` there and NaN here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.compute import round_delay
from bdfl.errors import BdflError
from bdfl.scheduling.problem import Status
from bdfl.types import PerClient


class InvalidRecord(BdflError):
    """A round that a run does not have, or a run without rounds."""


NOBODY = -1  # in place of a client's number: no slowest client, no winner

PerRound = NDArray[np.float64]  # (rounds,)
PerRoundCount = NDArray[np.int64]  # (rounds,)
PerRoundMask = NDArray[np.bool_]  # (rounds,)
PerRoundClient = NDArray[np.float64]  # (rounds, clients)
PerRoundClientMask = NDArray[np.bool_]  # (rounds, clients)


Statuses = TypeVar("Statuses", Status, tuple[Status, ...])
Reasons = TypeVar("Reasons", str | None, tuple[str | None, ...])
Numbers = TypeVar("Numbers", float, PerRound)
Counts = TypeVar("Counts", int, PerRoundCount)
Flags = TypeVar("Flags", bool, PerRoundMask)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rounds(Generic[Statuses, Reasons, Numbers, Counts, Flags]):
    """State, decision, costs and queues of one round, or of many as columns; see `RoundRecord` and `RunRecord`.

    An infeasible round has a reason, takes no time, costs nothing and selects no client. Arrays of clients are
    (clients,) in one round and (rounds, clients) in many.
    """

    round: Counts  # 1-based
    status: Statuses
    reason: Reasons
    selected: PerRoundClientMask
    delivered: PerRoundClientMask  # clients whose update counts: all selected ones, unless their training failed
    cpu_hz: PerRoundClient
    mining_hz: PerRoundClient
    power_w: PerRoundClient
    training_j: PerRoundClient
    upload_j: PerRoundClient
    mining_j: PerRoundClient
    energy_budget_j: PerRoundClient
    slowest: Counts  # the client that uploads last; NOBODY where infeasible
    training_s: Numbers  # of the slowest client
    upload_s: Numbers  # of the slowest client
    planned_mining_s: Numbers  # expected by the scheduler; `mining_s` is the actual time
    mining_s: Numbers
    overhead_s: Numbers  # downlink, verification and voting
    winner: Counts  # client that found the block; NOBODY unless mining is sampled
    objective: Numbers  # as planned; NaN where infeasible
    gap: Numbers  # proven; NaN where no bound is known
    iterations: Counts  # K
    queue: PerRoundClient  # before the round
    next_queue: PerRoundClient  # after it
    lyapunov: Numbers  # of the queues before the round, Eq. 18
    drift: Numbers  # Eq. 19
    drift_bound: Numbers  # Eq. 21
    connectivity: Numbers  # second eigenvalue of the topology's Laplacian
    is_connected: Flags
    num_reachable: Counts

    @cached_property
    def exchange_s(self) -> Numbers:
        """Time until the last selected client has uploaded (s)."""
        return self.training_s + self.upload_s

    @cached_property
    def delay_s(self) -> Numbers:
        """Round delay (s): exchange, mining and overhead; zero where infeasible."""
        return round_delay(self.exchange_s, self.mining_s, self.overhead_s)

    @cached_property
    def energy_j(self) -> PerRoundClient:
        """Energy of every client (J)."""
        return self.training_j + self.upload_j + self.mining_j


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord(Rounds[Status, str | None, float, int, bool]):
    """One round."""

    @property
    def took_place(self) -> bool:
        return self.status is not Status.INFEASIBLE


@dataclass(frozen=True, eq=False, kw_only=True)
class RunHead:
    """Identity and constants of a run."""

    scenario: str
    scenario_digest: str
    scheduler: str
    tradeoff: float  # V
    seed: int
    drift_constant: float  # Q of Eq. 21


def facts_of(head: RunHead) -> dict[str, Any]:
    """Return the fields of `RunHead` by name."""
    return {item.name: getattr(head, item.name) for item in fields(RunHead)}


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord(RunHead, Rounds[tuple[Status, ...], tuple[str | None, ...], PerRound, PerRoundCount, PerRoundMask]):
    """A whole run as columns, one row per round."""

    participation_rate: PerClient  # beta_i

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
        return mean_or_nan(self.delay_s[self.took_place])

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
        return mean_or_nan(spent_j[budget_j > 0] / budget_j[budget_j > 0])

    @property
    def mean_gap(self) -> float:
        """Mean proven gap of the rounds that have one; NaN if none has."""
        return mean_or_nan(self.gap[np.isfinite(self.gap)])

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


def collect_run(rounds: Sequence[RoundRecord], head: RunHead, participation_rate: PerClient) -> RunRecord:
    """Return a run from its rounds, in order; at least one is needed."""
    if not rounds:
        raise InvalidRecord("rounds: a run needs at least one, none given")
    columns = {name: [getattr(record, name) for record in rounds] for name in _COLUMNS}
    return RunRecord(
        participation_rate=participation_rate,
        status=tuple(columns.pop("status")),
        reason=tuple(columns.pop("reason")),
        **facts_of(head) | {name: np.array(values) for name, values in columns.items()},
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
        mean_selected=mean_or_nan(record.num_selected[record.took_place].astype(np.float64)),
        mean_iterations=mean_or_nan(record.iterations[record.took_place].astype(np.float64)),
        mean_gap=record.mean_gap,
        final_queue_mean=float(np.mean(record.next_queue[-1])),
    )


# Names in JSON and in tables: every field of a round, and the sums, each after its last part.

_SUMS = {"mining_j": "energy_j", "upload_s": "exchange_s", "overhead_s": "delay_s"}
ROUND_NAMES = tuple(name for column in _COLUMNS for name in (column, _SUMS.get(column)) if name is not None)
CLIENT_NAMES = (
    *(item.name for item in fields(RoundRecord) if item.type in (PerRoundClient, PerRoundClientMask)),
    "energy_j",
)


def encode_run(record: RunRecord) -> bytes:
    """Return the run as JSON, see the module."""
    return encode_document(
        record,
        {"participation_rate": record.participation_rate.tolist()},
        {"summary": summarise_run(record), "rounds": [_row_of(one) for one in record.rounds]},
    )


def encode_document(head: RunHead, size: Mapping[str, object], content: Mapping[str, object]) -> bytes:
    """Encode the fields of the head, then the content; the size of the run stands before the last of the head."""
    known = facts_of(head)
    constant = known.pop("drift_constant")
    return msgspec.json.encode({**known, **size, "drift_constant": constant, **content})


def _row_of(record: RoundRecord) -> dict[str, object]:
    cells = {name: getattr(record, name) for name in ROUND_NAMES}
    for name in ("selected", "delivered"):
        cells[name] = np.flatnonzero(cells[name])
    for name in ("slowest", "winner"):
        cells[name] = known_client(cells[name])
    return {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in cells.items()}


def known_client(client: int) -> int | None:
    """Return the client's number; None for `NOBODY`."""
    return None if client == NOBODY else client


def mean_or_nan(values: NDArray[np.float64]) -> float:
    """Return the mean; NaN of no values."""
    return float(np.mean(values)) if values.size else float("nan")
