"""A Flower client's arrays as one flat vector of float32, and back in the client's own types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.learning.weights import Layout, Vector

Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # by name, in the client's order

_NUMBERS = "fiu"  # kinds of numpy types that convert to float32: floats and integers
_SHOWN_NAMES = 3


class BadArrays(BdflError):
    """Arrays that do not match a client's model: the arrays found and the form expected."""


@dataclass(frozen=True)
class ArrayForm:
    """Names, shapes and original types of a client's arrays."""

    layout: Layout
    types: tuple[str, ...]  # as numpy writes them, such as <f4

    def join(self, arrays: Arrays) -> Vector:
        """Concatenate the arrays, (parameters,); may not be finite. Raises `BadArrays` unless all match the form."""
        if set(arrays) != set(self.layout.names):
            raise BadArrays(f"{_show_names(arrays)} given, expected {_show_names(self.layout.names)}")
        vector = np.empty(self.layout.num_parameters, np.float32)
        for name, part in self.layout.split(vector):
            found = arrays[name]
            _validate_array(name, found)
            if found.shape != part.shape:
                raise BadArrays(f"array {name!r} of shape {found.shape} given, expected shape {part.shape}")
            with np.errstate(over="ignore"):  # out of range becomes infinite: the training diverged
                part[...] = found
        return vector

    def split(self, weights: Vector) -> dict[str, NDArray[Any]]:
        """Split the weights into new arrays that the client may modify; integers are rounded to the nearest."""
        pairs = zip(self.layout.split(weights), self.types, strict=True)
        return {name: _convert(part, np.dtype(kind)) for (name, part), kind in pairs}


def form_of(arrays: Arrays) -> ArrayForm:
    """Return the form of these arrays; raise `BadArrays` if there are none, or one is not numeric."""
    if not arrays:
        raise BadArrays("no arrays given, expected those of a model")
    for name, array in arrays.items():
        _validate_array(name, array)
    layout = Layout(tuple(arrays), tuple(tuple(map(int, array.shape)) for array in arrays.values()))
    return ArrayForm(layout, tuple(array.dtype.str for array in arrays.values()))


def name_arrays(arrays: object) -> dict[str, NDArray[Any]]:
    """Name a plain list of arrays arr_0, arr_1, ...; raise `BadArrays` for anything else."""
    if not isinstance(arrays, list | tuple):
        raise BadArrays(f"a {type(arrays).__name__} given, expected a list of arrays")
    for place, array in enumerate(arrays):
        if not isinstance(array, np.ndarray | np.generic):
            raise BadArrays(f"a {type(array).__name__} at place {place} given, expected a numpy array")
    return {f"arr_{place}": np.asarray(array) for place, array in enumerate(arrays)}


def _validate_array(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in _NUMBERS:
        raise BadArrays(f"array {name!r} of type {array.dtype} given, expected numbers")


def _convert(part: Vector, kind: np.dtype[Any]) -> NDArray[Any]:
    return np.array(part if kind.kind == "f" else np.rint(part), dtype=kind)


def _show_names(names: Arrays | tuple[str, ...]) -> str:
    shown = ", ".join(list(names)[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return f"{len(names)} arrays ({shown})" if names else "no arrays"
