"""What local training takes and gives, whatever computes it; nothing here needs PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, Vector
from bdfl.scenario import Scenario

NAN = float("nan")


class InvalidTraining(BdflError):
    """Training that cannot be done as asked: a model that does not fit, an engine that cannot run it."""


class TrainingFailed(BdflError):
    """Training that broke off: somebody's own model raised, or a training process died."""


class Outcome(StrEnum):
    """How a client's training in a round ended."""

    TRAINED = "trained"
    NO_SAMPLES = "no-samples"
    DIVERGED = "diverged"  # the loss, a gradient or a weight was no longer finite


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What a client's training in a round gave."""

    client: int
    outcome: Outcome
    weights: Vector | None  # only where trained, and then finite
    loss: float  # mean training loss over the local steps; NaN where there is none
    gradient_norm: float  # largest norm of a mini-batch gradient seen; NaN where there is none
    num_steps: int  # mini-batch updates made; where diverged, those before


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well a model does on the test set."""

    accuracy: float
    loss: float
    recall: NDArray[np.float64]  # (labels,); NaN where the test set lacks a label


@dataclass(frozen=True, eq=False)
class FullGradient:
    """The global training loss F(w) = sum |D_i|/|D| F_i(w) over all clients' data, and its gradient."""

    loss: float
    gradient: NDArray[np.float64]  # (parameters,); 0 for what training by gradients does not touch


class Trainer(Protocol):
    """Trains and judges models of one scenario: pure functions of what they are given."""

    layout: Layout

    def initial_weights(self) -> Vector: ...

    def train(self, weights: Vector, round: int, clients: Sequence[int]) -> list[LocalResult]:
        """The results of these clients in that round, all starting from `weights`, in the order of `clients`."""
        ...

    def evaluate(self, weights: Vector) -> Evaluation: ...

    def full_gradient(self, weights: Vector) -> FullGradient: ...


def validate_clients(clients: Sequence[int], num_clients: int) -> None:
    """Raises `InvalidTraining` unless these are numbers of clients, each at most once."""
    for client in clients:
        if not 0 <= client < num_clients:
            raise InvalidTraining(f"client {client}: not there, expected 0 to {num_clients - 1}")
    if len(set(clients)) != len(clients):
        raise InvalidTraining(f"clients: {list(clients)} given, expected each at most once")


def num_local_steps(scenario: Scenario) -> int:
    """H: local steps really made in a round, in the unit of the scenario: [Li24, Eq. 1]."""
    steps = scenario.learning.local_steps
    return scenario.compute.local_updates if steps is None else steps


def no_samples(client: int) -> LocalResult:
    """The result of a client that holds no data."""
    return LocalResult(client, Outcome.NO_SAMPLES, None, NAN, NAN, 0)
