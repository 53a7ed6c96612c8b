"""A model whose trained parameters are views of one tensor, so that one call updates them all."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bdfl.learning.inputs import share_array
from bdfl.learning.models import layout_of
from bdfl.learning.weights import Layout, Vector

_GATHERED_ENTRIES = 2**16  # above, one call for all gradients saves less than accumulating into them costs
_ALIGNMENT = 16  # entries: parameters start at multiples of 64 bytes, where vector instructions are fastest


class FlatModel:
    """Owns a module whose trained parameters are views of one tensor.

    In a small model the gradients are views of one tensor too: `tensors` and `gradients` hold a single tensor each, and
    padding entries stay 0. In a large model every backward pass allocates new gradients.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool) -> None:
        self.module = module
        self.layout: Layout = layout_of(module)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        starts = np.cumsum([0] + [-(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT for parameter in trained]).tolist()
        flat = torch.zeros(starts[-1])
        gradient = torch.zeros(starts[-1]) if len(flat) <= _GATHERED_ENTRIES else None
        for parameter, start in zip(trained, starts, strict=False):
            place = _view(flat, start, parameter.shape, channels_last=channels_last)
            place.copy_(parameter.detach())
            parameter.data = place
            if gradient is not None:
                parameter.grad = _view(gradient, start, parameter.shape, channels_last=channels_last)
        self._trained = trained
        self._gradient = gradient
        self.tensors = [flat] if gradient is not None else [parameter.detach() for parameter in trained]
        self._restarted = {
            name: buffer.clone() for name, buffer in module.named_buffers() if name not in set(self.layout.names)
        }

    def forget_gradient(self) -> None:
        """Reset the gradients before a backward pass."""
        if self._gradient is not None:
            self._gradient.zero_()
        else:
            for parameter in self._trained:
                parameter.grad = None

    def gradients(self) -> list[torch.Tensor]:
        """Gradient of each of `tensors` after a backward pass; 0 for parameters it did not reach."""
        if self._gradient is not None:
            return [self._gradient]
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self._trained
        ]

    def load(self, weights: Vector) -> None:
        """Copy `weights` into the module; buffers outside of them (counters) are reset."""
        state = self.module.state_dict()
        for name, part in self.layout.split(weights):
            state[name].copy_(share_array(part))
        for name, buffer in self.module.named_buffers():
            if name in self._restarted:
                buffer.copy_(self._restarted[name])

    def read(self) -> Vector:
        """Return a copy of the module's weights."""
        state = self.module.state_dict()
        weights: Vector = torch.cat([state[name].reshape(-1) for name in self.layout.names]).numpy()
        return weights

    def read_gradient(self) -> NDArray[np.float64]:
        """Current gradient, (parameters,) in the order of the weights; 0 for entries that are not trained."""
        gradients = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        parts: list[NDArray[np.float64]] = []
        for name, size in zip(self.layout.names, self.layout.sizes, strict=True):
            gradient = gradients.get(name)
            parts.append(np.zeros(size) if gradient is None else gradient.double().reshape(-1).numpy())
        return np.concatenate(parts)


def _view(flat: torch.Tensor, start: int, shape: torch.Size, *, channels_last: bool) -> torch.Tensor:
    """Return a part of `flat` in the given shape, with convolution filters in channels-last order if asked."""
    part = flat[start : start + shape.numel()]
    if channels_last and len(shape) == 4:
        filters, channels, height, width = shape
        return part.view(filters, height, width, channels).permute(0, 3, 1, 2)
    return part.view(shape)
