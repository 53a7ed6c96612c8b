"""A run that trains privately: the same bytes twice, a valid chain, and an epsilon that everybody finds again."""

import json

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment.training_run import RunOptions, run
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records.parquet import write_parquet
from bdfl.report.run_report import describe_privacy, summarise_training, tabulate_training
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario

CHANGES = ("rounds=4", "clients.count=4", "learning.local_steps=2", "learning.batch=45", "ledger.cycles_per_hash=3e6")
SCENARIO = load_scenario(find_scenario("private-digits"), CHANGES)


def play(path):
    """A whole run, with its tables in the folder."""

    def write(made):
        return write_parquet(made.record, made.learning, made.folder)

    return run(SCENARIO, path, RunOptions(workers=1, write=write))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one scenario: the first of them, and the folder of both."""
    folder = tmp_path_factory.mktemp("private")
    first, _ = (play(folder / name) for name in ("first", "second"))
    return first, folder


def test_private_runs_are_the_same_to_the_byte(runs):
    _, folder = runs
    for name in ("final.safetensors", "journal.jsonl", "clients.parquet"):
        assert (folder / "first" / name).read_bytes() == (folder / "second" / name).read_bytes(), name


def test_the_chain_holds_what_everybody_spent_and_no_more_than_was_allowed(runs):
    first, folder = runs
    learning, verification = first.learning, first.verification
    with ChainStore.open(folder / "first" / "chain", read_only=True) as chain:
        assert chain.genesis.privacy is not None
        stated = {}
        for block in chain.blocks():
            for signed in block.body.updates:
                assert signed.update.epsilon_micro > stated.get(signed.update.client, 0)
                stated[signed.update.client] = signed.update.epsilon_micro
    assert verification.is_valid
    assert len(stated) > 1
    assert np.nanmax(learning.final_epsilon) == max(stated.values()) / 10**6 <= SCENARIO.privacy.epsilon


def test_the_accountant_finds_the_same_again(runs, monkeypatch):
    first, folder = runs
    learning = first.learning
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["chain", "privacy", str(folder / "first"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["is_right"]
    assert max(one["stated"] for one in found["members"]) == np.nanmax(learning.final_epsilon)
    shown = CliRunner().invoke(app, ["chain", "privacy", str(folder / "first")])
    assert shown.exit_code == 0
    assert "Privacy after 4 blocks" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_records_and_summary_show_it(runs):
    made, folder = runs
    learning = made.learning
    most = float(np.nanmax(learning.final_epsilon))
    column = pyarrow.parquet.read_table(folder / "first" / "clients.parquet")["epsilon"].to_numpy()
    assert np.nanmax(column.astype(float)) == most
    assert summarise_training(made).epsilon == most
    line = describe_privacy(learning, SCENARIO)
    assert line.startswith(f"epsilon at most {most:.2f} (client ")
    summary = tabulate_training(made)[1]
    assert line in list(summary.columns[1].cells)
