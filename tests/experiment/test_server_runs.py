"""Runs with a server-side optimizer: they learn, give the same bytes, and go on after a stop with their moments."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bdfl.experiment.run_folder import open_run_folder, verify_chain
from bdfl.experiment.training_run import verify_run
from bdfl.federation.genesis_draft import draft_federation
from bdfl.learning.data import load_data
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.verify import ModelCheck
from bdfl.scenario import ScenarioError
from tests.experiment.test_training_run import Killed, contents, resume, run, small
from tests.prepared_processes import use_prepared_processes

OPTIMIZERS = {"momentum": "learning.aggregation.server_rate=0.5", "adam": "learning.aggregation.server_rate=0.05"}


def with_server(name, *changes):
    return small(f"learning.aggregation.server={name}", OPTIMIZERS[name], *changes)


def verify(path):
    with open_run_folder(path) as folder:
        found = verify_run(folder)
    assert found.is_valid, found.failure
    return found


@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loss_falls(tmp_path, name, rule):
    _, learning = run(with_server(name, "rounds=8", f'learning.aggregation.rule="{rule}"'), tmp_path / "run")
    assert np.mean(learning.loss[-3:]) < 0.5 * learning.initial_loss
    assert np.mean(learning.accuracy[-3:]) > 0.7
    assert verify(tmp_path / "run").count_models(ModelCheck.RECOMPUTED) == 8


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bytes_twice_with_two_workers_and_after_a_stop(tmp_path, monkeypatch, name):
    scenario = with_server(name, "learning.engine=loop", "learning.gradient_every=2")
    run(scenario, tmp_path / "whole")
    run(scenario, tmp_path / "second")
    with pytest.raises(Killed):
        run(scenario, tmp_path / "stopped", stop_after=2)
    resume(tmp_path / "stopped")
    use_prepared_processes(monkeypatch)
    run(scenario, tmp_path / "together", workers=2)
    for other in ("second", "stopped", "together"):
        assert contents(tmp_path / other) == contents(tmp_path / "whole"), other


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_forgets_old_updates_verifies_and_goes_on(tmp_path, name):
    scenario = with_server(name, "rounds=6", "ledger.keep_blocks=1", "learning.gradient_every=0")
    run(scenario, tmp_path / "whole")
    with pytest.raises(Killed):
        run(scenario, tmp_path / "stopped", stop_after=4)
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert verify(tmp_path / "whole").count_models(ModelCheck.PRUNED) == 5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_files_of_a_run_hold_weights_alone_and_the_chain_moments_too(tmp_path, name):
    run(with_server(name), tmp_path / "run")
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        size = chain.genesis.model.size
        model = chain.get_blob(chain.block(chain.height).body.model)
        assert len(model) == blob_limit(chain.genesis) > size
        names = {tensor.name for tensor in chain.genesis.model.tensors}
    assert (tmp_path / "run" / "final.safetensors").read_bytes() == model[:size]
    for file in ("final.safetensors", "best.safetensors"):
        assert load_file(tmp_path / "run" / file).keys() == names


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_faults_and_liars_leave_a_chain_that_verifies(tmp_path, name):
    trouble = ("faults.loss=0.1", "faults.crashes=2", 'adversaries.kind="wrong-model"', "adversaries.members=[1]")
    size = ("clients.count=4", "clients.min_selected=3", 'ledger.quorum="bft"')
    run(with_server(name, *trouble, *size), tmp_path / "run")
    assert verify(tmp_path / "run").height == 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_that_overflows_stays_finite_and_the_run_goes_on(tmp_path, name):
    run(
        with_server(name, 'adversaries.kind="scaling"', "adversaries.members=[0]", "adversaries.strength=1e38"),
        tmp_path / "run",
    )
    assert verify(tmp_path / "run").height == 4
    for values in load_file(tmp_path / "run" / "final.safetensors").values():
        assert np.isfinite(values).all()


def normalising(shape, num_labels):
    width = int(np.prod(shape))
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(width, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, num_labels)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_running_variance_that_a_step_could_make_negative_is_refused_in_one_line(tmp_path, name):
    changes = (f"learning.model={__name__}:normalising", "learning.engine=loop", "learning.gradient_every=0")
    scenario = with_server(name, *changes)
    reason = f'^learning.aggregation.server: "{name}" given, allowed is none where 2.running_var is shared, which'
    with pytest.raises(ScenarioError, match=reason):
        run(scenario, tmp_path / "shared")
    with pytest.raises(ScenarioError, match=reason):
        draft_federation(scenario, load_data(scenario.data))
    run(with_server(name, *changes, 'learning.personal=["2"]'), tmp_path / "personal")
    assert verify_chain(tmp_path / "personal").is_valid
