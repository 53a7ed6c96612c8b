"""The folder of a process: one at a time, a number for every start, and how to reach it."""

import time

import pytest

from bdfl.node.run_file import (
    BadFolder,
    RunFile,
    is_locked,
    lock_folder,
    raise_incarnation,
    read_incarnation,
    read_run,
    write_run,
)
from bdfl.storage import replace_file

RUN = RunFile(kind="node", pid=12, started=1.5, version="0", chain="ab", number=3, metrics="127.0.0.1:9000")


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    folder = tmp_path / "new" / "node"
    assert not is_locked(folder)
    with lock_folder(folder):
        assert is_locked(folder)
        with pytest.raises(BadFolder, match="another process works in it"), lock_folder(folder):
            pass
    assert not is_locked(folder)
    with lock_folder(folder):
        pass


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFolder, match="a writable folder expected"), lock_folder(tmp_path / "file"):
        pass


def test_what_goes_wrong_inside_is_not_taken_for_the_lock(tmp_path):
    with pytest.raises(FileNotFoundError), lock_folder(tmp_path):
        (tmp_path / "other").read_bytes()


def test_every_start_has_a_higher_number(tmp_path):
    assert read_incarnation(tmp_path) == 0
    first = raise_incarnation(tmp_path)
    assert [raise_incarnation(tmp_path) for _ in range(2)] == [first + 1, first + 2]
    assert read_incarnation(tmp_path) == first + 2


def test_a_new_folder_begins_above_all_numbers_of_an_older_one(tmp_path):
    """Others refuse what is not above all that they heard of a key."""
    now_s = time.time()
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    numbers = [raise_incarnation(old, now_s + 10 * start) for start in range(5)]
    assert raise_incarnation(new, now_s + 50) > max(numbers)


def test_a_clock_set_back_never_lowers_the_number_of_a_folder(tmp_path):
    first = raise_incarnation(tmp_path, 2e9)
    assert raise_incarnation(tmp_path, 0.0) == first + 1


def test_a_clock_of_long_ago_gives_a_number_all_the_same(tmp_path):
    assert raise_incarnation(tmp_path, 0.0) == 1


def test_a_clock_beyond_all_numbers_is_refused_and_nothing_is_kept(tmp_path):
    with pytest.raises(BadFolder, match="is the clock right"):
        raise_incarnation(tmp_path, 5e9)
    assert read_incarnation(tmp_path) == 0


@pytest.mark.parametrize("content", ["", "three", "-1", "1.5"])
def test_a_damaged_number_of_starts_is_refused(tmp_path, content):
    (tmp_path / "life").write_text(content)
    with pytest.raises(BadFolder, match="a whole number expected"):
        raise_incarnation(tmp_path)


def test_a_process_says_how_to_reach_it(tmp_path):
    assert read_run(tmp_path) is None
    write_run(tmp_path, RUN)
    assert read_run(tmp_path) == RUN
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadFolder, match=r"run\.json"):
        read_run(tmp_path)


def test_a_secret_file_is_never_readable_by_others(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new", mode=0o600, durable=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
