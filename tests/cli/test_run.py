"""`bdfl run` and `bdfl report`: a folder per run, going on after any stop, and every mistake in one line."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import threading
from contextlib import chdir, closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.cli.progress import RunView
from bdfl.experiment import simulate
from bdfl.records import LearningRound
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_learning.py"
QUICK = ("quickstart", "--rounds", "3")

pytestmark = pytest.mark.usefixtures("elsewhere", "coarse_pictures")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, coarse_pictures):
    """A run of three rounds, as people start it: what it said, and where it left its folder; only to be looked at."""
    with chdir(tmp_path_factory.mktemp("finished")), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        result = run("run", *QUICK)
        return result, Path("runs/quickstart-drc-0").absolute()


@pytest.fixture
def here(finished, tmp_path):
    """A copy of its folder, where commands run."""
    return shutil.copytree(finished[1], tmp_path / "here")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_leaves_a_folder_that_says_everything(finished):
    result, folder = finished
    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "scenario.toml", "journal.jsonl", "chain", "rounds.parquet", "clients.parquet", "final.safetensors",
        "best.safetensors", "figures", "report.html",
    }  # fmt: skip
    assert load_scenario(folder / "scenario.toml").rounds == 3
    assert "report runs/quickstart-drc-0/report.html" in result.stdout
    assert "3 blocks, verified in" in result.stdout
    assert "3 models aggregated again" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_report_says_how_the_chain_was_verified(finished):
    page = (finished[1] / "report.html").read_text()
    assert "<h2>Chain</h2>" in page
    assert "3 global models aggregated again from the members' updates, equal in every bit" in page
    assert "bdfl chain verify FOLDER" in page


def test_a_chain_that_is_not_valid_is_an_error(here):
    with closing(sqlite3.connect(here / "chain" / "chain.sqlite")) as database, database:
        [(_, votes), (block, _)] = database.execute("SELECT data, certificate FROM blocks WHERE height < 3").fetchall()
        checksum = hashlib.sha256(block + votes).digest()
        database.execute("UPDATE blocks SET certificate = ?, checksum = ? WHERE height = 2", (votes, checksum))
    result = run("report", "here")
    assert result.exit_code == 1
    assert "error: the chain is not valid: block 2" in result.stderr
    assert "The chain is not valid." in (here / "report.html").read_text()


def test_an_existing_folder_is_refused_and_left_as_it_is(here):
    before = contents(here)
    result = run("run", *QUICK, "--out", "here")
    assert result.exit_code == 2
    assert (
        result.stderr == "error: here: exists already; go on with --resume here, or choose another folder with --out\n"
    )
    assert contents(here) == before


def test_a_finished_run_that_is_gone_on_with_stays_as_it_is_and_json_sums_it_up_for_machines(here):
    before = contents(here)
    result = run("run", "--resume", "here", "--json")
    assert result.exit_code == 0, result.output
    assert contents(here) == before
    summary = json.loads(result.stdout)
    assert summary["schedule"]["rounds"] == 3
    assert 0.1 < summary["final_accuracy"] <= summary["best_accuracy"] <= 1
    assert Path(summary["report"]).is_file()
    chain = summary["chain"]
    assert (chain["blocks"], chain["models_recomputed"], chain["is_valid"], chain["failure"]) == (3, 3, True, None)
    assert chain["signatures"] > 3 * (1 + 8 + 5)


@pytest.fixture
def heard_interrupts():
    """Ctrl-C counts, even where the tests run in the background and ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("heard_interrupts")
def test_interrupting_says_how_to_go_on(tmp_path):
    over = threading.Event()
    journal = tmp_path / "here" / "journal.jsonl"

    def interrupt():
        while not over.wait(0.02):
            if journal.exists() and journal.read_bytes().count(b"\n") > 2:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watching = threading.Thread(target=interrupt)
    watching.start()
    try:
        result = run("run", "quickstart", "--set", "rounds=2000", "--set", "learning.gradient_every=0", "--out", "here")
    finally:
        over.set()
        watching.join()
    assert result.exit_code == 130
    last = result.stderr.splitlines()[-1]
    assert last.startswith("stopped after round")
    assert last.endswith("go on: bdfl run --resume here")


def test_report_shows_a_run_that_is_not_over(here):
    lines = (here / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (here / "journal.jsonl").write_bytes(b"".join(lines[:3]))
    (here / "report.html").unlink()
    result = run("report", "here")
    assert result.exit_code == 0, result.output
    assert (here / "report.html").is_file()


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
    own = ("--data", "own_learning:rings", "--set", "learning.model=own_learning:network")
    result = run("run", "quickstart", *own, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["final_accuracy"] > 0.9
    assert summary["chain"]["is_valid"]
    assert Path(summary["report"]).is_file()


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
