"""`bdfl leaderboard`: tables, pages, figures and CSV, JSON for machines, and every mistake in one line."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.scheduling.registry import BASELINES, scheduler_names, show_choice, with_best_frequencies

TINY = ("minimal", "--rounds", "3", "--seeds", "2", "--workers", "1")

pytestmark = pytest.mark.usefixtures("elsewhere")


def run(*arguments):
    return CliRunner().invoke(app, ["leaderboard", *arguments])


def test_one_command_ranks_all_installed_schedulers_and_leaves_a_page():
    result = run(*TINY, "--out", "here")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert {path.name for path in Path("here").iterdir()} == {
        "README.md", "leaderboard.html", "leaderboard-minimal.svg", "leaderboard-minimal.png",
        "leaderboard-minimal.csv",
    }  # fmt: skip
    with Path("here/leaderboard-minimal.csv").open() as file:
        rows = list(csv.DictReader(file))
    played = [*scheduler_names(), *map(with_best_frequencies, BASELINES)]
    assert sorted(row["scheduler"] for row in rows) == sorted(played)
    assert all(float(row["delay_s"]) > 0 and float(row["bound_s"]) > 0 for row in rows)
    page, site = Path("here/leaderboard.html").read_text(), Path("here/README.md").read_text()
    for name in map(show_choice, played):
        assert name in result.stdout
        assert f">{name}<" in page
        assert f"| {name} |" in site
    assert "](leaderboard-minimal.svg)" in site


def test_json_has_every_standing_and_writes_nothing_unless_told():
    boards = json.loads(run(*TINY, "--schedulers", "drc,exact:tradeoff=50", "--no-bound", "--json").stdout)
    assert [board["scenario"] for board in boards] == ["minimal"]
    assert {one["scheduler"] for one in boards[0]["standings"]} == {"drc", "exact:tradeoff=50"}
    assert {one["rank"] for one in boards[0]["standings"]} <= {1, 2, None}
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("minimal", "--seeds", "0"), "seeds: 0 given"),
        (("minimal", "minimal"), "scenarios: 'minimal' given twice"),
        (("minimal", "--schedulers", "best"), "no scheduler 'best'"),
        (("minimal", "--schedulers", "oort:alpha=-1"), "alpha"),
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
    assert "bdfl leaderboard --learn" in " ".join(run("--help").stdout.split())
