"""A store that somebody made to do harm is refused in one line, and nothing of it runs or is waited for."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bdfl.ledger import sqlite_database
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import DamagedStore, NotAStore
from benchmarks.ledger.sample_chain import sample_chain

CHAIN = sample_chain(3, num_members=2)
ENDLESS = "WITH RECURSIVE n(height) AS (SELECT 1 UNION ALL SELECT height + 1 FROM n) SELECT height FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A whole store of three blocks."""
    with ChainStore.create(tmp_path / "chain", CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        for stage in CHAIN.stages:
            for blob, data in stage.blobs.items():
                store.put_blob(blob, data)
            store.append(stage.block, stage.certificate)
    return tmp_path / "chain"


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / DATABASE_FILE)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE checkpoint", f"CREATE VIEW checkpoint AS {ENDLESS}"],
        ["CREATE TRIGGER t AFTER INSERT ON blocks BEGIN DELETE FROM blocks; END"],
        ["DROP TABLE proofs"],
        ["CREATE TABLE more (x)"],
        ["ALTER TABLE checkpoint ADD COLUMN double INTEGER AS (height * 2)"],
        ["CREATE INDEX more ON blocks (data)"],
    ],
    ids=["view", "trigger", "missing", "more", "generated", "index"],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_only_our_own_tables_are_read(path: Path, statements: list[str], read_only: bool) -> None:
    change(path, *statements)
    with pytest.raises(DamagedStore, match="our tables expected"):
        ChainStore.open(path, read_only=read_only)


def test_a_statement_that_does_not_end_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_database, "_LEAST_STEPS", 100_000)
    opened = sqlite_database.Database.open(path / DATABASE_FILE, durable=False, read_only=True)
    with pytest.raises(DamagedStore, match="more steps"):
        opened.run(f"SELECT count(*) FROM ({ENDLESS})")
    monkeypatch.setattr(sqlite_database, "_MAX_ANSWER", 100_000)
    with pytest.raises(DamagedStore, match="more than 100000 bytes"):
        opened.run(ENDLESS)
    assert opened.run("SELECT 1") == [(1,)]
    opened.close()


def test_an_answer_counts_the_bytes_of_its_rows_and_values_to_the_last(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = sqlite_database.Database.open(path / DATABASE_FILE, durable=False, read_only=True)
    monkeypatch.setattr(sqlite_database, "_MAX_ANSWER", 2 * (1000 + 128))
    fits = ["zeroblob(1000)", "zeroblob(1000)"], ["zeroblob(900)", "hex(zeroblob(550))"], ["zeroblob(2128)"]
    beyond = ["zeroblob(1000)", "zeroblob(1001)"], ["zeroblob(900)", "hex(zeroblob(551))"], ["zeroblob(2129)"]
    for values in fits:
        assert len(opened.run(" UNION ALL ".join(f"SELECT {value}" for value in values))) == len(values)
    for values in beyond:
        with pytest.raises(DamagedStore, match="more than 2256 bytes for SELECT"):
            opened.run(" UNION ALL ".join(f"SELECT {value}" for value in values))
    opened.close()


@pytest.mark.parametrize("value", ["1.5", "'text'", "CAST(x'fffe' AS TEXT)", "-1", "NULL"])
@pytest.mark.parametrize(("table", "column"), [("checkpoint", "height"), ("blocks", "data"), ("genesis", "checksum")])
def test_a_value_of_another_type_is_damage(path: Path, table: str, column: str, value: str) -> None:
    with closing(sqlite3.connect(path / DATABASE_FILE)) as connection, connection:
        [(text,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,))
        replace = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(replace, (text.replace("STRICT", "").replace("NOT NULL", ""), table))
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute(f"UPDATE {table} SET {column} = {value}")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(replace, (text, table))
    with pytest.raises(DamagedStore):
        _read(path)


def _read(path: Path) -> None:
    with ChainStore.open(path, read_only=True) as store:
        assert store.checkpoint == 0
        store.block(2)


@pytest.mark.parametrize("kind", ["pipe", "sparse", "link", "folder"])
def test_a_blob_is_a_regular_file_of_the_models_size(path: Path, kind: str) -> None:
    blob = CHAIN.stages[1].block.body.model
    file = path / "blobs" / blob.hex()[:2] / blob.hex()
    if kind == "sparse":
        os.truncate(file, 40 * 10**9)
    else:
        file.rename(path / "aside")
        {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda one: os.symlink(path / "aside", one)}[kind](file)
    with ChainStore.open(path, read_only=True) as store, pytest.raises(DamagedStore, match="block 2: the global model"):
        store.get_blob(blob)


def test_a_store_that_leads_a_writer_elsewhere_is_not_opened_for_writing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (path / "tmp").rmdir()
    (path / "tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(NotAStore, match="tmp: a link, pipe or device"):
        ChainStore.open(path)
    assert (tmp_path / "precious/file").exists()


def test_a_store_without_its_newest_block_is_damaged(path: Path) -> None:
    change(path, "DELETE FROM blocks WHERE height = 3")
    with pytest.raises(DamagedStore, match="block 3 is missing, which other rows speak of"):
        ChainStore.open(path)
    with ChainStore.open(path, read_only=True) as store:
        assert (store.height, store.known_height) == (2, 3)


def test_a_height_far_above_the_blocks_is_not_walked(path: Path) -> None:
    change(path, f"UPDATE blocks SET height = {2**62} WHERE height = 3")
    with pytest.raises(DamagedStore, match="3 blocks found"):
        ChainStore.open(path, read_only=True)
