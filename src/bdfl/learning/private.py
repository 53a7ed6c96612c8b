"""Differentially private training of one client: DP-SGD [Abadi16] with Opacus.

In each step every sample is taken by its own chance, its gradient is clipped to `max_grad_norm`, noise of
`noise_multiplier` times that is added to their sum, and the sum is divided by how many samples a step takes on average:
none of this depends on how many really were taken. What the weights then are tells little of any one sample; the loss
and the norms in the result are as measured, for those who train, and no part of what is sent.
"""

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.functional import cross_entropy

from bdfl.errors import one_line
from bdfl.learning.accounting import Mechanism
from bdfl.learning.batches import Samples, take_samples
from bdfl.learning.chance import Chance
from bdfl.learning.flat_model import FlatModel
from bdfl.learning.inputs import Inputs
from bdfl.learning.loop import Descent
from bdfl.learning.training import NAN, InvalidTraining, LocalResult, Outcome, no_samples
from bdfl.learning.weights import Vector, is_finite

_MOST_ENTRIES = 2**25  # of gradients of single samples at a time: 128 MiB


@dataclass(frozen=True)
class Clipping:
    """How a gradient is made to hide each sample's part in it."""

    noise_multiplier: float
    max_grad_norm: float


class PrivateModel:
    """Trains a model of its own, of the same kind as `model`, with gradients of each sample by itself."""

    def __init__(self, model: FlatModel, inputs: Inputs, descent: Descent, clipping: Clipping, *, name: str) -> None:
        module = copy.deepcopy(model.module).train()
        _validate_module(module, inputs, name)
        self._flat = FlatModel(module, channels_last=False)
        self._inputs = replace(inputs, keeps_channels_last=False)
        self._descent = descent
        self._clipping = clipping
        for part in module.modules():
            if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                part.register_forward_pre_hook(_with_channels_first)
        with _known_warnings():
            self._sampled = GradSampleModule(module, loss_reduction="sum")

    def train(
        self, weights: Vector, client: int, samples: Samples, mechanism: Mechanism, chance: Chance
    ) -> LocalResult:
        """The client's result after the steps of a round, starting from `weights`."""
        if mechanism.steps == 0:
            return no_samples(client)
        self._flat.load(weights)
        self._sampled.train()
        optimizer = self._make_optimizer(len(samples) * mechanism.rate, chance)
        losses: list[float] = []
        largest_norm = 0.0
        with _known_warnings():
            for _ in range(mechanism.steps):
                taken = take_samples(samples, mechanism.rate, chance.draw_uniform(len(samples)))
                losses += self._make_step(optimizer, taken)
                largest_norm = max(largest_norm, _norm(optimizer.params))
        optimizer.zero_grad(set_to_none=True)
        trained = self._flat.read()
        if not is_finite(trained):  # which only the noisy weights tell: what a sample did alone is never shown
            return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, mechanism.steps)
        loss = math.fsum(losses) / len(losses) if losses else NAN
        return LocalResult(client, Outcome.TRAINED, trained, loss, largest_norm, mechanism.steps)

    def _make_optimizer(self, expected_batch: float, chance: Chance) -> "_NoisyOptimizer":
        descent, trained = self._descent, [one for one in self._sampled.parameters() if one.requires_grad]
        return _NoisyOptimizer(
            torch.optim.SGD(
                trained, lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.weight_decay
            ),
            self._clipping,
            expected_batch,
            chance,
        )

    def _make_step(self, optimizer: "_NoisyOptimizer", taken: Samples) -> list[float]:
        """One noisy step on these samples, so many at a time as memory should hold; their mean loss, if there are any.

        All but the last part of them are only clipped and added up.
        """
        if len(taken) == 0:
            optimizer.zero_grad(set_to_none=True)
            for parameter in optimizer.params:
                parameter.grad_sample = torch.zeros(0, *parameter.shape)
            optimizer.step()
            return []
        together = max(1, _MOST_ENTRIES // sum(parameter.numel() for parameter in optimizer.params))
        total = 0.0
        for start in range(0, len(taken), together):
            numbers = torch.from_numpy(taken[start : start + together])
            optimizer.zero_grad(set_to_none=True)
            scores = self._sampled(self._inputs.take(numbers))
            loss = cross_entropy(scores, self._inputs.labels.index_select(0, numbers), reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            optimizer.signal_skip_step(start + together < len(taken))
            optimizer.step()
        return [total / len(taken)]


class _NoisyOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    """Opacus's optimizer, with noise from our own chance, and deaf to samples whose gradient is no number."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, clipping: Clipping, expected_batch: float, chance: Chance
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=clipping.noise_multiplier,
            max_grad_norm=clipping.max_grad_norm,
            expected_batch_size=expected_batch,
        )
        self._chance = chance

    def clip_and_accumulate(self) -> None:
        """Clipping bounds what a number can do; what is none must not come in at all."""
        given = self.grad_samples
        is_number = torch.stack([torch.isfinite(one).flatten(1).all(dim=1) for one in given]).all(dim=0)
        if not bool(is_number.all()):
            for parameter, one in zip(self.params, given, strict=True):
                kept = is_number.view(-1, *[1] * (one.dim() - 1))
                parameter.grad_sample = torch.where(kept, one, torch.zeros((), dtype=one.dtype))
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        deviation = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noise = self._chance.draw_normal(parameter.shape).mul_(deviation)
            parameter.grad = (parameter.summed_grad + noise).view_as(parameter)


def _with_channels_first(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same inputs in the usual order of memory: for any other, Opacus 1.6 takes a convolution's gradients wrong."""
    return tuple(one.contiguous() for one in inputs)


def _norm(parameters: list[nn.Parameter]) -> float:
    """Of the gradient that a step was made with."""
    norms = torch._foreach_norm([one.grad for one in parameters if one.grad is not None])
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _validate_module(module: nn.Module, inputs: Inputs, name: str) -> None:
    """Raises `InvalidTraining` where a sample's gradient cannot be told apart from those of others."""
    where = f"learning.model: {name!r} cannot be trained privately:"
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        raise InvalidTraining(
            f"{where} it normalises batches, which mixes samples; use nn.GroupNorm or nn.LayerNorm instead"
        )
    errors = [*ModuleValidator.validate(module), *GradSampleModule.validate(module)]
    if errors:
        raise InvalidTraining(f"{where} {one_line(errors[0])}")
    first, second = (inputs.take(torch.tensor(numbers)) for numbers in ((0, 0), (0, len(inputs) - 1)))
    scores = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for batch in (first, second + (second == first)):  # the second sample is another one, whatever it is
            torch.manual_seed(0)
            scores.append(module(torch.cat([first[:1], batch[1:]]))[0])
    if not torch.allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5):
        raise InvalidTraining(f"{where} what it says of a sample depends on the others in its batch")


@contextmanager
def _known_warnings() -> Iterator[None]:
    """Inside, PyTorch does not say that the first layer's inputs need no gradient: nobody asks for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        yield
