"""Runs that learn: the same bytes however they were made, and a typed outcome for whatever goes wrong."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bdfl.errors import BdflError
from bdfl.experiment.network_run import NetworkStuck
from bdfl.experiment.run_folder import BadRunFolder, create_run_folder, open_run_folder
from bdfl.experiment.simulation import play
from bdfl.experiment.training_run import default_workers, prepare_run, replay_run, train_run, verify_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.ledger.costs import NANO
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.verify import ModelCheck
from bdfl.records.parquet import write_parquet
from bdfl.scenario import dump_scenario, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import get_scheduler
from tests.prepared_processes import prepared_context, use_prepared_processes

LOCK = ".lock"


class Killed(Exception):
    """The end of a run from outside."""


def small(*changes):
    return load_scenario(find_scenario("quickstart"), ["rounds=4", *changes])


def run(scenario, path, *, workers=1, stop_after=None):
    """The records of a whole run in a new folder, or `Killed` once so many rounds are done."""
    with create_run_folder(path, scenario) as folder:
        return finish(folder, workers=workers, stop_after=stop_after)


def resume(path, *, workers=1, stop_after=None):
    with open_run_folder(path) as folder:
        return finish(folder, workers=workers, stop_after=stop_after)


def finish(folder, *, workers, stop_after=None):
    federated = prepare_run(folder.scenario)

    def on_settled(record, row):
        if row.round == stop_after:
            raise Killed

    with open_trainer(folder.scenario, federated.data, federated.partition, workers=workers) as trainer:
        records = train_run(federated, trainer, folder, on_settled=on_settled)
    write_parquet(*records, folder.path)
    return records


def contents(path):
    """Every file of a run folder, by its name."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != LOCK)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that plays a scenario once for all tests: records and folder, only to be looked at."""
    played = {}

    def play_once(scenario):
        text = dump_scenario(scenario)
        if text not in played:
            path = tmp_path_factory.mktemp("whole") / "run"
            played[text] = run(scenario, path), path
        return played[text]

    return play_once


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped after its second round; only to be looked at."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Killed):
        run(small(), path, stop_after=2)
    return path


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_same_scenario_and_seed_give_the_same_bytes(whole, tmp_path, engine):
    scenario = small(f"learning.engine={engine}")
    _, first = whole(scenario)
    run(scenario, tmp_path / "second")
    assert contents(first) == contents(tmp_path / "second")
    assert {"final.safetensors", "best.safetensors", "rounds.parquet", "clients.parquet"} <= contents(first).keys()


def test_two_workers_give_the_same_bytes_as_one(whole, tmp_path, monkeypatch):
    use_prepared_processes(monkeypatch)
    scenario = small("learning.engine=loop")
    _, alone = whole(scenario)
    run(scenario, tmp_path / "together", workers=2)
    assert contents(tmp_path / "together") == contents(alone)


def test_another_seed_gives_another_model(tmp_path):
    for seed in (0, 1):
        run(small("rounds=1", f"seed={seed}"), tmp_path / str(seed))
    first, second = (load_file(tmp_path / str(seed) / "final.safetensors") for seed in (0, 1))
    assert any(not np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_run_that_was_stopped_ends_in_the_same_bytes(whole, tmp_path, stop_after, every):
    scenario = small("rounds=5", f"learning.gradient_every={every}", f"learning.evaluate_every={every}")
    _, path = whole(scenario)
    with pytest.raises(Killed):
        run(scenario, tmp_path / "stopped", stop_after=stop_after)
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(path)


@pytest.mark.parametrize("stop_after", [2, 4])
def test_a_run_whose_clients_come_and_go_ends_in_the_same_bytes(whole, tmp_path, stop_after):
    chances = ("availability.leave_probability=0.3", "availability.return_probability=0.5")
    scenario = small("rounds=6", "clients.min_selected=2", *chances)
    _, path = whole(scenario)
    with pytest.raises(Killed):
        run(scenario, tmp_path / "stopped", stop_after=stop_after)
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(path)


def test_a_round_whose_line_is_cut_is_trained_again(whole, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "cut")
    journal = tmp_path / "cut" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    resume(tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(whole(small())[1])


@pytest.mark.parametrize("personal", ["[]", '["3"]'])
def test_a_process_that_is_killed_loses_at_most_the_round_under_way(tmp_path, personal):
    lasting = ("rounds=7", "learning.local_steps=200", "learning.engine=loop", "learning.gradient_every=0")
    scenario = small(*lasting, f"learning.personal={personal}")
    journal = tmp_path / "killed" / "journal.jsonl"
    process = prepared_context().Process(target=run, args=(scenario, tmp_path / "killed"))
    process.start()
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.is_alive():
        if journal.exists() and journal.read_bytes().count(b"\n") >= 3:  # the header and two rounds
            break
        time.sleep(0.01)
    process.kill()
    process.join()
    process.close()
    num_done = journal.read_bytes().count(b"\n") - 1
    assert 2 <= num_done < 7
    resume(tmp_path / "killed")
    run(scenario, tmp_path / "whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_folder_that_exists_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadRunFolder, match="exists already"), create_run_folder(tmp_path, small()):
        pass


def test_a_run_is_gone_on_with_by_one_process_at_a_time(tmp_path):
    with (
        create_run_folder(tmp_path / "run", small()),
        pytest.raises(BadRunFolder, match="another process"),
        open_run_folder(tmp_path / "run"),
    ):
        pass


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: _damage(_model_path(path, 2)), "block 2: the global model, .* another digest"),
        (lambda path: _model_path(path, 2).unlink(), "block 2: the global model, .* missing"),
        (lambda path: _damage(path / "chain" / "chain.sqlite"), "chain.sqlite"),
        (lambda path: _swap_rounds(path / "journal.jsonl"), "round 1 of the journal is not that of block 1"),
        (lambda path: (path / "scenario.toml").unlink(), "the folder of a run expected"),
        (lambda path: _replace(path / "journal.jsonl", b'"round":1', b'"round":7'), "round 1 expected"),
        (lambda path: _replace(path / "journal.jsonl", b'"selected":[', b'"selected":["x",'), "line 2 is damaged"),
        (lambda path: _replace(path / "scenario.toml", b"batch = 32", b"batch = 31"), "begun with scenario digest"),
        (lambda path: _replace(path / "journal.jsonl", b'"format":3', b'"format":9'), "format 9"),
    ],
)
def test_what_does_not_belong_to_the_run_is_refused(stopped, tmp_path, damage, expected):
    shutil.copytree(stopped, tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(BdflError, match=expected):
        resume(tmp_path / "run")


def _model_path(path: Path, round: int) -> Path:
    with ChainStore.open(path / "chain", read_only=True) as chain:
        name = chain.block(round).body.model.hex()
    return path / "chain" / "blobs" / name[:2] / name


def _damage(path: Path) -> None:
    """As many other bytes."""
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def _swap_rounds(path: Path) -> None:
    """The first two rounds change their places, but for their numbers."""
    header, first, second = path.read_bytes().splitlines(keepends=True)
    swapped = [second.replace(b'"round":2', b'"round":1'), first.replace(b'"round":1', b'"round":2')]
    path.write_bytes(b"".join([header, *swapped]))


def _replace(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def test_training_that_diverges_never_becomes_a_model_and_its_clients_are_owed_the_rounds(tmp_path):
    record, learning = run(small("learning.learning_rate=1e30"), tmp_path / "run")
    assert learning.count_outcomes("diverged") == np.count_nonzero(record.selected)
    assert not record.delivered.any()
    assert (learning.update_norm == 0).all()
    assert record.next_queue[-1] == pytest.approx(4 * record.participation_rate)
    for name in ("final.safetensors", "best.safetensors"):
        assert all(np.isfinite(values).all() for values in load_file(tmp_path / "run" / name).values())


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_learning_rate_of_a_million_saves_no_model_that_is_not_finite(tmp_path, engine):
    _, learning = run(small("learning.learning_rate=1e6", f"learning.engine={engine}"), tmp_path / "run")
    assert learning.count_outcomes("diverged") + learning.count_outcomes("trained") > 0
    for path in (tmp_path / "run").glob("*.safetensors"):
        assert all(np.isfinite(values).all() for values in load_file(path).values())
    assert learning.best_round is None or np.isfinite(learning.loss[learning.best_round - 1])


def test_clients_without_data_and_with_one_label_take_part(tmp_path):
    scenario = small(
        "partition.sizes=natural", "partition.dirichlet=0.01", "clients.count=40", "clients.min_selected=20"
    )
    record, learning = run(scenario, tmp_path / "run")
    assert (learning.samples == 0).any()
    assert (np.count_nonzero(learning.label_counts, axis=1) == 1).any()
    assert learning.count_outcomes("no-samples") > 0
    assert learning.count_outcomes("diverged") == 0
    assert np.array_equal(record.delivered, record.selected)
    assert np.isfinite(learning.accuracy).all()


def test_rounds_that_cannot_take_place_leave_the_model_as_it_is(tmp_path):
    record, learning = run(small("energy.budget_j=1e-9"), tmp_path / "run")
    assert record.num_infeasible == 4
    assert (learning.update_norm == 0).all()
    assert (learning.accuracy == learning.initial_accuracy).all()


def test_the_quick_start_learns(tmp_path):
    scenario = load_scenario(find_scenario("quickstart"))
    record, learning = run(scenario, tmp_path / "run")
    assert scenario.rounds == record.num_rounds == 30
    assert learning.final_accuracy > 0.93
    assert record.worst_shortfall < 0.1


def test_a_replay_gives_the_records_without_training(whole, tmp_path):
    (record, learning), path = whole(small())
    shutil.copytree(path, tmp_path / "run")
    with open_run_folder(tmp_path / "run") as folder:
        again = replay_run(prepare_run(folder.scenario), folder)
    assert again is not None
    assert np.array_equal(again[0].next_queue, record.next_queue)
    assert np.array_equal(again[1].accuracy, learning.accuracy)


def test_a_run_leaves_a_chain_that_anybody_can_verify(whole, tmp_path):
    (record, _), path = whole(small())
    shutil.copytree(path, tmp_path / "run")
    with open_run_folder(tmp_path / "run") as folder:
        verification = verify_run(folder)
    assert verification.is_valid, verification.failure
    assert verification.height == verification.count_models(ModelCheck.RECOMPUTED) == 4
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        blocks = list(chain.blocks())
        assert chain.get_blob(blocks[-1].body.model) == (tmp_path / "run" / "final.safetensors").read_bytes()
    for place, block in enumerate(blocks):
        schedule = block.body.schedule
        assert np.flatnonzero(record.selected[place]).tolist() == list(schedule.selected)
        assert record.mining_hz[place].tolist() == list(schedule.mining_hz)
        assert record.next_queue[place] == pytest.approx(np.array(block.body.queue_nano) / 1e9)
        assert record.delay_s[place] * 1e9 == pytest.approx(block.body.modelled.delay_ns, abs=1)
        assert record.energy_j[place] * 1e12 == pytest.approx(block.body.modelled.energy_pj, abs=1)


@pytest.mark.parametrize("mode", ["quantile", "sampled"])
@pytest.mark.parametrize("scheduler", ["drc", "exact"])
def test_a_run_is_scheduled_as_without_a_network(tmp_path, scheduler, mode):
    """The chain counts in whole units, which moves times by less than a millionth."""
    scenario = small("rounds=6", f"scheduler.name={scheduler}", f"mining.mode={mode}")
    record, _ = run(scenario, tmp_path / "run")
    federated = prepare_run(scenario)
    plain = play(scenario, get_scheduler(scheduler), federated.draws)
    assert np.array_equal(record.selected, plain.selected)
    assert np.array_equal(record.winner, plain.winner)
    assert record.delay_s == pytest.approx(plain.delay_s, rel=1e-6)
    assert record.next_queue == pytest.approx(plain.next_queue, abs=1e-7)
    assert record.status == plain.status


def test_a_chain_that_was_lost_is_made_again(whole, tmp_path):
    scenario = small()
    with pytest.raises(Killed):
        run(scenario, tmp_path / "run", stop_after=1)
    shutil.copytree(tmp_path / "run" / "chain", tmp_path / "earlier")
    with pytest.raises(Killed):
        resume(tmp_path / "run", stop_after=3)
    shutil.rmtree(tmp_path / "run" / "chain")
    (tmp_path / "earlier").rename(tmp_path / "run" / "chain")
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole(scenario)[1])


def test_a_run_that_forgets_old_updates_verifies_and_goes_on(tmp_path):
    scenario = small("rounds=6", "ledger.keep_blocks=2")
    run(scenario, tmp_path / "whole")
    with pytest.raises(Killed):
        run(scenario, tmp_path / "stopped", stop_after=4)
    resume(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    with open_run_folder(tmp_path / "whole") as folder:
        verification = verify_run(folder)
    assert verification.is_valid, verification.failure
    assert verification.count_models(ModelCheck.PRUNED) == 4
    assert verification.count_models(ModelCheck.RECOMPUTED) == 2


FAULTS = ("faults.loss=0.1", "faults.delay_s=0.05", "faults.crashes=3", "faults.partitions=1", "faults.freezes=1")


def test_a_run_with_faults_goes_on_and_its_chain_is_valid(tmp_path):
    scenario = small("rounds=6", *FAULTS)
    with pytest.raises(Killed):
        run(scenario, tmp_path / "run", stop_after=3)
    record, _ = resume(tmp_path / "run")
    assert record.num_rounds == 6
    with open_run_folder(tmp_path / "run") as folder:
        assert verify_run(folder).is_valid


def test_a_run_whose_members_cannot_agree_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("bdfl.experiment.network_run._PATIENCE_NS", 60 * NANO)  # not an hour of resending in vain
    scenario = small("rounds=1", "adversaries.kind=silent", "adversaries.members=[0, 1, 2, 3]")
    with pytest.raises(NetworkStuck, match="round 1: no block"):
        run(scenario, tmp_path / "run")


def test_small_models_train_in_one_process():
    assert default_workers(small("learning.engine=loop")) == 1
    assert default_workers(small()) == 1
