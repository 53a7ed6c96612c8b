"""The example in Flower's own simulation engine, with clients in processes of Ray."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from bdfl.cli import app
from bdfl.experiment import simulate
from bdfl.explorer.library import open_library
from bdfl.scenario import load_scenario

pytest.importorskip("ray")
parquet = pytest.importorskip("pyarrow.parquet")
from typer.testing import CliRunner  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_server.py"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What the example says, and the folder that it leaves."""
    folder = tmp_path_factory.mktemp("flower") / "run"
    short = tempfile.mkdtemp(prefix="bdfl-ray-", dir="/tmp")  # sockets have short names
    around = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    around |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": short}
    around["RAY_OVERRIDE_RESOURCES"] = '{"CPU": 1, "object_store_memory": 100000000}'  # one process that trains
    try:
        command = [sys.executable, EXAMPLE, folder]
        done = subprocess.run(command, env=around, cwd=folder.parent, capture_output=True, text=True, timeout=900)
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, folder


def test_it_plays_the_rounds_that_a_simulation_plays(played):
    said, folder = played
    scenario = load_scenario(folder / "scenario.toml")
    record = simulate(scenario)
    rounds = parquet.read_table(folder / "rounds.parquet")
    clients = parquet.read_table(folder / "clients.parquet")
    assert rounds["delay_s"].to_pylist() == record.delay_s.tolist()
    for name in ("selected", "delivered", "energy_j", "next_queue"):
        assert clients[name].to_pylist() == getattr(record, name).ravel().tolist()
    lines = [line for line in said.splitlines() if line.startswith("round ")]
    assert [line.split(";")[0] for line in lines] == [
        f"round {number}: clients {', '.join(map(str, np.flatnonzero(row)))}"
        for number, row in zip(record.round, record.selected, strict=True)
    ]
    assert float(lines[-1].split()[-1]) > 0.7


def test_its_chain_is_verified_and_its_folder_explored(played):
    _, folder = played
    found = CliRunner().invoke(app, ["chain", "verify", str(folder)])
    assert found.exit_code == 0, found.output
    with open_library([folder]) as library:
        assert [block.height for block in library.blocks(0).blocks] == list(range(6, 0, -1))
