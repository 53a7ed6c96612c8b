"""A chain in a folder: blocks, certificates and a node's own statements in SQLite, models as files beside it.

A blob is on the disk under its name before any row that rests on it: temporary file, fsync, rename, fsync of the
folder, then the row; in a batch, all blobs before all rows. So whatever moment a process or the machine ends at,
opening again finds every row whole, and what no row knows is swept or belongs to the open height.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from bdfl.encoding import BadEncoding, Record, decode, digest, encode, prepared
from bdfl.ledger.blob_folder import LOCK_FILE, BlobFolder, lock_folder
from bdfl.ledger.block import (
    MAX_BLOCK_SIZE,
    Block,
    Certificate,
    Genesis,
    SignedReport,
    SignedUpdate,
    SignedVote,
    chain_id,
)
from bdfl.ledger.database import Database, Row
from bdfl.ledger.keeping import (
    BlobUse,
    DamagedStore,
    NotAStore,
    NotKept,
    PruneReport,
    StoredRound,
    rested_on,
    validate_next,
    validate_quota,
)
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.pruning import last_pruned, open_blobs, prove_update, prove_updates

DATABASE_FILE = "chain.sqlite"

_Kept = TypeVar("_Kept", bound=Record)

for _kind in (Genesis, Block, SignedVote, SignedUpdate, SignedReport, MerkleProof):
    prepared(_kind)


class _Statement(StrEnum):
    VOTE = "vote"
    UPDATE = "update"
    REPORT = "report"
    CANDIDATE = "candidate"


@prepared
class _Votes(Record, frozen=True):
    """A certificate as bytes."""

    votes: Certificate


@dataclass(eq=False)
class _Batch:
    """What is to be kept together."""

    recent: set[bytes]  # as it was before
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    sizes: dict[bytes, int | None] = field(default_factory=dict)  # of those blobs before; none: not kept


class ChainStore:
    """A `Store` in a folder, made by `create` or `open`; one process writes, any number read.

    It may be used from any thread, by one at a time.
    """

    def __init__(self, path: Path, database: Database, blobs: BlobFolder) -> None:
        self._path = path
        self._database = database
        self._blobs = blobs
        self._resources = ExitStack()
        self._sizes: dict[bytes, int] | None = None  # of every blob; none: open for reading
        self._recent: set[bytes] = set()  # blobs that no row knows: put since the last block
        self._max_bytes: int | None = None
        self._batch: _Batch | None = None
        self.genesis = self._read_genesis()
        self._chain = chain_id(self.genesis)

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
        """A new store in a folder that is not there, is empty, or where beginning one was cut off.

        Not `durable`: it outlives the process, but perhaps not the machine. `max_bytes` is a quota for all blobs.
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
                _write_genesis(draft, genesis, len(initial_model), durable=durable)
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
        """The store in a folder, as it was when it was last written to.

        For writing, every row and the presence of every blob are checked first: `DamagedStore` says what is not as it
        should be. For reading, also while another process writes, that is found when it is read.
        """
        if not (path / DATABASE_FILE).is_file():
            raise NotAStore(f"{path}: no {DATABASE_FILE} in it, the folder of a chain expected")
        try:
            with ExitStack() as resources:
                if not read_only:
                    resources.enter_context(lock_folder(path))
                    return cls._open(path, resources, durable=durable, max_bytes=max_bytes)
                database = Database.open(path / DATABASE_FILE, durable=durable, read_only=True)
                resources.callback(database.close)
                store = cls(path, database, BlobFolder(path, durable=durable))
                store._resources = resources.pop_all()
                return store
        except OSError as error:
            raise NotAStore(f"{path}: {error.strerror}, the folder of a chain expected") from None

    @classmethod
    def _open(cls, path: Path, resources: ExitStack, *, durable: bool, max_bytes: int | None) -> "ChainStore":
        """For writing, with what must be closed at the end."""
        database = Database.open(path / DATABASE_FILE, durable=durable, read_only=False)
        resources.callback(database.close)
        store = cls(path, database, BlobFolder(path, durable=durable))
        store._max_bytes = max_bytes
        store._repair()
        store._resources = resources.pop_all()
        return store

    def compact(self) -> None:
        """Rewrites the database so that equal contents are equal bytes, whatever led to them; not while others read."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The chain

    @property
    def height(self) -> int:
        [(height,)] = self._database.run("SELECT coalesce(max(height), 0) FROM blocks")
        return cast(int, height)

    @property
    def checkpoint(self) -> int:
        [(height,)] = self._database.run("SELECT height FROM checkpoint")
        return cast(int, height)

    def block(self, height: int) -> Block:
        return self._decode(f"block {height}", self._read_block(height)[0], Block)

    def blocks(self, first: int = 1) -> Iterator[Block]:
        height = first
        while height <= self.height:
            yield self.block(height)
            height += 1

    def certificate(self, height: int) -> Certificate:
        return self._decode(f"certificate of block {height}", self._read_block(height)[1], _Votes).votes

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Inside, what is put or appended is kept together at the end: blobs side by side, then all rows at once.

        If anything goes wrong nothing of it is kept, as far as this store knows.
        """
        sizes = self._writable()
        if self._batch is not None:
            raise RuntimeError("a batch inside a batch")
        batch = self._batch = _Batch(set(self._recent))
        try:
            with self._database.transaction():
                yield
                self._blobs.write_all(batch.blobs)
        except BaseException:
            self._recent = batch.recent
            for blob, size in batch.sizes.items():
                if size is None:
                    del sizes[blob]
                else:
                    sizes[blob] = size
            raise
        finally:
            self._batch = None

    def append(self, block: Block, certificate: Certificate) -> None:
        sizes = self._writable()
        height = self.height
        tip = self.block(height).digest if height else self._chain
        validate_next(block, self._chain, height, tip, self.has_blob)
        height, data, votes = height + 1, encode(block), encode(_Votes(certificate))
        uses: list[Row] = [(use.blob, height, use.client) for use in rested_on(block)]
        recent: list[Row] = [(blob, sizes[blob], height) for blob in self._recent]
        with self._database.transaction():
            self._database.run("INSERT INTO blocks VALUES (?, ?, ?, ?)", height, data, votes, digest(data + votes))
            self._database.run_many("INSERT INTO uses VALUES (?, ?, ?)", uses)
            self._database.run_many("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", recent)
            self._database.run("DELETE FROM statements WHERE height = ? AND kind = ?", height, _Statement.CANDIDATE)
            self._database.run("DELETE FROM progress WHERE height = ?", height)
        self._recent.clear()

    # Blobs

    def has_blob(self, blob: bytes) -> bool:
        return self._blobs.path(blob).is_file() if self._sizes is None else blob in self._sizes

    def get_blob(self, blob: bytes) -> bytes | None:
        """The bytes of that digest; none if they are not kept, or no more.

        Raises `DamagedStore` if a block rests on them and they are lost or changed.
        """
        data = self.read_unchecked(blob)
        if data is None or digest(data) == blob:
            return data
        self._report_damage(blob, "its bytes have another digest")
        return None  # nobody rests on it: as good as none

    def read_unchecked(self, blob: bytes) -> bytes | None:
        """As `get_blob`, for those who compare the digest themselves."""
        batch = self._batch
        if batch is not None and blob in batch.blobs:
            return batch.blobs[blob]
        try:
            data = self._blobs.read(blob)
        except OSError as error:
            self._report_damage(blob, error.strerror or "unreadable")
            return None
        if data is None:
            self._report_damage(blob, "missing")
        return data

    def put_blob(self, blob: bytes, data: bytes) -> None:
        sizes = self._writable()
        if digest(data) != blob:
            raise NotKept(f"{self._path}: blob {blob.hex()}: the bytes given have digest {digest(data).hex()}")
        is_new = blob not in sizes
        is_waiting = self._batch is not None and blob in self._batch.blobs
        if not is_waiting and (is_new or self._blobs.read(blob) != data):
            if self._max_bytes is not None:
                validate_quota(sum(sizes.values()) - sizes.get(blob, 0), len(data), self._max_bytes)
            if self._batch is None:
                self._blobs.write(blob, data)
            else:
                self._batch.blobs[blob], self._batch.sizes[blob] = data, sizes.get(blob)
            sizes[blob] = len(data)
        if is_new:
            self._recent.add(blob)
        elif blob not in self._recent:  # needed anew, so that pruning must leave it alone
            self._database.run("UPDATE blobs SET height = ? WHERE blob = ?", self.height + 1, blob)

    # The node's own part in a height

    def put_vote(self, height: int, vote: SignedVote) -> None:
        self._put_statement(height, _Statement.VOTE, vote)

    def put_update(self, height: int, update: SignedUpdate) -> None:
        self._put_statement(height, _Statement.UPDATE, update)

    def put_report(self, height: int, report: SignedReport) -> None:
        self._put_statement(height, _Statement.REPORT, report)

    def put_candidate(self, block: Block) -> None:
        self._put_statement(block.header.height, _Statement.CANDIDATE, block)

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None:
        self._writable()
        data = encode(_Votes(lock))
        self._database.run("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?)", height, attempt, data, digest(data))

    def read_round(self, height: int) -> StoredRound:
        attempt, lock = self._read_progress(height)
        return StoredRound(
            height,
            self._read_statements(height, _Statement.VOTE, SignedVote),
            self._read_statements(height, _Statement.UPDATE, SignedUpdate),
            self._read_statements(height, _Statement.REPORT, SignedReport),
            self._read_statements(height, _Statement.CANDIDATE, Block),
            attempt,
            lock,
        )

    # Pruning

    def prune(self, keep_blocks: int) -> PruneReport:
        self._writable()
        before = self.checkpoint
        last = last_pruned(self.height, keep_blocks)
        if last <= before:
            return PruneReport(before, 0, 0, 0)
        with self._database.transaction():
            for height in range(before + 1, last + 1):
                proofs = prove_updates(self.block(height))
                rows: list[Row] = [(height, client, encode(proof)) for client, proof in proofs.items()]
                self._database.run_many("INSERT INTO proofs VALUES (?, ?, ?)", rows)
            self._database.run(
                "DELETE FROM uses WHERE height BETWEEN 1 AND ? AND NOT (height = ? AND client IS NULL)", last, last
            )
            self._database.run("UPDATE checkpoint SET height = ?", last)
        num_blobs, num_bytes = self._drop_unused()
        return PruneReport(last, last - before, num_blobs, num_bytes)

    def proof(self, height: int, client: int) -> MerkleProof | None:
        if height > self.checkpoint:
            return prove_update(self.block(height), client)
        rows = self._database.run("SELECT data FROM proofs WHERE height = ? AND client = ?", height, client)
        what = f"proof of client {client} in block {height}"
        return self._decode(what, cast(bytes, rows[0][0]), MerkleProof) if rows else None

    def _drop_unused(self) -> tuple[int, int]:
        """Removes blobs up to the checkpoint that nothing rests on; how many, and their bytes."""
        sizes = self._writable()
        found = self._database.run(
            "SELECT blob FROM blobs WHERE height <= ? AND blob NOT IN (SELECT blob FROM uses)", self.checkpoint
        )
        kept = self._recent | open_blobs(self.read_round(self.height + 1))
        unused = [cast(bytes, blob) for (blob,) in found if blob not in kept]
        num_bytes = sum(sizes.pop(blob, 0) for blob in unused)
        for blob in unused:
            self._blobs.remove(blob)
        with self._database.transaction():
            self._database.run_many("DELETE FROM blobs WHERE blob = ?", [(blob,) for blob in unused])
        return len(unused), num_bytes

    # Reading rows, and opening

    def _read_genesis(self) -> Genesis:
        rows = self._database.run("SELECT data, checksum FROM genesis")
        if len(rows) != 1:
            raise DamagedStore(f"{self._path}: genesis is missing")
        return self._decode("genesis", self._checked("genesis", *cast(tuple[bytes, bytes], rows[0])), Genesis)

    def _read_block(self, height: int) -> tuple[bytes, bytes]:
        """Bytes of a block and of its certificate."""
        rows = self._database.run("SELECT data, certificate, checksum FROM blocks WHERE height = ?", height)
        if not rows:
            if 1 <= height <= self.height:
                raise DamagedStore(f"{self._path}: block {height} is missing")
            raise IndexError(f"block {height} of 1..{self.height}")
        data, votes, checksum = cast(tuple[bytes, bytes, bytes], rows[0])
        self._checked(f"block {height}", data + votes, checksum)
        return data, votes

    def _put_statement(self, height: int, kind: _Statement, statement: Record) -> None:
        self._writable()
        data = encode(statement)
        self._database.run(
            "INSERT OR IGNORE INTO statements (height, kind, data, checksum) VALUES (?, ?, ?, ?)",
            height,
            kind,
            data,
            digest(data),
        )

    def _read_statements(self, height: int, kind: _Statement, record: type[_Kept]) -> tuple[_Kept, ...]:
        rows = self._database.run(
            "SELECT data, checksum FROM statements WHERE height = ? AND kind = ? ORDER BY number", height, kind
        )
        what = f"a {kind} of height {height}"
        checked = [self._checked(what, *cast(tuple[bytes, bytes], row)) for row in rows]
        return tuple(self._decode(what, data, record) for data in checked)

    def _read_progress(self, height: int) -> tuple[int, Certificate]:
        rows = self._database.run("SELECT attempt, lock, checksum FROM progress WHERE height = ?", height)
        if not rows:
            return 0, ()
        attempt, lock, checksum = cast(tuple[int, bytes, bytes], rows[0])
        what = f"the lock of height {height}"
        return attempt, self._decode(what, self._checked(what, lock, checksum), _Votes).votes

    def _checked(self, what: str, data: bytes, checksum: bytes) -> bytes:
        if digest(data) != checksum:
            raise DamagedStore(f"{self._path}: {what}: its row was changed")
        return data

    def _decode(self, what: str, data: bytes, kind: type[_Kept]) -> _Kept:
        try:
            return decode(data, kind, MAX_BLOCK_SIZE)
        except BadEncoding as error:
            raise DamagedStore(f"{self._path}: {what}: {error}") from None

    def _writable(self) -> dict[bytes, int]:
        if self._sizes is None:
            raise NotKept(f"{self._path}: open for reading only")
        return self._sizes

    def _repair(self) -> None:
        """Makes the store ready for writing; raises `DamagedStore` if something kept is not there."""
        self._database.validate_pages()
        for height in range(1, self.height + 1):
            self._read_block(height)
        sizes = self._blobs.sizes()
        self._validate_blobs(sizes)
        self._blobs.sweep()
        recorded = {cast(bytes, blob) for (blob,) in self._database.run("SELECT blob FROM blobs")}
        for blob in sizes.keys() - recorded:
            data = self._blobs.read(blob)
            if data is None or digest(data) != blob:  # the machine ended before an undurable one was written
                self._blobs.remove(blob)
                del sizes[blob]
            else:
                self._recent.add(blob)
        self._sizes = sizes
        self._drop_unused()

    def _validate_blobs(self, sizes: dict[bytes, int]) -> None:
        rows = self._database.run(
            "SELECT blob, uses.height, client, size FROM uses LEFT JOIN blobs USING (blob) ORDER BY uses.height, client"
        )
        damages = []
        for blob, height, client, size in cast(list[tuple[bytes, int, int | None, int | None]], rows):
            found = sizes.get(blob)
            if found is None:
                damages.append(self._describe(blob, height, client, "missing"))
            elif found != size:
                damages.append(self._describe(blob, height, client, f"{found} bytes, {size} expected"))
        if damages:
            more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
            raise DamagedStore(damages[0] + more)

    def _report_damage(self, blob: bytes, what: str) -> None:
        """Raises `DamagedStore` if a block rests on the blob."""
        rows = self._database.run("SELECT height, client FROM uses WHERE blob = ? ORDER BY height LIMIT 1", blob)
        for height, client in cast(list[tuple[int, int | None]], rows):
            raise DamagedStore(self._describe(blob, height, client, what))

    def _describe(self, blob: bytes, height: int, client: int | None, what: str) -> str:
        return f"{self._path}: {BlobUse(blob, client).describe(height)}: {what}"


def _refuse_existing(path: Path, blobs: BlobFolder) -> None:
    ours = {LOCK_FILE, *(folder.name for folder in blobs.folders)}
    if any(file.name not in ours for file in path.iterdir()):
        raise NotAStore(f"{path}: exists already and is not empty, a new folder for a chain expected")


def _write_genesis(path: Path, genesis: Genesis, model_size: int, *, durable: bool) -> None:
    """A database with genesis alone, complete in one file."""
    path.unlink(missing_ok=True)
    database = Database.create(path, durable=durable)
    try:
        data, initial = encode(genesis), genesis.model.initial
        with database.transaction():
            database.make_tables()
            database.run("INSERT INTO genesis VALUES (?, ?)", data, digest(data))
            database.run("INSERT INTO checkpoint VALUES (0)")
            database.run("INSERT INTO blobs VALUES (?, ?, 0)", initial, model_size)
            database.run("INSERT INTO uses VALUES (?, 0, NULL)", initial)
    finally:
        database.close()
