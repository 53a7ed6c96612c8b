"""`bdfl simulate` of very many clients: what it says and writes stays short."""

import json

import pytest
from typer.testing import CliRunner

from bdfl.cli import app

pytestmark = pytest.mark.usefixtures("elsewhere")

CROWD = ["simulate", "million", "--rounds", "2", "--set", "clients.count=20001", "--set", "clients.min_selected=20"]


def invoke(*words):
    result = CliRunner().invoke(app, [*CROWD, "--no-gaps", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def test_a_crowd_is_summed_up_by_itself(tmp_path):
    text = invoke().stdout
    assert "20,001 clients" in text
    assert len(text.splitlines()) < 40
    assert not list(tmp_path.iterdir())  # no figure of a million lines


def test_json_of_a_crowd_is_short_and_files_come_with_out(tmp_path):
    out = tmp_path / "crowd"
    document = json.loads(invoke("--json", "--out", out).stdout)
    assert document["summary"]["rounds"] == len(document["rounds"]) == 2
    assert document["num_clients"] == 20_001
    pytest.importorskip("pyarrow")
    assert sorted(path.name for path in out.iterdir()) == [
        "crowd_clients.parquet",
        "crowd_rounds.parquet",
        "scenario.toml",
    ]


def test_few_clients_can_be_summed_up_as_well():
    result = CliRunner().invoke(app, ["simulate", "minimal", "--sums", "--json"])
    assert json.loads(result.stdout)["num_clients"] == 4
