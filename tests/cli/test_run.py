"""`bdfl run` and `bdfl report`: a folder per run, going on after any stop, and every mistake in one line."""

import hashlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.cli.live import RunView, show_duration
from bdfl.experiment import simulate
from bdfl.records import LearningRound
from bdfl.scenario import load_scenario
from bdfl.scenario.shipped import find_scenario

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_learning.py"
QUICK = ("quickstart", "--rounds", "3")

pytestmark = pytest.mark.usefixtures("elsewhere")


def hear_interrupts():
    """In a new process: Ctrl-C counts, even where the tests run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_run_leaves_a_folder_that_says_everything():
    result = run("run", *QUICK)
    assert result.exit_code == 0, result.output
    folder = Path("runs/quickstart-drc-0")
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "scenario.toml", "journal.jsonl", "chain", "rounds.parquet", "clients.parquet", "final.safetensors",
        "best.safetensors", "figures", "report.html",
    }  # fmt: skip
    assert load_scenario(folder / "scenario.toml").rounds == 3
    assert f"report {folder / 'report.html'}" in result.stdout
    assert "3 blocks, verified in" in result.stdout
    assert "3 models aggregated again" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_is_a_summary_for_machines():
    result = run("run", *QUICK, "--json", "--out", "here")
    summary = json.loads(result.stdout)
    assert summary["schedule"]["rounds"] == 3
    assert 0.1 < summary["final_accuracy"] <= summary["best_accuracy"] <= 1
    assert Path(summary["report"]).is_file()
    chain = summary["chain"]
    assert (chain["blocks"], chain["models_recomputed"], chain["is_valid"], chain["failure"]) == (3, 3, True, None)
    assert chain["signatures"] > 3 * (1 + 8 + 5)


def test_the_report_says_how_the_chain_was_verified():
    run("run", *QUICK, "--out", "here")
    page = Path("here/report.html").read_text()
    assert "<h2>Chain</h2>" in page
    assert "3 global models aggregated again from the members' updates, equal in every bit" in page
    assert "bdfl chain verify FOLDER" in page


def test_a_chain_that_is_not_valid_is_an_error():
    run("run", *QUICK, "--out", "here")
    with closing(sqlite3.connect("here/chain/chain.sqlite")) as database, database:
        [(_, votes), (block, _)] = database.execute("SELECT data, certificate FROM blocks WHERE height < 3").fetchall()
        checksum = hashlib.sha256(block + votes).digest()
        database.execute("UPDATE blocks SET certificate = ?, checksum = ? WHERE height = 2", (votes, checksum))
    result = run("report", "here")
    assert result.exit_code == 1
    assert "error: the chain is not valid: block 2" in result.stderr
    assert "The chain is not valid." in Path("here/report.html").read_text()


def test_an_existing_folder_is_refused_and_left_as_it_is():
    run("run", *QUICK, "--out", "here")
    before = Path("here/journal.jsonl").read_bytes()
    result = run("run", *QUICK, "--out", "here")
    assert result.exit_code == 2
    assert (
        result.stderr == "error: here: exists already; go on with --resume here, or choose another folder with --out\n"
    )
    assert Path("here/journal.jsonl").read_bytes() == before


def test_a_finished_run_that_is_gone_on_with_stays_as_it_is():
    run("run", *QUICK, "--out", "here")
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    assert run("run", "--resume", "here").exit_code == 0
    assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before


def test_interrupting_says_how_to_go_on():
    slow = ("--set", "rounds=2000", "--set", "learning.gradient_every=0", "--out", "here")
    command = [sys.executable, "-m", "bdfl.cli", "run", "quickstart", *slow]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=hear_interrupts) as process:
        deadline = time.monotonic() + 120
        journal = Path("here/journal.jsonl")
        while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = errors.splitlines()[-1]
    assert last.startswith("stopped after round")
    assert last.endswith("go on: bdfl run --resume here")


def test_report_shows_a_run_that_is_not_over():
    run("run", *QUICK, "--out", "here")
    lines = Path("here/journal.jsonl").read_bytes().splitlines(keepends=True)
    Path("here/journal.jsonl").write_bytes(b"".join(lines[:3]))
    Path("here/report.html").unlink()
    result = run("report", "here")
    assert result.exit_code == 0, result.output
    assert Path("here/report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), "run: a SCENARIO is missing"),
        (("run", "quickstart", "--resume", "here"), "--resume: goes on with what its folder says"),
        (("run", "--resume", "nowhere"), "nowhere: no scenario.toml in it"),
        (("report", "nowhere"), "nowhere: no scenario.toml in it"),
        (("run", "quickstart", "--data", "nowhere"), "nowhere"),
        (("run", "quickstart", "--set", "learning.model=resnet"), "resnet"),
        (("run", "quickstart", "--set", "learning.model=paper-cnn"), "paper-cnn"),
        (("run", "quickstart", "--set", "learning.aggregation.rule=vote"), "vote"),
        (("run", "quickstart", "--set", "clients.samples=3000"), "clients.samples"),
        (("run", "quickstart", "--set", "scheduler.name=guess"), "guess"),
        (("run", "quickstart", "--set", "radio.bandwidth_hz=0.1"), "radio.bandwidth_hz: 0.1 given, the chain holds 1"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_own_data_and_own_model_take_twenty_lines():
    assert len(EXAMPLE.read_text().splitlines()) <= 20
    shutil.copy(EXAMPLE, "own_learning.py")
    result = run(
        "run", "quickstart", "--data", "own_learning:rings", "--set", "learning.model=own_learning:network", "--json"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["final_accuracy"] > 0.9


def test_the_live_view_fits_a_terminal_and_shows_the_round():
    scenario = load_scenario(find_scenario("quickstart"))
    record = simulate(scenario, prove_gaps=False)
    view = RunView(scenario)
    for round_record in record.rounds:
        selected = [client for client in range(8) if round_record.selected[client]]
        row = LearningRound(
            round=round_record.round, selected=selected, outcome=["trained"] * len(selected),
            local_loss=[0.5] * len(selected), local_gradient_norm=[1.0] * len(selected),
            epsilon=[None] * len(selected), update_norm=1.0,
            accuracy=round_record.round / 30, loss=0.5, recall=None, gradient_norm=None, global_loss=None,
            smoothness=None, model="",
        )  # fmt: skip
        view.recall_round(round_record, row)
    text = StringIO()
    Console(width=80, file=text).print(view)
    lines = text.getvalue().splitlines()
    assert "30 of 30" in lines[1]
    assert "100.0 %, best 100.0 % in round 30" in text.getvalue()
    assert len(lines) == 7  # a title, four facts and two lines of energy: nothing was wrapped
    assert view.line().startswith("round 30 of 30: clients")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(float("nan"), "?"), (12.4, "12 s"), (600.0, "10 min"), (7200.0, "2.0 h")]
)
def test_durations_are_said_as_people_say_them(seconds, shown):
    assert show_duration(seconds) == shown
