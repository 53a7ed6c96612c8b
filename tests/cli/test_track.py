"""`--track` and `bdfl track`: trackers see the run, the run does not see them."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from tests.tracking.recording import read_board

pytest.importorskip("tensorboard")
QUICK = ("quickstart", "--rounds", "3", "--set", "learning.gradient_every=0")
STOPPING = """
from tests.tracking.recording import Failing

def stop(where):
    return Failing(int(where), KeyboardInterrupt())

def fail(where):
    return Failing(int(where))
"""

pytestmark = pytest.mark.usefixtures("elsewhere", "coarse_pictures")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def steps(folder):
    return [step for step, _ in read_board(folder)["learning/accuracy"]]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory, coarse_pictures):
    """A run that nobody tracks."""
    folder = tmp_path_factory.mktemp("plain") / "here"
    result = run("run", *QUICK, "--out", str(folder))
    assert result.exit_code == 0, result.output
    return folder


def test_a_run_that_is_tracked_stopped_and_gone_on_with_has_the_same_bytes_and_no_double_steps(plain):
    Path("stopping_here.py").write_text(STOPPING)
    board = ("--track", "tensorboard:board")
    result = run("run", *QUICK, "--out", "here", *board, "--track", "stopping_here:stop:2")
    assert result.exit_code == 130, result.output
    assert steps("board/here") == [1, 2]
    result = run("run", "--resume", "here", *board, "--track", "stopping_here:fail:1")
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
    assert warnings == [
        "warning: stopping_here:fail:1: OSError: [Errno 28] No space left on device; going on without it;"
        " catch up with: bdfl track here --to ..."
    ]
    assert steps("board/here") == [1, 2, 3]
    assert contents("here") == contents(plain)


def test_a_finished_run_can_be_told_afterwards_as_often_as_one_likes(plain):
    for _ in range(2):
        result = run("track", str(plain), "--to", "tensorboard:board", "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["rounds"] == 3
    assert steps("board/here") == [1, 2, 3]
    records = read_board("board/here")
    shutil.copytree(plain, "under-way")
    Path("under-way/rounds.parquet").unlink()
    assert run("track", "under-way", "--to", "tensorboard:board").exit_code == 0
    for name, values in read_board("board/under-way").items():  # the chain says the same, in whole units
        assert values == [(step, pytest.approx(value, rel=1e-6, abs=1e-8)) for step, value in records[name]], name


@pytest.mark.parametrize("sums", ["--sums", "--no-sums"])
def test_a_simulated_run_is_told_too(sums):
    result = run("simulate", "minimal", "--rounds", "4", "--json", "--no-gaps", sums, "--track", "tensorboard:board")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["rounds"]) == 4
    assert len(read_board("board/minimal-drc-0")["time/delay_s"]) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", *QUICK, "--track", "nobody"), "tracker 'nobody': NAME:WHERE"),
        (("track", "nowhere", "--to", "tensorboard:x"), "nowhere: not there"),
        (("track", ".", "--to", "tensorboard:"), "no folder given"),
    ],
)
def test_mistakes_are_one_line_before_any_work(arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_a_tracker_that_fails_afterwards_is_an_error(plain):
    Path("failing_here.py").write_text(STOPPING)
    result = run("track", str(plain), "--to", "failing_here:fail:2")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: failing_here:fail:2: OSError: [Errno 28]")
