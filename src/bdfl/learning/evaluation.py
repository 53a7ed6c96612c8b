"""Evaluation of a model on the test set, and the gradient of the global loss over all clients' data.

Both process the data in fixed chunks and blocks, summed in order and in float64. So the sums have the same bits,
whichever process computes a block.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from bdfl.learning.torch_model import FlatModel, Inputs
from bdfl.learning.training import Evaluation, FullGradient

_CHUNK = 250  # samples passed through the model together
_BLOCK = 8 * _CHUNK  # samples of one task


@dataclass(frozen=True, eq=False)
class EvaluationPart:
    """Sums over a block of the test set."""

    loss_sum: float
    num_right: NDArray[np.int64]  # (labels,)
    num_samples: NDArray[np.int64]  # (labels,)


@dataclass(frozen=True, eq=False)
class GradientPart:
    """Loss and gradient summed over a block of samples."""

    loss_sum: float
    gradient_sum: NDArray[np.float64]  # (parameters,)
    num_samples: int


def blocks_of(num_samples: int) -> list[range]:
    """Return 0 to `num_samples` - 1 in the blocks that are evaluated one by one."""
    return _pieces(range(num_samples), _BLOCK)


def evaluate_block(model: FlatModel, inputs: Inputs, samples: torch.Tensor, num_labels: int) -> EvaluationPart:
    """Evaluate the loaded model on these samples."""
    losses: list[float] = []
    all_labels = inputs.labels.index_select(0, samples)
    is_right: list[torch.Tensor] = []
    model.module.eval()
    with torch.no_grad():
        for chunk in torch.split(samples, _CHUNK):
            labels = inputs.labels.index_select(0, chunk)
            scores = model.module(inputs.take(chunk))
            losses += cross_entropy(scores, labels, reduction="none").tolist()
            is_right.append(scores.argmax(dim=1) == labels)
    return EvaluationPart(
        math.fsum(losses),
        np.bincount(all_labels[torch.cat(is_right)].numpy(), minlength=num_labels),
        np.bincount(all_labels.numpy(), minlength=num_labels),
    )


def combine_evaluation(parts: Iterable[EvaluationPart]) -> Evaluation:
    """Accuracy, mean loss and recall of every label over all parts."""
    known = list(parts)
    num_right = sum((part.num_right for part in known[1:]), start=known[0].num_right)
    num_samples = sum((part.num_samples for part in known[1:]), start=known[0].num_samples)
    total = int(num_samples.sum())
    recall = np.full(len(num_samples), np.nan)
    np.divide(num_right, num_samples, out=recall, where=num_samples > 0)
    return Evaluation(int(num_right.sum()) / total, math.fsum(part.loss_sum for part in known) / total, recall)


def differentiate_block(model: FlatModel, inputs: Inputs, samples: torch.Tensor) -> GradientPart:
    """Loss and gradient of the loaded model in evaluation mode (no dropout), summed over these samples."""
    losses: list[float] = []
    gradient_sum = np.zeros(model.layout.num_parameters)
    model.module.eval()
    for chunk in torch.split(samples, _CHUNK):
        loss = cross_entropy(model.module(inputs.take(chunk)), inputs.labels.index_select(0, chunk), reduction="sum")
        model.forget_gradient()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradient_sum += model.read_gradient()
    return GradientPart(math.fsum(losses), gradient_sum, len(samples))


def combine_gradient(parts: Iterable[GradientPart]) -> FullGradient:
    """Mean loss and gradient over all parts, summed in the order given: parts must come in block order."""
    losses: list[float] = []
    num_samples = 0
    gradient: NDArray[np.float64] | None = None
    for part in parts:
        losses.append(part.loss_sum)
        num_samples += part.num_samples
        gradient = part.gradient_sum.copy() if gradient is None else np.add(gradient, part.gradient_sum, out=gradient)
    assert gradient is not None, "at least one part"
    return FullGradient(math.fsum(losses) / num_samples, gradient / num_samples)


def _pieces(whole: range, size: int) -> list[range]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]
