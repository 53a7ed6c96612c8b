"""Confidence intervals, and the measures that runs are compared by."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec
import numpy as np
from scipy.special import stdtrit

from bdfl.records import PerRound, PerRoundClient, RunRecord
from bdfl.scheduling.checker import TOLERANCE
from bdfl.types import PerClient, PerClientMask

# Means with their uncertainty.

CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """A mean and half the width of its 95 % confidence interval (NaN, in JSON `null`, from a single value)."""

    mean: float
    half_width: float


def mean_interval(values: Sequence[float] | PerClient) -> Interval:
    """Student's t interval of the mean of independent values; NaNs (no measurement) are left out."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        return Interval(float("nan"), float("nan"))
    mean = float(np.mean(known))
    if known.size == 1:
        return Interval(mean, float("nan"))
    quantile = float(stdtrit(known.size - 1, 0.5 + CONFIDENCE / 2))
    return Interval(mean, quantile * float(np.std(known, ddof=1)) / known.size**0.5)


# Per-round curves of a run, for means over many runs; separate from the figures, which workers need not load.


def cumulative_delay(record: RunRecord) -> PerRound:
    """Time (s) up to and including each round, (rounds,)."""
    return np.cumsum(record.delay_s)


def mean_backlog(record: RunRecord) -> PerRound:
    """Mean queue of all clients after each round, (rounds,)."""
    backlog: PerRound = np.mean(record.next_queue, axis=1)
    return backlog


def running_mean(values: PerRound) -> PerRound:
    """Mean of the known values up to and including each round, (rounds,); NaN before the first."""
    known = np.isfinite(values)
    count = np.cumsum(known)
    total = np.cumsum(np.where(known, values, 0.0))
    mean: PerRound = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean


def jain_index(values: PerClient) -> float:
    """Jain's fairness index, 1 / n (one has all) to 1 (all equal): (sum x)^2 / (n sum x^2); 1 if all are 0.

    Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination for resource allocation in shared
    computer systems", DEC-TR-301, 1984.
    """
    squares = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def mean_client_energy(record: RunRecord) -> float:
    """Energy of a client in a round that takes place (J), mean over clients and rounds; NaN if there are none."""
    spent_j = record.energy_j[record.took_place]
    return float(np.mean(spent_j)) if spent_j.size else float("nan")


def rounds_owed(record: RunRecord) -> PerClient:
    """Rounds by which each client participated less than its rate requires, (clients,); negative if more."""
    return (record.participation_rate - record.participation) * record.num_rounds


def is_below_rate(record: RunRecord) -> PerClientMask:
    """Mask of clients owed a whole round or more, (clients,): a smaller deficit is due to rounding to whole rounds."""
    return rounds_owed(record) >= 1.0


def is_overdrawn(record: RunRecord) -> PerClientMask:
    """Mask of clients whose energy exceeded a round's budget, (clients,); possible only if mining is sampled."""
    overdrawn: PerClientMask = np.any(record.energy_j > record.energy_budget_j * (1.0 + TOLERANCE), axis=0)
    return overdrawn


@dataclass(frozen=True, eq=False, kw_only=True)
class EnergyCurves:
    """Mean energy per client (J) in each round, (rounds,): parts over clients that train, and the total over all."""

    training_j: PerRound
    upload_j: PerRound
    mining_j: PerRound
    all_clients_j: PerRound
    highest_share: PerRound  # greatest share of its budget that any client spends

    @property
    def total_j(self) -> PerRound:
        """Energy of a client that trains."""
        return self.training_j + self.upload_j + self.mining_j


def energy_curves(record: RunRecord) -> EnergyCurves:
    """Energy curves of a run; zero in rounds that did not take place."""
    num_trained = np.maximum(record.num_selected, 1)

    def of_trainers(energy_j: PerRoundClient) -> PerRound:
        total_j: PerRound = np.sum(energy_j, axis=1, where=record.selected)
        return total_j / num_trained

    return EnergyCurves(
        training_j=of_trainers(record.training_j),
        upload_j=of_trainers(record.upload_j),
        mining_j=of_trainers(record.mining_j),
        all_clients_j=np.mean(record.energy_j, axis=1),
        highest_share=np.max(record.share_of_budget(record.energy_j), axis=1),
    )


def mean_curves(runs: Sequence[EnergyCurves]) -> EnergyCurves:
    """Mean of each curve over runs."""
    return EnergyCurves(
        **{item.name: np.mean([getattr(run, item.name) for run in runs], axis=0) for item in fields(EnergyCurves)}
    )
