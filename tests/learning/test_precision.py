"""Precision, device and training options: promised bytes, engines that agree, and what is refused."""

import numpy as np
import pytest
import torch

from bdfl.learning.models import build_model
from bdfl.learning.trainer import BlockTask, ClientTask, LocalTrainer, gather_material
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome, TrainingFailed
from bdfl.scenario import Learning, Scenario, ScenarioError, override_scenario, scenario_digest
from tests.prepared_processes import use_prepared_processes

SIZES = (40, 33, 5, 0, 60)
IMAGES = (10, 10, 3)
OPTIONS = (
    *('learning.augment=["flip", "crop"]', "learning.label_smoothing=0.1", "learning.optimizer=adamw"),
    *("learning.learning_rate=0.01", "learning.weight_decay=0.05", "learning.proximal=0.01", "learning.clip_norm=1.0"),
    *("learning.schedule=cosine", "rounds=4"),
)
ONE_CLIENT = ("clients.count=1", "clients.min_selected=1")
BFLOAT16 = "learning.precision=bfloat16"
CONVOLUTIONS = ("learning.model=resnet-20", 'learning.augment=["flip"]', "compute.local_updates=3")


@pytest.fixture
def images(small_data):
    return small_data(IMAGES, as_bytes=True)


@pytest.fixture
def two_rounds(settings, deal):
    """A function that trains all clients for two rounds: their weights, and the evaluation of the last of them."""

    def train(data, *changes, workers=1):
        scenario = settings(f"clients.count={len(SIZES)}", *changes)
        with open_trainer(scenario, data, deal(data, SIZES), workers=workers) as trainer:
            weights, found = trainer.initial_weights(), []
            for round in (1, 2):
                results = trainer.train(weights, round, range(len(SIZES)))
                kept = [result.weights for result in results if result.outcome is Outcome.TRAINED]
                assert len(kept) == sum(size > 0 for size in SIZES)
                found += kept
                weights = np.mean(kept, axis=0)
            return np.stack(found), trainer.evaluate(weights)

    return train


@pytest.mark.parametrize("changes", [(BFLOAT16,), OPTIONS, (BFLOAT16, *OPTIONS), (BFLOAT16, *CONVOLUTIONS)])
def test_any_number_of_workers_gives_the_same_bytes(changes, images, two_rounds, monkeypatch):
    use_prepared_processes(monkeypatch)
    first, again = two_rounds(images, *changes), two_rounds(images, *changes)
    spread = two_rounds(images, *changes, workers=2)
    for other in (again, spread):
        assert first[0].tobytes() == other[0].tobytes()
        assert (first[1].accuracy, first[1].loss) == (other[1].accuracy, other[1].loss)


@pytest.mark.parametrize("changes", [OPTIONS, *((option,) for option in OPTIONS[:3]), OPTIONS[5:7]])
def test_options_change_the_weights_and_engines_agree(changes, images, two_rounds):
    plain, _ = two_rounds(images)
    loop, one = two_rounds(images, *changes)
    vmap, other = two_rounds(images, *changes, "learning.engine=vmap")
    effect, difference = (np.linalg.norm(loop - other, axis=1) for other in (plain, vmap))
    assert (effect > 1e-4 * np.linalg.norm(plain, axis=1)).all()
    assert (difference < 0.05 * effect).all()  # a rounding may move a sample across a ReLU's kink
    assert np.median(difference / effect) < 1e-5
    assert one.loss == pytest.approx(other.loss, rel=1e-4)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_bfloat16_is_near_float32_and_keeps_float32_weights(engine, images, two_rounds):
    exact, one = two_rounds(images, f"learning.engine={engine}")
    rough, other = two_rounds(images, f"learning.engine={engine}", BFLOAT16)
    assert rough.dtype == np.float32
    assert not np.array_equal(exact, rough)
    assert np.abs(exact - rough).max() < 0.05
    assert other.loss == pytest.approx(one.loss, rel=0.05)


def test_the_rate_of_the_round_is_used(images, two_rounds):
    with_steps, _ = two_rounds(images, "learning.schedule=step", "learning.schedule_rounds=1")
    constant, _ = two_rounds(images)
    trained = sum(size > 0 for size in SIZES)
    assert np.array_equal(with_steps[:trained], constant[:trained])
    assert not np.array_equal(with_steps[trained:], constant[trained:])


@pytest.mark.parametrize("key", ["precision", "optimizer", "augment"])
def test_default_options_keep_the_digest_of_a_scenario(key):
    usual = scenario_digest(Scenario())
    changed = {"precision": "bfloat16", "optimizer": "adam", "augment": '["flip"]'}
    assert scenario_digest(override_scenario(Scenario(), [f"learning.{key}={changed[key]}"])) != usual


@pytest.mark.parametrize("model", ["mlp", "paper-cnn", "resnet-20"])
def test_the_zoo_trains_in_both_precisions(model, small_data, settings, deal):
    data = small_data((20, 20, 3), as_bytes=True, num_train=60, num_test=20)
    for precision in ("float32", "bfloat16"):
        changes = (f"learning.model={model}", f"learning.precision={precision}", "compute.local_updates=2")
        scenario = settings(*ONE_CLIENT, *changes)
        trainer = LocalTrainer(scenario, gather_material(scenario, data, deal(data, [60]).indices))
        result = trainer.train(ClientTask(trainer.initial_weights, 1, 0))
        assert result.outcome is Outcome.TRAINED
        assert not np.array_equal(result.weights, trainer.initial_weights)


def test_the_residual_network_has_its_number_of_parameters_and_mixes_no_samples():
    model = build_model(Learning(model="resnet-20"), (3, 32, 32), 10)
    # 19 convolutions without bias, as many group norms, and a dense layer
    stages = 6 * 9 * 16 * 16 + (16 + 5 * 32) * 9 * 32 + (32 + 5 * 64) * 9 * 64
    assert sum(one.numel() for one in model.parameters()) == 27 * 16 + stages + 2 * (7 * 16 + 6 * 32 + 6 * 64) + 650
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(inputs)[0], model(torch.stack([inputs[0], 3 * inputs[1]]))[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no CUDA")
def test_a_device_that_is_not_there_is_one_line(images, two_rounds):
    with pytest.raises(InvalidTraining, match=r"^learning.device: cuda given, PyTorch .* finds only .*cpu here$"):
        two_rounds(images, "learning.device=cuda")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 MiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["cuda", "mps", "cpu", "python"],
)
def test_a_device_that_runs_out_of_memory_is_one_line(images, settings, deal, monkeypatch, error):
    scenario = settings(*ONE_CLIENT)
    trainer = LocalTrainer(scenario, gather_material(scenario, images, deal(images, [40]).indices))

    def fail(_):
        raise error

    monkeypatch.setattr(trainer.model, "scores", fail)
    for work, task in (
        (trainer.train, ClientTask(trainer.initial_weights, 1, 0)),
        (trainer.evaluate, BlockTask(trainer.initial_weights, range(20))),
    ):
        with pytest.raises(TrainingFailed) as caught:
            work(task)
        advice = "a smaller learning.batch or model may help"
        assert str(caught.value) == f"learning.device: cpu has too little memory; {advice}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("changes", [(), (BFLOAT16,), OPTIONS, ("learning.engine=vmap",)])
def test_cuda_trains_as_the_cpu_does(changes, images, two_rounds):
    on_cpu, one = two_rounds(images, *changes)
    on_cuda, other = two_rounds(images, *changes, "learning.device=cuda")
    assert np.abs(on_cpu - on_cuda).max() < 0.05
    assert other.loss == pytest.approx(one.loss, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("privacy.noise_multiplier=1.0", BFLOAT16), "learning.precision: .*where training is private"),
        (("privacy.noise_multiplier=1.0", "learning.clip_norm=1.0"), "learning.clip_norm: .*where training is private"),
        (
            ("learning.flower=own:client_fn", "learning.device=auto"),
            "learning.device: .*a Flower client has its",
        ),
        (("learning.precision=float16",), "learning.precision"),
        (("learning.betas=[0.9, 1.0]",), "learning.betas"),
    ],
)
def test_options_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ScenarioError, match=message):
        override_scenario(Scenario(), changes)


def test_features_cannot_be_augmented(small_data, two_rounds):
    with pytest.raises(InvalidTraining, match=r"^learning.augment: flip given, expected none for data without images"):
        two_rounds(small_data(), 'learning.augment=["flip"]')
