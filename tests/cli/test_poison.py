"""`bdfl poison`: tables, a figure and files, JSON for machines, and every mistake in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app

TINY = (
    "--rounds", "1", "--seeds", "1", "--workers", "1", "--attacks", "sign-flip:2", "--rules", "median",
    "--set", "compute.local_updates=2",
)  # fmt: skip
FILES = {"poisoning.svg", "poisoning.png", "poisoning.csv", "poisoning-runs.csv", "poisoning.md"}

pytestmark = pytest.mark.usefixtures("elsewhere", "coarse_pictures")


def run(*arguments):
    return CliRunner().invoke(app, ["poison", *arguments])


def test_the_campaign_shows_tables_and_leaves_files():
    result = run(*TINY, "--out", "here")
    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("here").iterdir()} == FILES
    assert "Data dealt evenly (IID)" in result.stdout
    assert "sign-flip" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_every_run_and_writes_nothing_unless_told():
    result = run(*TINY, "--json")
    found = json.loads(result.stdout)
    assert found["scenario"] == "poisoning"
    assert found["members"] == [6, 7, 8, 9]
    assert len(found["runs"]) == 2 * 2 * 2
    assert {"mean_fails", "is_borne", "best_rule"} <= found["verdicts"][0].keys()
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("quickstart",), "adversaries.members: none given"),
        (("--attacks", "bribery"), "attacks: 'bribery' given"),
        (("--rules", "vote"), "'vote' given"),
        (("--seeds", "0"), "seeds: 0 given"),
        (("--workers", "0"), "workers: 0 given"),
        (("--set", "adversaries.members=[10]"), "adversaries.members: 10 given"),
        (("nowhere",), "nowhere"),
    ],
)
def test_a_mistake_is_one_line(arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_has_examples():
    text = " ".join(run("--help").stdout.split())
    assert "bdfl poison --attacks sign-flip:4,gaussian:50" in text
