"""The SQLite file of a store: its tables, its format, and its errors as `StoreError`s."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from bdfl.errors import one_line, other_format
from bdfl.ledger.store import DamagedStore, NotAStore, NotKept, StoreError, StoreInUse

FORMAT = 2  # 1: chains of format 1
_APPLICATION = int.from_bytes(b"bdfl", "big")
_WAIT_S = 5.0
_CACHE_KIB = 256  # of pages; SQLite's default 2 MiB would fill over hundreds of blocks and look like a leak
# A file from elsewhere may hold cyclic pages, so no statement may use more than a valid store ever needs.
_MAX_VALUE = 65 * 2**20  # bytes, above that of the largest block
_MAX_ANSWER = 2**28  # bytes of all rows
_ROW_BYTES = 128  # overhead of a row
_STEPS_AT_A_TIME = 100_000
_LEAST_STEPS = 10_000_000
_STEPS_PER_BYTE = 10  # of the file; a scan takes about one

Value: TypeAlias = int | bytes | str | None
Row: TypeAlias = tuple[Value, ...]

# `checksum` is the SHA-256 of the row's bytes: SQLite itself does not detect a changed row.
# `client` is NULL where the blob is the global model; the untrained model is used at height 0.
_TABLES = """
CREATE TABLE genesis (data BLOB NOT NULL, checksum BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint (height INTEGER NOT NULL) STRICT;
CREATE TABLE blocks (
    height INTEGER PRIMARY KEY, data BLOB NOT NULL, certificate BLOB NOT NULL, checksum BLOB NOT NULL
) STRICT;
CREATE TABLE statements (
    number INTEGER PRIMARY KEY, height INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    checksum BLOB NOT NULL, UNIQUE (height, kind, checksum)
) STRICT;
CREATE TABLE progress (
    height INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, lock BLOB NOT NULL, checksum BLOB NOT NULL
) STRICT;
CREATE TABLE blobs (blob BLOB PRIMARY KEY, size INTEGER NOT NULL, height INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE uses (blob BLOB NOT NULL, height INTEGER NOT NULL, client INTEGER) STRICT;
CREATE INDEX uses_by_blob ON uses (blob);
CREATE INDEX uses_by_height ON uses (height);
CREATE TABLE proofs (
    height INTEGER NOT NULL, client INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (height, client)
) STRICT, WITHOUT ROWID;
"""


_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


class Database:
    """An open database; every statement is its own transaction, unless inside `transaction`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, durable: bool) -> None:
        self._path = path
        self._connection = self._limited(connection)
        self._num_steps = 0  # of the statement that runs
        self._durable = durable
        self._is_written = False
        self._turn = threading.Lock()  # other threads look up blobs while rows are written

    @classmethod
    def create(cls, path: Path, *, durable: bool) -> "Database":
        """Create a database without tables; call `make_tables` inside the first transaction."""
        database = cls(path, _connect(path, "rwc"), durable=durable)
        database._set_durable()
        return database

    @classmethod
    def open(cls, path: Path, *, durable: bool, read_only: bool) -> "Database":
        """Open a database with tables of our format; raises `NotAStore` if it has others."""
        connection = _connect_reading(path) if read_only else _connect(path, "rw")
        database = cls(path, connection, durable=durable)
        try:
            database._validate_format()
            if read_only:
                database._set_cache()
            else:
                database._set_up()
        except StoreError:
            connection.close()
            raise
        return database

    def make_tables(self) -> None:
        for statement in _TABLES.split(";"):
            self.run(statement)
        self.run(f"PRAGMA application_id = {_APPLICATION}")
        self.run(f"PRAGMA user_version = {FORMAT}")

    def run(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement and return its rows; the caller checks their types, which the file determines."""
        with self._turn, self._explaining():
            self._num_steps = 0
            rows: list[Row] = []
            size = 0
            for row in self._connection.execute(statement, values):
                size += _ROW_BYTES + sum(len(value) for value in row if isinstance(value, bytes | str))
                if size > _MAX_ANSWER:
                    raise DamagedStore(f"{self._path}: more than {_MAX_ANSWER} bytes for {statement.split(' ', 1)[0]}")
                rows.append(row)
            return rows

    def run_many(self, statement: str, rows: list[Row]) -> None:
        with self._turn, self._explaining():
            self._num_steps = 0
            self._connection.executemany(statement, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction; a nested one is part of the outer one."""
        if self._connection.in_transaction:
            yield
            return
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        finally:
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    def validate_pages(self) -> None:
        """Raise `DamagedStore` if SQLite's integrity check fails."""
        found = self.run("PRAGMA quick_check(1)")
        if found != [("ok",)]:
            raise DamagedStore(f"{self._path}: {one_line(found[0][0] if found else 'unreadable')}")

    def compact(self, temporary: Path) -> None:
        """Rewrite the file by atomic replace, without its history, so that equal contents are equal bytes.

        The file stays as it is while another process reads.
        """
        temporary.unlink(missing_ok=True)
        self.run("VACUUM INTO ?", str(temporary))
        draft = Database(temporary, _connect(temporary, "rw"), durable=False)
        draft._set_durable()
        draft.run("PRAGMA schema_version = 1")  # else it counts how often this was done
        draft.close()
        self._connection.close()
        try:
            if not _has_log(self._path):  # else there is a reader, and the log belongs to the old file
                if self._durable:
                    with temporary.open("rb") as file:
                        os.fsync(file.fileno())
                os.replace(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)
            self._connection = self._limited(_connect(self._path, "rw"))
            self._set_up()

    @property
    def num_bytes(self) -> int:
        """Bytes of the database and its log."""
        return _size_on_disk(self._path)

    def close(self) -> None:
        if self._is_written:
            # Without a write-ahead log, later readers leave no SQLite files beside this one.
            with suppress(StoreError, sqlite3.ProgrammingError):  # a reader is active, or SQLite failed: the log stays
                self.run("PRAGMA busy_timeout = 0")
                self.run("PRAGMA journal_mode = DELETE")
        self._is_written = False
        self._connection.close()

    def _limited(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Limit the steps of each statement to what the file's size justifies, and return the connection."""

        def take_steps() -> bool:
            self._num_steps += _STEPS_AT_A_TIME
            return self._num_steps > _LEAST_STEPS + _STEPS_PER_BYTE * _size_on_disk(self._path)

        connection.set_progress_handler(take_steps, _STEPS_AT_A_TIME)
        return connection

    def _set_up(self) -> None:
        self._set_durable()
        self.run("PRAGMA journal_mode = WAL")
        self._set_cache()
        self._is_written = True

    def _set_cache(self) -> None:
        self.run(f"PRAGMA cache_size = -{_CACHE_KIB}")

    def _set_durable(self) -> None:
        self.run(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")

    def _validate_format(self) -> None:
        [(application,)] = self.run("PRAGMA application_id")
        [(version,)] = self.run("PRAGMA user_version")
        if application != _APPLICATION:
            raise NotAStore(f"{self._path}: a database, but not of a chain")
        if version != FORMAT:
            raise NotAStore(f"{self._path}: {other_format(int(version or 0), FORMAT)}")
        found, expected = set(self.run(f"{_SCHEMA} LIMIT 1000")), _expected_schema()
        for kind, name, *_ in sorted(found ^ expected, key=str):
            what = "missing or not ours" if name in {row[1] for row in expected} else "not ours"
            raise DamagedStore(f"{self._path}: {one_line(kind)} {one_line(name)[:100]} is {what}, our tables expected")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a bug of ours
        except sqlite3.Error as error:
            raise _explain(self._path, error) from None
        except (UnicodeDecodeError, OverflowError) as error:  # SQLite's messages quote the file
            raise DamagedStore(f"{self._path}: {one_line(error)}") from None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # A store may be used from any thread, one at a time.
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    try:
        connection = sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error as error:
        raise _explain(path, error) from None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    return connection


def _expected_schema() -> set[Row]:
    """The schema rows that SQLite reports for our tables."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(_TABLES)
    found: set[Row] = set(connection.execute(_SCHEMA))
    connection.close()
    return found


def _connect_reading(path: Path) -> sqlite3.Connection:
    """Connect for reading, also while another process writes."""
    connection = _connect(path, "ro")
    try:
        connection.execute("PRAGMA user_version").fetchall()
    except sqlite3.OperationalError as error:
        connection.close()
        # In a read-only folder SQLite cannot create the index of its log, and without a log needs none.
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or _has_log(path):
            raise _explain(path, error) from None
        return _connect(path, "ro&immutable=1")
    except sqlite3.Error as error:
        connection.close()
        raise _explain(path, error) from None
    return connection


def _size_on_disk(path: Path) -> int:
    """Bytes of a database and its log, without the holes of a sparse file."""
    files = [file for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()]
    return sum(min(file.stat().st_size, getattr(file.stat(), "st_blocks", 2**40) * 512) for file in files)


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _explain(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return DamagedStore(f"{path}: a query takes more steps than a store of its size")
    if code == sqlite3.SQLITE_NOTADB:
        return NotAStore(f"{path}: {error}, the database of a chain expected")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return NotKept(f"{path}: {error}; nothing was changed")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreInUse(f"{path}: {error}")
    return DamagedStore(f"{path}: {error}")
