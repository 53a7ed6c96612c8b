"""Cache of decoded data on disk: images are decoded once.

The folder of a key holds one `.npy` file for each array and `about.json`, written last, with their digests. Files are
replaced atomically and a key always stands for the same bytes, so any number of processes may load and store
concurrently. Contents are not trusted: an array that does not match its digest is a cache miss.
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

from bdfl.learning.dataset import BadData, DataSet, blocks_of

_ABOUT = "about.json"
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metadata of a folder of the cache."""

    label_names: tuple[str, ...]
    digests: tuple[str, str, str, str]  # SHA-256 of each array's type, shape and bytes


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
    """Open a temporary file for writing and move it to `path` by an atomic replace on success."""
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
