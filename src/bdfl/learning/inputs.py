"""Inputs of a data set as one shared tensor, converted to floats and normalised per batch."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bdfl.learning.data_set import DataSet
from bdfl.learning.mapped import blocks_of
from bdfl.scenario import Normalisation


@dataclass(frozen=True, eq=False)
class Scaling:
    """Offset subtracted from an input and factor it is then multiplied by; both of one input's shape."""

    centre: NDArray[np.float32]
    factor: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Stored samples, and their conversion to the batches a model takes."""

    stored: torch.Tensor  # (samples, ...): bytes or floats, images with channels last
    labels: torch.Tensor  # (samples,)
    centre: torch.Tensor | None  # None: floats stay unchanged
    factor: torch.Tensor | None
    is_image: bool
    keeps_channels_last: bool  # in memory, if the model supports it

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bytes_per_sample(self) -> int:
        """Memory of one sample as passed to a model (bytes)."""
        return 4 * self.stored[0].numel()

    def take(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the inputs of these samples, (batch, ...): float32, normalised, channels first."""
        batch = self.stored.index_select(0, samples).float()
        if self.centre is not None and self.factor is not None:
            batch = batch.sub_(self.centre).mul_(self.factor)
        if self.is_image:
            batch = batch.permute(0, 3, 1, 2)
        return batch if self.keeps_channels_last else batch.contiguous()


def is_image(inputs: NDArray[Any]) -> bool:
    """Return whether these are images (samples, height, width, channels): bytes, as opposed to features."""
    return inputs.dtype == np.uint8 and inputs.ndim == 4


def input_shape(data: DataSet) -> tuple[int, ...]:
    """Shape of one input as passed to a model: channels first for images."""
    shape = tuple(int(side) for side in data.train_inputs.shape[1:])
    return (shape[2], shape[0], shape[1]) if is_image(data.train_inputs) else shape


def find_scaling(inputs: NDArray[Any], normalisation: Normalisation) -> Scaling | None:
    """Scaling that normalises inputs like these training inputs; None if they stay unchanged.

    By channel: every channel of images, or every feature, gets mean 0 and standard deviation 1 over all `inputs`; a
    constant one only loses its mean. Otherwise bytes become 0 to 1.
    """
    shape = inputs.shape[1:]
    if normalisation is Normalisation.NONE:
        if inputs.dtype != np.uint8:
            return None
        return Scaling(np.zeros(shape, np.float32), np.full(shape, 1 / 255, np.float32))
    mean, deviation = _channel_moments(inputs) if is_image(inputs) else _feature_moments(inputs)
    is_varied = deviation > np.finfo(np.float32).tiny  # below, its inverse leaves the range of float32
    factor = 1.0 / np.where(is_varied, deviation, 1.0)
    return Scaling(*(np.array(np.broadcast_to(part, shape), np.float32) for part in (mean, factor)))


def _channel_moments(images: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel, both (channels,): from counts of the 256 values, hence exact."""
    num_channels = images.shape[-1]
    counts = np.zeros((num_channels, 256))
    for block in blocks_of(images):
        for channel in range(num_channels):
            counts[channel] += np.bincount(block[..., channel].reshape(-1), minlength=256)
    shares = counts / counts[0].sum()
    values = np.arange(256.0)
    mean = (shares * values).sum(axis=1)
    return mean, np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))


def _feature_moments(features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each feature, both of one input's shape; exactly 0 deviation for a constant."""
    first = features[0].astype(np.float64)  # as the origin: equal values cancel exactly
    mean, square = np.zeros_like(first), np.zeros_like(first)
    for block in blocks_of(features):
        mean += (block - first).sum(axis=0)
    mean /= len(features)
    for block in blocks_of(features):
        square += ((block - first - mean) ** 2).sum(axis=0)
    return first + mean, np.sqrt(square / len(features))


def make_inputs(
    inputs: NDArray[Any], labels: NDArray[np.int64], scaling: Scaling | None, *, keeps_channels_last: bool
) -> Inputs:
    """Return the samples as tensors that share the arrays' memory."""
    return Inputs(
        stored=share_array(inputs),
        labels=share_array(labels),
        centre=None if scaling is None else torch.from_numpy(scaling.centre),
        factor=None if scaling is None else torch.from_numpy(scaling.factor),
        is_image=is_image(inputs),
        keeps_channels_last=keeps_channels_last,
    )


def share_array(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the array's own memory, even if that is a read-only file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # never written to
        return torch.from_numpy(array if array.flags.c_contiguous else np.ascontiguousarray(array))
