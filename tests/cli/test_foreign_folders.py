"""A folder that somebody else made runs nothing, writes nowhere else and says nothing to a terminal."""

import json
import re
import shutil
import sqlite3
from contextlib import chdir, closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from bdfl.cli import app
from bdfl.encoding import digest, encode
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.scenario import load_scenario, scenario_digest

pytestmark = pytest.mark.usefixtures("elsewhere", "coarse_pictures")

OWN = """
from pathlib import Path

from bdfl.learning.data import load_data
from bdfl.scenario import DataChoice

Path("canary").touch()


def load():
    digits = load_data(DataChoice())
    return digits.train_inputs, digits.train_labels, digits.test_inputs, digits.test_labels
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds; only to be copied."""
    with chdir(tmp_path_factory.mktemp("finished")):
        assert run("run", "minimal", "--rounds", 2, "--out", "run").exit_code == 0
        return Path("run").absolute()


@pytest.fixture
def here(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "here")


def edit_scenario(folder: Path, before: str, after: str) -> None:
    """Changes the scenario, and makes journal and genesis name what it is now."""
    path = folder / "scenario.toml"
    assert before in path.read_text()
    old = scenario_digest(load_scenario(path))
    path.write_text(path.read_text().replace(before, after, 1))
    new = scenario_digest(load_scenario(path))
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace(old, new))
    change_genesis(folder, scenario=bytes.fromhex(new))


def change_genesis(folder: Path, **changes: object) -> None:
    with ChainStore.open(folder / "chain", read_only=True) as store:
        data = encode(replace(store.genesis, **changes))
    change_rows(folder, "UPDATE genesis SET data = ?, checksum = ?", data, digest(data))


def change_rows(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "chain/chain.sqlite")) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("command", [("report",), ("run", "--resume"), ("chain", "blame")], ids=" ".join)
@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ('source = "digits"', 'source = "own_here:load"', "data.source"),
        ('model = "mlp"', 'model = "own_here:load"', "learning.model"),
        ("[learning]", '[learning]\nflower = "own_here:load"', "learning.flower"),
        ('rule = "mean"', 'rule = "own_here:load"', "learning.aggregation.rule"),
    ],
)
def test_no_command_runs_what_a_folder_names(
    here: Path, command: tuple[str, ...], before: str, after: str, key: str
) -> None:
    Path("own_here.py").write_text(OWN)
    edit_scenario(here, before, after)
    result = run(*command, here)
    expected = f"error: {key}: own_here:load would run here; if you know what it does, --allow own_here:load\n"
    assert (result.exit_code, result.stderr) == (2, expected)
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    "command",
    [("chain", "verify"), ("chain", "show"), ("chain", "audit"), ("export", "--list"), ("explore", "--export", "site")],
    ids=" ".join,
)
def test_commands_that_only_look_run_nothing_either(here: Path, command: tuple[str, ...]) -> None:
    Path("own_here.py").write_text(OWN)
    edit_scenario(here, 'source = "digits"', 'source = "own_here:load"')
    run(*command[:2], here, *command[2:]) if command[0] == "chain" else run(command[0], here, *command[1:])
    assert not Path("canary").exists()


def test_ones_own_functions_run_and_go_on_when_they_are_allowed() -> None:
    Path("own_allowed.py").write_text(OWN)
    assert run("run", "minimal", "--rounds", 2, "--data", "own_allowed:load", "--out", "mine").exit_code == 0
    assert run("report", "mine").exit_code == 2
    assert run("report", "mine", "--allow", "own_allowed:load").exit_code == 0
    assert run("run", "--resume", "mine", "--allow", "own_allowed:load").exit_code == 0
    assert run("chain", "blame", "mine", "--allow", "own_allowed:load").exit_code == 0
    refused = run("run", "minimal", "--allow", "own_allowed:load")
    assert refused.stderr.startswith("error: --allow: says what the folder of --resume may run")


def test_a_sweep_and_a_network_are_asked_the_same(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.toml").write_text(
        'scenario = "minimal"\nmode = "run"\nseeds = 1\n[grid]\n"data.source" = ["own:load"]\n'
    )
    refused = run("sweep", "--resume", sweep)
    assert refused.exit_code == 2
    assert "data.source: own:load would run here" in refused.stderr
    network = tmp_path / "network"
    network.mkdir()
    facts = {"scenario": "x", "chain": "", "num_nodes": 4, "num_access_points": 0, "functions": ["own:load"]}
    (network / "network.json").write_text(json.dumps(facts))
    shutil.copy(Path(__file__).parents[2] / "scenarios/minimal.toml", network / "scenario.toml")
    assert "network.json: own:load would run here" in run("network", "up", "--resume", network).stderr


@pytest.mark.parametrize("name", [".lock", "report.html", ".journal.jsonl.tmp", "figures/delay.svg", "chain/lock"])
def test_a_folder_leads_no_writer_elsewhere(here: Path, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (here / name).unlink(missing_ok=True)
    (here / name).symlink_to(precious)
    for command in (("report",), ("run", "--resume")):
        result = run(*command, here)
        assert result.exit_code == 2
        assert "a link, pipe or device, only folders and regular files expected" in result.stderr
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_chain_that_was_cut_short_is_said_to_be(here: Path, has_rows: bool) -> None:
    for table in ("blocks",) if has_rows else ("blocks", "uses", "blobs"):
        change_rows(here, f"DELETE FROM {table} WHERE height = 2")
    source = "chain.sqlite" if has_rows else "journal.jsonl"
    for path in (here, here / "chain"):
        result = run("chain", "verify", path)
        assert result.exit_code == 1
        assert f"rule height: 1 blocks found, 2 blocks, as {source} says, expected" in result.stderr
    assert run("chain", "audit", here).exit_code == 1
    assert "the chain was cut short: 1 blocks found, 2 expected" in run("report", here).stderr


def test_names_reach_a_terminal_as_text_only(here: Path) -> None:
    change_genesis(here, name="\x1b]0;owned\x07\x1b[2J\x9b[red]x[/red] [/] :smile:")
    shown = run("chain", "show", here).output
    assert "\\x1b]0;owned\\x1b[2J\\x9b[red]x[/red] [/] :smile:" in re.sub(r"\s+", " ", shown)
    document = run("chain", "show", here, "--json").output
    for output in (shown, document):
        assert all(one.isprintable() or one == "\n" for one in output)
    assert "\x9b" in json.loads(document)["name"]
