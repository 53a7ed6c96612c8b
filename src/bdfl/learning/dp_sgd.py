"""Differentially private training of one client: DP-SGD [Abadi16] with Opacus, and its sources of noise.

Each step takes every sample independently with the same probability, clips its gradient to `max_grad_norm`, and adds
noise of `noise_multiplier` times that to the sum. The sum is divided by the expected number of samples, not by the
number taken. So the weights reveal little about any one sample. The loss and the norms in the result are exact: they
are for the training client and are never sent.
"""

import copy
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from scipy.special import ndtri
from torch import nn
from torch.nn.functional import cross_entropy

from bdfl.environment import Purpose, stream
from bdfl.errors import one_line
from bdfl.learning.optimizers import OptimizerSettings, make_torch_optimizer
from bdfl.learning.privacy_accounting import Mechanism
from bdfl.learning.sgd import Samples, take_samples
from bdfl.learning.torch_model import FlatModel, Inputs
from bdfl.learning.training import NAN, InvalidTraining, LocalResult, Outcome, no_samples
from bdfl.learning.weights import Vector, is_finite

# Random sources of private training: the public seed in a simulation, the operating system in a live node.


class NoiseSource(Protocol):
    """Random source for one client's private training in one round."""

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        """Draw `count` numbers, each at least 0 and below 1."""
        ...

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        """Draw numbers of mean 0 and standard deviation 1, float32."""
        ...


class SeededNoise:
    """Drawn from (seed, round, client): reproducible bits. The seed is public, so the noise can be removed."""

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._uniform = stream(seed, Purpose.BATCHES, round, client)
        self._normal = torch.Generator()
        self._normal.manual_seed(int(stream(seed, Purpose.NOISE, round, client).integers(2**63)))

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        return self._uniform.random(count)

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=self._normal)


class SecretNoise:
    """Drawn from the operating system's generator: neither reproducible nor predictable.

    A normal number is the sum of four quantiles of uniform numbers with 53 bits, divided by two. A single one would
    leave gaps between floating-point numbers that distinguish the noise from the data it hides [Holohan21].
    """

    _ADDED = 4

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        halves = [ndtri(self.draw_uniform(shape.numel()) + 2.0**-54) for _ in range(self._ADDED)]
        total = np.sum(halves, axis=0) / np.sqrt(self._ADDED)
        return torch.from_numpy(total.astype(np.float32)).view(shape)


_MOST_ENTRIES = 2**25  # of per-sample gradients at a time: 128 MiB


@dataclass(frozen=True)
class Clipping:
    """Noise and clipping norm of DP-SGD."""

    noise_multiplier: float
    max_grad_norm: float


class PrivateModel:
    """Trains a copy of `model` with per-sample gradients."""

    def __init__(self, model: FlatModel, inputs: Inputs, clipping: Clipping, *, name: str) -> None:
        module = copy.deepcopy(model.module).train()
        _validate_module(module, inputs, name)
        self._flat = FlatModel(module, channels_last=False, device=model.device)
        self._inputs = replace(inputs, keeps_channels_last=False)
        self._clipping = clipping
        for part in module.modules():
            if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                part.register_forward_pre_hook(_with_channels_first)
        with _known_warnings():
            self._sampled = GradSampleModule(module, loss_reduction="sum")

    def train(
        self,
        weights: Vector,
        client: int,
        samples: Samples,
        mechanism: Mechanism,
        noise: NoiseSource,
        settings: OptimizerSettings,
    ) -> LocalResult:
        """Train the client for the steps of a round, starting from `weights`."""
        if mechanism.steps == 0:
            return no_samples(client)
        self._flat.load(weights)
        self._sampled.train()
        trained = [one for one in self._sampled.parameters() if one.requires_grad]
        expected_batch = len(samples) * mechanism.rate
        wrapped = make_torch_optimizer(settings, trained)
        optimizer = _NoisyOptimizer(wrapped, self._clipping, expected_batch, noise)
        losses: list[float] = []
        largest_norm = 0.0
        with _known_warnings():
            for _ in range(mechanism.steps):
                taken = take_samples(samples, mechanism.rate, noise.draw_uniform(len(samples)))
                losses += self._make_step(optimizer, taken, settings.label_smoothing)
                largest_norm = max(largest_norm, _norm(optimizer.params))
        optimizer.zero_grad(set_to_none=True)
        weights = self._flat.read()
        if not is_finite(weights):  # decided by the noisy weights alone: the effect of a single sample stays hidden
            return LocalResult(client, Outcome.DIVERGED, None, NAN, NAN, mechanism.steps)
        loss = math.fsum(losses) / len(losses) if losses else NAN
        return LocalResult(client, Outcome.TRAINED, weights, loss, largest_norm, mechanism.steps)

    def _make_step(self, optimizer: "_NoisyOptimizer", taken: Samples, smoothing: float) -> list[float]:
        """Make one noisy step on these samples, in parts that fit in memory; return their mean loss, if there are any.

        All parts but the last are only clipped and accumulated.
        """
        if len(taken) == 0:
            optimizer.zero_grad(set_to_none=True)
            for parameter in optimizer.params:
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
            optimizer.step()
            return []
        together = max(1, _MOST_ENTRIES // sum(parameter.numel() for parameter in optimizer.params))
        total = 0.0
        for start in range(0, len(taken), together):
            numbers = torch.from_numpy(taken[start : start + together])
            optimizer.zero_grad(set_to_none=True)
            scores = self._sampled(self._inputs.take(numbers))
            labels = self._inputs.take_labels(numbers)
            loss = cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            optimizer.signal_skip_step(start + together < len(taken))
            optimizer.step()
        return [total / len(taken)]


class _NoisyOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    """Opacus's optimizer with noise from our own random source; gradients that are not finite are ignored."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, clipping: Clipping, expected_batch: float, noise: NoiseSource
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=clipping.noise_multiplier,
            max_grad_norm=clipping.max_grad_norm,
            expected_batch_size=expected_batch,
        )
        self._noise = noise

    def clip_and_accumulate(self) -> None:
        """Set per-sample gradients that are not finite to 0, since clipping does not bound them."""
        given = self.grad_samples
        is_number = torch.stack([torch.isfinite(one).flatten(1).all(dim=1) for one in given]).all(dim=0)
        if not bool(is_number.all()):
            for parameter, one in zip(self.params, given, strict=True):
                kept = is_number.view(-1, *[1] * (one.dim() - 1))
                parameter.grad_sample = torch.where(kept, one, one.new_zeros(()))
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        deviation = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noise = self._noise.draw_normal(parameter.shape).mul_(deviation).to(parameter.device)
            parameter.grad = (parameter.summed_grad + noise).view_as(parameter)


def _with_channels_first(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Make inputs contiguous: otherwise Opacus 1.6 computes wrong gradients of convolutions."""
    return tuple(one.contiguous() for one in inputs)


def _norm(parameters: list[nn.Parameter]) -> float:
    """Norm of the gradient used in the last step."""
    norms = torch._foreach_norm([one.grad for one in parameters if one.grad is not None])
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _validate_module(module: nn.Module, inputs: Inputs, name: str) -> None:
    """Raise `InvalidTraining` if per-sample gradients cannot be computed."""
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
        for batch in (first, second + (second == first)):  # the second sample differs, whatever it is
            torch.manual_seed(0)
            scores.append(module(torch.cat([first[:1], batch[1:]]))[0])
    if not torch.allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5):
        raise InvalidTraining(f"{where} what it says of a sample depends on the others in its batch")


@contextmanager
def _known_warnings() -> Iterator[None]:
    """Suppress PyTorch's warning that the first layer's inputs need no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        yield
