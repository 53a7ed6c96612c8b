"""Rows of a store: blocks, certificates, a node's own statements, and the blobs that each block references.

Every row is checked against its checksum and decoded when read; `DamagedStore` names a row that was changed.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from bdfl.encoding import BadEncoding, Record, decode, digest, encode, prepared
from bdfl.errors import other_format
from bdfl.ledger.block import (
    FORMAT,
    MAX_BLOCK_SIZE,
    Block,
    Certificate,
    Genesis,
    OwnStatement,
    SignedReport,
    SignedUpdate,
    SignedVote,
)
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.sqlite_database import Database, Row, Value
from bdfl.ledger.store import BlobUse, DamagedStore, StoredRound, prove_updates, rested_on

_MAX_MISSING = 1000  # blocks that may be missing beyond as many as are there

_Kept = TypeVar("_Kept", bound=Record)
_OnChain = TypeVar("_OnChain", Genesis, Block)
_Own = TypeVar("_Own", SignedVote, SignedUpdate, SignedReport, Block)

for _kind in (Genesis, Block, SignedVote, SignedUpdate, SignedReport, MerkleProof):
    prepared(_kind)


class Statement(StrEnum):
    """The kind of a node's own statement at a height, as its row names it."""

    VOTE = "vote"
    UPDATE = "update"
    REPORT = "report"
    CANDIDATE = "candidate"
    TRUST = "trust"  # the digest of a block whose model was not recomputed


_KINDS: Mapping[type[OwnStatement], Statement] = {
    SignedVote: Statement.VOTE,
    SignedUpdate: Statement.UPDATE,
    SignedReport: Statement.REPORT,
    Block: Statement.CANDIDATE,
}


@prepared
class _Votes(Record, frozen=True):
    """A certificate as a record, to be encoded."""

    votes: Certificate


class ChainRows:
    """Typed access to the database of the store in the folder `path`."""

    def __init__(self, path: Path, database: Database) -> None:
        self._path = path
        self._database = database

    # The chain

    def read_genesis(self) -> Genesis:
        rows = self._database.run("SELECT data, checksum FROM genesis LIMIT 2")
        if len(rows) != 1:
            raise DamagedStore(f"{self._path}: genesis is missing" if not rows else f"{self._path}: two of genesis")
        data = self._checked("genesis", *rows[0])
        with self._explaining("genesis"):
            return decode_stored(data, Genesis)

    @property
    def height(self) -> int:
        return self._number("the height", "SELECT coalesce(max(height), 0) FROM blocks")

    @property
    def checkpoint(self) -> int:
        return self._number("the checkpoint", "SELECT height FROM checkpoint LIMIT 2")

    @property
    def known_height(self) -> int:
        """The greatest height that blob uses or the checkpoint name; if above `height`, newer blocks are gone."""
        used = self._number("the height", "SELECT coalesce(max(height), 0) FROM uses")
        return max(used, self.checkpoint)

    @property
    def trusted(self) -> list[int]:
        """Heights of the blocks that were appended on trust."""
        rows = self._database.run("SELECT height FROM statements WHERE kind = ? ORDER BY height", Statement.TRUST)
        return [self._whole("a height", height) for (height,) in rows]

    def is_trusted(self, height: int) -> bool:
        """Return whether the block of a height was appended on trust."""
        found = "SELECT 1 FROM statements WHERE height = ? AND kind = ?"
        return bool(self._database.run(found, height, Statement.TRUST))

    def block(self, height: int) -> Block:
        data = self._read_block(height)[0]
        with self._explaining(f"block {height}"):
            return decode_stored(data, Block)

    def certificate(self, height: int) -> Certificate:
        return self._decode(f"certificate of block {height}", self._read_block(height)[1], _Votes).votes

    def raw_block(self, height: int) -> tuple[bytes, bytes]:
        """Stored bytes of a block and of its certificate, unchecked: the caller checks them."""
        data, votes, _ = self._read_row(height)
        return data, votes

    def insert_block(
        self, height: int, block: Block, certificate: Certificate, recent: Mapping[bytes, int], *, is_trusted: bool
    ) -> None:
        """Insert a block, its blob uses and the `recent` blobs with their sizes; delete its height's progress."""
        data, votes = encode(block), encode_certificate(certificate)
        uses: list[Row] = [] if is_trusted else [(use.blob, height, use.client) for use in rested_on(block)]
        blobs: list[Row] = [(blob, size, height) for blob, size in recent.items()]
        with self._database.transaction():
            self._database.run("INSERT INTO blocks VALUES (?, ?, ?, ?)", height, data, votes, digest(data + votes))
            self._database.run_many("INSERT INTO uses VALUES (?, ?, ?)", uses)
            self._database.run_many("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", blobs)
            self._database.run("DELETE FROM statements WHERE height = ? AND kind = ?", height, Statement.CANDIDATE)
            self._database.run("DELETE FROM progress WHERE height = ?", height)
            if is_trusted:
                self._put_statement(height, Statement.TRUST, block.digest)

    def validate_height(self) -> None:
        """Raise `DamagedStore` if most blocks up to the last are missing, so that no reader walks empty heights."""
        num_blocks = self._number("the blocks", "SELECT count(*) FROM blocks")
        if self.height > 2 * num_blocks + _MAX_MISSING:
            raise DamagedStore(f"{self._path}: {num_blocks} blocks found, {self.height} expected")

    def validate_blocks(self) -> None:
        """Raise `DamagedStore` if a block up to the last is missing or was changed, or newer ones are gone."""
        self.validate_height()
        if self.known_height > self.height:
            raise DamagedStore(f"{self._path}: block {self.known_height} is missing, which other rows speak of")
        for height in range(1, self.height + 1):
            self._read_block(height)

    # The node's own part in a height

    def put_statement(self, height: int, statement: OwnStatement) -> None:
        self._put_statement(height, _KINDS[type(statement)], encode(statement))

    def _put_statement(self, height: int, kind: Statement, data: bytes) -> None:
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
            self._read_statements(height, SignedVote),
            self._read_statements(height, SignedUpdate),
            self._read_statements(height, SignedReport),
            self._read_statements(height, Block),
            attempt,
            lock,
        )

    # Pruning

    def prune_rows(self, first: int, last: int) -> None:
        """Replace the blob uses of these blocks by Merkle proofs of their updates; `last` is the new checkpoint."""
        with self._database.transaction():
            for height in range(first, last + 1):
                proofs = prove_updates(self.block(height))
                rows: list[Row] = [(height, client, encode(proof)) for client, proof in proofs.items()]
                self._database.run_many("INSERT INTO proofs VALUES (?, ?, ?)", rows)
            self._database.run(
                "DELETE FROM uses WHERE height BETWEEN 1 AND ? AND NOT (height = ? AND client IS NULL)", last, last
            )
            self._database.run("UPDATE checkpoint SET height = ?", last)

    def prune_trusted(self, last: int) -> None:
        """Prune up to a block that was appended on trust, and reference its model, which is kept by now."""
        with self._database.transaction():
            self.prune_rows(self.checkpoint + 1, last)
            self._database.run("INSERT INTO uses VALUES (?, ?, NULL)", self.block(last).body.model, last)

    def pruned_proof(self, height: int, client: int) -> MerkleProof | None:
        """The proof that pruning left of a client's update; none: the block has no update of that client."""
        rows = self._database.run("SELECT data FROM proofs WHERE height = ? AND client = ?", height, client)
        what = f"proof of client {client} in block {height}"
        return self._decode(what, self._bytes(what, rows[0][0]), MerkleProof) if rows else None

    # Blobs

    def listed_blobs(self) -> set[bytes]:
        """All blobs that have a row."""
        return {self._bytes("a blob", blob) for (blob,) in self._database.run("SELECT blob FROM blobs")}

    def blob_size(self, blob: bytes) -> int | None:
        """Size in bytes of a blob that has a row; none: it has none."""
        rows = self._database.run("SELECT size FROM blobs WHERE blob = ?", blob)
        return self._whole("the size of a blob", rows[0][0]) if rows else None

    def unused_blobs(self) -> list[bytes]:
        """Blobs of decided heights that no block references."""
        found = self._database.run(
            "SELECT blob FROM blobs WHERE height <= ? AND blob NOT IN (SELECT blob FROM uses)", self.height
        )
        return [self._bytes("a blob", blob) for (blob,) in found]

    def renew_blob(self, blob: bytes, height: int) -> None:
        """Assign a blob to a later height, so that pruning spares it."""
        self._database.run("UPDATE blobs SET height = ? WHERE blob = ?", height, blob)

    def forget_blobs(self, blobs: Collection[bytes]) -> None:
        with self._database.transaction():
            self._database.run_many("DELETE FROM blobs WHERE blob = ?", [(blob,) for blob in blobs])

    def validate_blobs(self, sizes: Mapping[bytes, int]) -> None:
        """Raise `DamagedStore` unless `sizes`, of the blobs on disk, has every referenced blob at its size."""
        rows = self._database.run(
            "SELECT blob, uses.height, client, size FROM uses LEFT JOIN blobs USING (blob) ORDER BY uses.height, client"
        )
        damages = []
        for blob, height, client, size in rows:
            found = sizes.get(self._bytes("a use", blob))
            if found is None:
                damages.append(self._describe(blob, height, client, "missing"))
            elif found != size:
                damages.append(self._describe(blob, height, client, f"{found} bytes, {size!r} expected"))
        if damages:
            more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
            raise DamagedStore(damages[0] + more)

    def report_damage(self, blob: bytes, what: str) -> None:
        """Raise `DamagedStore` if a block references the blob."""
        rows = self._database.run("SELECT height, client FROM uses WHERE blob = ? ORDER BY height LIMIT 1", blob)
        for height, client in rows:
            raise DamagedStore(self._describe(blob, height, client, what))

    # Reading rows

    def _read_block(self, height: int) -> tuple[bytes, bytes]:
        """Bytes of a block and of its certificate, checked."""
        data, votes, checksum = self._read_row(height)
        self._checked(f"block {height}", data + votes, checksum)
        return data, votes

    def _read_row(self, height: int) -> tuple[bytes, bytes, bytes]:
        rows = self._database.run("SELECT data, certificate, checksum FROM blocks WHERE height = ?", height)
        if not rows:
            if 1 <= height <= self.height:
                raise DamagedStore(f"{self._path}: block {height} is missing")
            raise IndexError(f"block {height} of 1..{self.height}")
        data, votes, checksum = (self._bytes(f"block {height}", value) for value in rows[0])
        return data, votes, checksum

    def _read_statements(self, height: int, record: type[_Own]) -> tuple[_Own, ...]:
        kind = _KINDS[record]
        rows = self._database.run(
            "SELECT data, checksum FROM statements WHERE height = ? AND kind = ? ORDER BY number", height, kind
        )
        what = f"a {kind} of height {height}"
        checked = [self._checked(what, *row) for row in rows]
        return tuple(self._decode(what, data, record) for data in checked)

    def _read_progress(self, height: int) -> tuple[int, Certificate]:
        rows = self._database.run("SELECT attempt, lock, checksum FROM progress WHERE height = ?", height)
        if not rows:
            return 0, ()
        attempt, lock, checksum = rows[0]
        what = f"the lock of height {height}"
        return self._whole(what, attempt), self._decode(what, self._checked(what, lock, checksum), _Votes).votes

    def _checked(self, what: str, data: Value, checksum: Value) -> bytes:
        found = self._bytes(what, data)
        if digest(found) != checksum:
            raise DamagedStore(f"{self._path}: {what}: its row was changed")
        return found

    def _bytes(self, what: str, value: Value) -> bytes:
        if not isinstance(value, bytes):
            raise DamagedStore(f"{self._path}: {what}: {type(value).__name__} found, bytes expected")
        return value

    def _whole(self, what: str, value: Value) -> int:
        if not isinstance(value, int) or value < 0:
            raise DamagedStore(f"{self._path}: {what}: {value!r:.40} found, a whole number expected")
        return value

    def _number(self, what: str, statement: str) -> int:
        """The single whole number that a SQL statement returns."""
        rows = self._database.run(statement)
        if len(rows) != 1:
            raise DamagedStore(f"{self._path}: {what}: {len(rows)} rows found, one expected")
        return self._whole(what, rows[0][0])

    def _decode(self, what: str, data: bytes, kind: type[_Kept]) -> _Kept:
        with self._explaining(what):
            return decode(data, kind, MAX_BLOCK_SIZE)

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except BadEncoding as error:
            raise DamagedStore(f"{self._path}: {what}: {error}") from None

    def _describe(self, blob: Value, height: Value, client: Value, what: str) -> str:
        use = BlobUse(self._bytes("a use", blob), None if client is None else self._whole("a client", client))
        return f"{self._path}: {use.describe(self._whole('a height', height))}: {what}"


def decode_stored(data: bytes, kind: type[_OnChain]) -> _OnChain:
    """Decode a genesis or a block; raise `BadEncoding`, which names the format if it is another one."""
    try:
        return decode(data, kind, MAX_BLOCK_SIZE)
    except BadEncoding:
        found = find_format(data)
        if found is None or found == FORMAT:
            raise
        raise BadEncoding(f"{kind.__name__}: {other_format(found, FORMAT)}") from None


def find_format(data: bytes) -> int | None:
    """The format number in the bytes of a genesis or a block, whatever else they hold; none: they are neither.

    It comes first in the genesis and in a block's header: a small integer after one or two headers of short arrays.
    """
    depth = next((place for place, byte in enumerate(data[:3]) if not 0x90 <= byte <= 0x9F), 0)
    return data[depth] if depth and data[depth] < 0x80 else None


def decode_certificate(data: bytes) -> Certificate:
    """Decode the bytes of a certificate, as `raw_block` returns them; raises `BadEncoding`."""
    return decode(data, _Votes, MAX_BLOCK_SIZE).votes


def encode_certificate(certificate: Certificate) -> bytes:
    """The stored bytes of a certificate."""
    return encode(_Votes(certificate))


def write_genesis(path: Path, genesis: Genesis, model_size: int, *, durable: bool) -> None:
    """Create a database that holds the genesis alone, complete in one file."""
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
