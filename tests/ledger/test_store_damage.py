"""What is wrong with a store is said in one line, exactly; who may write to it is settled."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bdfl.encoding import digest, encode
from bdfl.errors import other_format
from bdfl.ledger import sqlite_database
from bdfl.ledger.block import Block
from bdfl.ledger.sqlite_database import Database, _explain
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.sqlite_tables import decode_certificate
from bdfl.ledger.store import DamagedStore, MisplacedBlock, NotAStore, NotKept, QuotaExceeded, StoreError, StoreInUse
from benchmarks.ledger.sample_chain import sample_chain, sample_genesis, sample_vote
from tests.ledger.test_store_crashes import ROOT, start_writer

CHAIN = sample_chain(3, num_members=2)
SECOND = CHAIN.stages[1].block
OPEN = 5  # a height of which nothing is kept


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A whole store of three blocks."""
    path = tmp_path / "chain"
    with ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        for stage in CHAIN.stages:
            for blob, data in stage.blobs.items():
                store.put_blob(blob, data)
            store.append(stage.block, stage.certificate)
        store.put_statement(4, sample_vote(4, 1, bytes(32), 0))
        store.put_progress(4, 1, (sample_vote(4, 1, bytes(32), 0),))
    return path


def blob_file(path: Path, blob: bytes) -> Path:
    return path / "blobs" / blob.hex()[:2] / blob.hex()


def change_row(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path / DATABASE_FILE)
    with connection:
        connection.execute(statement)
    connection.close()


def message_of_opening(path: Path, kind: type[StoreError], read_only: bool = False) -> str:
    with pytest.raises(kind) as caught:
        ChainStore.open(path, read_only=read_only, durable=False)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


CLIENT_ONE = SECOND.body.updates[1].update.model


@pytest.mark.parametrize(
    ("blob", "place"),
    [
        (CLIENT_ONE, f"block 2: the model of client 1, blob {CLIENT_ONE.hex()}"),
        (SECOND.body.model, f"block 2: the global model, blob {SECOND.body.model.hex()}"),
        (CHAIN.genesis.model.initial, f"genesis: the untrained model, blob {CHAIN.genesis.model.initial.hex()}"),
    ],
    ids=["client", "global", "initial"],
)
def test_a_damaged_blob_is_named_with_its_block_and_client(path: Path, blob: bytes, place: str) -> None:
    file = blob_file(path, blob)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert message_of_opening(path, DamagedStore) == f"{path}: {place}: 63 bytes, 64 expected"
    file.unlink()
    assert message_of_opening(path, DamagedStore) == f"{path}: {place}: missing"
    with ChainStore.open(path, read_only=True) as reader, pytest.raises(DamagedStore) as caught:
        reader.get_blob(blob)
    assert str(caught.value) == f"{path}: {place}: missing"
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with ChainStore.open(path, durable=False) as store:
        with pytest.raises(DamagedStore) as caught:
            store.get_blob(blob)
        assert str(caught.value) == f"{path}: {place}: its bytes have another digest"
        store.put_blob(blob, whole)
        assert store.get_blob(blob) == whole


def test_all_damages_are_counted(path: Path) -> None:
    shutil.rmtree(path / "blobs")
    message = message_of_opening(path, DamagedStore)
    assert "genesis: the untrained model" in message
    assert message.endswith("missing (and 9 more)")


@pytest.mark.parametrize("statement", ["data = x'00'", "certificate = x'9190'", "data = substr(data, 2)"])
def test_a_changed_row_is_found(path: Path, statement: str) -> None:
    change_row(path, f"UPDATE blocks SET {statement} WHERE height = 2")
    assert message_of_opening(path, DamagedStore) == f"{path}: block 2: its row was changed"
    with ChainStore.open(path, read_only=True) as reader:
        assert reader.block(1) == CHAIN.stages[0].block
        with pytest.raises(DamagedStore, match="block 2: its row was changed"):
            reader.block(2)


def test_a_lost_row_is_found(path: Path) -> None:
    change_row(path, "DELETE FROM blocks WHERE height = 2")
    assert message_of_opening(path, DamagedStore) == f"{path}: block 2 is missing"


def test_a_changed_vote_or_lock_is_found(path: Path) -> None:
    change_row(path, "UPDATE statements SET data = x'90'")
    assert message_of_opening(path, DamagedStore) == f"{path}: a vote of height 4: its row was changed"
    change_row(path, "DELETE FROM statements")
    change_row(path, "UPDATE progress SET lock = x'90'")
    assert message_of_opening(path, DamagedStore) == f"{path}: the lock of height 4: its row was changed"


def test_a_lost_genesis_is_found(path: Path) -> None:
    change_row(path, "DELETE FROM genesis")
    assert message_of_opening(path, DamagedStore) == f"{path}: genesis is missing"


def test_overwritten_pages_are_found(path: Path) -> None:
    sqlite_database = path / DATABASE_FILE
    size = sqlite_database.stat().st_size
    with sqlite_database.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    message_of_opening(path, DamagedStore)


@pytest.mark.parametrize("read_only", [False, True])
def test_another_format_is_refused_by_its_number(path: Path, read_only: bool) -> None:
    change_row(path, "PRAGMA user_version = 7")
    message = message_of_opening(path, NotAStore, read_only)
    assert message == f"{path / DATABASE_FILE}: {other_format(7, 2)}"


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_not_a_store_is_refused(tmp_path: Path, read_only: bool) -> None:
    assert "no chain.sqlite in it" in message_of_opening(tmp_path, NotAStore, read_only)
    assert "no chain.sqlite in it" in message_of_opening(tmp_path / "nowhere", NotAStore, read_only)
    file = tmp_path / "file"
    file.write_bytes(b"text")
    assert "no chain.sqlite in it" in message_of_opening(file, NotAStore, read_only)
    sqlite_database = tmp_path / DATABASE_FILE
    sqlite_database.write_bytes(b"not a database at all" * 100)
    assert "not a database" in message_of_opening(tmp_path, NotAStore, read_only)
    sqlite_database.unlink()
    change_row(tmp_path, "CREATE TABLE others (name TEXT)")
    assert "a database, but not of a chain" in message_of_opening(tmp_path, NotAStore, read_only)


def test_a_chain_begins_only_in_a_new_folder_with_its_own_model(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="exists already"):
        ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("something else")
    with pytest.raises(NotAStore, match="exists already"):
        ChainStore.create(tmp_path / "letters", CHAIN.genesis, CHAIN.initial_model)
    with pytest.raises(NotAStore, match="not the one that genesis names"):
        ChainStore.create(tmp_path / "new", sample_genesis(2, b"other"), CHAIN.initial_model)
    with pytest.raises(QuotaExceeded):
        ChainStore.create(tmp_path / "new", CHAIN.genesis, CHAIN.initial_model, max_bytes=3)
    with pytest.raises(NotKept, match="no chain was begun"):
        ChainStore.create(tmp_path / "letters" / "dear" / "below", CHAIN.genesis, CHAIN.initial_model)
    assert not (tmp_path / "new").exists()


def write_block(process: subprocess.Popen[str], height: int) -> None:
    """Lets a writer on demand write its next block; back when it says that the block is kept."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert any(line.startswith(f"block {height} ") for line in process.stdout), "the writer ended"


def test_only_one_process_writes_and_others_read_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    with start_writer(path, "fast", "on-demand") as process:
        write_block(process, 1)
        write_block(process, 2)
        with pytest.raises(StoreInUse, match="written to by another process"):
            ChainStore.open(path)
        with ChainStore.open(path, read_only=True) as reader:
            assert reader.height == 2
            assert [block.header.height for block in reader.blocks(1)] == [1, 2]
            write_block(process, 3)
            assert reader.height == 3
            assert reader.block(3).header.height == 3
        process.kill()
        process.communicate()
    ChainStore.open(path, durable=False).close()


def test_one_process_opens_a_store_once_for_writing(path: Path) -> None:
    with ChainStore.open(path):
        with pytest.raises(StoreInUse):
            ChainStore.open(path)
        ChainStore.open(path, read_only=True).close()
    ChainStore.open(path).close()


def test_a_reader_changes_nothing(path: Path) -> None:
    (path / "tmp" / "abc").write_bytes(b"half a")
    with ChainStore.open(path, read_only=True) as reader:
        block: Block = CHAIN.stages[2].block
        for write in (
            lambda: reader.append(block, ()),
            lambda: reader.put_blob(CHAIN.genesis.model.initial, CHAIN.initial_model),
            lambda: reader.put_statement(4, sample_vote(4, 1, bytes(32), 0)),
            lambda: reader.put_statement(block.header.height, block),
            lambda: reader.put_progress(4, 1, ()),
            lambda: reader.prune(1),
        ):
            with pytest.raises(NotKept, match="open for reading only"):
                write()
        assert reader.has_blob(SECOND.body.model)
        assert not reader.has_blob(bytes(32))
        assert reader.get_blob(bytes(32)) is None
        assert reader.read_round(4).attempt == 1
    assert (path / "tmp" / "abc").exists()


def test_a_store_can_be_used_where_nobody_can_write(path: Path) -> None:
    """SQLite can then make no index beside the file, so it is read as one that nobody changes."""
    for file in [*path.rglob("*"), path]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    try:
        with ChainStore.open(path, read_only=True) as reader:
            assert reader.block(3) == CHAIN.stages[2].block
    finally:
        for file in [path, *path.rglob("*")]:
            file.chmod(0o755 if file.is_dir() else 0o644)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_the_disk_refuses_is_not_kept_and_leaves_no_trace(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    blob = sample_chain(1, seed=9).stages[0].block.body.model
    data = sample_chain(1, seed=9).stages[0].blobs[blob]
    with ChainStore.open(path) as store:
        with monkeypatch.context() as patches:
            patches.setattr(os, step, refuse)
            with pytest.raises(NotKept, match="No space left on device, 64 bytes to write; the blob is not kept"):
                store.put_blob(blob, data)
        assert not store.has_blob(blob)
        assert not list((path / "tmp").iterdir())
        store.put_blob(blob, data)
        assert store.get_blob(blob) == data


@pytest.mark.parametrize("step", ["fsync", "replace", "commit"])
def test_a_batch_that_the_disk_refuses_leaves_the_store_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse_commit(self: Database, statement: str, *values: object) -> object:
        if statement == "COMMIT":
            raise NotKept("chain.sqlite: database or disk is full; nothing was changed")
        return run(self, statement, *values)  # type: ignore[arg-type]

    def put_batch(store: ChainStore) -> None:
        with store.batch():
            store.put_statement(OPEN, vote)
            for blob, data in stage.blobs.items():
                store.put_blob(blob, data)
                assert store.get_blob(blob) == data
                store.put_blob(blob, data)

    run = Database.run
    stage = sample_chain(4, num_members=2).stages[3]
    vote = sample_vote(OPEN, 1, stage.block.digest, 1)
    with ChainStore.open(path) as store:
        height, num_bytes, recent = store.height, store._num_bytes, dict(store._recent)
        with monkeypatch.context() as patches:
            if step == "commit":
                patches.setattr(Database, "run", refuse_commit)
            else:
                patches.setattr(os, step, refuse)
            with pytest.raises(NotKept):
                put_batch(store)
        assert (store.height, store._num_bytes, store._recent) == (height, num_bytes, recent)
        assert not store.read_round(OPEN).votes
        put_batch(store)
        assert store.read_round(OPEN).votes == (vote,)
        assert all(store.get_blob(blob) == data for blob, data in stage.blobs.items())
    with ChainStore.open(path) as store:
        assert store.read_round(OPEN).votes == (vote,)


def test_a_block_that_does_not_fit_undoes_the_batch_it_is_in(path: Path) -> None:
    stage = sample_chain(9, seed=5).stages[8]

    def put_batch(store: ChainStore) -> None:
        with store.batch():
            store.put_statement(OPEN, sample_vote(OPEN, 1, stage.block.digest, 1))
            store.append(stage.block, stage.certificate)

    with ChainStore.open(path) as store:
        with pytest.raises(MisplacedBlock):
            put_batch(store)
        assert not store.read_round(OPEN).votes
        with pytest.raises(RuntimeError, match="a batch inside a batch"), store.batch(), store.batch():
            pass


_FULL_DISK = """
import resource, sys
from pathlib import Path
from benchmarks.ledger.sample_chain import sample_chain, sample_vote
from bdfl.ledger.store import NotKept
from bdfl.ledger.sqlite_store import ChainStore

chain = sample_chain(40, num_members=2)
with ChainStore.open(Path(sys.argv[1])) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    try:
        store.put_blob(__import__("hashlib").sha256(bytes(70_000)).digest(), bytes(70_000))
    except NotKept as error:
        print(error)
    for attempt in range(1, 1000):
        try:
            store.put_statement(4, sample_vote(4, attempt, bytes(32), 1))
        except NotKept as error:
            print(error)
            break
    print(attempt)
"""


def test_a_full_disk_costs_only_what_did_not_fit(path: Path) -> None:
    """A real limit of the system on the size of files stands for the full disk."""
    command = [sys.executable, "-c", _FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    blob_message, row_message, attempt = done.stdout.splitlines()
    assert "File too large, 70000 bytes to write; the blob is not kept" in blob_message
    assert "nothing was changed" in row_message
    with ChainStore.open(path) as store:
        assert store.height == 3
        assert len(store.read_round(4).votes) == int(attempt)


def sqlite_error(code: int, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("what SQLite says")
    error.sqlite_errorcode = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, NotKept),
        (sqlite3.SQLITE_IOERR_FSYNC, NotKept),  # an extended code: its last byte counts
        (sqlite3.SQLITE_READONLY, NotKept),
        (sqlite3.SQLITE_CANTOPEN, NotKept),
        (sqlite3.SQLITE_BUSY, StoreInUse),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreInUse),
        (sqlite3.SQLITE_LOCKED, StoreInUse),
        (sqlite3.SQLITE_NOTADB, NotAStore),
        (sqlite3.SQLITE_INTERRUPT, DamagedStore),
        (sqlite3.SQLITE_CORRUPT, DamagedStore),
    ],
)
def test_an_error_of_the_database_says_what_it_means_for_the_store(path: Path, code: int, kind: type) -> None:
    found = _explain(path, sqlite_error(code))
    assert type(found) is kind
    assert str(found).startswith(str(path))
    assert ("more steps" in str(found)) == (code == sqlite3.SQLITE_INTERRUPT)


class Unwilling:
    """A connection that cannot even be asked for its format."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.is_closed = False

    def execute(self, *_: object) -> None:
        raise sqlite_error(self.code)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("code", "log", "is_read"),
    [
        (sqlite3.SQLITE_CANTOPEN, None, True),
        (sqlite3.SQLITE_CANTOPEN, b"", True),
        (sqlite3.SQLITE_READONLY_CANTINIT, None, True),
        (sqlite3.SQLITE_CANTOPEN, b"rows", False),  # the newest blocks may be in the log
        (sqlite3.SQLITE_BUSY, None, False),
    ],
)
def test_a_store_is_read_as_one_that_nobody_changes_only_where_sqlite_can_write_no_index_and_there_is_no_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, log: bytes | None, is_read: bool
) -> None:
    unwilling, connect = Unwilling(code), sqlite_database._connect
    monkeypatch.setattr(
        sqlite_database, "_connect", lambda file, mode: unwilling if mode == "ro" else connect(file, mode)
    )
    if log is not None:
        (path / f"{DATABASE_FILE}-wal").write_bytes(log)
    if is_read:
        with ChainStore.open(path, read_only=True) as reader:
            assert reader.block(3) == CHAIN.stages[2].block
    else:
        with pytest.raises(StoreError, match="what SQLite says"):
            ChainStore.open(path, read_only=True)
    assert unwilling.is_closed


def test_a_database_that_cannot_be_made_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="unable to open"):
        Database.create(tmp_path / "nowhere" / DATABASE_FILE, durable=False)


def test_pages_that_no_statement_reads_are_checked_before_writing(path: Path) -> None:
    with (path / DATABASE_FILE).open("r+b") as file:
        file.seek(36)  # how many pages are free
        file.write((7).to_bytes(4, "big"))
    with ChainStore.open(path, read_only=True) as reader:
        assert reader.block(3) == CHAIN.stages[2].block
    assert "freelist" in message_of_opening(path, DamagedStore).lower()


def test_a_number_too_large_for_the_database_is_told_in_one_line(path: Path) -> None:
    with ChainStore.open(path, read_only=True) as reader, pytest.raises(DamagedStore, match="too large"):
        reader.block(2**70)


def test_a_row_whose_checksum_fits_and_that_is_no_record_is_damage(path: Path) -> None:
    change_row(path, "DELETE FROM statements")
    data = b"\xc1 no record"
    connection = sqlite3.connect(path / DATABASE_FILE)
    with connection:
        insert = "INSERT INTO statements (height, kind, data, checksum) VALUES (4, 'vote', ?, ?)"
        connection.execute(insert, (data, digest(data)))
    connection.close()
    with ChainStore.open(path, read_only=True) as reader, pytest.raises(DamagedStore, match="a vote of height 4: "):
        reader.read_round(4)


def test_two_checkpoints_or_none_are_damage(path: Path) -> None:
    for statement, num_rows in (("INSERT INTO checkpoint VALUES (1)", 2), ("DELETE FROM checkpoint", 0)):
        change_row(path, statement)
        with (
            ChainStore.open(path, read_only=True) as reader,
            pytest.raises(DamagedStore, match=f"the checkpoint: {num_rows} rows found, one expected"),
        ):
            assert reader.checkpoint


def test_the_bytes_of_a_block_and_its_certificate_are_given_as_they_are_stored(path: Path) -> None:
    stage = CHAIN.stages[1]
    with ChainStore.open(path, read_only=True) as reader:
        block, votes = reader.raw_block(2)
        assert block == encode(stage.block)
        assert decode_certificate(votes) == stage.certificate
    change_row(path, "UPDATE blocks SET data = x'00' WHERE height = 2")
    with ChainStore.open(path, read_only=True) as reader:
        assert reader.raw_block(2)[0] == b"\x00"  # whoever asks checks them


def test_a_store_says_how_many_bytes_its_blobs_have_and_may_have(path: Path) -> None:
    size = len(CHAIN.initial_model)
    num_blobs = 1 + sum(len(stage.blobs) for stage in CHAIN.stages)
    with ChainStore.open(path, max_bytes=10_000) as store:
        assert (store.num_bytes, store.max_bytes) == (num_blobs * size, 10_000)
    with ChainStore.open(path, read_only=True) as reader:
        assert (reader.num_bytes, reader.max_bytes) == (0, None)


def test_a_disk_that_fails_while_opening_or_compacting_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with ChainStore.open(path) as store:
        with monkeypatch.context() as patches:
            patches.setattr(os, "replace", refuse)
            with pytest.raises(NotKept, match="Input/output error; not compacted"):
                store.compact()
        assert store.block(3) == CHAIN.stages[2].block  # and goes on
    monkeypatch.setattr("bdfl.ledger.sqlite_store.find_stray", refuse)
    assert "Input/output error, the folder of a chain expected" in message_of_opening(path, NotAStore)


def setting(store: ChainStore, name: str) -> object:
    return store._database.run(f"PRAGMA {name}")[0][0]


def test_a_durable_store_waits_for_the_disk_at_every_commit_and_none_keeps_many_pages(path: Path) -> None:
    for durable, synchronous in ((True, 2), (False, 0)):
        with ChainStore.open(path, durable=durable) as store:
            assert setting(store, "synchronous") == synchronous
            assert setting(store, "journal_mode") == "wal"
            assert setting(store, "cache_size") == -256
            store.compact()
            assert setting(store, "synchronous") == synchronous
            assert setting(store, "journal_mode") == "wal"
            assert setting(store, "cache_size") == -256
        assert not list(path.glob(f"{DATABASE_FILE}-*"))  # whoever only reads later leaves nothing beside the file
    with ChainStore.open(path, read_only=True) as reader:
        assert setting(reader, "cache_size") == -256


def test_names_are_on_the_disk_when_a_store_is_begun_a_blob_is_kept_and_a_database_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "chain", []
    for module in ("storage", "ledger.blob_store"):
        monkeypatch.setattr(
            f"bdfl.{module}.sync_folder", lambda folder: synced.append((folder, (path / DATABASE_FILE).exists()))
        )
    with ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model) as store:
        initial = blob_file(path, CHAIN.genesis.model.initial).parent
        assert synced == [(path, False), (path / "blobs", False), (initial, False), (path, True), (tmp_path, True)]
        synced.clear()
        blob, data = next(iter(CHAIN.stages[0].blobs.items()))
        store.put_blob(blob, data)
        assert [folder for folder, _ in synced] == [path / "blobs", blob_file(path, blob).parent]
        synced.clear()
        store.compact()
        assert [folder for folder, _ in synced] == [path]
