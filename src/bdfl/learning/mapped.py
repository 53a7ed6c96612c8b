"""Arrays that lie in files: they travel to other processes as their place, and a pass through one needs no memory."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2**22  # values


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
    root = _mapped_root(value)
    if root is None or root.filename is None or root.mode == "c":  # a copy may have been written to
        return value
    return FilePart(str(root.filename), root.offset + _distance(value, root), value.dtype.str, value.shape)


def unpack(value: object) -> Any:
    """What `pack` was given; arrays in files read-only."""
    if not isinstance(value, FilePart):
        return value
    array: NDArray[Any] = np.memmap(value.path, value.dtype, mode="r", offset=value.offset, shape=value.shape)
    return array


def blocks_of(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows of an array, some at a time. What lies in a file is let go of after its turn: it can be read again."""
    rows = max(1, _BLOCK // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        yield block
        _let_go(block)


def _let_go(part: NDArray[Any]) -> None:
    root = _mapped_root(part)
    if root is None or root.mode != "r" or not part.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return  # what somebody wrote into a copy would be lost
    assert isinstance(root.base, mmap.mmap)
    begin = root.offset % mmap.ALLOCATIONGRANULARITY + _distance(part, root)  # in the mapping
    page = begin - begin % mmap.PAGESIZE
    root.base.madvise(mmap.MADV_DONTNEED, page, begin + part.nbytes - page)


def _mapped_root(array: NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """The memory-mapped array that this one is, or is a part of."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root if isinstance(root, np.memmap) and isinstance(root.base, mmap.mmap) else None


def _distance(part: NDArray[Any], whole: NDArray[Any]) -> int:
    """Bytes from the beginning of the whole to that of the part, which numpy forgets."""
    return int(part.__array_interface__["data"][0] - whole.__array_interface__["data"][0])
