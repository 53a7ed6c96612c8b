"""A sweep ends in the same bytes whoever computes it, whatever stops it, and tells what failed."""

import signal
import subprocess
import sys
import time

import msgspec
import pyarrow.parquet
import pytest

from bdfl.experiment import parallel, simulate
from bdfl.scheduling.registry import get_scheduler
from bdfl.sweeps.points import list_points
from bdfl.sweeps.results import (
    JOURNAL_FILE,
    POINTS_FILE,
    TIMES_FILE,
    BadSweepFolder,
    BadTable,
    open_sweep_folder,
    read_points,
)
from bdfl.sweeps.runner import LOST_LINE
from tests.sweeps import broken_schedulers
from tests.sweeps.small_sweeps import SMALL

PATIENCE_S = 240
BROKEN = """
scenario = "minimal"
rounds = 2
seeds = 4
schedulers = ["drc", "random"]
"""


@pytest.fixture
def break_random(monkeypatch):
    """A function that puts a scheduler which fails in place of `random`."""

    def replace(scheduler):
        monkeypatch.setattr(
            parallel,
            "get_scheduler",
            lambda name, parameters: scheduler if name == "random" else get_scheduler(name, parameters),
        )

    return replace


def rows_of(path):
    return pyarrow.parquet.read_table(path / POINTS_FILE).to_pylist()


def test_every_row_is_what_simulate_gives(make_sweep, play_sweep, tmp_path):
    sweep = make_sweep()
    outcome, _ = play_sweep(sweep, tmp_path / "out")
    assert (outcome.num_points, outcome.num_computed, outcome.failed) == (24, 24, [])
    rows = rows_of(tmp_path / "out")
    for place in (0, 8, 23):
        point, row = list_points(sweep)[place], rows[place]
        scenario = point.entrant.scenario
        record = simulate(msgspec.structs.replace(scenario, seed=point.seed))
        assert (row["point"], row["seed"], row["scheduler"]) == (point.id, point.seed, point.choice)
        assert row["radio.bandwidth_hz"] == scenario.radio.bandwidth_hz
        assert row["mean_delay_s"] == record.mean_delay_s
        assert row["total_energy_j"] == record.energy_j.sum()
        assert row["worst_shortfall"] == record.worst_shortfall
    assert [row["status"] for row in rows] == ["ok"] * 24


def test_one_and_two_workers_give_the_same_bytes(make_sweep, play_sweep, tmp_path):
    _, alone = play_sweep(make_sweep(), tmp_path / "one")
    outcome, together = play_sweep(make_sweep(), tmp_path / "two", workers=2)
    assert alone == together
    assert outcome.num_workers == 2
    assert 0.0 < outcome.busy_share <= 1.0
    assert (tmp_path / "two" / TIMES_FILE).exists()


def test_a_sweep_that_was_stopped_goes_on_and_ends_in_the_same_bytes(make_sweep, play_sweep, tmp_path):
    _, expected = play_sweep(make_sweep(), tmp_path / "whole")

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_sweep(make_sweep(), tmp_path / "parts", on_progress=stop)
    journal = tmp_path / "parts" / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes()[:-20])  # as if killed in the middle of a line
    outcome, found = play_sweep(make_sweep(), tmp_path / "parts")
    assert 0 < outcome.num_computed < 24
    assert found == expected
    assert play_sweep(make_sweep(), tmp_path / "parts")[0].num_computed == 0


def test_a_sweep_that_was_killed_goes_on_and_ends_in_the_same_bytes(write_sweep, make_sweep, play_sweep, tmp_path):
    text = SMALL.replace("rounds = 3", "rounds = 40")
    _, expected = play_sweep(make_sweep(text), tmp_path / "whole")
    command = [sys.executable, "-m", "bdfl.cli", "sweep", str(write_sweep(text)), "--out", str(tmp_path / "parts")]
    process = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "parts" / JOURNAL_FILE
    deadline = time.monotonic() + PATIENCE_S
    while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    outcome, found = play_sweep(make_sweep(text), tmp_path / "parts")
    assert outcome.num_computed < 24
    assert found == expected


def test_a_point_that_fails_is_tried_again_and_leaves_a_row_that_says_so(
    make_sweep, play_sweep, tmp_path, break_random
):
    break_random(broken_schedulers.raising)
    outcome, found = play_sweep(make_sweep(BROKEN), tmp_path / "out")
    assert [(row.attempt, row.error) for row in outcome.failed] == [(3, "ValueError: seed 1 is not for me")]
    row = rows_of(tmp_path / "out")[5]
    assert (row["scheduler"], row["seed"], row["status"]) == ("random", 1, "failed")
    assert row["mean_delay_s"] is None
    assert row["error"] == "ValueError: seed 1 is not for me"
    break_random(broken_schedulers.random_scheduler)
    outcome, healed = play_sweep(make_sweep(BROKEN), tmp_path / "out")  # the same command, once the cause is gone
    assert (outcome.num_computed, outcome.failed) == (1, [])
    assert healed == play_sweep(make_sweep(BROKEN), tmp_path / "clean")[1] != found


def test_a_point_that_fails_once_leaves_no_trace(make_sweep, play_sweep, tmp_path, break_random, monkeypatch):
    monkeypatch.setenv("BDFL_TEST_MARKER", str(tmp_path / "marker"))
    break_random(broken_schedulers.raising_at_first)
    outcome, found = play_sweep(make_sweep(BROKEN), tmp_path / "out")
    assert outcome.failed == []
    break_random(broken_schedulers.random_scheduler)
    assert found == play_sweep(make_sweep(BROKEN), tmp_path / "clean")[1]


def test_a_point_that_ends_its_process_is_found_out_and_the_others_are_computed(
    make_sweep, play_sweep, tmp_path, break_random
):
    break_random(broken_schedulers.ending)
    outcome, _ = play_sweep(make_sweep(BROKEN), tmp_path / "out", workers=2, retries=1)
    assert [(row.attempt, row.error) for row in outcome.failed] == [(2, LOST_LINE)]
    assert outcome.num_lost >= 2
    assert [row["status"] for row in rows_of(tmp_path / "out")].count("ok") == 7


def test_draws_that_fail_fail_all_points_that_share_them(make_sweep, play_sweep, tmp_path, monkeypatch):
    trace = tmp_path / "gains.csv"
    trace.write_text("nonsense\n")
    sweep = make_sweep(BROKEN + f'set.radio.trace = "{trace}"\n')
    outcome, _ = play_sweep(sweep, tmp_path / "out", retries=0)
    assert len(outcome.failed) == 8
    assert all(row.error.startswith("BadTrace: ") for row in outcome.failed)


def test_another_sweep_in_the_same_folder_is_refused(make_sweep, play_sweep, tmp_path):
    play_sweep(make_sweep(), tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(BadSweepFolder, match=r"begun with another sweep \(.*choose another folder with --out"):
        play_sweep(make_sweep(SMALL.replace("seeds = 3", "seeds = 4")), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_folder_with_something_else_is_refused(make_sweep, play_sweep, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(BadSweepFolder, match="holds something else"):
        play_sweep(make_sweep(), tmp_path / "out")


def test_a_damaged_journal_is_refused_by_line(make_sweep, play_sweep, tmp_path):
    play_sweep(make_sweep(BROKEN), tmp_path / "out")
    journal = tmp_path / "out" / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"{}\n", *lines[2:]]))
    with pytest.raises(BadSweepFolder, match="line 3 is damaged"):
        play_sweep(make_sweep(BROKEN), tmp_path / "out")


def test_a_sweep_is_gone_on_with_by_one_process_at_a_time(make_sweep, tmp_path):
    sweep = make_sweep()
    with (
        open_sweep_folder(tmp_path / "out", sweep),
        pytest.raises(BadSweepFolder, match="another process is at work on this sweep"),
        open_sweep_folder(tmp_path / "out", sweep),
    ):
        pass


def test_runs_that_learn_give_accuracies(make_sweep, play_sweep, tmp_path):
    text = 'scenario = "minimal"\nrounds = 2\nmode = "run"\n[grid]\n"learning.learning_rate" = [0.01, 0.2]\n'
    play_sweep(make_sweep(text), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert all(0.0 < row["final_accuracy"] <= row["best_accuracy"] <= 1.0 for row in rows)
    assert rows[0]["final_accuracy"] != rows[1]["final_accuracy"]
    assert rows[0]["mean_delay_s"] == rows[1]["mean_delay_s"]


@pytest.mark.parametrize("content", [b"", b"PAR1 not really PAR1", None])
def test_what_is_no_table_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "table.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadTable) as caught:
        read_points(path)
    assert "\n" not in str(caught.value)


def test_somebody_elses_table_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"point": [1]}), tmp_path / "table.parquet")
    with pytest.raises(BadTable, match="no sweep's metadata"):
        read_points(tmp_path / "table.parquet")
