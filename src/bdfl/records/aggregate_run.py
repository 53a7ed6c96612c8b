"""Aggregate record of a run with very many clients: one row of sums per round, and totals per client.

As JSON it is a run as in `bdfl.records.run` whose rounds have the fields of `AggregateRound`, with `clients`, the
spread of each client's totals.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.records.run import (
    InvalidRecord,
    RoundRecord,
    RunHead,
    RunSummary,
    encode_document,
    known_client,
    mean_or_nan,
)
from bdfl.scheduling.problem import Status
from bdfl.types import PerClient

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


class AggregateRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round of many clients: the scalar fields of `RoundRecord`, and sums and extremes of its lists."""

    round: int
    status: Status
    reason: str | None
    num_selected: int
    num_delivered: int
    slowest: int | None
    training_s: float  # of the slowest client
    upload_s: float  # of the slowest client
    exchange_s: float
    planned_mining_s: float
    mining_s: float
    overhead_s: float
    delay_s: float
    winner: int | None
    objective: float
    gap: float
    iterations: int
    mean_cpu_hz: float  # of selected clients; NaN, in JSON null, if there are none
    total_mining_hz: float
    training_j: float  # of all clients together
    upload_j: float
    mining_j: float
    num_with_budget: int  # clients with a positive energy budget
    mean_energy_use: float  # share of its budget that such a client spends; NaN, in JSON null, if there are none
    highest_energy_use: float
    mean_queue: float  # after the round
    highest_queue: float
    lyapunov: float
    drift: float
    drift_bound: float
    connectivity: float
    is_connected: bool
    num_reachable: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientTotals:
    """Totals of each client over a whole run, (clients,) each."""

    participation_rate: PerClient  # beta_i
    participation: PerClient  # share of all rounds with an update that counts
    training_j: PerClient
    upload_j: PerClient
    mining_j: PerClient
    peak_energy_use: PerClient  # the highest share of its budget in any round
    queue: PerClient  # after the last round


class Spread(msgspec.Struct, frozen=True):
    """Distribution of a quantity over clients: its mean, and its `QUANTILES`."""

    quantity: str  # a field of `ClientTotals`
    mean: float
    least: float
    five_percent: float  # of clients have less
    median: float
    ninety_five_percent: float
    most: float


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregateRecord(RunHead):
    """Aggregate record of a whole run."""

    rounds: tuple[AggregateRound, ...]
    clients: ClientTotals

    @property
    def num_clients(self) -> int:
        return len(self.clients.participation)


class AggregateCollector:
    """Accumulator of an aggregate record: one row per round and sums per client."""

    def __init__(self, participation_rate: PerClient) -> None:
        num_clients = len(participation_rate)
        self._rate = participation_rate
        self._rows: list[AggregateRound] = []
        self._delivered: NDArray[np.int64] = np.zeros(num_clients, dtype=np.int64)
        self._spent_j = {name: np.zeros(num_clients) for name in ("training_j", "upload_j", "mining_j")}
        self._peak = np.zeros(num_clients)
        self._queue: PerClient = np.zeros(num_clients)

    def add(self, record: RoundRecord) -> None:
        """Add the next round."""
        has_budget = record.energy_budget_j > 0
        use = np.divide(record.energy_j, record.energy_budget_j, out=np.zeros(len(self._rate)), where=has_budget)
        num_with_budget = int(np.count_nonzero(has_budget))
        self._delivered += record.delivered
        for name, spent_j in self._spent_j.items():
            spent_j += getattr(record, name)
        np.maximum(self._peak, use, out=self._peak)
        self._queue = record.next_queue
        num_selected = int(np.count_nonzero(record.selected))
        sums: dict[str, Any] = {
            "num_selected": num_selected,
            "num_delivered": int(np.count_nonzero(record.delivered)),
            "slowest": known_client(record.slowest),
            "winner": known_client(record.winner),
            "mean_cpu_hz": float(np.mean(record.cpu_hz[record.selected])) if num_selected else float("nan"),
            "total_mining_hz": float(np.sum(record.mining_hz)),
            **{name: float(np.sum(getattr(record, name))) for name in self._spent_j},
            "num_with_budget": num_with_budget,
            "mean_energy_use": float(np.sum(use)) / num_with_budget if num_with_budget else float("nan"),
            "highest_energy_use": float(np.max(use)),
            "mean_queue": float(np.mean(record.next_queue)),
            "highest_queue": float(np.max(record.next_queue)),
        }
        kept = {name: getattr(record, name) for name in AggregateRound.__struct_fields__ if name not in sums}
        self._rows.append(AggregateRound(**kept, **sums))

    @property
    def rounds(self) -> tuple[AggregateRound, ...]:
        return tuple(self._rows)

    def totals(self) -> ClientTotals:
        """Return the totals of every client so far; at least one round is needed."""
        if not self._rows:
            raise InvalidRecord("rounds: a run needs at least one, none given")
        return ClientTotals(
            participation_rate=self._rate,
            participation=self._delivered / len(self._rows),
            **{name: spent_j.copy() for name, spent_j in self._spent_j.items()},
            peak_energy_use=self._peak.copy(),
            queue=self._queue,
        )


def summarise_aggregate(record: AggregateRecord) -> RunSummary:
    """Return the run's means over the rounds that took place, equal to `summarise_run` of the full record."""
    held = [row for row in record.rounds if row.status is not Status.INFEASIBLE]
    clients = record.clients
    num_budgets = sum(row.num_with_budget for row in held)
    energy_use = sum(row.mean_energy_use * row.num_with_budget for row in held if row.num_with_budget)
    return RunSummary(
        rounds=len(record.rounds),
        infeasible_rounds=len(record.rounds) - len(held),
        total_delay_s=sum(row.delay_s for row in record.rounds),
        mean_delay_s=_known_mean([row.delay_s for row in held]),
        worst_shortfall=max(float(np.max(clients.participation_rate - clients.participation)), 0.0),
        mean_energy_use=energy_use / num_budgets if num_budgets else float("nan"),
        mean_selected=_known_mean([row.num_selected for row in held]),
        mean_iterations=_known_mean([row.iterations for row in held]),
        mean_gap=_known_mean([row.gap for row in record.rounds]),
        final_queue_mean=record.rounds[-1].mean_queue,
    )


def spread_clients(totals: ClientTotals) -> list[Spread]:
    """Return the distribution over clients of every field of `ClientTotals`."""
    return [
        Spread(quantity, float(np.mean(values)), *np.quantile(values, QUANTILES).tolist())
        for quantity, values in vars(totals).items()
    ]


def encode_aggregate(record: AggregateRecord) -> bytes:
    """Return the run as JSON, whose length does not depend on the number of clients."""
    clients = spread_clients(record.clients)
    content = {"summary": summarise_aggregate(record), "clients": clients, "rounds": record.rounds}
    return encode_document(record, {"num_clients": record.num_clients}, content)


def _known_mean(values: list[float] | list[int]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = np.array(values, dtype=np.float64)
    return mean_or_nan(known[~np.isnan(known)])
