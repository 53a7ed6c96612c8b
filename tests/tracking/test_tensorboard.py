"""What TensorBoard reads is what was told, once, however often a run was stopped."""

from dataclasses import replace
from pathlib import Path

import pytest

from bdfl.tracking import Outcome, TrackedRun, open_tracker
from tests.tracking.recording import read_board, read_texts

pytest.importorskip("tensorboard")

RUN = TrackedRun(
    name="mine",
    experiment="small",
    identity="ab" * 32,
    parameters={"seed": 3, "a.b": "text", "c": True},
    document="x = 1",
)


def tell(folder, run, rounds, *, outcome=Outcome.FINISHED, files=()):
    tracker = open_tracker(f"tensorboard:{folder}")
    tracker.begin(run)
    for round in rounds:
        tracker.round(round, {"time/delay_s": 0.5 * round, "learning/loss": 1.0 / round})
    tracker.finish(outcome, files)


def test_numbers_parameters_and_files_are_read_back(tmp_path):
    tell(tmp_path, RUN, [1, 2, 3], files=[Path("report.html")])
    found = read_board(tmp_path / "mine")
    assert found["time/delay_s"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert [step for step, _ in found["learning/loss"]] == [1, 2, 3]
    assert read_texts(tmp_path / "mine", "files") == [str(Path("report.html").absolute())]
    assert read_texts(tmp_path / "mine", "scenario") == ["    x = 1\n"]
    content = next((tmp_path / "mine").iterdir()).read_bytes()
    assert b"a.b" in content  # hyperparameters


def test_a_run_that_goes_on_is_the_same_run_and_no_step_is_doubled(tmp_path):
    tell(tmp_path, RUN, [1, 2], outcome=Outcome.INTERRUPTED)
    tell(tmp_path, replace(RUN, is_continued=True), [1, 2, 3, 4])
    tell(tmp_path, replace(RUN, is_continued=True), [1, 2, 3, 4])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert [step for step, _ in read_board(tmp_path / "mine")["time/delay_s"]] == [1, 2, 3, 4]
    assert len(list((tmp_path / "mine").iterdir())) == 2


def test_what_was_being_written_when_the_machine_stopped_is_written_again(tmp_path):
    tell(tmp_path, RUN, [1, 2], outcome=Outcome.INTERRUPTED)
    [path] = (tmp_path / "mine").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    tell(tmp_path, replace(RUN, is_continued=True), [1, 2, 3])
    assert [step for step, _ in read_board(tmp_path / "mine")["time/delay_s"]] == [1, 2, 3]


def test_another_run_of_the_same_name_gets_a_folder_of_its_own(tmp_path):
    tell(tmp_path, RUN, [1])
    tell(tmp_path, RUN, [1, 2])
    other = replace(RUN, identity="cd" * 32, is_continued=True)
    tell(tmp_path, other, [1, 2, 3])
    tell(tmp_path, replace(RUN, is_continued=True), [1, 2, 3, 4])
    lengths = {path.name: len(read_board(path)["time/delay_s"]) for path in tmp_path.iterdir()}
    assert lengths == {"mine": 1, "mine-2": 4, "mine-3": 3}


def test_a_run_that_was_never_told_is_told_whole_when_it_goes_on(tmp_path):
    tell(tmp_path, replace(RUN, is_continued=True), [1, 2, 3])
    assert [step for step, _ in read_board(tmp_path / "mine")["time/delay_s"]] == [1, 2, 3]
