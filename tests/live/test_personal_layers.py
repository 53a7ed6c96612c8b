"""A live member keeps its personal layers in its folder: those of a simulated run, whatever restarts in between."""

import shutil

import numpy as np
import pytest

from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.personal import BadPersonalLayers
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import TrainingFailed
from bdfl.learning.weights import encode_weights
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import create_network, run_network
from bdfl.localnet.processes import node_folder, read_network
from bdfl.localnet.verdict import summarise_network, verify_network
from bdfl.scenario import dump_scenario, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.transports.live.share_trainer import ShareTrainer
from bdfl.transports.live.training_process import DEALT, JudgeOrder, Setup, TrainingProcess, TrainOrder
from bdfl.transports.live.training_worker import open_share
from tests.localnet.small_network import tiny_scenario, wait_for

CHANGES = ("rounds=3", "learning.engine=loop", "learning.gradient_every=0", 'learning.personal=["3"]')
SCENARIO = load_scenario(find_scenario("quickstart"), CHANGES)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The folder of a simulated run; its orders by round: model, and what each client sent."""
    path = tmp_path_factory.mktemp("simulated") / "run"
    federated = prepare_run(SCENARIO)
    with (
        open_trainer(SCENARIO, federated.data, federated.partition) as trainer,
        create_run_folder(path, SCENARIO) as folder,
    ):
        train_run(federated, trainer, folder)
        model = encode_weights(trainer.initial_weights(), trainer.layout)
    orders = []
    with ChainStore.open(path / "chain", read_only=True) as chain:
        for block in chain.blocks():
            sent = {signed.update.client: chain.get_blob(signed.update.model) for signed in block.body.updates}
            orders.append((model, sent))
            model = chain.get_blob(block.body.model)
    return path / "personal", orders


@pytest.fixture(scope="module")
def client(simulated):
    """One that trains in at least two rounds, the last of them included."""
    return next(client for client in simulated[1][-1][1] if sum(client in sent for _, sent in simulated[1]) > 1)


def names(folder, client):
    return sorted(path.name for path in (folder / str(client)).iterdir())


def test_a_member_that_is_restarted_before_every_training_has_the_bytes_of_the_simulation(simulated, tmp_path):
    folder, orders = simulated
    for round, (model, sent) in enumerate(orders, start=1):
        for client, expected in sent.items():
            for _ in range(2):  # as after a crash before the update was sent
                member = ShareTrainer(SCENARIO, client, DEALT, personal=str(tmp_path))
                assert member.train(TrainOrder(round, round, model)).model == expected
            assert names(tmp_path, client) == [name for name in names(folder, client) if int(name[:6]) <= round][-2:]


def test_a_trial_neither_uses_nor_changes_personal_layers(simulated, client, tmp_path):
    folder, orders = simulated
    shutil.copytree(folder, tmp_path / "own")
    member = ShareTrainer(SCENARIO, client, DEALT, personal=str(tmp_path / "own"))
    untouched = ShareTrainer(SCENARIO, client, DEALT)
    assert member.train(TrainOrder(1, 9, b"")).model == untouched.train(TrainOrder(1, 9, b"")).model
    assert names(tmp_path / "own", client) == names(folder, client)
    model = orders[-1][0]
    assert member.train(TrainOrder(2, 9, model)).model != untouched.train(TrainOrder(2, 9, model)).model


def test_a_member_judges_with_its_latest_layers_on_the_labels_it_holds(simulated, client):
    folder, orders = simulated
    own, untrained = (ShareTrainer(SCENARIO, client, DEALT, personal=path) for path in (str(folder), ""))
    order = JudgeOrder(1, orders[-1][0])
    assert own.judge(order).loss < untrained.judge(order).loss
    federated = prepare_run(SCENARIO)
    num_judged = np.isin(federated.data.test_labels, np.flatnonzero(federated.partition.label_counts[client])).sum()
    assert own.judge(order).accuracy * num_judged == pytest.approx(round(own.judge(order).accuracy * num_judged))


def test_a_damaged_file_is_told_when_the_member_begins_and_nothing_is_written_over(simulated, client, tmp_path):
    shutil.copytree(simulated[0], tmp_path / "own")
    newest = max((tmp_path / "own" / str(client)).iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    setup = Setup(dump_scenario(SCENARIO), client, DEALT, personal=str(tmp_path / "own"))
    with pytest.raises(BadPersonalLayers, match=r"damaged, the bytes of its name expected; without the file"):
        open_share(setup)
    with TrainingProcess(SCENARIO, client, personal=tmp_path / "own") as process:
        with pytest.raises(TrainingFailed, match=r"damaged, the bytes of its name expected"):
            process.wait_ready(240)
        assert process.failure is not None
    assert newest.stat().st_size == 100


def test_members_of_a_network_keep_their_layers_to_themselves(tmp_path):
    folder = tmp_path / "network"
    create_network(folder, tiny_scenario(3, "rounds=3", 'learning.personal=["3"]'), 0, None)
    with run_network(folder, evaluates=False) as network:
        wait_for(
            lambda: all(view.snapshot is not None and view.snapshot.is_done for view in network.look().nodes),
            "the last block everywhere",
        )
    verdict = verify_network(folder)
    assert verdict.is_good
    assert summarise_network(folder, verdict, 1.0).accuracy is None
    chain = read_network(folder).chain[:16]
    for node in range(3):
        own = node_folder(folder, node)
        kept = list(own.glob(f"personal/{chain}/*/*.safetensors"))
        assert {path.parent.name for path in kept} <= {str(node)}
        pieces = [path.read_bytes()[-200:] for path in kept]
        others = [path for path in folder.rglob("*") if path.is_file() and "personal" not in path.parts]
        assert [path for path in others for piece in pieces if piece in path.read_bytes()] == []
    assert len(list(folder.glob(f"node-*/personal/{chain}/*/*.safetensors"))) >= 2
