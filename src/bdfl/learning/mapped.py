"""Arrays that lie in files travel to other processes as their place there."""

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FilePart:
    """Where an array lies in a file."""

    path: str
    offset: int  # bytes
    dtype: str
    shape: tuple[int, ...]


def pack(value: object) -> object:
    """A memory-mapped array, or a contiguous part of one, as its place in the file; all else as it is."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.size:
        return value
    root = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not isinstance(root.base, mmap.mmap) or root.filename is None:
        return value
    distance = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]  # numpy forgets it for parts
    return FilePart(str(root.filename), root.offset + distance, value.dtype.str, value.shape)


def unpack(value: object) -> Any:
    """What `pack` was given; arrays in files read-only."""
    if not isinstance(value, FilePart):
        return value
    array: NDArray[Any] = np.memmap(value.path, value.dtype, mode="r", offset=value.offset, shape=value.shape)
    return array
