"""Modelled and measured delay of a live network, with the overhead by phase."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum, nan

from bdfl.ledger.units import NANO
from bdfl.records.round_times import RoundTimes


@dataclass(frozen=True)
class DelayRow:
    """Means over rounds (s). Overheads are measured minus modelled; those of exchange, mining and voting add up."""

    node: int | None  # None: all nodes
    num_rounds: int
    modelled_s: float  # delay, times the time scale
    measured_s: float
    exchange_s: float  # overhead until collecting ends
    mining_s: float  # overhead until the first valid block, beyond modelled mining and rest of the round
    voting_s: float
    training_s: float  # overhead of training, over rounds with any; part of the exchange
    upload_s: float  # overhead of upload, until the last other node has it; part of the exchange

    @property
    def overhead_s(self) -> float:
        return self.measured_s - self.modelled_s

    @property
    def ratio(self) -> float:
        """Measured over modelled delay; NaN if the modelled one is 0."""
        return self.measured_s / self.modelled_s if self.modelled_s else nan


@dataclass(frozen=True)
class DelaySummary:
    """One row per node, and the mean over all rounds of all nodes."""

    time_scale: float
    nodes: tuple[DelayRow, ...]
    total: DelayRow
    num_partial: int  # rounds left out: the node joined after their start
    num_repeated: int  # rounds with more than one attempt


def summarise(rounds: Sequence[RoundTimes]) -> DelaySummary:
    """Return means over the rounds that nodes saw from start to end."""
    whole = [row for row in rounds if row.is_whole]
    uploads = _find_uploads(rounds)
    numbers = sorted({row.node for row in whole})
    return DelaySummary(
        time_scale=rounds[0].time_scale if rounds else nan,
        nodes=tuple(_summarise(node, [row for row in whole if row.node == node], uploads) for node in numbers),
        total=_summarise(None, whole, uploads),
        num_partial=len(rounds) - len(whole),
        num_repeated=len({row.round for row in whole if row.attempt > 1}),
    )


def _find_uploads(rounds: Iterable[RoundTimes]) -> dict[tuple[int, int], int]:
    """Return the time (ns) until the last other node had each update, by round and client."""
    slowest: dict[tuple[int, int], int] = {}
    for row in rounds:
        for client, upload_ns in row.upload_ns.items():
            key = row.round, client
            slowest[key] = max(slowest.get(key, 0), upload_ns)
    return slowest


def _summarise(node: int | None, rows: Sequence[RoundTimes], uploads: dict[tuple[int, int], int]) -> DelayRow:
    def mean(value: Callable[[RoundTimes], int]) -> float:
        return _mean_s(map(value, rows))

    return DelayRow(
        node=node,
        num_rounds=len(rows),
        modelled_s=mean(lambda row: row.modelled.delay_ns),
        measured_s=mean(lambda row: row.delay_ns),
        exchange_s=mean(lambda row: row.exchange_ns - row.modelled.exchange_ns),
        mining_s=mean(lambda row: row.mining_ns - row.modelled.mining_ns - row.modelled.rest_ns),
        voting_s=mean(lambda row: row.voting_ns),
        training_s=_mean_s(row.training_ns - row.modelled.training_ns for row in rows if row.training_ns is not None),
        upload_s=_mean_s(
            uploads[row.round, row.node] - row.modelled.upload_ns for row in rows if (row.round, row.node) in uploads
        ),
    )


def _mean_s(values_ns: Iterable[int]) -> float:
    values = list(values_ns)
    return fsum(values) / len(values) / NANO if values else nan
