"""Mini-batch SGD of one client."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bdfl.environment import Purpose, stream
from bdfl.learning.torch_model import FlatModel, Inputs
from bdfl.learning.training import NAN, InvalidTraining, LocalResult, Outcome, no_samples
from bdfl.learning.weights import Vector, is_finite
from bdfl.scenario import Learning, LocalUnit

# Mini-batches of a client, drawn from (seed, round, client), and Poisson sampling from given chances.

Samples = NDArray[np.int64]  # numbers of samples in the training set


def draw_batches(
    seed: int, round: int, client: int, samples: Samples, *, unit: LocalUnit, steps: int, batch: int
) -> list[Samples]:
    """Mini-batches of a client in a round, in order: passes without replacement, reshuffled each time.

    Updates: `steps` batches of equal size; a remainder that does not fill a batch is left out of its pass. Epochs:
    `steps` passes over all samples; the last batch of each may be smaller. A client with less than a batch uses all its
    samples in each.
    """
    if len(samples) == 0:
        return []
    rng = stream(seed, Purpose.BATCHES, round, client)
    size = min(batch, len(samples))
    if unit is LocalUnit.EPOCHS:
        num_used, num_passes = len(samples), steps
    else:
        per_pass = len(samples) // size
        num_used, num_passes = per_pass * size, -(-steps // per_pass)  # enough passes for all steps
    batches: list[Samples] = []
    for _ in range(num_passes):
        order = rng.permutation(samples)[:num_used]
        batches += [order[start : start + size] for start in range(0, num_used, size)]
    return batches if unit is LocalUnit.EPOCHS else batches[:steps]


def sampling_rate(batch: int, num_samples: int) -> float:
    """Probability that a private step takes a given sample: `batch` samples on average, or all if there are fewer."""
    return min(1.0, batch / num_samples) if num_samples else 0.0


def num_private_steps(unit: LocalUnit, steps: int, batch: int, num_samples: int) -> int:
    """Steps of a client in a round of private training; an epoch is as many as would see every sample once."""
    if num_samples == 0:
        return 0
    return steps * -(-num_samples // batch) if unit is LocalUnit.EPOCHS else steps


def take_samples(samples: Samples, rate: float, chances: NDArray[np.float64]) -> Samples:
    """Samples of a private step: those whose chance (uniform, one for each) is below the rate; there may be none."""
    return samples[chances < rate]


# Training of clients one after the other: H mini-batch updates of stochastic gradient descent.

_LARGEST = float(np.finfo(np.float32).max)
_GATHERED_BYTES = 2**20  # of inputs prepared at a time: several small batches, or one large one


@dataclass(frozen=True)
class Descent:
    """Parameters of a step of `torch.optim.SGD`; the momentum starts at zero."""

    learning_rate: float
    momentum: float
    weight_decay: float


def make_descent(choice: Learning) -> Descent:
    """Return the SGD parameters of the scenario; raise `InvalidTraining` if float32 cannot hold them."""
    for key in ("learning_rate", "weight_decay"):
        value: float = getattr(choice, key)
        if value > _LARGEST:
            raise InvalidTraining(f"learning.{key}: {value:g} given, expected at most {_LARGEST:g}")
    return Descent(choice.learning_rate, choice.momentum, choice.weight_decay)


def train_client(
    model: FlatModel, inputs: Inputs, weights: Vector, client: int, batches: Sequence[Samples], descent: Descent
) -> LocalResult:
    """Result of the client after a step on each of `batches`, starting from `weights`: [Li24, Eq. 2].

    A loss, gradient norm or weight that is not finite ends the client's training.
    """
    if not batches:
        return no_samples(client)
    model.load(weights)
    model.module.train()
    module, tensors = model.module, model.tensors
    velocity = [torch.zeros_like(tensor) for tensor in tensors] if descent.momentum else []
    losses: list[float] = []
    largest_norm = 0.0
    for batch, labels in gather_batches(inputs, batches):
        loss = cross_entropy(module(batch), labels)
        model.forget_gradient()
        loss.backward()  # type: ignore[no-untyped-call]
        steps = model.gradients()
        value, norm = loss.item(), torch.linalg.vector_norm(torch.stack(torch._foreach_norm(steps))).item()
        if not (math.isfinite(value) and math.isfinite(norm)):
            return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, len(losses))
        losses.append(value)
        largest_norm = max(largest_norm, norm)
        if descent.weight_decay:
            torch._foreach_add_(steps, tensors, alpha=descent.weight_decay)
        if descent.momentum:
            torch._foreach_mul_(velocity, descent.momentum)
            torch._foreach_add_(velocity, steps)
            steps = velocity
        torch._foreach_add_(tensors, steps, alpha=-descent.learning_rate)
    trained = model.read()
    if not is_finite(trained):
        return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, len(losses))
    return LocalResult(client, Outcome.TRAINED, trained, math.fsum(losses) / len(losses), largest_norm, len(losses))


def gather_batches(inputs: Inputs, batches: Sequence[Samples]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and labels of every batch; small batches are prepared together to save calls."""
    together = max(1, _GATHERED_BYTES // (inputs.bytes_per_sample * len(batches[0])))
    for start in range(0, len(batches), together):
        group = batches[start : start + together]
        sizes = [len(batch) for batch in group]
        samples = torch.from_numpy(np.concatenate(group))
        taken, labels = inputs.take(samples), inputs.labels.index_select(0, samples)
        yield from zip(torch.split(taken, sizes), torch.split(labels, sizes), strict=True)
