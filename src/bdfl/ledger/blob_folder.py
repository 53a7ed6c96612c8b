"""Files named by the digest of their content: `blobs/ab/abcd...`. A file is there whole or not at all."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from bdfl.encoding import DIGEST_SIZE
from bdfl.file_lock import lock_patiently
from bdfl.foreign_files import read_regular
from bdfl.ledger.keeping import NotKept, StoreInUse

LOCK_FILE = "lock"
BLOBS_FOLDER = "blobs"
_TEMPORARY = "tmp"
_SIDE_BY_SIDE = 4  # files written at the same time: the disk is waited for once instead of for each


class BlobFolder:
    """The blobs of a store. Not `durable`: the same order of steps, but nothing waits for the disk."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._blobs = path / BLOBS_FOLDER
        self.temporary = path / _TEMPORARY  # what is being written
        self._durable = durable

    @property
    def folders(self) -> tuple[Path, Path]:
        return self._blobs, self.temporary

    def make(self) -> None:
        """Makes the folders; those that exist stay."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.sync(self._blobs.parent)

    def sweep(self) -> None:
        """Removes what was being written when the process before this one ended."""
        self.temporary.mkdir(exist_ok=True)
        for path in self.temporary.iterdir():
            path.unlink()

    def path(self, blob: bytes) -> Path:
        name = blob.hex()
        return self._blobs / name[:2] / name

    def sizes(self) -> dict[bytes, int]:
        """Bytes of every blob that is there; files with other names are not ours and left alone."""
        return dict(self._list())

    def _list(self) -> Iterator[tuple[bytes, int]]:
        for folder in os.scandir(self._blobs) if self._blobs.is_dir() else ():
            if not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                blob = _blob_of(file.name)
                if blob is not None and file.name[:2] == folder.name and file.is_file(follow_symlinks=False):
                    yield blob, file.stat(follow_symlinks=False).st_size

    def read(self, blob: bytes, max_bytes: int) -> bytes | None:
        """The bytes of a blob that is a regular file and not too large, else `OSError`; none: not there."""
        try:
            return read_regular(self.path(blob), max_bytes, follows=False)
        except FileNotFoundError:
            return None

    def write(self, blob: bytes, data: bytes) -> None:
        """Puts the blob in its place, for good; raises `NotKept` if the disk does not take it."""
        path = self.path(blob)
        temporary = self.temporary / path.name
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                self.sync(self._blobs)
            os.replace(temporary, path)
            self.sync(path.parent)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise NotKept(f"{path}: {error.strerror}, {len(data)} bytes to write; the blob is not kept") from None

    def write_all(self, blobs: Mapping[bytes, bytes]) -> None:
        """As `write` for each, several at a time; all are tried before one that failed is told of."""
        if len(blobs) < 2 or not self._durable:
            for blob, data in blobs.items():
                self.write(blob, data)
            return
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(blobs)), "blobs") as writers:
            list(writers.map(self.write, blobs.keys(), blobs.values()))

    def remove(self, blob: bytes) -> int:
        """Bytes that are free now: none if the blob was gone already."""
        path = self.path(blob)
        size = path.stat().st_size if path.is_file() else 0
        path.unlink(missing_ok=True)
        return size

    def sync(self, folder: Path) -> None:
        """Waits until the names in a folder are on the disk."""
        if not self._durable or os.name == "nt":  # Windows opens no folders
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Inside, nobody else writes to the store; raises `StoreInUse`. The lock ends with the process, however it ends."""
    with (path / LOCK_FILE).open("ab") as file:
        if not lock_patiently(file):
            raise StoreInUse(f"{path}: this chain is being written to by another process")
        yield


def _blob_of(name: str) -> bytes | None:
    try:
        blob = bytes.fromhex(name)
    except ValueError:
        return None
    return blob if len(blob) == DIGEST_SIZE and blob.hex() == name else None
