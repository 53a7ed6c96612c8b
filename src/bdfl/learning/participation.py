"""Participation rates from the divergence of the clients' data [Li24, Section III-F], and a summary of the data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.environment import Federation, Purpose, draw_values, stream
from bdfl.learning.dataset import DataSet
from bdfl.learning.partition import draw_label_counts, draw_partition
from bdfl.scenario import Participation, PartitionSizes, Preference, Scenario
from bdfl.scenario.schema_learning import is_flower_method
from bdfl.types import PerClient

_ROWS_AT_A_TIME = 2**16


def label_divergence(label_counts: NDArray[np.int64]) -> PerClient:
    """Distance of each client's label shares from the global ones (0 to 2), (clients,): [Li24, Section III-F].

    sum_k |n_ik - p_k |D_i|| / |D_i| with p_k the share of label k in all data; 0 for a client without data.
    """
    samples: PerClient = label_counts.sum(axis=1, dtype=np.float64)
    global_share = label_counts.sum(axis=0) / max(float(samples.sum()), 1.0)
    score: PerClient = np.zeros(len(samples))
    for first in range(0, len(samples), _ROWS_AT_A_TIME):  # in blocks of rows: the same result in less memory
        some = slice(first, first + _ROWS_AT_A_TIME)
        score[some] = np.abs(label_counts[some] - global_share * samples[some, None]).sum(axis=1)
    return np.divide(score, samples, out=np.zeros(len(samples)), where=samples > 0)


def participation_rates(label_counts: NDArray[np.int64], settings: Participation) -> PerClient:
    """Long-run share of rounds beta_i in which each client should train, (clients,): [Li24, Section III-F].

    The divergence of its labels, standardised over clients to z_i (0 where all are equal), around `mean` with standard
    deviation `spread`, clipped to [`floor`, 1]. `literal` lets clients with unusual data train more, `similar` less.
    """
    divergence = label_divergence(label_counts)
    deviation = divergence - divergence.mean()
    scale = divergence.std()
    is_equal = scale <= 1e-12  # rounding alone; divergences are of order 1
    standard: PerClient = np.zeros_like(deviation) if is_equal else deviation / scale
    sign = 1.0 if settings.preference is Preference.LITERAL else -1.0
    return np.clip(settings.mean + sign * settings.spread * standard, settings.floor, 1.0)


def participation_of(scenario: Scenario, label_counts: NDArray[np.int64]) -> PerClient:
    """The scenario's participation rates beta_i, (clients,): as given, or from these label counts."""
    settings = scenario.participation
    if settings.rates is not None:
        return draw_values(stream(scenario.seed, Purpose.PARTICIPATION), settings.rates, len(label_counts))
    return participation_rates(label_counts, settings)


def draw_participation(scenario: Scenario, federation: Federation) -> PerClient:
    """Participation rates of the scenario without loaded data: the label counts are drawn with its seed."""
    if scenario.participation.rates is not None:  # label counts have no effect
        return participation_of(scenario, np.zeros((federation.num_clients, 0), dtype=np.int64))
    label_counts = draw_label_counts(
        stream(scenario.seed, Purpose.LABELS),
        federation.samples,
        scenario.partition.num_labels,
        scenario.partition.dirichlet,
    )
    return participation_of(scenario, label_counts)


# Data distribution summary: a partition of real data and the statistics of every client.


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSummary:
    """Summary of the clients' data; arrays are in client order."""

    scenario: str
    seed: int
    data: str  # name of the data set
    data_digest: str
    input_shape: tuple[int, ...]  # of one sample
    train_samples: int  # in the data set, used or not
    test_samples: int
    method: str
    sizes: PartitionSizes
    label_names: tuple[str, ...]
    samples: NDArray[np.int64]  # (clients,): |D_i|
    label_counts: NDArray[np.int64]  # (clients, labels)
    divergence: PerClient  # of the labels from the global shares, 0 to 2
    participation_rate: PerClient  # beta_i

    @property
    def num_clients(self) -> int:
        return len(self.samples)

    @property
    def label_shares(self) -> NDArray[np.float64]:
        """Share of each label in a client's data, (clients, labels); 0 for a client without data."""
        shares: NDArray[np.float64] = self.label_counts / np.maximum(self.samples, 1)[:, np.newaxis]
        return shares


def summarise_data(scenario: Scenario, data: DataSet) -> DataSummary:
    """Partition `data` by the scenario's rule and seed, and summarise it. Raises `BadPartition`."""
    partition, choice = draw_partition(scenario, data.train_labels, data.num_labels), scenario.partition
    return DataSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        data=data.name,
        data_digest=data.digest,
        input_shape=data.input_shape,
        train_samples=len(data.train_labels),
        test_samples=len(data.test_labels),
        method=choice.method,
        sizes=PartitionSizes.NATURAL if is_flower_method(choice.method) else choice.sizes,
        label_names=data.label_names,
        samples=partition.samples.astype(np.int64),
        label_counts=partition.label_counts,
        divergence=label_divergence(partition.label_counts),
        participation_rate=participation_of(scenario, partition.label_counts),
    )
