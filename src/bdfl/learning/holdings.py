"""Data distribution summary: a partition of real data and the statistics of every client."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.learning.data_set import DataSet
from bdfl.learning.participation import label_divergence, participation_of
from bdfl.learning.partition import draw_partition
from bdfl.scenario import PartitionSizes, Scenario
from bdfl.scenario.learning import is_flower_method


@dataclass(frozen=True, eq=False, kw_only=True)
class Holdings:
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


def draw_holdings(scenario: Scenario, data: DataSet) -> Holdings:
    """Partition `data` by the scenario's rule and seed, and summarise it. Raises `BadPartition`."""
    partition, choice = draw_partition(scenario, data.train_labels, data.num_labels), scenario.partition
    return Holdings(
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
