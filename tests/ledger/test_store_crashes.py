"""A store survives the end of its process, and of its machine, at any moment."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bdfl.encoding import digest
from bdfl.ledger.block import Kind
from bdfl.ledger.sqlite_database import Database
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import rested_on
from benchmarks.ledger.sample_chain import Stage, sample_chain, sample_vote
from tests.ledger.store_writer import NUM_BLOCKS, written_chain

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("store_writer.py")
CHAIN = sample_chain(5, num_members=2)
Said = list[tuple[str, int, str]]


def start_writer(path: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(path), *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def all_said(first: str, process: subprocess.Popen[str]) -> Said:
    """Everything a process said before it ended, in whole lines, of which `first` was read already."""
    output = first + process.communicate()[0]
    whole = output[: output.rfind("\n") + 1]
    rows = [line.split() for line in whole.splitlines()]
    return [(what, int(number), detail) for what, number, detail in rows]


def validate_kept(store: ChainStore, said: Said, chain=CHAIN) -> None:
    """What was said to be kept is kept, and blocks have all that they rest on."""
    blocks = [number for what, number, _ in said if what == "block"]
    assert store.height >= max(blocks, default=0)
    for what, number, detail in said:
        if what == "vote":
            block = chain.stages[number - 1].block.digest
            assert sample_vote(number, 1, block, 0, Kind.PREVOTE) in store.read_round(number).votes
        if what == "candidate" and number > store.height:
            assert store.read_round(number).candidates
        if what == "blob" and number > store.checkpoint:
            assert store.get_blob(bytes.fromhex(detail)) is not None
    assert [block.digest for block in store.blocks()] == [stage.block.digest for stage in chain.stages[: store.height]]
    for block in store.blocks(store.checkpoint + 1):
        assert all(store.get_blob(use.blob) for use in rested_on(block))


@pytest.mark.parametrize("durability", ["durable", "fast"])
def test_a_killed_process_leaves_a_whole_store_that_the_next_goes_on_with(tmp_path: Path, durability: str) -> None:
    chain = written_chain()
    draw = random.Random(durability)
    path = tmp_path / "chain-0"
    said: Said = []
    heights = []
    for turn in range(1, 7):
        with start_writer(path, durability) as process:
            assert process.stdout is not None
            first = "".join(process.stdout.readline() for _ in range(draw.randrange(1, 60)))
            process.send_signal(signal.SIGKILL)
            said += all_said(first, process)
        with ChainStore.open(path, durable=False) as store:
            validate_kept(store, said, chain)
            heights.append(store.height)
        if heights[-1] == NUM_BLOCKS:  # a fast machine wrote all of it: the next process begins another
            path, said = tmp_path / f"chain-{turn}", []
    assert max(heights) > 5


class Crash(BaseException):
    """The machine ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Lets the machine end at the given step of those that change the disk, before it is taken."""
    taken = 0

    def count(action: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal taken
            taken += 1
            if taken == step:
                raise Crash
            return action(*arguments, **options)

        return counted

    def counting_run(self: Database, statement: str, *values: object) -> object:
        changes = statement.startswith(("COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE"))
        return (count(run) if changes else run)(self, statement, *values)

    run = Database.run
    monkeypatch.setattr(Database, "run", counting_run)
    monkeypatch.setattr(os, "fsync", count(lambda _: None))  # a step like others, but nothing need be waited for
    monkeypatch.setattr(Database, "_set_durable", lambda self: run(self, "PRAGMA synchronous = OFF"))
    for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "mkdir"), (Path, "rename")):
        monkeypatch.setattr(owner, name, count(getattr(owner, name)))


def left_over(height: int) -> bytes:
    """A model of a height that no block rests on."""
    return b"nobody voted for it at %d" % height


def play(path: Path, said: Said, opened: list[ChainStore]) -> None:
    """Begins a chain and writes two blocks, pruning; whatever happens, nothing is closed."""
    store = ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model)
    opened.append(store)
    for stage in CHAIN.stages[:2]:
        height = stage.block.header.height
        for blob, data in stage.blobs.items():
            store.put_blob(blob, data)
            said.append(("blob", height, blob.hex()))
        store.put_blob(digest(left_over(height)), left_over(height))
        store.put_statement(height, sample_vote(height, 1, stage.block.digest, 0, Kind.PREVOTE))
        said.append(("vote", height, ""))
        store.append(stage.block, stage.certificate)
        said.append(("block", height, ""))
        store.prune(1)
    store.compact()


def play_in_batches(path: Path, said: Said, opened: list[ChainStore]) -> None:
    """As `play`, a block and all that belongs to it at a time."""
    store = ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model)
    opened.append(store)
    for stage in CHAIN.stages[:2]:
        height = stage.block.header.height
        with store.batch():
            for blob, data in stage.blobs.items():
                store.put_blob(blob, data)
            store.put_blob(digest(left_over(height)), left_over(height))
            store.put_statement(height, sample_vote(height, 1, stage.block.digest, 0, Kind.PREVOTE))
            store.append(stage.block, stage.certificate)
        said.extend(("blob", height, blob.hex()) for blob in stage.blobs)
        said += [("vote", height, ""), ("block", height, "")]
        store.prune(1)


@pytest.mark.parametrize(("play", "num_steps"), [(play, 60), (play_in_batches, 40)])
def test_every_single_step_may_be_the_last(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    play: Callable[[Path, Said, list[ChainStore]], None],
    num_steps: int,
) -> None:
    """Whatever step the machine ends at, what was kept before is there, and the chain can be written to its end."""
    for step in range(1, 1000):
        path, copy = tmp_path / "chain", tmp_path / "left"
        said: Said = []
        opened: list[ChainStore] = []
        is_over = True
        with monkeypatch.context() as patches:
            crash_at(patches, step)
            try:
                play(path, said, opened)
            except Crash:
                is_over = False
        shutil.copytree(path, copy) if path.exists() else copy.mkdir()  # as a process that is gone leaves it
        with _create_or_open(copy) as store:
            validate_kept(store, said)
            assert not list((copy / "tmp").iterdir())
            assert not any(store.has_blob(digest(left_over(height))) for height in range(1, store.height + 1))
            assert store._num_bytes == sum(store._blobs.sizes().values())
            for stage in CHAIN.stages[store.height :]:
                _put(store, stage)
        for left in opened:
            left.close()
        shutil.rmtree(copy)
        shutil.rmtree(path, ignore_errors=True)
        if is_over:
            break
    assert step > num_steps


def _create_or_open(path: Path) -> ChainStore:
    if (path / DATABASE_FILE).exists():
        return ChainStore.open(path, durable=False)
    return ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, durable=False)


def test_a_log_that_is_cut_off_anywhere_leaves_the_blocks_before(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    heights = []
    with ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        for stage in CHAIN.stages:
            _put(store, stage)
        size = (path / f"{DATABASE_FILE}-wal").stat().st_size
        for cut in range(0, size + 1, 2003):
            copy = tmp_path / f"cut-{cut}"
            shutil.copytree(path, copy)
            os.truncate(copy / f"{DATABASE_FILE}-wal", cut)
            with ChainStore.open(copy, durable=False) as reopened:
                validate_kept(reopened, [])
                heights.append(reopened.height)
            shutil.rmtree(copy)
    assert heights == sorted(heights)
    assert set(heights) >= {0, 1, 2, 3, 4}


def test_a_blob_is_on_the_disk_under_its_name_before_the_row_that_rests_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace, run = os.fsync, os.replace, Database.run

    def logged_fsync(descriptor: int) -> None:
        steps.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).relative_to(tmp_path)}")
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.relative_to(tmp_path)}")
        replace(source, target)

    def logged_run(self: Database, statement: str, *values: object) -> object:
        steps.extend(["commit"] if statement == "COMMIT" else [])
        return run(self, statement, *values)  # type: ignore[arg-type]

    stage = CHAIN.stages[0]
    with ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model) as store:
        monkeypatch.setattr(os, "fsync", logged_fsync)
        monkeypatch.setattr(os, "replace", logged_replace)
        monkeypatch.setattr(Database, "run", logged_run)
        for blob, data in stage.blobs.items():
            store.put_blob(blob, data)
        store.append(stage.block, stage.certificate)
        [(synchronous,)] = run(store._database, "PRAGMA synchronous")
    expected = []
    for blob in stage.blobs:
        name = blob.hex()
        folder = f"blobs/{name[:2]}"
        expected += ["fsync blobs", f"fsync tmp/{name}", f"rename to {folder}/{name}", f"fsync {folder}"]
    assert steps == [*expected, "commit"]
    assert synchronous == 2  # FULL: a commit waits for the disk


def test_all_blobs_of_a_batch_are_on_the_disk_before_its_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, run = os.fsync, Database.run

    def logged_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def logged_run(self: Database, statement: str, *values: object) -> object:
        steps.extend(["commit"] if statement == "COMMIT" else [])
        return run(self, statement, *values)  # type: ignore[arg-type]

    with ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model) as store:
        monkeypatch.setattr(os, "fsync", logged_fsync)
        monkeypatch.setattr(Database, "run", logged_run)
        with store.batch():
            for stage in CHAIN.stages[:3]:
                _put(store, stage)
        assert store.height == 3
    names = {blob.hex() for stage in CHAIN.stages[:3] for blob in stage.blobs}
    assert set(steps) >= names | {name[:2] for name in names}
    assert steps.count("commit") == 1
    assert steps.index("commit") == max(index for index, step in enumerate(steps) if step in names | {"commit"})


def test_unfinished_files_are_swept_and_strangers_left_alone(tmp_path: Path) -> None:
    ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model).close()
    (tmp_path / "tmp" / "abc").write_bytes(b"half a")
    (tmp_path / "blobs" / "notes.txt").write_bytes(b"not ours")
    torn = tmp_path / "blobs" / "ab" / ("ab" * 32)
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"")  # as an undurable store leaves it when the machine ends
    with ChainStore.open(tmp_path) as store:
        assert not store.has_blob(bytes.fromhex("ab" * 32))
    assert not torn.exists()
    assert not list((tmp_path / "tmp").iterdir())
    assert (tmp_path / "blobs" / "notes.txt").exists()


def test_blobs_of_the_open_height_are_there_after_opening_again(tmp_path: Path) -> None:
    stage = CHAIN.stages[0]
    with ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model) as store:
        for blob, data in stage.blobs.items():
            store.put_blob(blob, data)
    with ChainStore.open(tmp_path) as store:
        store.append(stage.block, stage.certificate)
    with ChainStore.open(tmp_path) as store:
        validate_kept(store, [("block", 1, "")])


def test_pruning_that_was_cut_off_is_finished_by_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model) as store:
        for stage in CHAIN.stages:
            _put(store, stage)
        monkeypatch.setattr(store, "_drop_unused", lambda: (0, 0))
        store.prune(2)
        assert (tmp_path / "blobs").exists()
    left = {path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
    with ChainStore.open(tmp_path) as store:
        assert store.checkpoint == 3
        assert not store.has_blob(CHAIN.stages[0].block.body.model)
        validate_kept(store, [("block", 5, "")])
    assert len({path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()}) < len(left)


def test_equal_contents_are_equal_bytes_after_compacting(tmp_path: Path) -> None:
    """However often a chain was closed and opened on the way."""
    straight, halting = tmp_path / "straight", tmp_path / "halting"
    with ChainStore.create(straight, CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        for stage in CHAIN.stages:
            _put(store, stage)
        store.compact()
    ChainStore.create(halting, CHAIN.genesis, CHAIN.initial_model, durable=False).close()
    for stage in CHAIN.stages:
        with ChainStore.open(halting, durable=False) as store:
            store.put_progress(stage.block.header.height, 2, ())
            _put(store, stage)
            store.compact()
    assert (straight / DATABASE_FILE).read_bytes() == (halting / DATABASE_FILE).read_bytes()
    assert sorted(path.name for path in halting.iterdir()) == ["blobs", DATABASE_FILE, "lock", "tmp"]


def test_compacting_leaves_a_store_that_is_being_read_as_it_is(tmp_path: Path) -> None:
    with ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model) as store:
        _put(store, CHAIN.stages[0])
        with ChainStore.open(tmp_path, read_only=True) as reader:
            assert reader.height == 1
            store.compact()
            _put(store, CHAIN.stages[1])
            assert reader.height == 2
        store.compact()
        _put(store, CHAIN.stages[2])
    with ChainStore.open(tmp_path) as store:
        validate_kept(store, [("block", 3, "")])


def _put(store: ChainStore, stage: Stage) -> None:
    for blob, data in stage.blobs.items():
        store.put_blob(blob, data)
    store.append(stage.block, stage.certificate)


def test_a_store_waits_for_all_bytes_on_the_disk_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []  # bytes that a file had by then
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    blob, data = next(iter(CHAIN.stages[0].blobs.items()))
    for options in ({}, {"durable": False}):
        path = tmp_path / f"chain-{len(options)}"
        with ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, **options):
            begun = synced.copy()
        with ChainStore.open(path, **options) as store:
            synced.clear()
            num_open = len(os.listdir("/proc/self/fd"))
            store.put_blob(blob, data)
            assert len(os.listdir("/proc/self/fd")) == num_open
        assert (len(CHAIN.initial_model) in begun) == (len(data) in synced) == (options == {})
        assert bool(begun) == bool(synced) == (options == {})
        synced.clear()
