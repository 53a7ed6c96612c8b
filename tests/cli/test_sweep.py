"""The commands `bdfl sweep` and `bdfl plot`: files, lines of 80 columns, JSON, and mistakes in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.sweeps import runner
from tests.sweeps.small_sweeps import SMALL

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def sweep_file():
    Path("small.toml").write_text(SMALL)
    return "small.toml"


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_sweep_leaves_a_folder_with_one_table_and_plot_draws_it(sweep_file):
    result = run("sweep", sweep_file, "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "24 of 24 points have results, 24 computed now" in result.stdout
    folder = Path("sweeps/small")
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "scenario.toml", "sweep.toml", "journal.jsonl", "points.parquet", "timings.parquet",
    }  # fmt: skip
    shown = run("plot", str(folder))
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert {path.name for path in folder.glob("plot.*")} == {"plot.svg", "plot.png", "plot.csv"}
    answer = json.loads(run("plot", str(folder / "points.parquet"), "--json", "--y", "mean_delay_s").stdout)
    assert answer["x"] == "radio.bandwidth_hz"
    assert list(answer["lines"][0]["places"][0]["measures"]) == ["mean_delay_s"]


def test_json_says_where_the_table_is_and_going_on_computes_nothing_again(sweep_file):
    first = json.loads(run("sweep", sweep_file, "--workers", "1", "--json", "--out", "here").stdout)
    again = json.loads(run("sweep", "--resume", "here", "--workers", "1", "--json").stdout)
    assert (first["points"], first["computed"], again["computed"]) == (24, 24, 0)
    assert first["sha256"] == again["sha256"]
    assert first["table"] == "here/points.parquet"


def test_a_dry_run_counts_and_writes_nothing(sweep_file):
    answer = json.loads(run("sweep", sweep_file, "--dry-run", "--json").stdout)
    assert (answer["points"], answer["seeds"], answer["schedulers"]) == (24, 3, ["drc", "random"])
    assert "points     24" in run("sweep", sweep_file, "--dry-run").stdout
    assert not Path("sweeps").exists()


def test_points_that_fail_are_exit_code_1_and_a_line_each():
    Path("gains.csv").write_text("nonsense\n")
    Path("bad.toml").write_text('scenario = "minimal"\nseeds = 7\nset.radio.trace = "gains.csv"\n')
    result = run("sweep", "bad.toml", "--workers", "1", "--retries", "0")
    assert result.exit_code == 1
    assert "0 of 7 points have results" in result.stdout
    assert result.stdout.count("after 1 attempts: BadTrace: ") == 5
    assert "and 2 more that failed" in result.stdout
    shown = run("plot", "sweeps/bad")
    assert shown.exit_code == 2
    assert shown.stderr == "error: bad: all 7 points failed, nothing to show\n"


def test_interrupting_says_how_to_go_on(sweep_file, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "write_points", interrupt)
    result = run("sweep", sweep_file, "--workers", "1")
    assert result.exit_code == 130
    assert result.stderr.endswith("stopped with 24 points done; go on: bdfl sweep --resume sweeps/small\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sweep"], "sweep: a SWEEP.toml expected, or --resume FOLDER"),
        (["sweep", "nowhere.toml"], "nowhere.toml: no such file or directory, expected a sweep in TOML"),
        (["sweep", "small.toml", "--address", "auto"], "--address: given with --engine local, --engine ray expected"),
        (["sweep", "--resume", "nowhere"], "nowhere: no sweep.toml in it, the folder of a sweep expected"),
        (["plot", "nowhere"], "nowhere: not there, the points.parquet of a finished sweep expected"),
        (["plot", "small.toml", "--where", "x"], "--where: KEY=VALUE expected"),
        (["run", "minimal", "--address", "auto"], "--address: given with --engine local"),
    ],
)
def test_mistakes_are_one_line(sweep_file, arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {expected}")
    assert result.stderr.count("\n") == 1
