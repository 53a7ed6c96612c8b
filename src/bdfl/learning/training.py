"""Interface of local training, independent of the engine; needs no PyTorch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, Vector
from bdfl.scenario import Scenario

NAN = float("nan")

Personal: TypeAlias = Mapping[int, Vector]  # values of the personal tensors by client; the initial ones if missing
NO_PERSONAL: Personal = MappingProxyType({})

Task = TypeVar("Task")
Result = TypeVar("Result")


class InvalidTraining(BdflError):
    """Training that cannot be done as asked: a model that does not fit, or an engine that cannot run it."""


class TrainingFailed(BdflError):
    """Training that failed: a user's model raised, or a training process died."""


class Outcome(StrEnum):
    """Outcome of a client's training in a round."""

    TRAINED = "trained"
    NO_SAMPLES = "no-samples"
    DIVERGED = "diverged"  # the loss, a gradient or a weight was no longer finite


@dataclass(frozen=True, eq=False)
class LocalResult:
    """Result of a client's training in a round."""

    client: int
    outcome: Outcome
    weights: Vector | None  # only if trained, and then finite
    loss: float  # mean training loss over the local steps; NaN where there is none
    gradient_norm: float  # largest norm of a mini-batch gradient seen; NaN where there is none
    num_steps: int  # mini-batch updates made; if diverged, those before
    personal: Vector | None = None  # tensors that stay with the client; only if trained, and then finite


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy, loss and recall of a model on the test set; NaN if it has no samples to judge by."""

    accuracy: float
    loss: float
    recall: NDArray[np.float64]  # (labels,); NaN where the test set lacks a label


@dataclass(frozen=True, eq=False)
class FullGradient:
    """The global training loss F(w) = sum |D_i|/|D| F_i(w) over all clients' data, and its gradient."""

    loss: float
    gradient: NDArray[np.float64]  # (parameters,); 0 for entries without a gradient


class TaskMap(Protocol):
    """Maps a function over tasks, on a trainer in this process or on others like it; results come in order."""

    def __call__(self, function: Callable[[Any, Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]: ...


def map_here(trainer: object) -> TaskMap:
    """Return the map on a trainer of this process."""

    def apply(function: Callable[[Any, Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
        return (function(trainer, task) for task in tasks)

    return apply


class Trainer(Protocol):
    """Trains and evaluates models of one scenario: pure functions of their arguments."""

    layout: Layout
    personal_layout: Layout  # of tensors that are no part of the weights; empty unless `learning.personal`

    def initial_weights(self) -> Vector: ...

    def train(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal = NO_PERSONAL
    ) -> list[LocalResult]:
        """Train these clients in that round, all starting from `weights`; results in the order of `clients`."""
        ...

    def evaluate(self, weights: Vector, personal: Personal = NO_PERSONAL) -> Evaluation:
        """Evaluate a model; with personal layers, each test sample with those of a client that holds its label."""
        ...

    def full_gradient(self, weights: Vector) -> FullGradient: ...


def validate_clients(clients: Sequence[int], num_clients: int) -> None:
    """Raise `InvalidTraining` unless these are distinct numbers of clients."""
    for client in clients:
        if not 0 <= client < num_clients:
            raise InvalidTraining(f"client {client}: not there, expected 0 to {num_clients - 1}")
    if len(set(clients)) != len(clients):
        raise InvalidTraining(f"clients: {list(clients)} given, expected each at most once")


def num_local_steps(scenario: Scenario) -> int:
    """Local steps H made in a round, in the unit of the scenario: [Li24, Eq. 1]."""
    steps = scenario.learning.local_steps
    return scenario.compute.local_updates if steps is None else steps


def no_samples(client: int) -> LocalResult:
    """Result of a client without data."""
    return LocalResult(client, Outcome.NO_SAMPLES, None, NAN, NAN, 0)
