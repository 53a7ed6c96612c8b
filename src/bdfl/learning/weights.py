"""A model's weights as one flat vector, and as bytes that carry no code: safetensors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError

Vector = NDArray[np.float32]  # (parameters,): a whole model, flat, in the order of its layout


class InvalidWeights(BdflError):
    """Weights that are not those of the model: wrong size, names, shapes or type, or not finite."""


@dataclass(frozen=True)
class Layout:
    """Where a model's tensors stand in its vector: one after the other, each in row-major order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def num_parameters(self) -> int:
        return sum(self.sizes)

    def split(self, weights: Vector) -> Iterator[tuple[str, Vector]]:
        """Every tensor's name and its part of `weights`, in its shape: views, not copies."""
        validate_weights(weights, self)
        start = 0
        for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True):
            yield name, weights[start : start + size].reshape(shape)
            start += size


def validate_weights(weights: Vector, layout: Layout) -> None:
    """Raises `InvalidWeights` unless `weights` is a flat float32 vector of the layout's length; looks at no value."""
    if weights.dtype != np.float32 or weights.shape != (layout.num_parameters,):
        raise InvalidWeights(
            f"weights: {weights.dtype} of shape {weights.shape} given, expected float32 of shape "
            f"({layout.num_parameters},)"
        )


def encode_weights(weights: Vector, layout: Layout) -> bytes:
    """The weights as safetensors, the same bytes for the same values; refuses what `decode_weights` would."""
    from safetensors.numpy import save

    validate_weights(weights, layout)
    _validate_finite(weights)
    return save(dict(layout.split(np.ascontiguousarray(weights))))


def decode_weights(data: bytes, layout: Layout) -> Vector:
    """The weights in safetensors bytes from anywhere: size, names, shapes, type and finiteness are checked first."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    size = _encoded_size(layout)
    if len(data) != size:
        raise InvalidWeights(f"weights: {len(data)} bytes given, expected {size} for this model")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:  # the last three: types numpy does not have
        raise InvalidWeights(f"weights: not safetensors of float32 ({' '.join(str(error).split())})") from None
    if set(tensors) != set(layout.names):
        unknown = sorted(set(tensors) ^ set(layout.names))[0]
        raise InvalidWeights(f"weights: tensor {unknown!r} is not in both the data and the model")
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        found = tensors[name]
        if found.dtype != np.float32 or found.shape != shape:
            raise InvalidWeights(
                f"weights: {name!r} is {found.dtype} of shape {found.shape}, expected float32 of shape {shape}"
            )
    parts = [tensors[name].reshape(-1) for name in layout.names]
    weights: Vector = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    _validate_finite(weights)
    return weights


def is_finite(weights: Vector) -> bool:
    """Whether every entry is a finite number."""
    return bool(np.isfinite(weights).all())


def _validate_finite(weights: Vector) -> None:
    if not is_finite(weights):
        num_wrong = int(np.count_nonzero(~np.isfinite(weights)))
        raise InvalidWeights(f"weights: {num_wrong} of {weights.size} are not finite")


@cache
def _encoded_size(layout: Layout) -> int:
    """Bytes of any weights of this layout: the header depends on names and shapes alone."""
    return len(encode_weights(np.zeros(layout.num_parameters, np.float32), layout))
