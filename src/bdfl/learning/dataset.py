"""A data set in memory, memory-mapped from files, or in the cache of decoded data on disk.

The cache's folder of a key holds one `.npy` file for each array and `about.json`, written last, with their digests.
Files are replaced atomically and a key always stands for the same bytes, so any number of processes may load and store
concurrently. Contents are not trusted: an array that does not match its digest is a cache miss.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bdfl.errors import Unexpected
from bdfl.storage import replacing

# Memory-mapped arrays: sent to other processes by reference, and iterated without holding them in memory.

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


# Labelled data in memory: a validated training set and test set.

Inputs: TypeAlias = NDArray[Any]  # uint8 images (samples, height, width, channels), or float32 features (samples, ...)
Labels: TypeAlias = NDArray[np.int64]  # (samples,): 0 to num_labels - 1

SPLITS = ("train", "test")
_INPUTS_EXPECTED = "uint8 images (samples, height, width, channels) or float features (samples, ...)"


class BadData(Unexpected):
    """Data that cannot be used."""

    kind = "data "


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs and labels for training and for testing. Raises `BadData` if they are inconsistent."""

    name: str
    train_inputs: Inputs
    train_labels: Labels
    test_inputs: Inputs
    test_labels: Labels
    label_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for split, inputs, labels in self._splits():
            _validate_split(self.name, split, inputs, labels, self.num_labels)
        train, test = self.train_inputs, self.test_inputs
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            found = f"test inputs {_describe(test)}"
            raise BadData(self.name, found, f"samples like the training inputs, {_describe(train)}")

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (height, width, channels) of an image."""
        return tuple(int(side) for side in self.train_inputs.shape[1:])

    @property
    def inputs_form(self) -> str:
        """Type and shape of one input, such as uint8 8x8x1: the form of `data.inputs` in a scenario."""
        return f"{self.train_inputs.dtype} {'x'.join(map(str, self.input_shape))}"

    @cached_property
    def input_range(self) -> tuple[float, float]:
        """Least and greatest value of the training inputs."""
        extremes = [(float(block.min()), float(block.max())) for block in blocks_of(self.train_inputs)]
        return min(low for low, _ in extremes), max(high for _, high in extremes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over shapes, types and bytes of the four arrays."""
        whole = hashlib.sha256()
        for _, *arrays in self._splits():
            for array in arrays:
                whole.update(f"{array.shape} {array.dtype.str};".encode())
                for block in blocks_of(array):
                    whole.update(np.ascontiguousarray(block).data)
        return whole.hexdigest()

    def _splits(self) -> tuple[tuple[str, Inputs, Labels], ...]:
        return (
            ("train", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        )


def make_data_set(
    name: str,
    train_inputs: ArrayLike,
    train_labels: ArrayLike,
    test_inputs: ArrayLike,
    test_labels: ArrayLike,
    *,
    label_names: tuple[str, ...] | None = None,
) -> DataSet:
    """Make a data set of these arrays; labels are named by their numbers unless names are given.

    Images without an axis of channels get one, features become float32, labels of any integer type int64. Without
    names, the greatest label of the training set determines the number of labels.
    """
    train, test = convert_labels(f"{name} train", train_labels), convert_labels(f"{name} test", test_labels)
    names = number_labels(name, train) if label_names is None else label_names
    return DataSet(name, _convert_inputs(train_inputs), train, _convert_inputs(test_inputs), test, names)


def convert_labels(where: str, given: ArrayLike) -> Labels:
    """Labels as int64, (samples,); raises `BadData` unless they are whole numbers."""
    labels = np.asarray(given)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise BadData(where, f"labels {_describe(labels)}", "whole numbers from 0, one for each sample")
    if labels.size and labels.max() > np.iinfo(np.int64).max:
        raise BadData(where, f"label {labels.max()}", "labels from 0 without gaps")
    return labels.astype(np.int64, copy=False)


def number_labels(name: str, train_labels: Labels) -> tuple[str, ...]:
    """Names "0", "1", ... up to the greatest label of the training set, which must be below the number of samples."""
    if not len(train_labels):
        raise BadData(f"{name} train", "no samples", "at least one")
    greatest = int(train_labels.max())
    if greatest >= len(train_labels):
        found = f"label {greatest} among {len(train_labels)} samples"
        raise BadData(f"{name} train", found, "labels from 0 without gaps")
    return tuple(str(label) for label in range(greatest + 1))


def _convert_inputs(given: ArrayLike) -> Inputs:
    inputs = np.asarray(given)
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        return inputs[..., np.newaxis]
    if np.issubdtype(inputs.dtype, np.floating) and inputs.dtype != np.float32:
        with np.errstate(over="ignore"):  # values out of range become infinite and are rejected
            return inputs.astype(np.float32)
    return inputs


def _validate_split(name: str, split: str, inputs: Inputs, labels: Labels, num_labels: int) -> None:
    where = f"{name} {split}"
    is_image = inputs.dtype == np.uint8 and inputs.ndim == 4
    is_feature = inputs.dtype == np.float32 and inputs.ndim >= 2
    if not (is_image or is_feature):
        raise BadData(where, f"inputs {_describe(inputs)}", _INPUTS_EXPECTED)
    if labels.dtype != np.int64 or labels.ndim != 1:
        raise BadData(where, f"labels {_describe(labels)}", "whole numbers from 0, one for each sample")
    if len(inputs) != len(labels):
        raise BadData(where, f"{len(inputs)} inputs and {len(labels)} labels", "as many of one as of the other")
    if not inputs.size:
        raise BadData(where, "no samples" if not len(inputs) else f"inputs {_describe(inputs)}", "at least one value")
    wrong = (labels < 0) | (labels >= num_labels)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise BadData(where, f"label {labels[place]} of sample {place}", f"0 to {num_labels - 1}")
    if is_feature and not np.isfinite(inputs).all():
        place = int(np.argmin(np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)))
        raise BadData(where, f"a value that is not finite in sample {place}", "finite numbers")


def _describe(array: NDArray[Any]) -> str:
    return f"of type {array.dtype} and shape {array.shape}"


_ABOUT = "about.json"
ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metadata of a folder of the cache."""

    label_names: tuple[str, ...]
    digests: tuple[str, ...]  # SHA-256 of each array's type, shape and bytes


def default_cache() -> Path:
    """Default folder of decoded data: bdfl in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bdfl"


def digest_sources(words: Sequence[str], paths: Sequence[Path] = ()) -> str:
    """SHA-256 (hex) over words and file contents: the cache key of the data decoded from them."""
    contents = []
    for path in paths:
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256(msgspec.json.encode((words, contents))).hexdigest()


def load_through_cache(cache: Path, key: str, name: str, build: Callable[[], DataSet]) -> DataSet:
    """Return the data set cached under `key`, memory-mapped and read-only; build and store it on a cache miss.

    If the cache cannot be written, the built data set is returned: this costs time, not results.
    """
    folder = cache / "data" / key
    kept = _read(folder, name)
    if kept is not None:
        return kept
    built = build()
    try:
        _write(folder, built)
    except OSError:
        return built
    return _read(folder, name) or built


def _read(folder: Path, name: str) -> DataSet | None:
    try:
        about = msgspec.json.decode((folder / _ABOUT).read_bytes(), type=_About)
        arrays = [np.load(folder / f"{array}.npy", mmap_mode="r", allow_pickle=False) for array in ARRAYS]
        if about.digests != tuple(map(_digest, arrays)):
            return None
        train_inputs, train_labels, test_inputs, test_labels = arrays
        return DataSet(name, train_inputs, train_labels, test_inputs, test_labels, about.label_names)
    except (OSError, ValueError, EOFError, SyntaxError, msgspec.MsgspecError, BadData):
        return None  # absent, cut short or overwritten


def _write(folder: Path, data: DataSet) -> None:
    arrays = (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(ARRAYS, arrays, strict=True):
        with _replacing(folder / f"{name}.npy") as file:
            np.save(file, array, allow_pickle=False)
    about = _About(data.label_names, tuple(map(_digest, arrays)))
    with _replacing(folder / _ABOUT) as file:
        file.write(msgspec.json.encode(about))


def _replacing(path: Path) -> AbstractContextManager[BinaryIO]:
    """Replace a file that other processes may be replacing too."""
    return replacing(path, draft=path.with_name(f".{path.name}-{uuid4().hex}"), mode=0o600)


def _digest(array: NDArray[Any]) -> str:
    whole = hashlib.sha256(f"{array.dtype.str} {array.shape};".encode())
    for block in blocks_of(array):
        whole.update(np.ascontiguousarray(block).data)
    return whole.hexdigest()
