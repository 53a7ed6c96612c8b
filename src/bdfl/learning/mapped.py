"""Memory-mapped arrays: sent to other processes by reference, and iterated without holding them in memory."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2**22  # values


@dataclass(frozen=True)
class FilePart:
    """Location of an array in a file."""

    path: str
    offset: int  # bytes
    dtype: str
    shape: tuple[int, ...]


def pack(value: object) -> object:
    """Replace a memory-mapped array, or a contiguous part of one, by its location in the file; keep all else."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.size:
        return value
    root = _mapped_root(value)
    if root is None or root.filename is None or root.mode == "c":  # copy-on-write: may have been modified
        return value
    return FilePart(str(root.filename), root.offset + _distance(value, root), value.dtype.str, value.shape)


def unpack(value: object) -> Any:
    """Undo `pack`; arrays in files are opened read-only."""
    if not isinstance(value, FilePart):
        return value
    array: NDArray[Any] = np.memmap(value.path, value.dtype, mode="r", offset=value.offset, shape=value.shape)
    return array


def blocks_of(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the rows of an array in blocks. Pages of a memory-mapped array are released after use."""
    rows = max(1, _BLOCK // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        yield block
        _let_go(block)


def _let_go(part: NDArray[Any]) -> None:
    root = _mapped_root(part)
    if root is None or root.mode != "r" or not part.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return  # writes to a copy-on-write mapping would be lost
    assert isinstance(root.base, mmap.mmap)
    begin = root.offset % mmap.ALLOCATIONGRANULARITY + _distance(part, root)  # in the mapping
    page = begin - begin % mmap.PAGESIZE
    root.base.madvise(mmap.MADV_DONTNEED, page, begin + part.nbytes - page)


def _mapped_root(array: NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """Return the memory-mapped array that this array is, or is a part of."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root if isinstance(root, np.memmap) and isinstance(root.base, mmap.mmap) else None


def _distance(part: NDArray[Any], whole: NDArray[Any]) -> int:
    """Bytes from the start of the whole to the start of the part, which numpy does not record."""
    return int(part.__array_interface__["data"][0] - whole.__array_interface__["data"][0])
