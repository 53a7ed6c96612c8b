"""What is said to a Flower client and what it answers, whatever form it has; here it is checked."""

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

PARTITION, NUM_PARTITIONS = "partition-id", "num-partitions"  # in node_config, as Flower's simulation has them
ROUND = "server-round"  # in the config of a message, as Flower's strategies have it
RUN = 1  # every run of ours is the first that Flower hears of
# Under which keys clients tell what is asked for; the first that is there counts.
EXAMPLES = ("num-examples", "num_examples")
ACCURACY = ("accuracy", "eval_acc", "eval_accuracy", "eval-accuracy", "val_accuracy", "acc")
TRAIN_LOSS = ("train_loss", "train-loss", "loss")
LOSS = ("loss", "eval_loss", "eval-loss", "val_loss")


Config: TypeAlias = "dict[str, bool | bytes | float | int | str]"  # what Flower lets a config hold


class BadAnswer(BdflError):
    """What a Flower client answered and nobody can use: what was found, what was expected."""


@dataclass(frozen=True)
class Place:
    """Which client is asked, of how many, and the settings of the run."""

    client: int
    num_clients: int
    config: Mapping[str, Parameter]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a client's training gave, as it came."""

    arrays: Arrays
    num_examples: int
    loss: float  # NaN where it tells none


@dataclass(frozen=True)
class Judged:
    """How a model does on a client's own test data; NaN for what it does not tell."""

    loss: float
    accuracy: float
    num_examples: int


class FlowerClient(Protocol):
    """A Flower client in whatever form; each call is a message of its own."""

    def initial(self, place: Place) -> Arrays | None:
        """The arrays it begins with; none where it has no way to say so."""
        ...

    def fit(self, place: Place, round: int, arrays: Arrays) -> Fitted: ...

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        """None where it does not evaluate."""
        ...


def make_context(place: Place) -> "Context":
    """What a client is told about itself; its state is new in every message, and forgotten after it."""
    from flwr.app import Context, RecordDict

    return Context(
        run_id=RUN,
        node_id=place.client,
        node_config={PARTITION: place.client, NUM_PARTITIONS: place.num_clients},
        state=RecordDict(),
        run_config=dict(place.config),
    )


def message_config(place: Place, round: int) -> Config:
    """The config of a message: the run's settings and the round."""
    return {**place.config, ROUND: round}


def rename_arrays(found: Arrays, asked: Arrays) -> Arrays:
    """Arrays that came by place alone, under the names of those that were sent."""
    if len(found) != len(asked):
        raise BadArrays(f"{len(found)} arrays given, expected {len(asked)}")
    return dict(zip(asked, found.values(), strict=True))


def read_three(answer: object, what: str, expected: str) -> tuple[object, object, Mapping[str, object]]:
    """The three parts of what `fit` or `evaluate` of a client returned; raises `BadAnswer` for anything else."""
    if not isinstance(answer, Sequence) or len(answer) != 3 or not isinstance(answer[2], Mapping):
        found = f"{len(answer)} things" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise BadAnswer(f"{what} gave {found}, expected {expected}")
    return answer[0], answer[1], answer[2]


def read_count(value: object) -> int:
    """A number of examples; raises `BadAnswer` for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # metrics of a message are often floats
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise BadAnswer(f"{value!r} given as the number of examples, expected a whole number from 0")
    return int(value)


def read_first(metrics: Mapping[str, object], keys: Sequence[str]) -> object:
    """The first of these metrics that is there; none where none is."""
    return next((metrics[key] for key in keys if key in metrics), None)


def read_number(metrics: Mapping[str, object], keys: Sequence[str]) -> float:
    """As `read_first`; NaN where there is none, or it is not a finite number."""
    value = read_first(metrics, keys)
    if not isinstance(value, int | float | np.integer | np.floating):
        return NAN
    return float(value) if math.isfinite(value) else NAN


def validate_status(code: object, message: object) -> None:
    """Raises `BadAnswer` unless a client says that all went well."""
    if code != 0:
        raise BadAnswer(f"it answered with status {code}: {message}")
