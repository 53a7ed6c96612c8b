"""The rows of a store: blocks, certificates, a node's own statements, and which blocks rest on which blobs.

Every row is compared with its checksum and decoded when it is read: `DamagedStore` says which one was changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, cast

from bdfl.encoding import BadEncoding, Record, decode, digest, encode, prepared
from bdfl.errors import other_format
from bdfl.ledger.block import (
    FORMAT,
    MAX_BLOCK_SIZE,
    Block,
    Certificate,
    Genesis,
    SignedReport,
    SignedUpdate,
    SignedVote,
)
from bdfl.ledger.database import Database, Row
from bdfl.ledger.keeping import BlobUse, DamagedStore, StoredRound, rested_on
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.pruning import prove_updates

_Kept = TypeVar("_Kept", bound=Record)
_OnChain = TypeVar("_OnChain", Genesis, Block)

for _kind in (Genesis, Block, SignedVote, SignedUpdate, SignedReport, MerkleProof):
    prepared(_kind)


class Statement(StrEnum):
    """What a node says in a height, as its rows name it."""

    VOTE = "vote"
    UPDATE = "update"
    REPORT = "report"
    CANDIDATE = "candidate"


@prepared
class _Votes(Record, frozen=True):
    """A certificate as bytes."""

    votes: Certificate


class ChainRows:
    """What the database of a store in the folder `path` says."""

    def __init__(self, path: Path, database: Database) -> None:
        self._path = path
        self._database = database

    # The chain

    def genesis(self) -> Genesis:
        rows = self._database.run("SELECT data, checksum FROM genesis")
        if len(rows) != 1:
            raise DamagedStore(f"{self._path}: genesis is missing")
        data = self._checked("genesis", *cast(tuple[bytes, bytes], rows[0]))
        with self._explaining("genesis"):
            return decode_stored(data, Genesis)

    @property
    def height(self) -> int:
        [(height,)] = self._database.run("SELECT coalesce(max(height), 0) FROM blocks")
        return cast(int, height)

    @property
    def checkpoint(self) -> int:
        [(height,)] = self._database.run("SELECT height FROM checkpoint")
        return cast(int, height)

    def block(self, height: int) -> Block:
        data = self._read_block(height)[0]
        with self._explaining(f"block {height}"):
            return decode_stored(data, Block)

    def certificate(self, height: int) -> Certificate:
        return self._decode(f"certificate of block {height}", self._read_block(height)[1], _Votes).votes

    def raw_block(self, height: int) -> tuple[bytes, bytes]:
        """Bytes of a block and of its certificate as they are stored, also where their row was changed."""
        data, votes, _ = self._read_row(height)
        return data, votes

    def append(self, height: int, block: Block, certificate: Certificate, recent: Mapping[bytes, int]) -> None:
        """Keeps a block, the uses of its blobs, and by size the blobs that no row knew; ends its height's progress."""
        data, votes = encode(block), encode_certificate(certificate)
        uses: list[Row] = [(use.blob, height, use.client) for use in rested_on(block)]
        blobs: list[Row] = [(blob, size, height) for blob, size in recent.items()]
        with self._database.transaction():
            self._database.run("INSERT INTO blocks VALUES (?, ?, ?, ?)", height, data, votes, digest(data + votes))
            self._database.run_many("INSERT INTO uses VALUES (?, ?, ?)", uses)
            self._database.run_many("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", blobs)
            self._database.run("DELETE FROM statements WHERE height = ? AND kind = ?", height, Statement.CANDIDATE)
            self._database.run("DELETE FROM progress WHERE height = ?", height)

    def validate_blocks(self) -> None:
        """Raises `DamagedStore` if a block up to the last is missing or was changed."""
        for height in range(1, self.height + 1):
            self._read_block(height)

    # The node's own part in a height

    def put_statement(self, height: int, kind: Statement, statement: Record) -> None:
        data = encode(statement)
        self._database.run(
            "INSERT OR IGNORE INTO statements (height, kind, data, checksum) VALUES (?, ?, ?, ?)",
            height,
            kind,
            data,
            digest(data),
        )

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None:
        data = encode(_Votes(lock))
        self._database.run("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?)", height, attempt, data, digest(data))

    def read_round(self, height: int) -> StoredRound:
        attempt, lock = self._read_progress(height)
        return StoredRound(
            height,
            self._read_statements(height, Statement.VOTE, SignedVote),
            self._read_statements(height, Statement.UPDATE, SignedUpdate),
            self._read_statements(height, Statement.REPORT, SignedReport),
            self._read_statements(height, Statement.CANDIDATE, Block),
            attempt,
            lock,
        )

    # Pruning

    def prune(self, first: int, last: int) -> None:
        """Keeps proofs of these blocks' updates instead of the uses of their blobs; `last` is the new checkpoint."""
        with self._database.transaction():
            for height in range(first, last + 1):
                proofs = prove_updates(self.block(height))
                rows: list[Row] = [(height, client, encode(proof)) for client, proof in proofs.items()]
                self._database.run_many("INSERT INTO proofs VALUES (?, ?, ?)", rows)
            self._database.run(
                "DELETE FROM uses WHERE height BETWEEN 1 AND ? AND NOT (height = ? AND client IS NULL)", last, last
            )
            self._database.run("UPDATE checkpoint SET height = ?", last)

    def pruned_proof(self, height: int, client: int) -> MerkleProof | None:
        """The proof that pruning left of a client's update; none: it had none."""
        rows = self._database.run("SELECT data FROM proofs WHERE height = ? AND client = ?", height, client)
        what = f"proof of client {client} in block {height}"
        return self._decode(what, cast(bytes, rows[0][0]), MerkleProof) if rows else None

    # Blobs

    def blobs(self) -> set[bytes]:
        """Those that some row knows."""
        return {cast(bytes, blob) for (blob,) in self._database.run("SELECT blob FROM blobs")}

    def blob_size(self, blob: bytes) -> int | None:
        """Bytes of a blob that a row knows; none: none does."""
        rows = self._database.run("SELECT size FROM blobs WHERE blob = ?", blob)
        return cast(int, rows[0][0]) if rows else None

    def unused_blobs(self) -> list[bytes]:
        """Those up to the checkpoint that no block rests on."""
        found = self._database.run(
            "SELECT blob FROM blobs WHERE height <= ? AND blob NOT IN (SELECT blob FROM uses)", self.checkpoint
        )
        return [cast(bytes, blob) for (blob,) in found]

    def renew_blob(self, blob: bytes, height: int) -> None:
        """Takes a blob for one of a later height, so that pruning leaves it alone."""
        self._database.run("UPDATE blobs SET height = ? WHERE blob = ?", height, blob)

    def forget_blobs(self, blobs: list[bytes]) -> None:
        with self._database.transaction():
            self._database.run_many("DELETE FROM blobs WHERE blob = ?", [(blob,) for blob in blobs])

    def validate_blobs(self, sizes: Mapping[bytes, int]) -> None:
        """Raises `DamagedStore` unless `sizes`, of the blobs that are there, has all that blocks rest on."""
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

    def report_damage(self, blob: bytes, what: str) -> None:
        """Raises `DamagedStore` if a block rests on the blob."""
        rows = self._database.run("SELECT height, client FROM uses WHERE blob = ? ORDER BY height LIMIT 1", blob)
        for height, client in cast(list[tuple[int, int | None]], rows):
            raise DamagedStore(self._describe(blob, height, client, what))

    # Reading rows

    def _read_block(self, height: int) -> tuple[bytes, bytes]:
        """Bytes of a block and of its certificate."""
        data, votes, checksum = self._read_row(height)
        self._checked(f"block {height}", data + votes, checksum)
        return data, votes

    def _read_row(self, height: int) -> tuple[bytes, bytes, bytes]:
        rows = self._database.run("SELECT data, certificate, checksum FROM blocks WHERE height = ?", height)
        if not rows:
            if 1 <= height <= self.height:
                raise DamagedStore(f"{self._path}: block {height} is missing")
            raise IndexError(f"block {height} of 1..{self.height}")
        return cast(tuple[bytes, bytes, bytes], rows[0])

    def _read_statements(self, height: int, kind: Statement, record: type[_Kept]) -> tuple[_Kept, ...]:
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
        with self._explaining(what):
            return decode(data, kind, MAX_BLOCK_SIZE)

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except BadEncoding as error:
            raise DamagedStore(f"{self._path}: {what}: {error}") from None

    def _describe(self, blob: bytes, height: int, client: int | None, what: str) -> str:
        return f"{self._path}: {BlobUse(blob, client).describe(height)}: {what}"


def decode_stored(data: bytes, kind: type[_OnChain]) -> _OnChain:
    """A genesis or a block from its bytes; raises `BadEncoding`, for those of another format with its number."""
    try:
        return decode(data, kind, MAX_BLOCK_SIZE)
    except BadEncoding:
        found = find_format(data)
        if found is None or found == FORMAT:
            raise
        raise BadEncoding(f"{kind.__name__}: {other_format(found, FORMAT)}") from None


def find_format(data: bytes) -> int | None:
    """The format that the bytes of a genesis or a block name, whatever else is in them; none: they are of neither.

    It stands first, in the genesis itself or in a block's header: after one or two short arrays, as a small number.
    """
    depth = next((place for place, byte in enumerate(data[:3]) if not 0x90 <= byte <= 0x9F), 0)
    return data[depth] if depth and data[depth] < 0x80 else None


def decode_certificate(data: bytes) -> Certificate:
    """The votes in a certificate's bytes as `raw_block` has them; raises `BadEncoding`."""
    return decode(data, _Votes, MAX_BLOCK_SIZE).votes


def encode_certificate(certificate: Certificate) -> bytes:
    """A certificate's bytes, as they are stored."""
    return encode(_Votes(certificate))


def write_genesis(path: Path, genesis: Genesis, model_size: int, *, durable: bool) -> None:
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
