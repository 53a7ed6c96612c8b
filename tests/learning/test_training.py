"""Local training, client after client: the steps of `torch.optim.SGD`, and nothing but them."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bdfl.learning.sgd import draw_batches
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome, TrainingFailed
from bdfl.learning.weights import InvalidWeights

SIZES = (40, 33, 5, 0, 100)
OWN = """
import torch
from torch import nn

class Guarded(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        if self.training:
            raise ValueError("not\\ntoday")
        return self.inner(inputs)

def flat(input_shape):
    return torch.Size(input_shape).numel()

def dropping(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), 8), nn.Dropout(0.5), nn.Linear(8, num_labels))

def normalising(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), 8), nn.BatchNorm1d(8), nn.Linear(8, num_labels))

def refusing(input_shape, num_labels):
    return Guarded(dropping(input_shape, num_labels))

def half_frozen(input_shape, num_labels):
    model = nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), 8), nn.ReLU(), nn.Linear(8, num_labels))
    model[1].requires_grad_(False)
    return model
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_training_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda name: f"learning.model=own_training_models:{name}"


@pytest.fixture
def train(small_data, deal):
    """A function from a scenario and clients to their results in round 1, and the weights they started from."""

    def train_once(scenario, clients=tuple(range(5)), *, round=1, shape=(6,), as_bytes=False):
        data = small_data(shape, as_bytes=as_bytes)
        with open_trainer(scenario, data, deal(data, SIZES)) as trainer:
            weights = trainer.initial_weights()
            return trainer.train(weights, round, list(clients)), weights

    return train_once


def by_hand(scenario, data, samples, weights, layout, client, *, steps, round=1):
    """What a plain loop with `torch.optim.SGD` makes of the same weights and batches."""
    settings = scenario.learning
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter, (_, part) in zip(model.parameters(), layout.split(weights.copy()), strict=True):
            parameter.copy_(torch.from_numpy(part))
    optimiser = torch.optim.SGD(
        model.parameters(), settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
    )
    mean, deviation = data.train_inputs.astype(float).mean(axis=0), data.train_inputs.astype(float).std(axis=0)
    inputs = torch.from_numpy(((data.train_inputs - mean) / deviation).astype(np.float32))
    losses, norms = [], []
    for batch in draw_batches(
        scenario.seed, round, client, samples, unit=settings.unit, steps=steps, batch=settings.batch
    ):
        loss = cross_entropy(model(inputs[batch]), torch.from_numpy(data.train_labels[batch]))
        optimiser.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(math.sqrt(sum(float(item.grad.square().sum()) for item in model.parameters())))
        optimiser.step()
    return torch.cat([item.detach().reshape(-1) for item in model.parameters()]).numpy(), losses, norms


@pytest.mark.parametrize("changes", [[], ["momentum=0.9"], ["weight_decay=0.1"], ["momentum=0.5", "weight_decay=0.01"]])
@pytest.mark.parametrize("unit", ["updates", "epochs"])
@pytest.mark.parametrize("gathered", [0, 2**30])  # entries: gradients apart as for large models, or in one tensor
def test_steps_are_those_of_sgd(settings, small_data, deal, monkeypatch, changes, unit, gathered):
    monkeypatch.setattr("bdfl.learning.torch_model._GATHERED_ENTRIES", gathered)
    scenario = settings(f"learning.unit={unit}", *(f"learning.{change}" for change in changes))
    data = small_data()
    partition = deal(data, SIZES)
    with open_trainer(scenario, data, partition) as trainer:
        weights = trainer.initial_weights()
        for result in trainer.train(weights, 1, [0, 1, 2, 4]):
            samples = partition.indices[result.client]
            expected, losses, norms = by_hand(scenario, data, samples, weights, trainer.layout, result.client, steps=7)
            assert result.outcome is Outcome.TRAINED
            assert result.weights == pytest.approx(expected, abs=2e-6)
            assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)
            assert result.gradient_norm == pytest.approx(max(norms), rel=1e-5)
            assert result.num_steps == len(losses)


def test_the_number_of_steps_is_the_one_charged_unless_another_is_made(settings, train):
    assert train(settings("compute.local_updates=5"))[0][0].num_steps == 5
    assert train(settings("compute.local_updates=5", "learning.local_steps=2"))[0][0].num_steps == 2
    assert train(settings("learning.local_steps=2", "learning.unit=epochs"))[0][1].num_steps == 2 * 3


@pytest.mark.parametrize("changes", [["learning.momentum=0.9"], ["learning.model=own_training_models:dropping"],
                                     ["learning.model=own_training_models:normalising"]])  # fmt: skip
def test_a_clients_training_depends_on_nothing_but_round_and_client(own, settings, train, changes):
    scenario = settings(*changes)
    everybody = train(scenario)[0]
    torch.manual_seed(99)
    backwards = train(scenario, [4, 2, 1])[0]
    for result in backwards:
        assert result.weights.tobytes() == everybody[result.client].weights.tobytes()
        assert result.loss == everybody[result.client].loss
    assert train(scenario, [4], round=2)[0][0].weights.tobytes() != everybody[4].weights.tobytes()


def test_results_come_in_the_order_asked_for(settings, train):
    assert [result.client for result in train(settings(), [4, 0, 3])[0]] == [4, 0, 3]


def test_training_leaves_torch_and_the_given_weights_as_they_were(settings, small_data, deal):
    data = small_data()
    torch.manual_seed(7)
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.get_rng_state().tolist()
    with open_trainer(settings("learning.threads=2"), data, deal(data, SIZES)) as trainer:
        weights = trainer.initial_weights()
        copy = weights.copy()
        trainer.train(weights, 1, [0])
        trainer.evaluate(weights)
        assert (torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.get_rng_state().tolist()) == before
    assert weights.tobytes() == copy.tobytes()
    assert trainer.initial_weights().tobytes() == copy.tobytes()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_client_without_samples_says_so(settings, train, engine):
    result = train(settings(f"learning.engine={engine}"), [3])[0][0]
    assert (result.outcome, result.weights, result.num_steps) == (Outcome.NO_SAMPLES, None, 0)
    assert math.isnan(result.loss)
    assert math.isnan(result.gradient_norm)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("change", ["learning_rate=1e6", "learning_rate=1e38"])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_training_that_diverges_gives_no_model_and_no_warning(settings, train, engine, change, momentum):
    scenario = settings(
        f"learning.engine={engine}", f"learning.{change}", f"learning.momentum={momentum}", "learning.weight_decay=1e-3"
    )
    results, _ = train(scenario, [0, 3, 1])
    assert [result.outcome for result in results] == [Outcome.DIVERGED, Outcome.NO_SAMPLES, Outcome.DIVERGED]
    for result in results:
        assert result.weights is None
        assert math.isnan(result.loss)
        assert result.num_steps <= 7


@pytest.mark.parametrize("key", ["learning_rate", "weight_decay"])
def test_numbers_beyond_single_precision_are_refused(settings, train, key):
    with pytest.raises(InvalidTraining, match=f"^learning.{key}: 1e[+]300 given, expected at most 3.40282e[+]38$"):
        train(settings(f"learning.{key}=1e300"))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_client_with_one_label_trains(settings, small_data, deal, engine):
    data = small_data()
    only = np.flatnonzero(data.train_labels == 2)
    partition = deal(data, [10])
    partition = type(partition)((only,), np.array([[0, 0, len(only), 0]]))
    with open_trainer(settings(f"learning.engine={engine}"), data, partition) as trainer:
        result = trainer.train(trainer.initial_weights(), 1, [0])[0]
        assert result.outcome is Outcome.TRAINED
        assert trainer.evaluate(result.weights).recall[2] > 0.9


def test_running_means_are_part_of_the_weights(own, settings, train):
    results, weights = train(settings(own("normalising")), [0, 1])
    assert len(weights) == (6 * 8 + 8) + 4 * 8 + (8 * 4 + 4)
    moved = results[0].weights != weights
    assert moved[(6 * 8 + 8) + 2 * 8 :][: 2 * 8].all()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_what_is_frozen_stays_and_the_rest_moves(own, settings, train, engine):
    results, weights = train(settings(own("half_frozen"), f"learning.engine={engine}"), [0])
    assert (results[0].weights[: 6 * 8 + 8] == weights[: 6 * 8 + 8]).all()
    assert (results[0].weights[6 * 8 + 8 :] != weights[6 * 8 + 8 :]).any()


def test_what_an_own_model_raises_becomes_one_line(own, settings, train):
    with pytest.raises(
        TrainingFailed, match=r"own_training_models:refusing' cannot be trained: ValueError: not today$"
    ):
        train(settings(own("refusing")), [0])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("clients", "message"),
    [([5], "client 5: not there, expected 0 to 4"), ([-1], "client -1: not there"), ([1, 1], "expected each at most")],
)
def test_clients_that_do_not_exist_are_refused(settings, train, engine, clients, message):
    with pytest.raises(InvalidTraining, match=message):
        train(settings(f"learning.engine={engine}"), clients)


def test_weights_of_another_model_are_refused(settings, small_data, deal):
    data = small_data()
    with open_trainer(settings(), data, deal(data, SIZES)) as trainer:
        for call in (trainer.evaluate, trainer.full_gradient, lambda weights: trainer.train(weights, 1, [0])):
            with pytest.raises(InvalidWeights, match=r"expected float32 of shape \(92,\)"):
                call(np.zeros(3, np.float32))


def test_images_train_a_network_of_convolutions(settings, small_data, deal):
    data = small_data((20, 19, 3), as_bytes=True, num_train=120, num_test=60)
    scenario = settings("learning.model=paper-cnn", "learning.learning_rate=0.05", "learning.local_steps=6")
    with open_trainer(scenario, data, deal(data, [120])) as trainer:
        weights = trainer.initial_weights()
        before = trainer.evaluate(weights)
        result = trainer.train(weights, 1, [0])[0]
        after = trainer.evaluate(result.weights)
    assert result.outcome is Outcome.TRAINED
    assert after.loss < before.loss
