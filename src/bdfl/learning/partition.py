"""Partitions of labelled data among clients; each sample is held by at most one client."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.environment import Purpose, draw_samples, stream
from bdfl.errors import BdflError
from bdfl.learning.flwr_partition import deal_by_partitioner
from bdfl.learning.label_supply import fit_to_supply
from bdfl.scenario import PartitionMethod, PartitionSizes, Scenario
from bdfl.scenario.learning import is_flower_method

Owners = NDArray[np.int64]  # (samples,): number of the client that holds a sample, or NOBODY
NOBODY = -1
_ROWS_AT_A_TIME = 2**16


class BadPartition(BdflError):
    """Clients that request more samples than there are."""

    def __init__(self, wanted: int, num_clients: int, available: int) -> None:
        super().__init__(wanted, num_clients, available)
        self.wanted = wanted
        self.num_clients = num_clients
        self.available = available

    def __str__(self) -> str:
        each = self.available // self.num_clients
        fits = f"at most {each} each" if each else f"at most {self.available} clients"
        return (
            f"clients.samples: {self.num_clients} clients want {self.wanted} samples together, "
            f'the training set has {self.available}, expected {fits}, or partition.sizes = "natural"'
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """Samples of the training set that each client holds; arrays are read-only."""

    indices: tuple[NDArray[np.int64], ...]  # of each client, ascending; may be empty
    label_counts: NDArray[np.int64]  # (clients, labels)

    @property
    def samples(self) -> PerClient:
        """Size |D_i| of every client's data set, (clients,)."""
        sizes: PerClient = self.label_counts.sum(axis=1, dtype=np.float64)
        return sizes


def draw_partition(scenario: Scenario, labels: NDArray[np.int64], num_labels: int) -> Partition:
    """Partition the samples with these labels by the scenario's rule and seed.

    Every sample is used at most once, with natural sizes exactly once. With fixed sizes client i holds the number that
    `draw_samples` gives, and `quantity` as many in total; raises `BadPartition` if there are fewer. A partitioner of
    flwr-datasets sets its own sizes; raises `BadPartitioner` if they do not fit.
    """
    choice = scenario.partition
    if is_flower_method(choice.method):
        return _partition_of(deal_by_partitioner(scenario, labels), labels, scenario.clients.count, num_labels)
    rng = stream(scenario.seed, Purpose.PARTITION)
    num_clients = scenario.clients.count
    is_natural = choice.sizes is PartitionSizes.NATURAL
    sizes = _even_sizes(len(labels), num_clients) if is_natural else draw_samples(scenario).astype(np.int64)
    total = int(sizes.sum())
    if total > len(labels):
        raise BadPartition(total, num_clients, len(labels))
    match PartitionMethod(choice.method):
        case PartitionMethod.DIRICHLET:
            supply = np.bincount(labels, minlength=num_labels)
            if is_natural:
                counts = _draw_parts(rng, supply.astype(np.float64), num_clients, choice.dirichlet).T
            else:
                wish_rng = stream(scenario.seed, Purpose.LABELS)  # as without loaded data
                wishes = draw_label_counts(wish_rng, sizes.astype(np.float64), num_labels, choice.dirichlet)
                counts = fit_to_supply(wishes, supply)
            owners = _deal_labels(rng, labels, counts)
        case PartitionMethod.IID:
            owners = _deal_sizes(rng, len(labels), sizes)
        case PartitionMethod.SHARDS:
            owners = _deal_shards(rng, labels, sizes, choice.shards_per_client, is_natural=is_natural)
        case PartitionMethod.QUANTITY:
            drawn = _draw_parts(rng, np.array([float(total)]), num_clients, choice.size_dirichlet)[0]
            owners = _deal_sizes(rng, len(labels), drawn)
    return _partition_of(owners, labels, num_clients, num_labels)


def draw_label_counts(
    rng: np.random.Generator, samples: PerClient, num_labels: int, dirichlet: float
) -> NDArray[np.int64]:
    """Number of samples of each label each client holds, (clients, labels); rows sum to `samples`.

    Label shares are drawn for every client from a symmetric Dirichlet distribution [Li24, Section VI-A] and rounded to
    whole samples by largest remainder, the lower label where remainders are equal.
    """
    return _draw_parts(rng, samples, num_labels, dirichlet)


def _draw_parts(
    rng: np.random.Generator, totals: NDArray[np.float64], num_parts: int, concentration: float
) -> NDArray[np.int64]:
    """Split each of `totals` into `num_parts` integers with shares of a symmetric Dirichlet law, (totals, parts).

    Drawn row by row: blocks of rows give the same result in less memory.
    """
    few = [totals[first : first + _ROWS_AT_A_TIME] for first in range(0, max(len(totals), 1), _ROWS_AT_A_TIME)]
    return np.concatenate([_draw_few_parts(rng, some, num_parts, concentration) for some in few])


def _draw_few_parts(
    rng: np.random.Generator, totals: NDArray[np.float64], num_parts: int, concentration: float
) -> NDArray[np.int64]:
    shares = rng.dirichlet(np.full(num_parts, concentration), size=len(totals))
    exact = shares * totals[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = totals.astype(np.int64) - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1, kind="stable")
    gets_one_more: NDArray[np.bool_] = rank < missing[:, None]
    return counts + gets_one_more


def _even_sizes(total: int, num_parts: int) -> NDArray[np.int64]:
    """Split `total` into parts that differ by at most one, the larger first."""
    return total // num_parts + (np.arange(num_parts) < total % num_parts)


def _deal_labels(rng: np.random.Generator, labels: NDArray[np.int64], counts: NDArray[np.int64]) -> Owners:
    """Draw owners such that client i holds `counts[i, k]` samples of label k."""
    owners = np.full(len(labels), NOBODY)
    clients = np.arange(len(counts))
    for label, wanted in enumerate(counts.T):
        there = rng.permutation(np.flatnonzero(labels == label))
        owners[there[: wanted.sum()]] = np.repeat(clients, wanted)
    return owners


def _deal_sizes(rng: np.random.Generator, num_samples: int, sizes: NDArray[np.int64]) -> Owners:
    """Draw owners such that client i holds `sizes[i]` samples of all."""
    owners = np.full(num_samples, NOBODY)
    owners[rng.permutation(num_samples)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def _deal_shards(
    rng: np.random.Generator,
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shards_per_client: int,
    *,
    is_natural: bool,
) -> Owners:
    """Sort samples by label, cut them into `shards_per_client` shards per client, and assign the shards at random.

    Natural shards are equal up to one sample; fixed ones divide their client's size equally. If not all samples are
    needed, those used are drawn at random before sorting.
    """
    clients = np.repeat(np.arange(len(sizes)), shards_per_client)  # owner of each shard
    if is_natural:
        shards = _even_sizes(len(labels), len(clients))
        dealt = np.repeat(rng.permutation(clients), shards)
    else:
        shards = np.concatenate([_even_sizes(int(size), shards_per_client) for size in sizes])
        order = rng.permutation(len(clients))
        dealt = np.repeat(clients[order], shards[order])
    used = rng.permutation(len(labels))[: len(dealt)]
    owners = np.full(len(labels), NOBODY)
    owners[used[np.argsort(labels[used], kind="stable")]] = dealt
    return owners


def _partition_of(owners: Owners, labels: NDArray[np.int64], num_clients: int, num_labels: int) -> Partition:
    held = np.flatnonzero(owners != NOBODY)
    by_client = held[np.argsort(owners[held], kind="stable")]  # ascending within a client
    cells = np.bincount(owners[held] * num_labels + labels[held], minlength=num_clients * num_labels)
    counts = cells.reshape(num_clients, num_labels)
    for array in (by_client, counts):
        array.setflags(write=False)
    return Partition(tuple(np.split(by_client, np.cumsum(counts.sum(axis=1))[:-1])), counts)
