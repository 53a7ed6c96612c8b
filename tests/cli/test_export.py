"""`bdfl export`: the tables of a folder in files, or one of them on standard output."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment import simulate
from bdfl.experiment.run_folder import write_record
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis
from tests.ledger.lying import INITIAL, SIGNERS

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A simulated run's records, and a chain beside them."""
    path = tmp_path_factory.mktemp("made") / "here"
    scenario = load_scenario(find_scenario("minimal"), ["rounds=3"])
    write_record(scenario, simulate(scenario), path)
    with ChainStore.create(path / "chain", example_genesis(INITIAL), INITIAL, durable=False) as store:
        ChainMaker(store, SIGNERS).grow(2)
    return path


@pytest.fixture
def folder(elsewhere, made):
    return shutil.copytree(made, "here")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_all_tables_are_written_into_a_folder_of_their_own(folder):
    result = run("export", "here")
    assert result.exit_code == 0, result.output
    names = {"rounds", "clients", "blocks", "updates", "schedules", "reports", "votes", "evidence", "members"}
    assert {path.name for path in Path("results/here-tables").iterdir()} == {f"{name}.csv" for name in names}
    assert "wrote results/here-tables/blocks.csv: 2 rows" in result.stdout
    lines = Path("results/here-tables/rounds.csv").read_text().splitlines()
    assert lines[0].startswith('"round","status"')
    assert len(lines) == 4


def test_parquet_tables_are_the_run_s_own(folder):
    result = run("export", "here", "--format", "parquet", "--table", "rounds", "--out", "tables", "--json")
    assert json.loads(result.stdout) == {"tables/rounds.parquet": 3}
    assert parquet.read_table("tables/rounds.parquet").equals(parquet.read_table("here/rounds.parquet"))
    assert parquet.read_schema("tables/rounds.parquet").metadata[b"scenario"] == b"minimal"


def test_one_table_goes_to_standard_output(folder):
    rows = json.loads(run("export", "here/chain", "--table", "blocks", "--format", "json", "--out", "-").stdout)
    assert [row["height"] for row in rows] == [1, 2]
    assert run("export", "here", "--table", "votes", "--out", "-").stdout.startswith('"height","voter"')


def test_the_list_says_columns_and_types(folder):
    listed = json.loads(run("export", "here", "--list", "--json").stdout)
    assert listed["blocks"]["offenders"].startswith("list<")
    assert listed["rounds"]["delay_s"] == "double"
    assert "votes: height, voter" in run("export", "here", "--list").stdout
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere",), "nowhere: not a folder"),
        (("empty",), "empty: no table and no chain in it"),
        (("here", "--table", "points"), "no table 'points' in it, there are blocks, updates"),
        (("here", "--out", "-"), "standard output takes one --table"),
        (("here", "--out", "-", "--table", "votes", "--format", "parquet"), "as csv or json"),
        (("here", "--out", "here", "--format", "parquet"), "where the tables are read from"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, expected):
    Path("empty").mkdir()
    before = Path("here/rounds.parquet").read_bytes()
    result = run("export", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert Path("here/rounds.parquet").read_bytes() == before
