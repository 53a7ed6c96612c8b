"""A model as Flower carries it, named arrays of any type in numpy's own format, and as one flat vector of float32.

What a client sends is hostile until checked: size first, then form, then numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError, one_line
from bdfl.learning.weights import Layout, Vector, is_finite

_WIDEST = 8  # bytes of a number
_HEAD = 4096  # bytes that numpy's header may take
_NUMBERS = "fiub"  # kinds of types: floats, whole numbers, truth values

Array = NDArray[Any]


class BadArrays(BdflError):
    """Arrays that are not those of the model: missing, of another shape, no numbers, or not finite."""


@dataclass(frozen=True)
class ModelForm:
    """Names, shapes and types of a model's arrays, in the server's order."""

    layout: Layout
    types: tuple[np.dtype[Any], ...]

    def read(self, arrays: Mapping[str, bytes]) -> Vector:
        """The model in a client's arrays, each in numpy's format, (parameters,); raises `BadArrays`.

        Any type of number will do: everything is rounded to float32.
        """
        layout = self.layout
        if arrays.keys() != set(layout.names):
            odd = sorted(arrays.keys() ^ set(layout.names))[0]
            raise BadArrays(f"{odd!r} is not in both the model and the {len(arrays)} arrays sent")
        weights: Vector = np.empty(layout.num_parameters, np.float32)
        start = 0
        for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
            data = arrays[name]
            if len(data) > size * _WIDEST + _HEAD:
                raise BadArrays(f"{name!r} has {len(data)} bytes, expected at most {size * _WIDEST + _HEAD}")
            found = _decode(name, data)
            if found.shape != shape:
                raise BadArrays(f"{name!r} has shape {found.shape}, expected {shape}")
            with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
                weights[start : start + size] = found.reshape(-1)
            start += size
        if not is_finite(weights):
            raise BadArrays("not all weights are finite, expected a model that can be averaged")
        return weights

    def write(self, weights: Vector) -> dict[str, Array]:
        """The model's arrays in their own types; whole numbers are rounded to the nearest."""
        return {
            name: _as_type(part, kind)
            for (name, part), kind in zip(self.layout.split(weights), self.types, strict=True)
        }


def find_form(arrays: Mapping[str, bytes]) -> tuple[ModelForm, Vector]:
    """The form of the model in the server's own arrays, and its weights; raises `BadArrays`."""
    decoded = {name: _decode(name, data) for name, data in arrays.items()}
    layout = Layout(tuple(decoded), tuple(array.shape for array in decoded.values()))
    form = ModelForm(layout, tuple(array.dtype for array in decoded.values()))
    if not layout.num_parameters:
        raise BadArrays("the model has no parameters, expected initial arrays with numbers in them")
    return form, form.read(arrays)


def _decode(name: str, data: bytes) -> Array:
    try:
        found = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise BadArrays(f"{name!r} is no array in numpy's format: {one_line(error)}") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in _NUMBERS:
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise BadArrays(f"{name!r} is of type {kind}, expected numbers")
    return found


def _as_type(part: Vector, kind: np.dtype[Any]) -> Array:
    if kind.kind == "f":
        return part.astype(kind)
    if kind.kind == "b":
        return np.asarray(part >= 0.5)
    limits = np.iinfo(kind)
    return np.asarray(np.clip(np.rint(part.astype(np.float64)), limits.min, limits.max).astype(kind))
