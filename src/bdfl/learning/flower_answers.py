"""Requests to Flower clients and validation of their answers, independent of the client's API."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from bdfl.errors import BdflError
from bdfl.learning.flower_arrays import Arrays, BadArrays
from bdfl.learning.training import NAN
from bdfl.scenario.values import Parameter

if TYPE_CHECKING:
    from flwr.app import Context

PARTITION, NUM_PARTITIONS = "partition-id", "num-partitions"  # in node_config, as in Flower's simulation
ROUND = "server-round"  # in the config of a message, as in Flower's strategies
RUN = 1  # every run is the first one from Flower's point of view
# Metric keys that clients use; the first one present counts.
EXAMPLES = ("num-examples", "num_examples")
ACCURACY = ("accuracy", "eval_acc", "eval_accuracy", "eval-accuracy", "val_accuracy", "acc")
TRAIN_LOSS = ("train_loss", "train-loss", "loss")
LOSS = ("loss", "eval_loss", "eval-loss", "val_loss")


Config: TypeAlias = "dict[str, bool | bytes | float | int | str]"  # types that Flower allows in a config


class BadAnswer(BdflError):
    """An invalid answer of a Flower client: the value found and the form expected."""


@dataclass(frozen=True)
class Place:
    """A client's number, the number of clients, and the settings of the run."""

    client: int
    num_clients: int
    config: Mapping[str, Parameter]


@dataclass(frozen=True, eq=False)
class Fitted:
    """Result of a client's training, as received."""

    arrays: Arrays
    num_examples: int
    loss: float  # NaN if not reported


@dataclass(frozen=True)
class Judged:
    """Evaluation of a model on a client's own test data; NaN if not reported."""

    loss: float
    accuracy: float
    num_examples: int


class FlowerClient(Protocol):
    """A Flower client of any API; each call is a separate message."""

    def initial(self, place: Place) -> Arrays | None:
        """Return the client's initial arrays; None if it cannot provide them."""
        ...

    def fit(self, place: Place, round: int, arrays: Arrays) -> Fitted: ...

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        """Evaluate the arrays; None if the client does not evaluate."""
        ...


def make_context(place: Place) -> "Context":
    """Make the context passed to a client; its state is new in every message and discarded afterwards."""
    from flwr.app import Context, RecordDict

    return Context(
        run_id=RUN,
        node_id=place.client,
        node_config={PARTITION: place.client, NUM_PARTITIONS: place.num_clients},
        state=RecordDict(),
        run_config=dict(place.config),
    )


def message_config(place: Place, round: int) -> Config:
    """Config of a message: the run's settings and the round."""
    return {**place.config, ROUND: round}


def rename_arrays(found: Arrays, asked: Arrays) -> Arrays:
    """Give arrays received as a list the names of those that were sent."""
    if len(found) != len(asked):
        raise BadArrays(f"{len(found)} arrays given, expected {len(asked)}")
    return dict(zip(asked, found.values(), strict=True))


def read_three(answer: object, what: str, expected: str) -> tuple[object, object, Mapping[str, object]]:
    """Return the three parts of a result of `fit` or `evaluate`; raise `BadAnswer` for anything else."""
    if not isinstance(answer, Sequence) or len(answer) != 3 or not isinstance(answer[2], Mapping):
        found = f"{len(answer)} things" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise BadAnswer(f"{what} gave {found}, expected {expected}")
    return answer[0], answer[1], answer[2]


def read_count(value: object) -> int:
    """Return a number of examples; raise `BadAnswer` for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # metrics of a message are often floats
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise BadAnswer(f"{value!r} given as the number of examples, expected a whole number from 0")
    return int(value)


def read_first(metrics: Mapping[str, object], keys: Sequence[str]) -> object:
    """Return the first of these metrics that is present; None if none is."""
    return next((metrics[key] for key in keys if key in metrics), None)


def read_number(metrics: Mapping[str, object], keys: Sequence[str]) -> float:
    """Return the first of these metrics as a number; NaN if none is present or it is not finite."""
    value = read_first(metrics, keys)
    if not isinstance(value, int | float | np.integer | np.floating):
        return NAN
    return float(value) if math.isfinite(value) else NAN


def validate_status(code: object, message: object) -> None:
    """Raise `BadAnswer` unless a client reports success."""
    if code != 0:
        raise BadAnswer(f"it answered with status {code}: {message}")
