"""A member of a live network with a Flower client of its own: the bits of the simulation, and nobody else is asked."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdfl.errors import BdflError
from bdfl.experiment.training_run import prepare_run
from bdfl.federation.genesis_file import read_scenario, write_scenario
from bdfl.federation.member_card import samples_seen
from bdfl.learning.flower_trainer import rehearse_clients
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, TrainingFailed
from bdfl.learning.weights import encode_weights
from bdfl.node.settings import NotRunnable, identify, own_learning
from bdfl.scenario import override_scenario
from bdfl.scenario.files import named_functions
from bdfl.transports.live.training_process import DEALT, JudgeOrder, TrainOrder
from bdfl.transports.live.training_worker import FlowerShare
from tests.localnet.small_network import found_single, tiny_scenario

CLIENTS = Path(__file__).parents[1] / "learning" / "flower_clients.py"


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """A function from a client's name to a live scenario with four of them."""
    shutil.copy(CLIENTS, tmp_path / "flower_live_clients.py")
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("flower_live_clients", None)
    return lambda name, *changes: tiny_scenario(4, f"learning.flower=flower_live_clients:{name}", *changes)


def test_a_member_trains_as_in_the_simulation_and_only_its_own_client_is_asked(flower):
    scenario = flower("listening_fn")
    share = FlowerShare(scenario, 2, DEALT)
    model = encode_weights(np.arange(9, dtype=np.float32), share._beginning.form.layout)
    trained, judged = share.train(TrainOrder(1, 3, model)), share.judge(JudgeOrder(2, model))
    heard = sys.modules["flower_live_clients"].heard
    assert {entry[0]["partition-id"] for entry in heard if isinstance(entry, tuple)} == {2}
    assert (share.ready.samples, share.ready.label_counts, share.ready.model_size) == (12, (12,), len(model))
    clients = rehearse_clients(scenario)
    with open_trainer(scenario, clients, clients.partition) as trainer:
        [expected] = trainer.train(np.arange(9, dtype=np.float32), 3, [2])
    assert trained.model == encode_weights(expected.weights, trainer.layout)
    assert (trained.num_samples, trained.loss) == (12, 1.5)
    assert (judged.loss, judged.accuracy) == (2.0, 0.5)


def test_without_a_model_the_untrained_one_is_trained(flower):
    share = FlowerShare(flower("client_fn"), 1, DEALT)
    first = share.train(TrainOrder(1, 1, b"")).model
    assert (
        first
        == share.train(TrainOrder(1, 1, encode_weights(share._beginning.weights, share._beginning.form.layout))).model
    )


def test_a_member_that_says_another_size_later_is_an_error_in_one_line(flower):
    share = FlowerShare(flower("examples_fn"), 1, DEALT)
    with pytest.raises(TrainingFailed, match="client 1 trained on 12 examples, 11 expected"):
        share.train(TrainOrder(1, 2, b""))


def test_a_flower_client_has_its_own_data(flower):
    with pytest.raises(InvalidTraining, match=r"data: mine.npz given, none expected"):
        FlowerShare(flower("client_fn"), 1, "mine.npz")


def test_what_a_calibrated_round_costs_is_the_whole_training(flower):
    assert samples_seen(flower("client_fn"), 123) == 123


def test_a_genesis_that_names_a_client_runs_it_only_where_that_is_allowed(flower):
    scenario = flower("client_fn")
    name = "flower_live_clients:client_fn"
    assert named_functions(scenario)["learning.flower"] == name
    with pytest.raises(BdflError, match=f"learning.flower: {name} would run here; .*--allow {name}"):
        read_scenario(write_scenario(scenario))
    assert read_scenario(write_scenario(scenario), frozenset([name])) == scenario


def test_a_node_may_bring_a_client_of_another_name(flower, tmp_path):
    named = "learning.flower=flower_live_clients:client_fn"
    settings = replace(found_single(tmp_path / "single", named), flower="flower_live_clients:client_fn")
    assert own_learning(identify(settings).scenario, settings.flower).learning.flower == "flower_live_clients:client_fn"
    other = replace(settings, flower="mine:fn", allowed=frozenset(["flower_live_clients:client_fn"]))
    assert own_learning(identify(other).scenario, other.flower).learning.flower == "mine:fn"
    assert identify(other).scenario.learning.flower == "flower_live_clients:client_fn"


def test_a_node_cannot_bring_a_client_where_nobody_agreed_on_one(tmp_path):
    settings = replace(found_single(tmp_path / "single"), flower="mine:fn")
    with pytest.raises(NotRunnable, match="the members agreed on a model without Flower clients"):
        identify(settings)


def test_everybody_has_the_same_rate_since_nobody_knows_the_labels(flower):
    federated = prepare_run(flower("client_fn"))
    assert federated.draws.participation_rate.tolist() == [federated.scenario.participation.mean] * 4
    given = prepare_run(override_scenario(flower("client_fn"), ["participation.rates=[0.1, 0.2, 0.3, 0.4]"]))
    assert given.draws.participation_rate.tolist() == [0.1, 0.2, 0.3, 0.4]
