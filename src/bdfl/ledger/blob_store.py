"""Content-addressed files, `blobs/ab/abcd...`, written by atomic replace: a file is there whole or not at all."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from bdfl.encoding import DIGEST_SIZE
from bdfl.ledger.store import NotKept, StoreInUse
from bdfl.storage import lock_file, read_regular, replacing, sync_folder

LOCK_FILE = "lock"
BLOBS_FOLDER = "blobs"
_TEMPORARY = "tmp"
_SIDE_BY_SIDE = 4  # files written in parallel, so that their fsyncs overlap


class BlobFolder:
    """The blobs of a store. Not `durable`: the same order of steps without fsync."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._blobs = path / BLOBS_FOLDER
        self.temporary = path / _TEMPORARY  # files being written
        self._durable = durable

    @property
    def folders(self) -> tuple[Path, Path]:
        return self._blobs, self.temporary

    def make(self) -> None:
        """Create the folders that are missing."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.sync(self._blobs.parent)

    def sweep(self) -> None:
        """Remove temporary files that an earlier process left behind."""
        self.temporary.mkdir(exist_ok=True)
        for path in self.temporary.iterdir():
            path.unlink()

    def path(self, blob: bytes) -> Path:
        name = blob.hex()
        return self._blobs / name[:2] / name

    def sizes(self) -> dict[bytes, int]:
        """Size in bytes of every blob in the folder; files with other names are ignored."""
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
        """Read a blob; none if it is missing, `OSError` if it is no regular file or too large."""
        try:
            return read_regular(self.path(blob), max_bytes, follows=False)
        except FileNotFoundError:
            return None

    def write(self, blob: bytes, data: bytes) -> None:
        """Write a blob durably by atomic replace; raise `NotKept` if the disk is full or fails."""
        path = self.path(blob)
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                self.sync(self._blobs)
            with replacing(path, draft=self.temporary / path.name, durable=self._durable) as file:
                file.write(data)
        except OSError as error:
            raise NotKept(f"{path}: {error.strerror}, {len(data)} bytes to write; the blob is not kept") from None

    def write_all(self, blobs: Mapping[bytes, bytes]) -> None:
        """Write several blobs in parallel; all are tried before the first error is raised."""
        if len(blobs) < 2 or not self._durable:
            for blob, data in blobs.items():
                self.write(blob, data)
            return
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(blobs)), "blobs") as writers:
            list(writers.map(self.write, blobs.keys(), blobs.values()))

    def remove(self, blob: bytes) -> int:
        """Delete a blob and return the bytes freed, 0 if it was missing."""
        path = self.path(blob)
        size = path.stat().st_size if path.is_file() else 0
        path.unlink(missing_ok=True)
        return size

    def sync(self, folder: Path) -> None:
        """fsync the directory."""
        if self._durable:
            sync_folder(folder)


def lock_folder(path: Path) -> AbstractContextManager[None]:
    """Hold the writer's lock of a store, or raise `StoreInUse`."""
    return lock_file(path / LOCK_FILE, StoreInUse(f"{path}: this chain is being written to by another process"))


def _blob_of(name: str) -> bytes | None:
    try:
        blob = bytes.fromhex(name)
    except ValueError:
        return None
    return blob if len(blob) == DIGEST_SIZE and blob.hex() == name else None
