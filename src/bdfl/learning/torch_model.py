"""Training on a device: inputs, a model as a flat vector, and deterministic PyTorch."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from textwrap import shorten
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import pad

from bdfl.environment import Purpose, stream
from bdfl.learning.dataset import DataSet, blocks_of
from bdfl.learning.training import InvalidTraining
from bdfl.learning.weights import Layout, Vector
from bdfl.scenario import Augmentation, Device, Normalisation, Precision

CPU = torch.device("cpu")


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

    def take(self, samples: torch.Tensor, changes: torch.Tensor | None = None) -> torch.Tensor:
        """Return the inputs of these samples, (batch, ...): float32, normalised, channels first.

        `changes` are those of `Augmenter.draw`, a row for each sample.
        """
        places = samples.to(self.stored.device)
        if changes is None:
            batch = self.stored.index_select(0, places).float()
        else:
            batch = take_changed(self.stored, places, changes.to(self.stored.device)).float()
        if self.centre is not None and self.factor is not None:
            batch = batch.sub_(self.centre).mul_(self.factor)
        if self.is_image:
            batch = batch.permute(0, 3, 1, 2)
        return batch if self.keeps_channels_last else batch.contiguous()

    def take_labels(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the labels of these samples, (batch,)."""
        return self.labels.index_select(0, samples.to(self.labels.device))


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
    inputs: NDArray[Any],
    labels: NDArray[np.int64],
    scaling: Scaling | None,
    *,
    keeps_channels_last: bool,
    device: torch.device = CPU,
) -> Inputs:
    """Return the samples as tensors on the device; on the CPU they share the arrays' memory."""
    return Inputs(
        stored=share_array(inputs).to(device),
        labels=share_array(labels).to(device),
        centre=None if scaling is None else torch.from_numpy(scaling.centre).to(device),
        factor=None if scaling is None else torch.from_numpy(scaling.factor).to(device),
        is_image=is_image(inputs),
        keeps_channels_last=keeps_channels_last,
    )


def share_array(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over the array's own memory, even if that is a read-only file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # never written to
        return torch.from_numpy(array if array.flags.c_contiguous else np.ascontiguousarray(array))


# Augmentation: random flips and shifts of training images, drawn from (seed, round, client).

_MARGIN = 8  # a crop shifts by up to this part of a side: 4 pixels of 32

Changes = NDArray[np.int64]  # (samples, 3): 1 if mirrored, rows shifted down, columns shifted right


class Augmenter:
    """Draws the changes of a client's samples in a round, in the order of their use."""

    def __init__(self, kinds: tuple[Augmentation, ...], shape: tuple[int, ...], *, is_image: bool, seed: int) -> None:
        """`shape` is that of a stored image: height, width, channels."""
        if not is_image:
            raise InvalidTraining(f"learning.augment: {', '.join(kinds)} given, expected none for data without images")
        self._kinds = frozenset(kinds)
        self._most = [max(1, side // _MARGIN) for side in shape[:2]]
        self._seed = seed

    def draw(self, round: int, client: int, count: int) -> Changes:
        """Draw the changes of `count` samples."""
        rng = stream(self._seed, Purpose.AUGMENTATION, round, client)
        changes = np.zeros((count, 3), np.int64)
        if Augmentation.FLIP in self._kinds:
            changes[:, 0] = rng.integers(2, size=count)
        if Augmentation.CROP in self._kinds:
            for column, most in enumerate(self._most, start=1):
                changes[:, column] = rng.integers(-most, most + 1, size=count)
        return changes


def take_changed(stored: torch.Tensor, samples: torch.Tensor, changes: torch.Tensor) -> torch.Tensor:
    """Return these of the stored images (samples, height, width, channels), each mirrored and shifted; black enters."""
    images = stored.index_select(0, samples)
    mirrored, (down, right) = changes[:, 0] == 1, changes[:, 1:, None].unbind(1)
    images[mirrored] = images[mirrored].flip(2)
    most = int(changes[:, 1:].abs().max())
    if most == 0:
        return images
    count, height, width, channels = images.shape
    padded = pad(images, (0, 0, most, most, most, most))
    firsts = torch.arange(count, device=stored.device)[:, None] * (height + 2 * most) + most - down
    rows = firsts + torch.arange(height, device=stored.device)  # of all padded images, one below the other
    starts = rows * (width + 2 * most) + most - right  # the pixel with which each row begins
    return padded.view(-1).unfold(0, width * channels, channels)[starts].view(images.shape)


# A model whose trained parameters are views of one tensor, so that one call updates them all.

_GATHERED_ENTRIES = 2**16  # above, one call for all gradients saves less than accumulating into them costs
_ALIGNMENT = 16  # entries: parameters start at multiples of 64 bytes, where vector instructions are fastest


def layout_of(model: nn.Module) -> Layout:
    """Layout of all floating-point entries of the model's state: parameters, and buffers such as running means.

    Integers (counters) are excluded: they cannot be averaged.
    """
    entries = {name: entry for name, entry in model.state_dict().items() if entry.is_floating_point()}
    return Layout(tuple(entries), tuple(tuple(entry.shape) for entry in entries.values()))


def split_layout(module: nn.Module, prefixes: Sequence[str]) -> tuple[Layout, Layout]:
    """Layouts of the shared and of the personal tensors: those whose names begin with a prefix, up to a dot.

    `*` in a prefix is any text. Raises `InvalidTraining` for a prefix of no tensor, a tensor on both sides, or if
    nothing trained is shared.
    """
    whole, own = layout_of(module), set[str]()
    for prefix in prefixes:
        found = {name for name in whole.names if fnmatchcase(f"{name}.", f"{prefix}.*")}
        if not found:
            layers = shorten(", ".join(dict.fromkeys(name.rpartition(".")[0] for name in whole.names)), 200)
            raise InvalidTraining(f"learning.personal: {prefix!r} given, expected some of the model's layers: {layers}")
        own |= found
    shared, personal = whole.part(set(whole.names) - own), whole.part(own)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    own_ids = {id(parameters[name]) for name in personal.names if name in parameters}
    for name in shared.names:
        if id(parameters.get(name)) in own_ids:
            raise InvalidTraining(f"learning.personal: {name!r} is tied to a personal tensor, expected both or neither")
    if own and not any(parameters[name].requires_grad for name in shared.names if name in parameters):
        given = ", ".join(prefixes)
        raise InvalidTraining(f"learning.personal: {given} given, expected trained layers to be left that are shared")
    return shared, personal


class FlatModel:
    """Owns a module whose trained parameters are views of one tensor.

    In a small model the gradients are views of one tensor too: `tensors` and `gradients` hold a single tensor each, and
    padding entries stay 0. In a large model every backward pass allocates new gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        channels_last: bool,
        device: torch.device = CPU,
        precision: Precision = Precision.FLOAT32,
        personal: Sequence[str] = (),
    ) -> None:
        """`personal` are the prefixes of tensors that are no part of the weights and have values of their own."""
        self.module = module.to(device)
        self.device = device
        self._precision = precision
        self.layout, self.personal_layout = split_layout(module, personal)
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        trained = list(named.values())
        starts = np.cumsum([0] + [-(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT for parameter in trained]).tolist()
        flat = torch.zeros(starts[-1], device=device)
        gradient = torch.zeros_like(flat) if len(flat) <= _GATHERED_ENTRIES else None
        for parameter, start in zip(trained, starts, strict=False):
            place = _view(flat, start, parameter.shape, channels_last=channels_last)
            place.copy_(parameter.detach())
            parameter.data = place
            if gradient is not None:
                parameter.grad = _view(gradient, start, parameter.shape, channels_last=channels_last)
        self._trained = trained
        self._gradient = gradient
        self.tensors = [flat] if gradient is not None else [parameter.detach() for parameter in trained]
        shared = torch.tensor([float(name not in self.personal_layout.names) for name in named], device=device)
        if gradient is not None:
            shared = shared.repeat_interleave(torch.tensor(np.diff(starts), device=device))[None]
        self.is_shared = list(shared) if self.personal_layout.names else None  # for each of `tensors`: 0 where personal
        floats = {*self.layout.names, *self.personal_layout.names}
        self._restarted = {name: buffer.clone() for name, buffer in module.named_buffers() if name not in floats}
        self.initial_personal = self.read_personal()

    def scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the model's scores for these inputs as float32, computed in its precision."""
        with self.reduced():
            return self.module(inputs).float()  # type: ignore[no-any-return]

    def reduced(self) -> AbstractContextManager[object]:
        """Compute in the model's precision inside; weights that change need a new context."""
        if self._precision is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

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

    def load(self, weights: Vector, personal: Vector | None = None) -> None:
        """Copy `weights` and personal values, by default the initial ones, into the module; reset other buffers."""
        state = self.module.state_dict()
        own = self.initial_personal if personal is None else personal
        for name, part in chain(self.layout.split(weights), self.personal_layout.split(own)):
            state[name].copy_(share_array(part))
        for name, buffer in self.module.named_buffers():
            if name in self._restarted:
                buffer.copy_(self._restarted[name])

    def read(self) -> Vector:
        """Return a copy of the module's weights."""
        return self._read(self.layout)

    def read_personal(self) -> Vector:
        """Return a copy of the personal values; empty if nothing is personal."""
        return self._read(self.personal_layout)

    def _read(self, layout: Layout) -> Vector:
        state = self.module.state_dict()
        parts = [state[name].reshape(-1) for name in layout.names]
        values: Vector = torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.float32)
        return values

    def read_gradient(self) -> NDArray[np.float64]:
        """Current gradient, (parameters,) in the order of the weights; 0 for entries that are not trained."""
        gradients = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        parts: list[NDArray[np.float64]] = []
        for name, size in zip(self.layout.names, self.layout.sizes, strict=True):
            gradient = gradients.get(name)
            parts.append(np.zeros(size) if gradient is None else gradient.cpu().double().reshape(-1).numpy())
        return np.concatenate(parts)


def _view(flat: torch.Tensor, start: int, shape: torch.Size, *, channels_last: bool) -> torch.Tensor:
    """Return a part of `flat` in the given shape, with convolution filters in channels-last order if asked."""
    part = flat[start : start + shape.numel()]
    if channels_last and len(shape) == 4:
        filters, channels, height, width = shape
        return part.view(filters, height, width, channels).permute(0, 3, 1, 2)
    return part.view(shape)


# Devices, and deterministic PyTorch as a context that restores all settings.


def choose_device(choice: Device) -> torch.device:
    """Return the device of that name; `auto` is an accelerator if there is one. Raises `InvalidTraining`."""
    is_there = {
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
        Device.CPU: True,
    }
    if choice is Device.AUTO:
        choice = next(device for device, found in is_there.items() if found)
    if not is_there[choice]:
        found = ", ".join(device for device, is_here in is_there.items() if is_here)
        raise InvalidTraining(f"learning.device: {choice} given, PyTorch {torch.__version__} finds only {found} here")
    if choice is Device.CUDA:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for reproducible sums, read when CUDA starts
    return torch.device(choice)


@contextmanager
def steady_torch(threads: int, *, strict: bool, device: torch.device = CPU) -> Iterator[None]:
    """Compute with `threads` threads and reproducible bits inside.

    `strict` makes PyTorch reject or replace operations that may be nondeterministic. It costs a few per cent of the
    time, and models without such operations do not need it. An accelerator replaces what it can and warns of the rest.
    Threads, random generators and settings are restored afterwards.
    """
    former_threads = torch.get_num_threads()
    former_mode = torch.get_deterministic_debug_mode()
    deterministic: Any = torch.utils.deterministic  # its setting is a property, unknown to type checkers
    former_fill = deterministic.fill_uninitialized_memory
    is_accelerated = device.type != CPU.type
    mode = "warn" if is_accelerated else "error" if strict else "default"
    generators = [torch.get_device_module(device).current_device()] if device.type == "cuda" else []
    try:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)  # not use_deterministic_algorithms, which loads the compiler
        deterministic.fill_uninitialized_memory = False  # a debugging aid that takes time
        with torch.random.fork_rng(devices=generators):
            yield
    finally:
        deterministic.fill_uninitialized_memory = former_fill
        torch.set_deterministic_debug_mode(former_mode)
        torch.set_num_threads(former_threads)


def seed_torch(seed: int, purpose: Purpose, round: int, client: int) -> None:
    """Seed PyTorch's global generator for this purpose, round and client."""
    torch.manual_seed(int(stream(seed, purpose, round, client).integers(2**63)))
