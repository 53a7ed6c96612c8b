"""All inputs of a data set as one shared tensor, made floating-point and normalised batch by batch."""

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
    """What is taken from every value of an input, and what it is then multiplied by; both of one input's shape."""

    centre: NDArray[np.float32]
    factor: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples as they are stored, and what turns a batch of them into what a model sees."""

    stored: torch.Tensor  # (samples, ...): bytes or floats, images with channels last
    labels: torch.Tensor  # (samples,)
    centre: torch.Tensor | None  # none: floats stay as they are
    factor: torch.Tensor | None
    is_image: bool
    keeps_channels_last: bool  # in memory, where the model likes it

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bytes_per_sample(self) -> int:
        """Memory of one sample as a model sees it."""
        return 4 * self.stored[0].numel()

    def take(self, samples: torch.Tensor) -> torch.Tensor:
        """The inputs of these samples, (batch, ...): float32, normalised, channels first."""
        batch = self.stored.index_select(0, samples).float()
        if self.centre is not None and self.factor is not None:
            batch = batch.sub_(self.centre).mul_(self.factor)
        if self.is_image:
            batch = batch.permute(0, 3, 1, 2)
        return batch if self.keeps_channels_last else batch.contiguous()


def is_image(inputs: NDArray[Any]) -> bool:
    """Whether these are images (samples, height, width, channels): bytes, as opposed to features."""
    return inputs.dtype == np.uint8 and inputs.ndim == 4


def input_shape(data: DataSet) -> tuple[int, ...]:
    """The shape in which a model sees one input: channels first for images."""
    shape = tuple(int(side) for side in data.train_inputs.shape[1:])
    return (shape[2], shape[0], shape[1]) if is_image(data.train_inputs) else shape


def find_scaling(inputs: NDArray[Any], normalisation: Normalisation) -> Scaling | None:
    """How to normalise inputs like these training inputs; none where they stay as they are.

    By channel: every channel of images, or every feature, gets mean 0 and standard deviation 1 over all `inputs`; one
    that is always the same only loses its mean. Otherwise bytes become 0 to 1.
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
    """Mean and standard deviation of each feature, both of one input's shape; a deviation of 0 is exactly 0."""
    first = features[0].astype(np.float64)  # as the origin it makes equal values cancel exactly
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
    """The samples as tensors that share the arrays' memory."""
    return Inputs(
        stored=share_array(inputs),
        labels=share_array(labels),
        centre=None if scaling is None else torch.from_numpy(scaling.centre),
        factor=None if scaling is None else torch.from_numpy(scaling.factor),
        is_image=is_image(inputs),
        keeps_channels_last=keeps_channels_last,
    )


def share_array(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's own memory, also where that is a read-only file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes
        return torch.from_numpy(array if array.flags.c_contiguous else np.ascontiguousarray(array))
