"""Model weights as one flat vector, and as safetensors bytes, which carry no code."""

import json
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError

Vector = NDArray[np.float32]  # (parameters,): a whole model, flat, in the order of its layout


_NUMBER = np.dtype("<f4")  # byte order of safetensors on any machine
_FINITE_BLOCK = 2**16


class InvalidWeights(BdflError):
    """Weights that do not match the model: wrong size, names, shapes or type, or not finite."""


@dataclass(frozen=True)
class Layout:
    """Order of a model's tensors in its vector: concatenated, each in row-major order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def num_parameters(self) -> int:
        return sum(self.sizes)

    def part(self, names: Container[str]) -> "Layout":
        """Layout of these tensors alone, in the same order."""
        kept = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in names]
        return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept))

    def split(self, weights: Vector) -> Iterator[tuple[str, Vector]]:
        """Yield every tensor's name and its part of `weights`, in its shape: views, not copies."""
        validate_weights(weights, self)
        start = 0
        for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True):
            yield name, weights[start : start + size].reshape(shape)
            start += size


def validate_weights(weights: Vector, layout: Layout) -> None:
    """Raise `InvalidWeights` unless `weights` is a flat float32 vector of the layout's length; values are unchecked."""
    if weights.dtype != np.float32 or weights.shape != (layout.num_parameters,):
        raise InvalidWeights(
            f"weights: {weights.dtype} of shape {weights.shape} given, expected float32 of shape "
            f"({layout.num_parameters},)"
        )


def encode_weights(weights: Vector, layout: Layout) -> bytes:
    """Encode the weights as safetensors, deterministically; raise `InvalidWeights` unless they are finite."""
    validate_weights(weights, layout)
    _validate_finite(weights)
    form = _file_form(layout)
    numbers = np.ascontiguousarray(weights, dtype=_NUMBER)
    return b"".join([form.head, *(numbers[part].data for _, part in form.in_file_order)])


def decode_weights(data: bytes, layout: Layout, out: Vector | None = None) -> Vector:
    """Decode weights from untrusted safetensors bytes: size, header and finiteness are checked first.

    Only the header written by `encode_weights` is accepted: consensus must not depend on a parser's leniency. With
    `out`, a vector of the layout's length, the weights are written there: allocating large arrays is slow.
    """
    form = _file_form(layout)
    if len(data) != form.size:
        raise InvalidWeights(f"weights: {len(data)} bytes given, expected {form.size} for this model")
    if not data.startswith(form.head):
        raise InvalidWeights("weights: another header given, expected that of the model's tensors by name as float32")
    weights = np.empty(layout.num_parameters, np.float32) if out is None else out
    validate_weights(weights, layout)
    numbers = np.frombuffer(data, dtype=_NUMBER, offset=len(form.head))
    if not _copy_finite(numbers, form, weights):
        _validate_finite(numbers)
    return weights


def _copy_finite(numbers: Vector, form: "_FileForm", weights: Vector) -> bool:
    """Copy a file's numbers to their positions and return whether they are finite; each block is checked in cache."""
    for found, part in form.in_file_order:
        source, target = numbers[found], weights[part]
        for start in range(0, source.size, _FINITE_BLOCK):
            block = target[start : start + _FINITE_BLOCK]
            block[:] = source[start : start + _FINITE_BLOCK]
            if not np.isfinite(block).all():
                return False
    return True


def file_size(layout: Layout) -> int:
    """Size of every file of the layout, in bytes."""
    return _file_form(layout).size


def is_finite(weights: Vector) -> bool:
    """Return whether every entry is finite; checked in blocks, as allocating memory for all at once is slow."""
    starts = range(0, weights.size, _FINITE_BLOCK)
    return all(bool(np.isfinite(weights[start : start + _FINITE_BLOCK]).all()) for start in starts)


def _validate_finite(weights: Vector) -> None:
    if not is_finite(weights):
        num_wrong = int(np.count_nonzero(~np.isfinite(weights)))
        raise InvalidWeights(f"weights: {num_wrong} of {weights.size} are not finite")


@dataclass(frozen=True)
class _FileForm:
    """Common form of all files of a layout: the header depends on names and shapes alone."""

    head: bytes
    size: int  # of the whole file, in bytes
    in_file_order: tuple[tuple[slice, slice], ...]  # of each tensor: its range in the file, and in the vector


@cache
def _file_form(layout: Layout) -> _FileForm:
    """Derive the form from a file written by safetensors itself."""
    from safetensors.numpy import save

    data = save(dict(layout.split(np.zeros(layout.num_parameters, np.float32))))
    head = data[: len(data) - _NUMBER.itemsize * layout.num_parameters]
    described = json.loads(head[8:])  # after the length prefix
    parts = []
    start = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        first, last = (offset // _NUMBER.itemsize for offset in described[name]["data_offsets"])
        parts.append((slice(first, last), slice(start, start + size)))
        start += size
    return _FileForm(head, len(data), tuple(sorted(parts, key=lambda part: (part[0].start, part[0].stop))))
