"""`bdfl data`: who holds what, as a table, a picture and JSON; mistakes in one line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bdfl.cli import app


@pytest.fixture(autouse=True)
def new_cache(elsewhere, coarse_pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments):
    return CliRunner().invoke(app, ["data", *arguments])


def answer_of(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def save_own(path, num_labels=4, samples=2000):
    labels = np.arange(samples) % num_labels
    inputs = np.zeros((samples, 3), dtype=np.float32)
    np.savez(path, train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels)


def test_show_prints_a_table_and_writes_a_picture():
    result = run("show", "quickstart")
    assert result.exit_code == 0, result.output
    assert "digits for quickstart: dirichlet, fixed sizes, seed 0" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert {path.name for path in Path("results").iterdir()} == {
        f"data-quickstart.{suffix}" for suffix in ("svg", "png", "csv")
    }
    rows = list(csv.DictReader(Path("results/data-quickstart.csv").read_text().splitlines()))
    assert [int(row["samples"]) for row in rows] == [180] * 8
    assert all(sum(int(row[f"label_{label}"]) for label in range(10)) == 180 for row in rows)


def test_json_has_what_the_table_has_and_more_and_writes_nothing():
    shown = answer_of("show", "quickstart", "--seed", "3")
    assert (shown["scenario"], shown["data"], shown["seed"]) == ("quickstart", "digits", 3)
    assert np.array(shown["label_counts"]).sum(axis=1).tolist() == shown["samples"] == [180] * 8
    assert len(shown["participation_rate"]) == len(shown["divergence"]) == 8
    assert np.mean(shown["participation_rate"]) == pytest.approx(0.4)
    assert len(shown["data_digest"]) == 64
    assert not Path("results").exists()
    assert answer_of("show", "quickstart", "--seed", "4")["label_counts"] != shown["label_counts"]


def test_files_come_with_json_where_a_folder_is_given():
    answer_of("show", "quickstart", "--out", "pictures")
    assert Path("pictures/data-quickstart.png").exists()


def test_data_on_the_command_line_are_relative_to_the_working_folder():
    save_own("mine.npz")
    assert answer_of("show", "quickstart", "--data", "mine.npz")["data"] == "mine"


@pytest.mark.parametrize(("num_labels", "clients"), [(2, 30), (40, 1), (120, 30)])
def test_tables_fit_a_terminal_whatever_the_labels_and_clients(num_labels, clients):
    save_own("mine.npz", num_labels, 12_000)
    result = run("show", "quickstart", "--data", "mine.npz", "--set", f"clients.count={clients}",
                 "--set", "clients.min_selected=1", "--set", "partition.sizes=natural")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert ("10 more clients" in result.stdout) == (clients == 30)


def test_sources_are_listed():
    assert "hub:NAME[:CONFIG]" in run("sources").stdout
    assert "digits" in answer_of("sources")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "minimal", "--data", "nowhere"), "nowhere: not found, expected one of digits, FOLDER"),
        (("show", "minimal", "--data", "."), "no Parquet files, expected train-*.parquet"),
        (("show", "minimal", "--data", "nobody_has_this:load"), "No module named 'nobody_has_this'"),
        (("show", "paper-cifar10", "--data", "digits"), "clients.samples: 8 clients want 24000 samples together"),
        (("show", "nowhere.toml"), "nowhere.toml not found"),
        (("show", "minimal", "--set", "partition.method=fair"), "partition.method"),
        (("show", "minimal", "--out", "/proc/nowhere"), "a writable folder expected"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "sources"])
def test_every_command_has_an_example_and_speaks_json(command):
    shown = run(command, "--help").stdout
    assert f"bdfl data {command}" in shown
    assert "--json" in shown
