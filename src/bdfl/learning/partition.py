"""Partitions of data among clients: IID, Dirichlet, shards, by quantity, and those of flwr-datasets.

Projection of requested label counts onto the available samples.

Clients request samples of each label (rows of w), but of label k there are only s_k. Among all matrices x with the same
row sums r and column sums of at most s, take the one of least Kullback-Leibler divergence sum x log(x/w) from w. It is
x_ik = a_i w_ik b_k with b_k <= 1, and b_k < 1 only if label k is exhausted: a scarce label is cut by the same factor
for all clients. With b = exp(-p), the prices p minimise the convex dual
sum_i r_i log(sum_k w_ik exp(-p_k)) + sum_k s_k p_k over p >= 0, one variable for each label.

Partitioners of flwr-datasets, by name.

A partitioner sees the labels in a drawn order, as Flower itself shuffles a data set before partitioning. Its own draws
use the scenario's seed: the same scenario gives the same partition.
"""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bdfl.environment import Purpose, draw_samples, stream
from bdfl.errors import BdflError, require
from bdfl.plugins import show_exception
from bdfl.scenario import PartitionMethod, PartitionSizes, Scenario
from bdfl.scenario.schema_learning import FLOWER_PREFIX, PartitionParameter, is_flower_method
from bdfl.types import PerClient

Counts: TypeAlias = NDArray[np.int64]  # (clients, labels)
Matrix: TypeAlias = NDArray[np.float64]  # (clients, labels)
PerLabel: TypeAlias = NDArray[np.float64]  # (labels,)
Owners: TypeAlias = NDArray[np.int64]  # (samples,): number of the client that holds a sample, or NOBODY
NOBODY = -1

_LEAST_WISH = 1e-3  # samples: any client can hold any label if no other is left
_TOLERANCE = 1e-8  # relative to the greatest supply
_MOST_SLACK = 1e-3  # samples: rounding tolerates less than half a sample in all
_MAX_STEPS = 200
_GRAIN = 1e-6  # resolution of remainders: the last bits of a sum must not matter


def fit_to_supply(wishes: Counts, supply: NDArray[np.int64]) -> Counts:
    """Integers nearest to the wishes: the same row sums, column sums of at most `supply`, (clients, labels).

    Wishes that can all be met are met exactly. Their total must not exceed the supply of all labels.
    """
    if (wishes.sum(axis=0) <= supply).all():
        return wishes
    return round_to_supply(project_wishes(wishes, supply), supply)


def project_wishes(wishes: Counts, supply: NDArray[np.int64]) -> Matrix:
    """Return the matrix nearest to the wishes with their row sums and column sums of at most `supply`.

    Damped Newton method on the prices of the labels in supply. A wish of 0 counts as a thousandth of a sample.
    """
    is_there = supply > 0
    log_wishes = np.log(np.maximum(wishes[:, is_there], _LEAST_WISH))
    sizes, limits = wishes.sum(axis=1).astype(np.float64), supply[is_there].astype(np.float64)
    prices: PerLabel = np.zeros(len(limits))
    value, held = _dual(log_wishes, sizes, limits, prices)
    tolerance = min(_TOLERANCE * float(limits.max()), _MOST_SLACK)
    damping = 1e-3
    for _ in range(_MAX_STEPS):
        slope = limits - held.sum(axis=0)
        is_free = (prices > 0) | (slope < 0)  # a label not exhausted keeps its price of 0
        if np.abs(slope[is_free]).max(initial=0.0) <= tolerance:
            break
        step = _newton_step(held[:, is_free], sizes, slope[is_free], damping)
        next_prices = prices.copy()
        next_prices[is_free] = np.maximum(prices[is_free] + step, 0.0)
        next_value, next_held = _dual(log_wishes, sizes, limits, next_prices)
        if next_value <= value:
            prices, value, held, damping = next_prices, next_value, next_held, max(damping / 10, 1e-12)
        else:
            damping *= 10
    projected = np.zeros(wishes.shape)
    projected[:, is_there] = held
    return projected


def round_to_supply(held: Matrix, supply: NDArray[np.int64]) -> Counts:
    """Round `held` up or down to integers with the same row sums and column sums of at most `supply`.

    The nearest such matrix in squared distance: a transport problem, whose vertices are integers. A solution exists
    because `held` satisfies the supplies up to far less than a sample.
    """
    from scipy.optimize import linprog  # slow to import, and rarely needed

    sizes = np.rint(held.sum(axis=1)).astype(np.int64)
    lower = np.floor(held + _GRAIN)
    remainder = np.round((held - lower) / _GRAIN) * _GRAIN
    client, label = np.nonzero(remainder > 0)  # entries that may be rounded up
    counts = lower.astype(np.int64)
    if not len(client):
        return counts
    rounding = linprog(  # type: ignore[call-overload]  # sparse matrices are missing from its stubs
        1.0 - 2.0 * remainder[client, label],
        A_eq=_picks(client, len(sizes)),
        b_eq=sizes - counts.sum(axis=1),
        A_ub=_picks(label, len(supply)),
        b_ub=supply - counts.sum(axis=0),
        bounds=(0.0, 1.0),
        method="highs-ds",  # a simplex method ends at a vertex
    )
    if not rounding.success:
        raise ArithmeticError(f"labels could not be rounded to whole samples: {rounding.message}")
    counts[client, label] += np.rint(rounding.x).astype(np.int64)
    return counts


def _picks(rows: NDArray[np.int64], num_rows: int) -> sparse.csr_array:
    """Matrix that sums the entries of each row, (rows, entries)."""
    return sparse.csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(num_rows, len(rows)))


def _dual(log_wishes: Matrix, sizes: PerClient, limits: PerLabel, prices: PerLabel) -> tuple[float, Matrix]:
    """Value of the dual at these prices, and the corresponding matrix."""
    weights = log_wishes - prices
    greatest = weights.max(axis=1, keepdims=True)
    shares = np.exp(weights - greatest)
    totals = shares.sum(axis=1, keepdims=True)
    value = float((sizes * (greatest + np.log(totals))[:, 0]).sum() + (limits * prices).sum())
    return value, shares / totals * sizes[:, np.newaxis]


def _newton_step(held: Matrix, sizes: PerClient, slope: PerLabel, damping: float) -> PerLabel:
    """Newton step of the prices, shortened by `damping`.

    If all labels are exhausted, raising all prices together has no effect: damping also keeps the step finite.
    """
    outer = np.einsum("ik,il->kl", held, held / sizes[:, np.newaxis])  # not BLAS: its bits depend on threads
    curvature = np.diag(held.sum(axis=0)) - outer
    scale = np.diag(curvature) + 1e-9 * float(sizes.sum())
    return -np.linalg.solve(curvature + np.diag(damping * scale), slope)


LABEL_COLUMN = "label"
_PLACE_COLUMN = "place"
# The base class, one that needs a function, and those that partition columns instead of samples.
_OTHERS = frozenset(["Partitioner", "IdToSizeFncPartitioner", "VerticalEvenPartitioner", "VerticalSizePartitioner"])
_ARRAYS = frozenset(["distribution_array"])  # parameters that must be arrays

Partitioner = Any  # a flwr_datasets.partitioner.Partitioner; the library has no types


class BadPartitioner(BdflError):
    """A partitioner that does not exist, or that does not produce the partition the scenario needs."""


def list_partitioners() -> list[str]:
    """Names of the partitioners that partition samples, in alphabetical order."""
    return sorted(set(_import_partitioners().__all__) - _OTHERS)


def deal_by_partitioner(scenario: Scenario, labels: NDArray[np.int64]) -> Owners:
    """Client that holds each of the samples with these labels, (samples,).

    Defaults of the partitioner's parameters, where it has them: one partition per client, by label, from the scenario's
    seed. Raises `BadPartitioner`, `MissingExtra`.
    """
    rng = stream(scenario.seed, Purpose.PARTITION)
    order = rng.permutation(len(labels))
    partitioner = _make_partitioner(scenario, int(rng.integers(2**32)))
    parts = _load_parts(scenario, partitioner, labels[order])
    owners = np.full(len(labels), NOBODY)
    for client, places in enumerate(parts):
        held = order[places]
        if len(np.unique(held)) < len(held) or (owners[held] != NOBODY).any():
            raise BadPartitioner(f"{scenario.partition.method}: deals out samples twice, expected each at most once")
        owners[held] = client
    return owners


def _make_partitioner(scenario: Scenario, seed: int) -> Partitioner:
    choice = scenario.partition
    names = list_partitioners()
    name = choice.method.removeprefix(FLOWER_PREFIX)
    if name not in names:
        raise BadPartitioner(f"partition.method: {choice.method!r} given, {FLOWER_PREFIX} expects {', '.join(names)}")
    kind = getattr(_import_partitioners(), name)
    defaults = {"num_partitions": scenario.clients.count, "partition_by": LABEL_COLUMN, "seed": seed}
    taken = list(inspect.signature(kind).parameters)
    given = _check_parameters(scenario, name, taken)
    arguments = {key: value for key, value in defaults.items() if key in taken} | given
    try:
        return kind(**arguments)
    except Exception as error:  # each validates its own parameters and may raise anything
        raise BadPartitioner(f"{choice.method}: {show_exception(error)}") from None


def _check_parameters(scenario: Scenario, name: str, taken: list[str]) -> dict[str, object]:
    """Convert the scenario's parameters to the partitioner's types."""
    given: Mapping[str, PartitionParameter] = scenario.partition.parameters
    for key, value in given.items():
        where = f"partition.parameters.{key}"
        if key not in taken:
            raise BadPartitioner(f"{where}: no parameter of {name}, which has {', '.join(taken)}")
        if key == "num_partitions" and value != scenario.clients.count:
            raise BadPartitioner(f"{where}: {value} given, expected clients.count, which is {scenario.clients.count}")
        if key == "partition_by" and value not in (LABEL_COLUMN, scenario.data.label_column):
            raise BadPartitioner(f"{where}: {value!r} given, expected {LABEL_COLUMN!r}, all that is known of a sample")
    plain: dict[str, object] = {}
    for key, value in given.items():
        as_list = list(value) if isinstance(value, tuple) else value
        plain[key] = np.array(value) if key in _ARRAYS else LABEL_COLUMN if key == "partition_by" else as_list
    return plain


def _load_parts(scenario: Scenario, partitioner: Partitioner, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions of the samples that each client holds."""
    import datasets

    method, num_clients = scenario.partition.method, scenario.clients.count
    columns = {LABEL_COLUMN: labels, _PLACE_COLUMN: np.arange(len(labels))}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about retries; a partitioner that gives up raises
            partitioner.dataset = datasets.Dataset.from_dict(columns)
            num_parts = partitioner.num_partitions
            if num_parts == num_clients:
                parts = [partitioner.load_partition(client)[_PLACE_COLUMN] for client in range(num_clients)]
                return [np.array(places[:], dtype=np.int64) for places in parts]
    except Exception as error:  # too few samples, a parameter out of range: it may raise anything
        raise BadPartitioner(f"{method}: {show_exception(error)}") from None
    raise BadPartitioner(f"{method}: makes {num_parts} partitions, expected clients.count, which is {num_clients}")


def _import_partitioners() -> Any:
    require("a partitioner of Flower's", "flwr_datasets.partitioner")
    import flwr_datasets.partitioner

    return flwr_datasets.partitioner


# Partitions of labelled data among clients; each sample is held by at most one client.

_ROWS_AT_A_TIME = 2**16


class BadPartition(BdflError):
    """Clients that request more samples than there are."""


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
        each = len(labels) // num_clients
        fits = f"at most {each} each" if each else f"at most {len(labels)} clients"
        raise BadPartition(
            f"clients.samples: {num_clients} clients want {total} samples together, "
            f'the training set has {len(labels)}, expected {fits}, or partition.sizes = "natural"'
        )
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
            owners = _deal_labels(rng, np.zeros_like(labels), sizes[:, np.newaxis])  # as if all had one label
        case PartitionMethod.SHARDS:
            owners = _deal_shards(rng, labels, sizes, choice.shards_per_client, is_natural=is_natural)
        case PartitionMethod.QUANTITY:
            drawn = _draw_parts(rng, np.array([float(total)]), num_clients, choice.size_dirichlet)[0]
            owners = _deal_labels(rng, np.zeros_like(labels), drawn[:, np.newaxis])
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
