"""Partitioners of flwr-datasets, by name.

A partitioner sees the labels in a drawn order, as Flower itself shuffles a data set before partitioning. Its own draws
use the scenario's seed: the same scenario gives the same partition.
"""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.environment import Purpose, stream
from bdfl.errors import BdflError, require
from bdfl.learning.own_function import show_exception
from bdfl.scenario import Scenario
from bdfl.scenario.learning import FLOWER_PREFIX, PartitionParameter

LABEL_COLUMN = "label"
_PLACE_COLUMN = "place"
_NOBODY = -1
# The base class, one that needs a function, and those that partition columns instead of samples.
_OTHERS = frozenset(["Partitioner", "IdToSizeFncPartitioner", "VerticalEvenPartitioner", "VerticalSizePartitioner"])
_ARRAYS = frozenset(["distribution_array"])  # parameters that must be arrays

Partitioner = Any  # a flwr_datasets.partitioner.Partitioner; the library has no types


class BadPartitioner(BdflError):
    """A partitioner that does not exist, or that does not produce the partition the scenario needs."""


def list_partitioners() -> list[str]:
    """Names of the partitioners that partition samples, in alphabetical order."""
    return sorted(set(_import_partitioners().__all__) - _OTHERS)


def deal_by_partitioner(scenario: Scenario, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Client that holds each of the samples with these labels, (samples,): its number, or -1 for none.

    Defaults of the partitioner's parameters, where it has them: one partition per client, by label, from the scenario's
    seed. Raises `BadPartitioner`, `MissingExtra`.
    """
    rng = stream(scenario.seed, Purpose.PARTITION)
    order = rng.permutation(len(labels))
    partitioner = _make_partitioner(scenario, int(rng.integers(2**32)))
    parts = _load_parts(scenario, partitioner, labels[order])
    owners = np.full(len(labels), _NOBODY)
    for client, places in enumerate(parts):
        held = order[places]
        if len(np.unique(held)) < len(held) or (owners[held] != _NOBODY).any():
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
