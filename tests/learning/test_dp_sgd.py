"""Private training: what a step does to each sample, by brute force; the same bits in a simulation, never in a node."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bdfl.learning.dp_sgd import SecretNoise, SeededNoise
from bdfl.learning.privacy_accounting import mechanism_of, num_private_steps, sampling_rate
from bdfl.learning.sgd import take_samples
from bdfl.learning.trainer import ClientTask, LocalTrainer, gather_material
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome
from bdfl.scenario import LocalUnit

SIZES = (40, 33, 5, 0, 100)
NOISE = 1.5
OWN = """
import torch
from torch import nn

def flat(input_shape):
    return torch.Size(input_shape).numel()

def normalising(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), 8), nn.BatchNorm1d(8), nn.Linear(8, num_labels))

def tracking(input_shape, num_labels):
    return nn.Sequential(
        nn.InstanceNorm1d(1, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(6, num_labels)
    )

class Mixing(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs - inputs.mean(dim=0))

def mixing(input_shape, num_labels):
    return Mixing(nn.Sequential(nn.Flatten(), nn.Linear(flat(input_shape), num_labels)))

"""


class GivenChance:
    """Chances that a test gives: the same numbers again and again."""

    def __init__(self, uniform, normal=0.0):
        self.uniform, self.normal = np.asarray(uniform, float), normal

    def draw_uniform(self, count):
        return np.resize(self.uniform, count)

    def draw_normal(self, shape):
        return torch.full(shape, self.normal)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_private_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda name: f"learning.model=own_private_models:{name}"


@pytest.fixture
def bench(settings, small_data, deal):
    """A function that makes a bench of a scenario, private unless told otherwise."""

    def make(*changes, noise=NOISE, is_secret=False, data=None, shape=(6,), as_bytes=False):
        privacy = [f"privacy.noise_multiplier={noise}"] if noise else []
        scenario = settings(*privacy, *changes)
        data = small_data(shape, as_bytes=as_bytes) if data is None else data
        return LocalTrainer(scenario, gather_material(scenario, data, deal(data, SIZES).indices), is_secret=is_secret)

    return make


def train(bench, client, chance, *, weights=None):
    weights = bench.initial_weights if weights is None else weights
    return bench._private.train(
        weights, client, bench.material.indices[client], bench.mechanism(client), chance, bench.optimizer_settings(1)
    )


def gradients_by_hand(bench, weights, numbers):
    """The gradient of every one of these samples, alone, (samples, parameters)."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter, (_, part) in zip(model.parameters(), bench.model.layout.split(weights.copy()), strict=True):
            parameter.copy_(torch.from_numpy(part))
    found = []
    for number in numbers:
        one = torch.tensor([number])
        model.zero_grad()
        cross_entropy(model(bench.train_inputs.take(one)), bench.train_inputs.labels[one]).backward()
        found.append(torch.cat([item.grad.reshape(-1) for item in model.parameters()]).double().numpy())
    return np.array(found)


@pytest.mark.parametrize("most", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("entries", [1, 500, 2**25])  # a sample at a time, a few, all
def test_a_step_adds_up_clipped_gradients_of_single_samples_and_noise(bench, monkeypatch, most, entries):
    monkeypatch.setattr("bdfl.learning.dp_sgd._MOST_ENTRIES", entries)
    made = bench("compute.local_updates=1", f"privacy.max_grad_norm={most}", "learning.learning_rate=0.5")
    chances = np.where(np.arange(40) % 3 == 0, 0.1, 0.9)  # of 40 samples at a rate of 0.4 every third is taken
    result = train(made, 0, GivenChance(chances, normal=0.25))
    gradients = gradients_by_hand(made, made.initial_weights, np.flatnonzero(chances < 0.4))
    assert len(gradients) == 14
    norms = np.linalg.norm(gradients, axis=1)
    clipped = gradients * np.minimum(1.0, most / (norms + 1e-6))[:, None]
    assert np.linalg.norm(clipped, axis=1).max() <= most
    step = (clipped.sum(axis=0) + NOISE * most * 0.25) / 16  # 16 are taken on average, however many really are
    expected = made.initial_weights - 0.5 * step
    assert result.outcome is Outcome.TRAINED
    assert result.weights == pytest.approx(expected, rel=1e-5, abs=1e-6 * max(1.0, NOISE * most))
    assert result.gradient_norm == pytest.approx(np.linalg.norm(step), rel=1e-4)


@pytest.mark.parametrize("changes", [[], ["learning.momentum=0.9"], ["learning.weight_decay=0.1"]])
def test_without_noise_or_clipping_it_is_plain_training(bench, changes):
    whole = ["learning.batch=40", "privacy.max_grad_norm=1e6", *changes]  # a batch of all there is: nothing is drawn
    private = train(bench(*whole), 0, GivenChance([0.0]))
    plain = bench("learning.batch=40", *changes, noise=None)
    expected = plain.train(ClientTask(plain.initial_weights, 1, 0))
    assert private.weights == pytest.approx(expected.weights, abs=2e-6)
    assert private.loss == pytest.approx(expected.loss, rel=1e-5)
    assert private.num_steps == expected.num_steps == 7


def test_convolutions_are_trained_like_anything_else(bench):
    changes = ["learning.model=paper-cnn", "learning.batch=5", "compute.local_updates=2", "privacy.max_grad_norm=1e6"]
    private = train(bench(*changes, shape=(19, 19, 1), as_bytes=True), 2, GivenChance([0.0]))
    plain = bench(*changes[:3], noise=None, shape=(19, 19, 1), as_bytes=True)
    expected = plain.train(ClientTask(plain.initial_weights, 1, 2))
    assert np.abs(private.weights - expected.weights).max() < 2e-6


def test_an_empty_batch_is_a_step_of_noise_alone(bench):
    made = bench("compute.local_updates=3", "learning.learning_rate=0.5")
    result = train(made, 0, GivenChance([0.99], normal=1.0))
    assert result.weights == pytest.approx(made.initial_weights - 3 * 0.5 * NOISE / 16, rel=1e-5, abs=1e-6)
    assert math.isnan(result.loss)
    assert result.num_steps == 3


def test_a_sample_whose_gradient_is_no_number_changes_nothing(bench, small_data):
    data = small_data()
    data.train_inputs[3] = np.inf
    made = bench("data.normalise=none", "compute.local_updates=1", data=data)
    with_it, without_it = GivenChance([0.0] * 4 + [0.9] * 36), GivenChance([0.0] * 3 + [0.9] * 37)
    first, second = (train(made, 0, chance) for chance in (with_it, without_it))
    assert first.outcome is Outcome.TRAINED
    assert first.weights.tobytes() == second.weights.tobytes()


def test_every_sample_is_taken_by_its_own_chance_at_the_stated_rate():
    samples = np.arange(100, 300)
    assert sampling_rate(16, 200) == 0.08
    assert sampling_rate(300, 200) == 1.0
    chance = SeededNoise(7, 1, 0)
    taken = [take_samples(samples, 0.08, chance.draw_uniform(200)) for _ in range(4000)]
    counts = np.bincount(np.concatenate(taken), minlength=300)[100:]
    assert abs(counts - 320).max() < 5 * math.sqrt(320 * 0.92)
    sizes = np.array([len(one) for one in taken])
    assert sizes.var() == pytest.approx(200 * 0.08 * 0.92, rel=0.1)  # binomial: samples know nothing of each other
    assert len(take_samples(samples, 1.0, chance.draw_uniform(200))) == 200
    assert num_private_steps(LocalUnit.UPDATES, 7, 16, 0) == 0


def test_a_simulation_gives_the_same_bits_every_time_and_others_for_others(settings, small_data, deal):
    scenario, data = settings(f"privacy.noise_multiplier={NOISE}"), small_data()
    found = []
    for seed in (99, 7):
        torch.manual_seed(seed)
        with open_trainer(scenario, data, deal(data, SIZES)) as trainer:
            weights = trainer.initial_weights()
            found.append([trainer.train(weights, round, [0, 3, 4]) for round in (1, 2)])
            assert np.isfinite(trainer.evaluate(weights).loss)
    for first, second in zip(*found, strict=True):
        assert [one.outcome for one in first] == [Outcome.TRAINED, Outcome.NO_SAMPLES, Outcome.TRAINED]
        for one, other in zip(first, second, strict=True):
            assert one.weights is other.weights is None or one.weights.tobytes() == other.weights.tobytes()
    assert found[0][0][0].weights.tobytes() != found[0][1][0].weights.tobytes()


def test_what_is_secret_is_never_the_same_again(bench):
    made = bench(is_secret=True)
    first, second = (made.train(ClientTask(made.initial_weights, 1, 0)) for _ in range(2))
    assert first.weights.tobytes() != second.weights.tobytes()


def test_secret_numbers_are_uniform_and_normal():
    chance = SecretNoise()
    uniform = chance.draw_uniform(20_000)
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    normal = chance.draw_normal(torch.Size([100, 200]))
    assert normal.dtype == torch.float32
    assert abs(float(normal.mean())) < 0.05
    assert abs(float(normal.std()) - 1) < 0.05
    assert abs(float((normal.abs() < 1).float().mean()) - 0.6827) < 0.03


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("normalising", "it normalises batches, which mixes samples; use nn.GroupNorm or nn.LayerNorm instead"),
        ("tracking", "running stats"),
        ("mixing", "what it says of a sample depends on the others in its batch"),
    ],
)
def test_models_whose_samples_cannot_be_told_apart_are_refused(own, bench, name, why):
    with pytest.raises(InvalidTraining) as refusal:
        bench(own(name), shape=(1, 6) if name == "tracking" else (6,))
    assert str(refusal.value).startswith(f"learning.model: 'own_private_models:{name}' cannot be trained privately: ")
    assert why in str(refusal.value)


def test_the_mechanism_of_a_bench_is_that_of_its_scenario(bench):
    made = bench("privacy.delta=1e-6")
    assert made.mechanism(1) == mechanism_of(made.scenario, 33, 1_500_000)
    assert (made.mechanism(1).rate, made.mechanism(1).delta) == (16 / 33, 1e-6)
