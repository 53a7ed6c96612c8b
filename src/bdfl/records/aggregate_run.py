"""Aggregate record of a run with very many clients: columns per round and sums per client.

As JSON the run is one object: scenario, scheduler and seed, the `summary` of any run, `clients` and `rounds`. `clients`
is the spread of each client's totals. `rounds` is a list with one object per round, with the fields of `CrowdRound`.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.records.run import NOBODY, InvalidRecord, RoundRecord, RunSummary
from bdfl.scheduling.problem import Status
from bdfl.types import PerClient

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


class CrowdRound(msgspec.Struct, frozen=True, kw_only=True):
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


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a quantity over clients."""

    quantity: str  # a field of `ClientTotals`
    mean: float
    least: float
    five_percent: float  # of clients have less
    median: float
    ninety_five_percent: float
    most: float


@dataclass(frozen=True, eq=False, kw_only=True)
class CrowdRecord:
    """Aggregate record of a whole run."""

    scenario: str
    scenario_digest: str
    scheduler: str
    tradeoff: float  # V
    seed: int
    drift_constant: float  # Q of Eq. 21
    rounds: tuple[CrowdRound, ...]
    clients: ClientTotals

    @property
    def num_clients(self) -> int:
        return len(self.clients.participation)


class CrowdBook:
    """Accumulator of an aggregate record: one row per round and sums per client."""

    def __init__(self, participation_rate: PerClient) -> None:
        num_clients = len(participation_rate)
        self._rate = participation_rate
        self._rows: list[CrowdRound] = []
        self._delivered: NDArray[np.int64] = np.zeros(num_clients, dtype=np.int64)
        self._training_j, self._upload_j, self._mining_j = (np.zeros(num_clients) for _ in range(3))
        self._peak = np.zeros(num_clients)
        self._queue: PerClient = np.zeros(num_clients)

    def add(self, record: RoundRecord) -> None:
        """Add the next round."""
        has_budget = record.energy_budget_j > 0
        use = np.divide(record.energy_j, record.energy_budget_j, out=np.zeros(len(self._rate)), where=has_budget)
        num_with_budget = int(np.count_nonzero(has_budget))
        self._delivered += record.delivered
        self._training_j += record.training_j
        self._upload_j += record.upload_j
        self._mining_j += record.mining_j
        np.maximum(self._peak, use, out=self._peak)
        self._queue = record.next_queue
        num_selected = int(np.count_nonzero(record.selected))
        self._rows.append(
            CrowdRound(
                round=record.round,
                status=record.status,
                reason=record.reason,
                num_selected=num_selected,
                num_delivered=int(np.count_nonzero(record.delivered)),
                slowest=None if record.slowest == NOBODY else record.slowest,
                training_s=record.training_s,
                upload_s=record.upload_s,
                exchange_s=record.exchange_s,
                planned_mining_s=record.planned_mining_s,
                mining_s=record.mining_s,
                overhead_s=record.overhead_s,
                delay_s=record.delay_s,
                winner=None if record.winner == NOBODY else record.winner,
                objective=record.objective,
                gap=record.gap,
                iterations=record.iterations,
                mean_cpu_hz=float(np.mean(record.cpu_hz[record.selected])) if num_selected else float("nan"),
                total_mining_hz=float(np.sum(record.mining_hz)),
                training_j=float(np.sum(record.training_j)),
                upload_j=float(np.sum(record.upload_j)),
                mining_j=float(np.sum(record.mining_j)),
                num_with_budget=num_with_budget,
                mean_energy_use=float(np.sum(use)) / num_with_budget if num_with_budget else float("nan"),
                highest_energy_use=float(np.max(use)),
                mean_queue=float(np.mean(record.next_queue)),
                highest_queue=float(np.max(record.next_queue)),
                lyapunov=record.lyapunov,
                drift=record.drift,
                drift_bound=record.drift_bound,
                connectivity=record.connectivity,
                is_connected=record.is_connected,
                num_reachable=record.num_reachable,
            )
        )

    @property
    def rounds(self) -> tuple[CrowdRound, ...]:
        return tuple(self._rows)

    def totals(self) -> ClientTotals:
        """Return the totals of every client so far; at least one round is needed."""
        if not self._rows:
            raise InvalidRecord("rounds: a run needs at least one, none given")
        return ClientTotals(
            participation_rate=self._rate,
            participation=self._delivered / len(self._rows),
            training_j=self._training_j.copy(),
            upload_j=self._upload_j.copy(),
            mining_j=self._mining_j.copy(),
            peak_energy_use=self._peak.copy(),
            queue=self._queue,
        )


def summarise_crowd(record: CrowdRecord) -> RunSummary:
    """Return the run's means over the rounds that took place, equal to `summarise_run` of the full record."""
    held = [row for row in record.rounds if row.status is not Status.INFEASIBLE]
    clients = record.clients
    return RunSummary(
        rounds=len(record.rounds),
        infeasible_rounds=len(record.rounds) - len(held),
        total_delay_s=sum(row.delay_s for row in record.rounds),
        mean_delay_s=_mean([row.delay_s for row in held]),
        worst_shortfall=max(float(np.max(clients.participation_rate - clients.participation)), 0.0),
        mean_energy_use=_mean_energy_use(held),
        mean_selected=_mean([row.num_selected for row in held]),
        mean_iterations=_mean([row.iterations for row in held]),
        mean_gap=_mean([row.gap for row in record.rounds]),
        final_queue_mean=record.rounds[-1].mean_queue,
    )


def spread_clients(totals: ClientTotals) -> list[Spread]:
    """Return the distribution over clients of every field of `ClientTotals`."""
    found = []
    for quantity in ClientTotals.__dataclass_fields__:
        values: PerClient = getattr(totals, quantity)
        least, low, median, high, most = (float(value) for value in np.quantile(values, QUANTILES))
        found.append(
            Spread(
                quantity=quantity,
                mean=float(np.mean(values)),
                least=least,
                five_percent=low,
                median=median,
                ninety_five_percent=high,
                most=most,
            )
        )
    return found


class CrowdDocument(msgspec.Struct, frozen=True, kw_only=True):
    """JSON form of a `CrowdRecord`."""

    scenario: str
    scenario_digest: str
    scheduler: str
    tradeoff: float
    seed: int
    num_clients: int
    drift_constant: float
    summary: RunSummary
    clients: list[Spread]
    rounds: tuple[CrowdRound, ...]


def encode_crowd(record: CrowdRecord) -> bytes:
    """Return the run as JSON: a `CrowdDocument`, whose length does not depend on the number of clients."""
    document = CrowdDocument(
        scenario=record.scenario,
        scenario_digest=record.scenario_digest,
        scheduler=record.scheduler,
        tradeoff=record.tradeoff,
        seed=record.seed,
        num_clients=record.num_clients,
        drift_constant=record.drift_constant,
        summary=summarise_crowd(record),
        clients=spread_clients(record.clients),
        rounds=record.rounds,
    )
    return msgspec.json.encode(document)


def _mean_energy_use(rounds: list[CrowdRound]) -> float:
    """Mean over all rounds and clients with a budget."""
    known = [row for row in rounds if row.num_with_budget]
    num_all = sum(row.num_with_budget for row in known)
    return sum(row.mean_energy_use * row.num_with_budget for row in known) / num_all if num_all else float("nan")


def _mean(values: list[float] | list[int]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = np.array(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.mean(known)) if known.size else float("nan")
