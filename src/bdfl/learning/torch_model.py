"""Models that clients train, as flat vectors: modules, inputs, and deterministic PyTorch."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from numpy.typing import NDArray
from torch import nn

from bdfl.environment import Purpose, stream
from bdfl.learning.dataset import DataSet, blocks_of
from bdfl.learning.training import InvalidTraining
from bdfl.learning.weights import Layout, Vector
from bdfl.plugins import find_function, importing_from_here, show_exception
from bdfl.scenario import Learning, Normalisation
from bdfl.scenario.schema_learning import MLP, PAPER_CNN, is_function

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KEY = "learning.model"


def build_model(choice: Learning, input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """Build the named model for inputs of `input_shape` (channels first), with a score for each label.

    Its initial weights come from PyTorch's global generator. Raises `InvalidTraining` or `BadFunction` if the model
    does not exist or does not fit the data.
    """
    if choice.model == MLP:
        model = _build_mlp(choice.hidden, input_shape, num_labels)
    elif choice.model == PAPER_CNN:
        model = _build_paper_cnn(input_shape, num_labels)
    elif is_function(choice.model):
        model = _build_own(choice.model, input_shape, num_labels)
    else:
        raise InvalidTraining(f"{_KEY}: {choice.model!r} given, expected {MLP}, {PAPER_CNN} or module:function")
    _validate_model(model, choice.model, input_shape, num_labels)
    return model


def draw_model(choice: Learning, input_shape: tuple[int, ...], num_labels: int, seed: int) -> nn.Module:
    """Build the model with the initial weights of that seed: reproducible, and without effect on other draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, Purpose.MODEL).integers(2**63)))
        return build_model(choice, input_shape, num_labels)


def layout_of(model: nn.Module) -> Layout:
    """Layout of all floating-point entries of the model's state: parameters, and buffers such as running means.

    Integers (counters) are excluded: they cannot be averaged.
    """
    entries = {name: entry for name, entry in model.state_dict().items() if entry.is_floating_point()}
    return Layout(tuple(entries), tuple(tuple(entry.shape) for entry in entries.values()))


def suits_channels_last(model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether the model accepts images in channels-last memory order, which makes convolutions fastest.

    False for a model without convolutions, or one that uses `view`, which needs the other order.
    """
    if len(input_shape) != 3 or not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        return False
    inputs = torch.zeros(2, *input_shape).to(memory_format=torch.channels_last)
    try:
        _try_model(model, inputs)
    except RuntimeError:
        return False
    return True


def _build_mlp(hidden: tuple[int, ...], input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """Dense layers with ReLU between them, over the flattened input."""
    sizes = [torch.Size(input_shape).numel(), *hidden, num_labels]
    layers: list[nn.Module] = [nn.Flatten()]
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _build_paper_cnn(input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """The paper's network [Li24, Section VI-A]: 1,072,458 parameters for images of 3 x 32 x 32 and ten labels.

    Two convolutions 5 x 5 without padding, each with ReLU and pooling 3 stride 2, then dense layers of 384 and 192.
    Here ReLU comes after pooling: outputs and gradients have the same bits, at a seventh less time.
    """
    if len(input_shape) != 3:
        raise InvalidTraining(f"{_KEY}: {PAPER_CNN} needs images, inputs of shape {input_shape} given")
    channels, height, width = input_shape
    rows, columns = (_after_pooling(_after_pooling(side)) for side in (height, width))
    if min(rows, columns) < 1:
        raise InvalidTraining(f"{_KEY}: {PAPER_CNN} needs images of at least 19 x 19, {height} x {width} given")
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 5),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * rows * columns, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, num_labels),
    )


def _after_pooling(side: int) -> int:
    """Length of a side after a convolution 5 x 5 and a pooling 3 stride 2."""
    return (side - 4 - 3) // 2 + 1


def _build_own(name: str, input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    function = find_function(name)
    try:
        with importing_from_here():
            model = function(input_shape, num_labels)
    except Exception as error:  # user code may raise anything
        raise InvalidTraining(f"{_KEY}: {name!r} failed: {show_exception(error)}") from error
    if not isinstance(model, nn.Module):
        raise InvalidTraining(f"{_KEY}: {name!r} gave a {type(model).__name__}, expected a torch.nn.Module")
    return model


def _validate_model(model: nn.Module, name: str, input_shape: tuple[int, ...], num_labels: int) -> None:
    """Raise `InvalidTraining` unless the model maps inputs to scores and has trainable weights."""
    try:
        scores = _try_model(model, torch.zeros(2, *input_shape))
    except Exception as error:  # user code may raise anything
        raise InvalidTraining(
            f"{_KEY}: {name!r} fails on inputs of shape {input_shape}: {show_exception(error)}"
        ) from error
    if not isinstance(scores, torch.Tensor) or scores.shape != (2, num_labels):
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise InvalidTraining(f"{_KEY}: {name!r} gave {found} for 2 inputs, expected scores of shape (2, {num_labels})")
    for entry, values in model.state_dict().items():
        if (values.is_floating_point() or values.is_complex()) and values.dtype != torch.float32:
            raise InvalidTraining(f"{_KEY}: {name!r} has {entry!r} of type {values.dtype}, expected torch.float32")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidTraining(f"{_KEY}: {name!r} has nothing to train, expected parameters with gradients")


def _try_model(model: nn.Module, inputs: torch.Tensor) -> object:
    """Output of the model for `inputs` in evaluation mode, which is reset afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(inputs)
    finally:
        model.train(was_training)


# Inputs of a data set as one shared tensor, converted to floats and normalised per batch.


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


# A model whose trained parameters are views of one tensor, so that one call updates them all.

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


# Deterministic PyTorch, as a context that restores all settings.


@contextmanager
def steady_torch(threads: int, *, strict: bool) -> Iterator[None]:
    """Compute with `threads` threads and reproducible bits inside.

    `strict` makes PyTorch reject or replace operations that may be nondeterministic. It costs a few per cent of the
    time, and models without such operations do not need it. Threads, random generator and settings are restored
    afterwards.
    """
    former_threads = torch.get_num_threads()
    former_mode = torch.get_deterministic_debug_mode()
    deterministic: Any = torch.utils.deterministic  # its setting is a property, unknown to type checkers
    former_fill = deterministic.fill_uninitialized_memory
    try:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(
            "error" if strict else "default"
        )  # not use_deterministic_algorithms, which loads the compiler
        deterministic.fill_uninitialized_memory = False  # a debugging aid that takes time
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        deterministic.fill_uninitialized_memory = former_fill
        torch.set_deterministic_debug_mode(former_mode)
        torch.set_num_threads(former_threads)


def seed_torch(seed: int, purpose: Purpose, round: int, client: int) -> None:
    """Seed PyTorch's global generator for this purpose, round and client."""
    torch.manual_seed(int(stream(seed, purpose, round, client).integers(2**63)))
