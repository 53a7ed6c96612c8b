"""`bdfl simulate --out`: a folder with the scenario and the records of a run that was only played."""

import json

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.scenario import load_scenario

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def invoke(elsewhere, coarse_pictures):
    return lambda *arguments: CliRunner().invoke(app, ["simulate", "minimal", "--no-gaps", *arguments])


def test_records_are_written_beside_the_figures(invoke, tmp_path):
    found = invoke("--rounds", "7", "--out", "played")
    assert found.exit_code == 0, found.stderr
    names = {path.name for path in (tmp_path / "played").iterdir()}
    assert {"scenario.toml", "rounds.parquet", "clients.parquet", "simulate-minimal-drc.svg"} <= names
    for name in ("scenario.toml", "rounds.parquet", "clients.parquet"):
        assert f"wrote played/{name}" in found.stdout
    scenario = load_scenario(tmp_path / "played" / "scenario.toml")
    assert scenario.rounds == 7
    rounds = parquet.read_table(tmp_path / "played" / "rounds.parquet")
    clients = parquet.read_table(tmp_path / "played" / "clients.parquet")
    assert rounds["round"].to_pylist() == list(range(1, 8))
    assert clients.num_rows == 7 * scenario.clients.count
    assert "accuracy" not in rounds.column_names
    assert not {"outcome", "samples"} & set(clients.column_names)
    assert rounds.schema.metadata[b"scenario"] == b"minimal"


def test_long_runs_are_written_in_parts_that_hold_the_same(invoke, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from bdfl.records import parquet as written

    monkeypatch.setattr("bdfl.cli.commands.MAX_DRAWN_ROUNDS", 5)
    assert invoke("--rounds", "9", "--out", "whole").exit_code == 0
    monkeypatch.setattr(written, "_ROWS_AT_A_TIME", 10)
    assert invoke("--rounds", "9", "--out", "parts").exit_code == 0
    whole, parts = (parquet.read_table(tmp_path / name / "clients.parquet") for name in ("whole", "parts"))
    assert whole.equals(parts)


def test_very_long_runs_have_records_and_no_figure(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr("bdfl.cli.commands.MAX_DRAWN_ROUNDS", 5)
    found = invoke("--rounds", "6", "--out", "long")
    assert found.exit_code == 0
    assert "bdfl explore long" in found.stdout
    assert {path.name for path in (tmp_path / "long").iterdir()} == {
        "scenario.toml", "rounds.parquet", "clients.parquet",
    }  # fmt: skip


def test_a_folder_with_a_chain_is_left_alone(invoke, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text("{}")
    found = invoke("--rounds", "2", "--out", "run")
    assert found.exit_code == 2
    assert "a folder of its own expected" in found.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["journal.jsonl"]


def test_without_out_no_records_are_written(invoke, tmp_path):
    found = invoke("--rounds", "2", "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["scenario"] == "minimal"
    assert list(tmp_path.iterdir()) == []
