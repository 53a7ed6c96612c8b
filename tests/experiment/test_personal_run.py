"""Runs with personal layers: only what is shared is on the chain, and an interrupted run ends in the same bytes."""

import shutil
import stat

import numpy as np
import pytest
from safetensors.numpy import load, load_file
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment.run_folder import BadRunFolder, create_run_folder, open_run_folder
from bdfl.experiment.training_run import prepare_run, train_run, verify_run
from bdfl.learning.personal import BadPersonalLayers, PersonalFolder
from bdfl.learning.trainer_pool import open_trainer
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from tests.prepared_processes import use_prepared_processes

ROUNDS = 4
PERSONAL = ('learning.personal=["3"]', "learning.gradient_every=0")


class Killed(BaseException):
    """The end of a run from outside."""


def small(*changes):
    return load_scenario(find_scenario("quickstart"), [f"rounds={ROUNDS}", *PERSONAL, *changes])


def finish(folder, workers=1, on_settled=None):
    federated = prepare_run(folder.scenario)
    with open_trainer(folder.scenario, federated.data, federated.partition, workers=workers) as trainer:
        return train_run(federated, trainer, folder, on_settled=on_settled)


def run(path, *changes, workers=1, on_settled=None):
    with create_run_folder(path, small(*changes)) as folder:
        return finish(folder, workers, on_settled)


def resume(path):
    with open_run_folder(path) as folder:
        return finish(folder)


def kill_after(round):
    def on_settled(_, row):
        if row.round == round:
            raise Killed

    return on_settled


def contents(path):
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Records and folder of a run; only to be looked at."""
    path = tmp_path_factory.mktemp("personal") / "run"
    return run(path), path


def test_models_and_updates_have_the_shared_tensors_alone(whole):
    (record, learning), path = whole
    with ChainStore.open(path / "chain", read_only=True) as chain:
        names = {use.model for block in chain.blocks() for use in (signed.update for signed in block.body.updates)}
        blobs = [chain.get_blob(name) for name in (*names, *(block.body.model for block in chain.blocks()))]
        assert [tensor.name for tensor in chain.genesis.model.tensors] == ["1.weight", "1.bias"]
    assert len(names) == np.count_nonzero(record.delivered)
    assert {frozenset(load(blob)) for blob in blobs} == {frozenset(["1.weight", "1.bias"])}
    assert set(load_file(path / "final.safetensors")) == {"1.weight", "1.bias"}
    assert learning.num_parameters == 64 * 64 + 64


def test_personal_layers_differ_between_clients_and_are_in_no_other_file(whole):
    (record, _), path = whole
    own = {file.parent.name: load_file(file) for file in sorted((path / "personal").rglob("*.safetensors"))}
    assert sorted(own) == sorted(map(str, np.flatnonzero(record.selected.any(axis=0))))
    assert len({values["3.weight"].tobytes() for values in own.values()}) == len(own) > 2
    for values in own.values():
        piece = values["3.weight"].tobytes()[:64]
        assert [name for name, content in contents(path).items() if piece in content and "personal/" not in name] == []
    assert {stat.S_IMODE(file.stat().st_mode) for file in (path / "personal").rglob("*.safetensors")} == {0o600}


def test_there_is_a_file_for_each_training_of_each_client(whole):
    (record, _), path = whole
    files = [file.relative_to(path / "personal") for file in (path / "personal").rglob("*.safetensors")]
    found = {(int(file.name.partition("-")[0]), int(file.parent.name)) for file in files}
    assert found == {(round + 1, client) for round, client in np.argwhere(record.selected)}


def test_the_chain_is_valid_and_the_run_learns(whole):
    (_, learning), path = whole
    with open_run_folder(path) as folder:
        assert verify_run(folder).is_valid
    assert learning.final_accuracy > learning.initial_accuracy + 0.3
    assert np.isfinite(learning.recall).all()


def test_two_workers_give_the_same_bytes_as_one(tmp_path, monkeypatch):
    use_prepared_processes(monkeypatch)
    for workers in (1, 2):
        run(tmp_path / str(workers), "learning.engine=loop", workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.parametrize("round", range(1, ROUNDS))
def test_a_run_that_is_killed_between_rounds_ends_in_the_same_bytes(whole, tmp_path, round):
    with pytest.raises(Killed):
        run(tmp_path / "run", on_settled=kill_after(round))
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole[1])


@pytest.mark.parametrize("num_files", [1, 4, 6])
def test_a_run_that_is_killed_within_a_round_ends_in_the_same_bytes(whole, tmp_path, monkeypatch, num_files):
    """After some clients' personal layers are written, and before the round is complete."""
    keep, kept = PersonalFolder.keep, []

    def keep_some(self, round, results):
        for result in results:
            keep(self, round, [result])
            kept.append(result)
            if len(kept) == num_files:
                raise Killed

    monkeypatch.setattr(PersonalFolder, "keep", keep_some)
    with pytest.raises(Killed):
        run(tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole[1])


@pytest.mark.parametrize("lost", [1, 2])
def test_a_round_whose_line_is_lost_is_trained_again_from_the_same_values(whole, tmp_path, lost):
    """The blocks are there already: learning alone is done again."""
    with pytest.raises(Killed):
        run(tmp_path / "run", on_settled=kill_after(3))
    journal = tmp_path / "run" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-lost]))
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole[1])


def test_rounds_that_the_chain_has_lost_are_trained_again_from_the_same_values(whole, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", on_settled=kill_after(1))
    shutil.copytree(tmp_path / "run" / "chain", tmp_path / "earlier")
    with open_run_folder(tmp_path / "run") as folder, pytest.raises(Killed):
        finish(folder, on_settled=kill_after(3))
    shutil.rmtree(tmp_path / "run" / "chain")
    (tmp_path / "earlier").rename(tmp_path / "run" / "chain")
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole[1])


def test_a_run_that_keeps_few_blocks_keeps_few_files_and_goes_on(tmp_path):
    few = ("rounds=6", "ledger.keep_blocks=1")
    run(tmp_path / "whole", *few)
    with pytest.raises(Killed):
        run(tmp_path / "stopped", *few, on_settled=kill_after(4))
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert max(len(list(folder.iterdir())) for folder in (tmp_path / "whole" / "personal").iterdir()) == 2


def test_a_run_without_its_personal_layers_is_refused(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", on_settled=kill_after(2))
    newest = max((tmp_path / "run" / "personal").rglob("000002-*"))
    content = newest.read_bytes()
    newest.unlink()
    expected = (
        rf"personal layers of client {newest.parent.name}: of round [01] found, of round 2 expected: going on would"
    )
    with pytest.raises(BadRunFolder, match=expected):
        resume(tmp_path / "run")
    newest.write_bytes(content[::-1])
    with pytest.raises(BadPersonalLayers, match="damaged"):
        resume(tmp_path / "run")
    newest.write_bytes(content)
    resume(tmp_path / "run")


def test_training_that_diverges_changes_no_personal_layer(tmp_path):
    _, learning = run(tmp_path / "run", "learning.learning_rate=1e30", "rounds=2")
    assert learning.count_outcomes("diverged") > 0
    assert not (tmp_path / "run" / "personal").exists()


@pytest.mark.parametrize("kind", ["lazy", "sign-flip", "label-flip"])
def test_poisoning_members_keep_their_own_personal_layers(tmp_path, kind):
    poisoned = (f"adversaries.kind={kind}", "adversaries.members=[0, 1, 2]", "rounds=3")
    run(tmp_path / "whole", *poisoned)
    files = sorted((tmp_path / "whole" / "personal").rglob("*.safetensors"))
    assert len({file.read_bytes() for file in files}) == len(files)
    with pytest.raises(Killed):
        run(tmp_path / "stopped", *poisoned, on_settled=kill_after(2))
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_a_run_with_faults_goes_on(tmp_path):
    faults = ("faults.loss=0.1", "faults.delay_s=0.05", "faults.crashes=3", "faults.partitions=1", "rounds=5")
    with pytest.raises(Killed):
        run(tmp_path / "run", *faults, on_settled=kill_after(3))
    record, _ = resume(tmp_path / "run")
    assert record.num_rounds == 5


def test_an_auditor_without_the_personal_layers_is_told_so_in_one_line(whole, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = whole[1]
    blamed = CliRunner().invoke(app, ["chain", "blame", str(path)])
    assert blamed.exit_code == 2
    assert blamed.stderr == (
        f"error: {path}: the layers 3 are personal, without which no loss is known; bdfl chain without works\n"
    )
    for words in (["verify"], ["trace"], ["show"]):
        assert CliRunner().invoke(app, ["chain", *words, str(path)]).exit_code == 0
    client = (
        next(block for block in ChainStore.open(path / "chain", read_only=True).blocks()).body.updates[0].update.client
    )
    out = ["--out", str(path / "without.safetensors")]
    assert CliRunner().invoke(app, ["chain", "without", str(path), str(client), *out]).exit_code == 0
