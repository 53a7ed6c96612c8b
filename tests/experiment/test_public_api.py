"""The functions of `import bdfl`: a run is the one of the command, in a folder or without one."""

import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

import bdfl
from bdfl.experiment.run_folder import BadRunFolder
from bdfl.experiment.training_run import RunOptions, load_run, resume, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "first_run.py"


class Killed(Exception):
    """The end of a run from outside."""


@pytest.fixture(scope="module")
def scenario():
    return bdfl.load_scenario("minimal", ["rounds=3"])


@pytest.fixture(scope="module")
def whole(scenario):
    return bdfl.run(scenario, workers=1)


def contents(folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in (".lock", "lock"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_every_public_name_is_there_and_no_other():
    assert {getattr(bdfl, name).__module__.partition(".")[0] for name in bdfl.__all__ if name != "__version__"} == {
        "bdfl"
    }
    with pytest.raises(AttributeError, match="no attribute 'ran'"):
        bdfl.ran  # noqa: B018


def test_a_run_has_its_records_and_a_verified_chain(whole, scenario):
    assert whole.record.num_rounds == whole.learning.num_rounds == scenario.rounds
    assert whole.verification.is_valid
    assert whole.verification == bdfl.verify_chain(whole.folder) == bdfl.verify_chain(str(whole.folder / "chain"))


def test_a_temporary_folder_lives_as_long_as_the_run(scenario):
    made = bdfl.run(scenario)
    folder = made.folder
    assert (folder / "final.safetensors").is_file()
    del made
    assert not folder.exists()


def test_a_run_in_a_folder_leaves_what_the_command_leaves(scenario, whole, tmp_path, coarse_pictures):
    rounds = []
    made = bdfl.run(
        scenario, str(tmp_path / "here"), on_round=lambda record, row: rounds.append((record.round, row.round))
    )
    assert rounds == [(1, 1), (2, 2), (3, 3)]
    found = contents(tmp_path / "here")
    assert found.items() >= contents(whole.folder).items()
    assert {"report.html", "rounds.parquet", "clients.parquet"} <= found.keys()
    assert made.files[-1] == tmp_path / "here" / "report.html"
    with pytest.raises(BadRunFolder, match="exists already"):
        bdfl.run(scenario, tmp_path / "here")


def test_a_run_that_was_stopped_is_loaded_as_it_is_and_resumed_to_the_same_bytes(scenario, whole, tmp_path):
    def stop(record, row):
        if row.round == 2:
            raise Killed

    with pytest.raises(Killed):
        run(scenario, tmp_path / "here", RunOptions(workers=1, on_settled=stop))
    assert load_run(tmp_path / "here").record.num_rounds == 2
    resumed = resume(tmp_path / "here", options=RunOptions(workers=1))
    assert contents(tmp_path / "here") == contents(whole.folder)
    assert resumed.verification == whole.verification


def test_the_first_script_takes_fifteen_lines_and_stands_on_the_page(tmp_path, monkeypatch, capsys):
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 15
    assert text in (ROOT / "docs" / "reference" / "experiment.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    runpy.run_path(str(EXAMPLE))
    assert "10 blocks, valid: True" in capsys.readouterr().out
    assert (tmp_path / "accuracy.png").is_file()
