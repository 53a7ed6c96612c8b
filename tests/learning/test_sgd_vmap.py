"""All clients in one call: the loop's results up to rounding."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.learning import sgd
from bdfl.learning.sgd import plan_batches
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome

SIZES = (40, 33, 5, 0, 100, 17)
OWN = """
import torch
from torch import nn

def flat(input_shape):
    return torch.Size(input_shape).numel()

def dropping(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), num_labels), nn.Dropout(0.5))

def normalising(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), 8), nn.BatchNorm1d(8), nn.Linear(8, num_labels))

class Counting(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.seen += 1
        return self.inner(inputs)

class Peeking(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs if float(inputs.sum()) > 0 else -inputs)

def counting(input_shape, num_labels):
    return Counting(nn.Linear(flat(input_shape), num_labels))

def peeking(input_shape, num_labels):
    return Peeking(nn.Linear(flat(input_shape), num_labels))

class Tied(nn.Module):
    def __init__(self, size, num_labels):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, num_labels)
        self.second.weight = self.first.weight
        self.still = nn.Parameter(torch.ones(size), requires_grad=False)

    def forward(self, inputs):
        return self.last(torch.relu(self.second(torch.relu(self.first(inputs)))) * self.still)

def tied(input_shape, num_labels):
    return Tied(flat(input_shape), num_labels)

def convolving(input_shape, num_labels):
    return nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.LazyLinear(num_labels))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_vectorised_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda name: f"learning.model=own_vectorised_models:{name}"


@pytest.fixture
def both(settings, small_data, deal):
    """A function that trains two rounds with either engine and gives their results side by side."""

    def train(*changes, shape=(6,), as_bytes=False, clients=(4, 0, 3, 1, 2, 5), sizes=SIZES):
        data = small_data(shape, as_bytes=as_bytes)
        found = []
        for engine in ("loop", "vmap"):
            scenario = settings(f"learning.engine={engine}", *changes)
            with open_trainer(scenario, data, deal(data, sizes), workers=2 if engine == "vmap" else 1) as trainer:
                first = trainer.initial_weights()
                results = trainer.train(first, 1, clients)
                found.append(results + trainer.train(first * np.float32(0.5), 2, clients[:3]))
        return zip(*found, strict=True)

    return train


def assert_alike(pairs):
    for one, other in pairs:
        assert (one.client, one.outcome, one.num_steps) == (other.client, other.outcome, other.num_steps)
        if one.outcome is Outcome.TRAINED:
            assert other.weights == pytest.approx(one.weights, abs=1e-5)
            assert other.loss == pytest.approx(one.loss, rel=1e-4)
            assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)


@pytest.mark.parametrize("changes", [[], ["momentum=0.9"], ["weight_decay=0.1"], ["momentum=0.5", "weight_decay=0.01"]])
@pytest.mark.parametrize("unit", ["updates", "epochs"])
def test_both_engines_agree(both, changes, unit):
    steps = "learning.local_steps=3" if unit == "epochs" else "learning.local_steps=9"
    assert_alike(both(f"learning.unit={unit}", steps, *(f"learning.{change}" for change in changes)))


def test_both_engines_agree_on_models_with_tied_and_frozen_weights(own, both):
    assert_alike(both(own("tied"), "learning.momentum=0.5"))


def test_both_engines_agree_on_images(own, both):
    assert_alike(both(own("convolving"), shape=(7, 6, 2), as_bytes=True))
    assert_alike(both("learning.model=mlp", shape=(7, 6, 2), as_bytes=True))


def test_many_clients_come_in_several_calls(both, monkeypatch):
    monkeypatch.setattr(sgd, "_MAX_ROWS", 3)
    monkeypatch.setattr(sgd, "_VMAP_BYTES", 2000)
    assert_alike(both("learning.unit=epochs", "learning.local_steps=2"))


def test_large_models_come_in_smaller_calls(both, monkeypatch):
    monkeypatch.setattr(sgd, "_MAX_ENTRIES", 10)
    assert_alike(both())


def test_a_diverging_client_does_not_touch_the_others(settings, small_data, deal):
    data = small_data()
    data.train_inputs[40:73] *= np.float32(1e30)  # client 1
    found = []
    for engine in ("loop", "vmap"):
        scenario = settings(f"learning.engine={engine}", "data.normalise=none", "learning.learning_rate=1e-5")
        with open_trainer(scenario, data, deal(data, SIZES)) as trainer:
            found.append(trainer.train(trainer.initial_weights(), 1, range(6)))
    assert [result.outcome for result in found[1]][:2] == [Outcome.TRAINED, Outcome.DIVERGED]
    assert_alike(zip(*found, strict=True))


def test_the_same_call_gives_the_same_bits(settings, small_data, deal):
    data = small_data()
    found = []
    for _ in range(2):
        with open_trainer(settings("learning.engine=vmap"), data, deal(data, SIZES)) as trainer:
            first = trainer.initial_weights()
            found += [trainer.train(first, 1, [4, 0, 1]), trainer.train(first, 1, [4, 0, 1])]
    assert len({result.weights.tobytes() for results in found for result in results}) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dropping", "vmap: called random operation while in randomness error mode"),
        ("normalising", "'own_vectorised_models:normalising', which normalises batches; use the engine loop$"),
        ("counting", "which changes buffers; use the engine loop$"),
        ("peeking", "RuntimeError: .*; use the engine loop$"),
    ],
)
def test_what_cannot_be_vectorised_is_refused_in_one_line(own, both, name, message):
    with pytest.raises(InvalidTraining, match=message) as caught:
        list(both(own(name)))
    assert str(caught.value).startswith("learning.engine: vmap cannot train 'own_vectorised_models:")
    assert "\n" not in str(caught.value)


@given(
    sizes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=9),
    batch=st.integers(9, 12),
)
def test_a_plan_holds_every_batch_with_equal_shares_and_no_others(sizes, batch):
    count = iter(range(1000))
    batches = [[np.array([next(count) for _ in range(size)]) for size in own] for own in sizes]
    plan = plan_batches(batches, batch)
    assert plan.samples.shape == plan.shares.shape
    assert plan.samples.shape[2] <= batch
    for row, own in enumerate(batches):
        for step, one in enumerate(own):
            used = plan.shares[step, row] > 0
            assert plan.samples[step, row][used].tolist() == one.tolist()
            assert plan.shares[step, row].sum() == pytest.approx(1.0)
        assert (plan.shares[len(own) :, row] == 0).all()
    assert (plan.shares[:, len(batches) :] == 0).all()
    assert plan.num_steps.tolist() == [len(own) for own in sizes] + [0] * (len(plan.num_steps) - len(sizes))
