"""`python -m campaigns faults`: tables for people, JSON for machines, and a story of whatever breaks a law."""

import json

import pytest
from typer.testing import CliRunner

from campaigns.faults import laws, trial
from campaigns.faults.__main__ import app
from campaigns.faults.laws import Breach
from campaigns.faults.plan import ATTACKS, draw_plan
from campaigns.faults.trial import replay_command


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_a_campaign_says_how_many_networks_broke_a_law():
    result = run("--seeds", "2", "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "majority" in result.stdout
    assert "bft" in result.stdout
    assert "2 networks" in result.stdout
    assert "0 of them broke a law" in result.stdout


def test_a_campaign_is_json_for_machines():
    result = run("--seeds", "1", "--first", "5", "--quorum", "majority", "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    campaign = json.loads(result.stdout)
    assert campaign["failures"] == []
    assert [group["quorum"] for group in campaign["groups"]] == ["majority"]
    assert campaign["groups"][0]["networks"] == 1


def test_a_story_is_told_when_asked_for():
    result = run("--seeds", "1", "--first", "4", "--workers", "1", "--timeline")
    assert result.exit_code == 0, result.output
    assert "seed 4:" in result.stdout
    assert "the faults stop" in result.stdout
    assert "COMMIT 1:" in result.stdout


def test_a_broken_law_gives_the_command_that_replays_it_and_its_story(monkeypatch):
    def find_breaches(*arguments):
        return [Breach("agreement", "made up")]

    monkeypatch.setattr(trial, "find_breaches", find_breaches)
    result = run("--seeds", "1", "--first", "4", "--quorum", "bft", "--workers", "1")
    assert result.exit_code == 1
    assert "seed 4: agreement: made up" in result.stdout
    assert "python -m campaigns faults --seeds 1 --first 4 --quorum bft --timeline" in result.stdout
    assert "COMMIT 1:" in result.stdout
    assert laws.find_breaches is not find_breaches


def test_networks_with_as_many_selfish_and_hoarding_members_as_the_quorum_bears_break_no_law():
    plans = [draw_plan(seed, most_liars=True) for seed in range(100)]
    assert all(len(plan.liars) == (plan.num_nodes - 1) // 3 for plan in plans)
    assert {attack for plan in plans for _, attack in plan.selfish} == set(ATTACKS)
    assert [bool(plan.hoarders) for plan in plans[:4]] == [False, False, False, True]
    assert all(plan.selfish or plan.hoarders for plan in plans)
    result = run("--seeds", "8", "--most-liars", "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "majority" not in result.stdout


def test_the_command_that_replays_a_network_names_its_liars():
    assert replay_command(3, None, most_liars=True) == (
        "python -m campaigns faults --seeds 1 --first 3 --most-liars --timeline"
    )


def test_mutants_are_tabulated_and_written(tmp_path):
    result = run("mutants", "small-quorum", "prevotes-decide", "--seeds", "2", "--workers", "1", "--out", "found")
    assert result.exit_code == 0, result.output
    assert "small-quorum" in result.stdout
    page = (tmp_path / "found" / "mutants.md").read_text(encoding="utf-8")
    (row,) = [
        line for line in page.splitlines() if line.startswith("| `prevotes-decide` | a quorum of prevotes commits |")
    ]
    assert "validity" in row
    assert "2 of 2 are noticed" in page


def test_an_unknown_mutant_is_one_line():
    result = run("mutants", "nonsense")
    assert result.exit_code == 2
    assert "no mutant 'nonsense'" in result.stderr
