"""An existing Flower client in a run, and in a live network, with no line added to it."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment.run_folder import create_run_folder, open_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
MOST_ADDED_LINES = 5
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
NODES, BLOCKS = 4, 3


@pytest.fixture
def beside_clients(elsewhere, coarse_pictures, tmp_path):
    """The working folder has the example clients in it, and nothing else."""
    for path in EXAMPLES.glob("digits_*.py"):
        shutil.copy(path, tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def digests(folder):
    """Of everything that must be the same; the journal says when it was written nowhere."""
    kept = [
        "journal.jsonl",
        "final.safetensors",
        *(f"chain/blobs/{path.name}" for path in folder.glob("chain/blobs/*")),
    ]
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in kept if (folder / name).is_file()
    }


def train(folder, *, rounds_lost=0, workers=1):
    """Plays the run in a folder, or what is left of it."""
    chosen = ["rounds=2", "learning.gradient_every=0", "learning.flower=digits_client:client_fn"]
    scenario = load_scenario(find_scenario("quickstart"), chosen)
    allowed = frozenset({"digits_client:client_fn"})
    with open_run_folder(folder, allowed) if folder.exists() else create_run_folder(folder, scenario) as opened:
        if rounds_lost:
            opened.drop_rounds(len(opened.rounds) - rounds_lost)
        federated = prepare_run(scenario)
        with open_trainer(scenario, federated.data, federated.partition, workers=workers) as trainer:
            return train_run(federated, trainer, opened)


@pytest.mark.usefixtures("beside_clients")
def test_a_client_as_it_is_learns_in_a_run_and_the_report_says_what_is_known():
    result = run("run", "quickstart", "--flower", "digits_client:client_fn", "--rounds", "2", "--out", "here", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["final_accuracy"] > 0.5
    assert summary["chain"]["is_valid"]
    assert load_scenario(Path("here/scenario.toml")).learning.flower == "digits_client:client_fn"
    page = Path("here/report.html").read_text()
    assert "digits_client:client_fn" in page


@pytest.mark.usefixtures("beside_clients")
def test_a_run_that_was_stopped_ends_in_the_same_bytes(tmp_path):
    _, learning = train(tmp_path / "whole")
    train(tmp_path / "stopped")
    (tmp_path / "stopped" / "final.safetensors").unlink()
    train(tmp_path / "stopped", rounds_lost=1)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    assert learning.samples.tolist() == [180] * 5 + [179] * 3
    assert learning.label_counts.shape == (8, 1)


@pytest.mark.usefixtures("beside_clients")
def test_a_client_that_changed_is_not_gone_on_with(tmp_path):
    train(tmp_path / "run")
    (tmp_path / "run" / "final.safetensors").unlink()
    task = sys.modules["digits_task"]
    before, task.train.__defaults__ = task.train.__defaults__, (1, 0.1)
    try:
        with pytest.raises(
            Exception, match=r"begun with data digest .*, now it is .*: going on would not end in the same"
        ):
            train(tmp_path / "run", rounds_lost=1)
    finally:
        task.train.__defaults__ = before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--flower", "digits_client:nothing"], "no nothing in module digits_client, expected a function of that name"),
        (["--flower", "nowhere:fn"], "No module named 'nowhere'"),
        (["--flower", "client_fn"], 'learning.flower: "client_fn" given'),
        (["--flower", "digits_app:app"], "--flower-model module:Net"),
    ],
)
@pytest.mark.usefixtures("beside_clients")
def test_mistakes_are_one_line_and_leave_no_folder(options, expected):
    result = run("run", "quickstart", "--out", "here", *options)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("here").exists()


@pytest.mark.usefixtures("elsewhere")
def test_a_newcomers_own_client_runs_in_a_live_network_of_four_with_no_line_added():
    """Scripted as a newcomer would do it: a client as Flower takes it, in a folder, and one command.

    One of PyTorch's does so in `tests/flower/test_quickstart.py`.
    """
    client = re.search(r"```python my_client.py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    Path("my_client.py").write_text(client)
    lines_for_us = [line for line in client.splitlines() if "bdfl" in line]
    assert len(lines_for_us) == 0 <= MOST_ADDED_LINES
    command = [sys.executable, "-P", "-m", "bdfl.cli", "network", "up", "--nodes", str(NODES), "--blocks", str(BLOCKS)]
    command += ["--time-scale", "0", "--flower", "my_client:client_fn", "--out", "net", "--plain", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["num_nodes"], summary["height"], summary["failures"]) == (NODES, BLOCKS, [])
    assert summary["mean_updates"] >= 1
    assert summary["loss"] < 1.5  # untrained: 10
