"""A chain in a folder: blocks, certificates and a node's own statements in SQLite, models as files beside it.

A blob is durable before any row that references it: temporary file, fsync, rename, fsync of the directory, then the
row; in a batch, all blobs before all rows. An unreferenced blob is deleted after its height is decided, its row last.
So after a crash at any moment every row is complete, and a blob without a row is deleted or belongs to the open height.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bdfl.encoding import digest
from bdfl.ledger.blob_store import BLOBS_FOLDER, LOCK_FILE, BlobFolder, lock_folder
from bdfl.ledger.block import Block, Certificate, Genesis, OwnStatement, chain_id
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.sqlite_database import Database
from bdfl.ledger.sqlite_tables import ChainRows, write_genesis
from bdfl.ledger.store import (
    BlobUse,
    NotAStore,
    NotKept,
    PruneReport,
    last_pruned,
    open_blobs,
    prove_updates,
    rested_on,
    validate_next,
    validate_quota,
)
from bdfl.storage import find_stray

DATABASE_FILE = "chain.sqlite"


@dataclass(eq=False)
class _Batch:
    """Pending writes of a batch, and the state to restore if it fails."""

    recent: dict[bytes, int]  # before the batch
    num_bytes: int  # before the batch
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    unused: set[bytes] = field(default_factory=set)  # not referenced by the blocks appended


class ChainStore(ChainRows):
    """A `Store` in a folder, made by `create` or `open`; one process writes, any number read.

    Its blobs are files beside the rows of its database. It may be used from any thread, one at a time.
    """

    def __init__(self, path: Path, database: Database, blobs: BlobFolder) -> None:
        super().__init__(path, database)
        self._blobs = blobs
        self._resources = ExitStack()
        self._num_bytes: int | None = None  # of all blobs; none: open for reading
        self._recent: dict[bytes, int] = {}  # sizes of blobs without a row: put since the last block
        self._max_bytes: int | None = None
        self._batch: _Batch | None = None
        self.genesis = self.read_genesis()
        self._chain = chain_id(self.genesis)
        self._blob_size = blob_limit(self.genesis)

    @classmethod
    def create(
        cls,
        path: Path,
        genesis: Genesis,
        initial_model: bytes,
        *,
        durable: bool = True,
        max_bytes: int | None = None,
    ) -> "ChainStore":
        """Create a store in a folder that is missing, empty, or left by an interrupted `create`.

        Not `durable`: it survives a crash of the process, but perhaps not of the machine. `max_bytes` is a blob quota.
        """
        if digest(initial_model) != genesis.model.initial:
            raise NotAStore(f"{path}: the untrained model given is not the one that genesis names")
        validate_quota(0, len(initial_model), max_bytes)
        blobs = BlobFolder(path, durable=durable)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_existing(path, blobs)
            with ExitStack() as resources:
                resources.enter_context(lock_folder(path))
                blobs.make()
                blobs.write(genesis.model.initial, initial_model)
                draft = blobs.temporary / DATABASE_FILE
                write_genesis(draft, genesis, len(initial_model), durable=durable)
                draft.rename(path / DATABASE_FILE)  # from here on it is a store
                blobs.sync(path)
                blobs.sync(path.parent)
                return cls._open(path, resources, durable=durable, max_bytes=max_bytes)
        except OSError as error:
            raise NotKept(f"{path}: {error.strerror}; no chain was begun") from None

    @classmethod
    def open(
        cls, path: Path, *, read_only: bool = False, durable: bool = True, max_bytes: int | None = None
    ) -> "ChainStore":
        """Open the store in a folder.

        For writing, every block's row and the size of every referenced blob are checked first, which may raise
        `DamagedStore`. For reading, also while another process writes, damage is found when data are read.
        """
        if not (path / DATABASE_FILE).is_file():
            raise NotAStore(f"{path}: no {DATABASE_FILE} in it, the folder of a chain expected")
        try:
            with ExitStack() as resources:
                if not read_only:
                    stray = find_stray(path, beside=frozenset([BLOBS_FOLDER]))
                    if stray is not None:
                        raise NotAStore(f"{stray}: a link, pipe or device, only folders and regular files expected")
                    resources.enter_context(lock_folder(path))
                    return cls._open(path, resources, durable=durable, max_bytes=max_bytes)
                database = Database.open(path / DATABASE_FILE, durable=durable, read_only=True)
                resources.callback(database.close)
                store = cls(path, database, BlobFolder(path, durable=durable))
                store.validate_height()
                store._resources = resources.pop_all()
                return store
        except OSError as error:
            raise NotAStore(f"{path}: {error.strerror or error}, the folder of a chain expected") from None

    @classmethod
    def _open(cls, path: Path, resources: ExitStack, *, durable: bool, max_bytes: int | None) -> "ChainStore":
        """Open for writing; `resources` are closed with the store."""
        database = Database.open(path / DATABASE_FILE, durable=durable, read_only=False)
        resources.callback(database.close)
        store = cls(path, database, BlobFolder(path, durable=durable))
        store._max_bytes = max_bytes
        store._repair()
        store._resources = resources.pop_all()
        return store

    def compact(self) -> None:
        """Rewrite the database so that equal contents are equal bytes, unless another process reads."""
        self._writable()
        try:
            self._database.compact(self._blobs.temporary / DATABASE_FILE)
            self._blobs.sync(self._path)
        except OSError as error:
            raise NotKept(f"{self._path}: {error.strerror}; not compacted") from None

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The chain

    def blocks(self, first: int = 1) -> Iterator[Block]:
        height = first
        while height <= self.height:
            yield self.block(height)
            height += 1

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Group all writes inside into one at the end: blobs in parallel, then all rows in one transaction.

        On an error all of them are discarded; blob files may remain in the folder.
        """
        num_bytes = self._writable()
        if self._batch is not None:
            raise RuntimeError("a batch inside a batch")
        batch = self._batch = _Batch(dict(self._recent), num_bytes)
        try:
            with self._database.transaction():
                yield
                self._blobs.write_all(batch.blobs)
        except BaseException:
            self._recent, self._num_bytes = batch.recent, batch.num_bytes
            raise
        finally:
            self._batch = None
        self._drop(batch.unused)

    def append(self, block: Block, certificate: Certificate, *, is_trusted: bool = False) -> None:
        self._writable()
        height = self.height
        tip = self.block(height) if height else None
        needed = [] if is_trusted else rested_on(block)
        is_resuming = tip is not None and not is_trusted and self.is_trusted(height)
        if tip is not None and is_resuming:
            needed.append(BlobUse(tip.body.model, None))
        validate_next(block, self._chain, height, tip.digest if tip else self._chain, needed, self.has_blob)
        with self._database.transaction():
            if is_resuming:
                self.prune_trusted(height)
            self.insert_block(height + 1, block, certificate, self._recent, is_trusted=is_trusted)
        unused = self._recent.keys() - {use.blob for use in needed}
        self._recent.clear()
        if self._batch is None:
            self._drop(unused)
        else:  # delete them once the rows are durable
            self._batch.unused |= unused

    # Blobs

    @property
    def num_bytes(self) -> int:
        """Bytes of all blobs, limited by the quota; 0 if open for reading only."""
        return self._num_bytes or 0

    @property
    def num_bytes_on_disk(self) -> int:
        """Bytes of the database and all blobs."""
        return self._database.num_bytes + self.num_bytes

    @property
    def max_bytes(self) -> int | None:
        return self._max_bytes

    def has_blob(self, blob: bytes) -> bool:
        return self._blobs.path(blob).is_file() if self._num_bytes is None else self._size(blob) is not None

    def _size(self, blob: bytes) -> int | None:
        """Bytes of a blob of a decided or the open height; none: not stored, even if a file is in the folder."""
        size = self._recent.get(blob)
        return self.blob_size(blob) if size is None else size

    def get_blob(self, blob: bytes) -> bytes | None:
        """The bytes of that digest; none if they are not, or no longer, stored.

        Raises `DamagedStore` if a block references them and they are lost or changed.
        """
        data = self.read_unchecked(blob)
        if data is None or digest(data) == blob:
            return data
        self.report_damage(blob, "its bytes have another digest")
        return None  # no block references it

    def read_unchecked(self, blob: bytes) -> bytes | None:
        """Read a blob as `get_blob` does, without checking its digest, which the caller does."""
        batch = self._batch
        if batch is not None and blob in batch.blobs:
            return batch.blobs[blob]
        try:
            data = self._blobs.read(blob, self._blob_size)
        except OSError as error:
            self.report_damage(blob, error.strerror or "unreadable")
            return None
        if data is None:
            self.report_damage(blob, "missing")
        return data

    def put_blob(self, blob: bytes, data: bytes) -> None:
        num_bytes = self._writable()
        if digest(data) != blob:
            raise NotKept(f"{self._path}: blob {blob.hex()}: the bytes given have digest {digest(data).hex()}")
        size = self._size(blob)
        is_waiting = self._batch is not None and blob in self._batch.blobs
        if not is_waiting and (size is None or self._blobs.read(blob, len(data)) != data):
            others = num_bytes - (size or 0)
            validate_quota(others, len(data), self._max_bytes)
            if self._batch is None:
                self._blobs.write(blob, data)
            else:
                self._batch.blobs[blob] = data
            self._num_bytes = others + len(data)
        if size is None:
            self._recent[blob] = len(data)
        elif blob not in self._recent:  # needed again, so that pruning must spare it
            self.renew_blob(blob, self.height + 1)
            if self._batch is not None:
                self._batch.unused.discard(blob)

    # The node's own part in a height

    def put_statement(self, height: int, statement: OwnStatement) -> None:
        self._writable()
        super().put_statement(height, statement)

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None:
        self._writable()
        super().put_progress(height, attempt, lock)

    # Pruning

    def prune(self, keep_blocks: int) -> PruneReport:
        self._writable()
        before = self.checkpoint
        last = last_pruned(self.height, keep_blocks)
        if last <= before or self.is_trusted(self.height):
            return PruneReport(before, 0, 0, 0)
        self.prune_rows(before + 1, last)
        num_blobs, num_bytes = self._drop_unused()
        return PruneReport(last, last - before, num_blobs, num_bytes)

    def proof(self, height: int, client: int) -> MerkleProof | None:
        if height > self.checkpoint:
            return prove_updates(self.block(height)).get(client)
        return self.pruned_proof(height, client)

    def _drop_unused(self) -> tuple[int, int]:
        """Delete unreferenced blobs of decided heights; return their number and bytes."""
        kept = self._recent.keys() | open_blobs(self.read_round(self.height + 1))
        return self._drop([blob for blob in self.unused_blobs() if blob not in kept])

    def _drop(self, unused: Collection[bytes]) -> tuple[int, int]:
        """Delete blobs, then their rows; return their number and bytes."""
        num_bytes = sum(map(self._blobs.remove, unused))
        if unused:
            self.forget_blobs(unused)
        self._num_bytes = self._writable() - num_bytes
        return len(unused), num_bytes

    # Opening

    def _writable(self) -> int:
        """Return the bytes of all blobs; raise `NotKept` unless open for writing."""
        if self._num_bytes is None:
            raise NotKept(f"{self._path}: open for reading only")
        return self._num_bytes

    def _repair(self) -> None:
        """Check the store and make it ready for writing; raises `DamagedStore` if stored data are missing."""
        self._database.validate_pages()
        self.validate_blocks()
        sizes = self._blobs.sizes()
        self.validate_blobs(sizes)
        self._blobs.sweep()
        for blob in sizes.keys() - self.listed_blobs():
            data = self._blobs.read(blob, self._blob_size)
            if data is None or digest(data) != blob:  # a crash of the machine before a write without fsync was on disk
                self._blobs.remove(blob)
                del sizes[blob]
            else:
                self._recent[blob] = len(data)
        self._num_bytes = sum(sizes.values())
        self._drop_unused()


def _refuse_existing(path: Path, blobs: BlobFolder) -> None:
    ours = {LOCK_FILE, *(folder.name for folder in blobs.folders)}
    if any(file.name not in ours for file in path.iterdir()):
        raise NotAStore(f"{path}: exists already and is not empty, a new folder for a chain expected")
