"""Random corruptions of the store of a run: bits, pages, rows, columns and files."""

import hashlib
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

DATABASE = "chain/chain.sqlite"
_PAGE = 4096
_TABLES = ("genesis", "checkpoint", "blocks", "statements", "progress", "blobs", "uses", "proofs")
_ODD = (None, -1, 0, 2**62, 1.5, "text", "\x1b[2J", b"", b"\xff" * 40, "9" * 400)

Corruption = Callable[[random.Random, Path], None]


def database(folder: Path) -> Path:
    return folder / DATABASE


def list_blobs(folder: Path) -> list[Path]:
    """List the files of all models in a fixed order."""
    return sorted((folder / "chain/blobs").glob("*/*"))


@contextmanager
def writing(folder: Path, *, is_free: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the database for changes; `is_free` lifts its type constraints, which are restored afterwards."""
    with closing(sqlite3.connect(database(folder))) as connection, connection:
        kept = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
        if is_free:
            connection.execute("PRAGMA writable_schema = ON")
            for name, text in kept:
                plain = text.replace(" STRICT,", "").replace(" STRICT", "").replace("NOT NULL", "")
                connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (plain, name))
            connection.execute("PRAGMA writable_schema = RESET")
        yield connection
        if is_free:
            connection.execute("PRAGMA writable_schema = ON")
            for name, text in kept:
                connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (text, name))
            connection.execute("PRAGMA writable_schema = RESET")


def flip_bit(draw: random.Random, folder: Path) -> None:
    _flip(draw, database(folder), 1)


def flip_bytes(draw: random.Random, folder: Path) -> None:
    _flip(draw, database(folder), draw.randint(2, 200))


def flip_head(draw: random.Random, folder: Path) -> None:
    """Flip bits in the first two pages, which hold the schema."""
    _flip(draw, database(folder), draw.randint(1, 4), 2 * _PAGE)


def damage_page(draw: random.Random, folder: Path) -> None:
    """Overwrite a page with zeros, noise or another page."""
    data = bytearray(database(folder).read_bytes())
    pages = len(data) // _PAGE
    one, other = draw.randrange(pages) * _PAGE, draw.randrange(pages) * _PAGE
    source = draw.choice([bytes(_PAGE), draw.randbytes(_PAGE), bytes(data[other : other + _PAGE])])
    data[one : one + _PAGE] = source
    database(folder).write_bytes(data)


def cut_file(draw: random.Random, folder: Path) -> None:
    path = draw.choice([database(folder), *list_blobs(folder)])
    os.truncate(path, draw.randrange(path.stat().st_size))


def lengthen_file(draw: random.Random, folder: Path) -> None:
    path = draw.choice([database(folder), *list_blobs(folder)])
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.randint(1, 10_000)))


def flip_blob(draw: random.Random, folder: Path) -> None:
    _flip(draw, draw.choice(list_blobs(folder)), 1)


def lose_blob(draw: random.Random, folder: Path) -> None:
    draw.choice(list_blobs(folder)).unlink()


def swap_blobs(draw: random.Random, folder: Path) -> None:
    one, other = draw.sample(list_blobs(folder), 2)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def change_block(draw: random.Random, folder: Path) -> None:
    """Flip a bit of a block, a certificate or the genesis, and correct the checksum."""
    with writing(folder) as connection:
        if draw.random() < 0.2:
            [(data,)] = connection.execute("SELECT data FROM genesis")
            data = _flipped(draw, data)
            connection.execute("UPDATE genesis SET data = ?, checksum = ?", (data, hashlib.sha256(data).digest()))
            return
        rows = connection.execute("SELECT height, data, certificate FROM blocks").fetchall()
        height, data, votes = draw.choice(rows)
        if draw.random() < 0.5:
            data = _flipped(draw, data)
        else:
            votes = _flipped(draw, votes)
        values = data, votes, hashlib.sha256(data + votes).digest(), height
        connection.execute("UPDATE blocks SET data = ?, certificate = ?, checksum = ? WHERE height = ?", values)


def swap_rows(draw: random.Random, folder: Path) -> None:
    """Swap two blocks, or give one the other's certificate."""
    with writing(folder) as connection:
        rows = {height: row for height, *row in connection.execute("SELECT * FROM blocks")}
        one, other = draw.sample(sorted(rows), 2)
        if draw.random() < 0.5:
            rows[one], rows[other] = rows[other], rows[one]
        else:
            data, votes = rows[one][0], rows[other][1]
            rows[one] = [data, votes, hashlib.sha256(data + votes).digest()]
        for height in (one, other):
            values = *rows[height], height
            connection.execute("UPDATE blocks SET data = ?, certificate = ?, checksum = ? WHERE height = ?", values)


def lose_rows(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        table = draw.choice(_TABLES)
        connection.execute(f"DELETE FROM {table} WHERE abs(random()) % 2 = 0 OR ?", (draw.random() < 0.5,))


def lose_newest(draw: random.Random, folder: Path) -> None:
    """Delete the newest block, in half of the cases with all other rows that refer to it."""
    with writing(folder) as connection:
        [(height,)] = connection.execute("SELECT max(height) FROM blocks")
        connection.execute("DELETE FROM blocks WHERE height = ?", (height,))
        if draw.random() < 0.5:
            for table in ("uses", "statements", "progress", "blobs"):
                connection.execute(f"DELETE FROM {table} WHERE height >= ?", (height,))


def retype_value(draw: random.Random, folder: Path) -> None:
    """Store a value of a type that the table does not allow, which SQLite reads back unchanged."""
    with writing(folder, is_free=True) as connection:
        table = draw.choice(_TABLES)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        column, odd = draw.choice(columns), draw.choice(_ODD)
        value = odd if draw.random() < 0.8 or not isinstance(odd, bytes) else None
        try:
            if draw.random() < 0.2:  # invalid UTF-8
                connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (b"\xff\xfe\x80",))
            else:
                connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
        except sqlite3.Error:  # such as duplicate keys
            connection.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1")


def change_checkpoint(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        connection.execute(
            draw.choice(
                [
                    "DELETE FROM checkpoint",
                    "INSERT INTO checkpoint VALUES (1)",
                    f"UPDATE checkpoint SET height = {draw.choice([-1, 1, 3, 99, 2**62])}",
                ]
            )
        )


def leave_journal(draw: random.Random, folder: Path) -> None:
    """Leave a stray SQLite journal."""
    name = draw.choice(["-wal", "-journal", "-shm"])
    database(folder).with_name(f"chain.sqlite{name}").write_bytes(draw.randbytes(draw.randint(1, 20_000)))


CORRUPTIONS: dict[str, Corruption] = {
    "bit of the database": flip_bit,
    "bytes of the database": flip_bytes,
    "bytes of the schema": flip_head,
    "page zeroed, of noise or doubled": damage_page,
    "file cut": cut_file,
    "file longer": lengthen_file,
    "bit of a blob": flip_blob,
    "blob gone": lose_blob,
    "blobs swapped": swap_blobs,
    "bit of a block, certificate or genesis, checksum right": change_block,
    "rows swapped, other certificate": swap_rows,
    "rows gone": lose_rows,
    "newest block gone": lose_newest,
    "value of another type": retype_value,
    "checkpoint": change_checkpoint,
    "stray log": leave_journal,
}


def _flip(draw: random.Random, path: Path, count: int, first: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count):
        place = draw.randrange(min(len(data), first or len(data)))
        data[place] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)
