"""Conversion of Flower's named arrays, in numpy's format, to a flat model.

Data from clients are untrusted until checked: first the size, then the form, then the numbers.
"""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import one_line
from bdfl.learning.flower_arrays import ArrayForm, BadArrays, form_of
from bdfl.learning.weights import Vector, is_finite

_WIDEST = 8  # bytes of the widest number type
_HEAD = 4096  # limit on numpy's header, in bytes


def find_form(arrays: Mapping[str, bytes]) -> tuple[ArrayForm, Vector]:
    """Return the form of the model in the server's own arrays, and its weights; raise `BadArrays`."""
    form = form_of({name: _decode(name, data) for name, data in arrays.items()})
    return form, read_arrays(form, arrays)


def read_arrays(form: ArrayForm, arrays: Mapping[str, bytes]) -> Vector:
    """Read the model in a client's arrays, (parameters,), of any numeric type. Raises `BadArrays`."""
    most = dict(zip(form.layout.names, form.layout.sizes, strict=True))
    for name, data in arrays.items():
        allowed = most.get(name, 0) * _WIDEST + _HEAD
        if len(data) > allowed:
            raise BadArrays(f"array {name!r} of {len(data)} bytes given, expected at most {allowed}")
    weights = form.join({name: _decode(name, data) for name, data in arrays.items()})
    if not is_finite(weights):
        raise BadArrays("weights that are not all finite given, expected a model that can be averaged")
    return weights


def _decode(name: str, data: bytes) -> NDArray[Any]:
    try:
        found = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise BadArrays(f"array {name!r} is not in numpy's format: {one_line(error)}") from None
    if not isinstance(found, np.ndarray):
        raise BadArrays(f"array {name!r} is a {type(found).__name__}, expected one array in numpy's format")
    return found
