"""Decoded data on disk, so that images are decoded once.

A folder for every key holds one `.npy` file for each array and `about.json`, written last, with their digests. Files
are replaced in one step and the same key always means the same bytes, so any number of processes may load and store at
once. Nothing read back is trusted: whatever does not match its digest counts as not there.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.learning.data_set import BadData, DataSet
from bdfl.learning.mapped import blocks_of

_ABOUT = "about.json"
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder of the cache holds."""

    label_names: tuple[str, ...]
    digests: tuple[str, str, str, str]  # SHA-256 of each array's type, shape and bytes


def default_cache() -> Path:
    """Where decoded data are kept unless told otherwise: bdfl in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bdfl"


def digest_sources(words: Sequence[str], paths: Sequence[Path] = ()) -> str:
    """SHA-256 (hex) over words and the content of files: the key of what is decoded from them."""
    contents = []
    for path in paths:
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256(msgspec.json.encode((words, contents))).hexdigest()


def load_through_cache(cache: Path, key: str, name: str, build: Callable[[], DataSet]) -> DataSet:
    """The data set kept under `key`, memory-mapped and read-only; built and kept first where it is not whole.

    A cache that cannot be written costs time, not results: what was built is returned as it is.
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
        arrays = [np.load(folder / f"{array}.npy", mmap_mode="r", allow_pickle=False) for array in _ARRAYS]
        if about.digests != tuple(map(_digest, arrays)):
            return None
        train_inputs, train_labels, test_inputs, test_labels = arrays
        return DataSet(name, train_inputs, train_labels, test_inputs, test_labels, about.label_names)
    except (OSError, ValueError, EOFError, SyntaxError, msgspec.MsgspecError, BadData):
        return None  # absent, cut short or overwritten


def _write(folder: Path, data: DataSet) -> None:
    arrays = (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(_ARRAYS, arrays, strict=True):
        with _replacing(folder / f"{name}.npy") as file:
            np.save(file, array, allow_pickle=False)
    digests = (_digest(arrays[0]), _digest(arrays[1]), _digest(arrays[2]), _digest(arrays[3]))
    with _replacing(folder / _ABOUT) as file:
        file.write(msgspec.json.encode(_About(data.label_names, digests)))


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Inside, a file to write; after, it is in its place in one step: readers see the old one or the new one, whole."""
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}-", dir=path.parent, delete=False) as file:
        try:
            yield file
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _digest(array: NDArray[Any]) -> str:
    whole = hashlib.sha256(f"{array.dtype.str} {array.shape};".encode())
    for block in blocks_of(array):
        whole.update(np.ascontiguousarray(block).data)
    return whole.hexdigest()
