"""The two workloads, as scenarios for bdfl and as one file of batches for everybody else."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bdfl.learning.data import DataSet, load_data
from bdfl.learning.models import draw_model
from bdfl.learning.partition import Partition, draw_partition
from bdfl.learning.sgd import draw_batches
from bdfl.learning.torch_model import find_scaling, input_shape, layout_of
from bdfl.scenario import (
    Clients,
    Compute,
    DataChoice,
    Fading,
    FadingKind,
    Learning,
    PartitionChoice,
    PartitionMethod,
    Radio,
    Scenario,
    SchedulerChoice,
)
from bdfl.scenario.schema_learning import DIGITS, MLP, PAPER_CNN
from benchmarks.learning.workload import Workload

NUM_ROUNDS = 2000  # more than any side is asked for
NEVER = 10 * NUM_ROUNDS
_NUM_LABELS = 10


def digits_scenario(seed: int) -> Scenario:
    """Handwritten digits, 8 clients, 20 updates on batches of 32."""
    learning = Learning(model=MLP, batch=32, learning_rate=0.1, evaluate_every=NEVER)
    return _everybody_trains("digits", seed, Clients(count=8, min_selected=8, samples=170), DIGITS, learning)


def images_scenario(seed: int, folder: Path, batch: int = 64) -> Scenario:
    """The paper's network on drawn images of 3 x 32 x 32, 4 clients of 3,000, 20 updates."""
    path = folder / "images.npz"
    _draw_images(path, seed, num_train=12_000, num_test=500, shape=(32, 32, 3))
    learning = Learning(model=PAPER_CNN, batch=batch, learning_rate=0.01, evaluate_every=NEVER)
    return _everybody_trains("paper-cnn", seed, Clients(count=4, min_selected=4, samples=3000), str(path), learning)


def crowd_scenario(seed: int, folder: Path, num_clients: int) -> Scenario:
    """As `digits_scenario` with many clients, each with as much data of its own."""
    path = folder / "crowd.npz"
    samples = 170
    _draw_images(path, seed, num_train=num_clients * samples, num_test=500, shape=(8, 8, 1))
    learning = Learning(model=MLP, batch=32, learning_rate=0.1, evaluate_every=NEVER)
    clients = Clients(count=num_clients, min_selected=num_clients, samples=samples)
    return _everybody_trains("crowd", seed, clients, str(path), learning)


def make_workload(scenario: Scenario, num_rounds: int) -> Workload:
    """The very batches of the first rounds of the scenario's run and its very first model, for other sides."""
    data, settings = load_data(scenario.data), scenario.learning
    partition = draw_partition(scenario, data.train_labels, data.num_labels)
    model = draw_model(settings, input_shape(data), data.num_labels, scenario.seed)
    state = model.state_dict()
    initial = [state[name].numpy().reshape(-1) for name in layout_of(model).names]
    return Workload(
        name=scenario.name,
        model=settings.model,
        learning_rate=settings.learning_rate,
        inputs=_ready_inputs(scenario, data, data.train_inputs),
        labels=data.train_labels,
        test_inputs=_ready_inputs(scenario, data, data.test_inputs),
        test_labels=data.test_labels,
        batches=np.array([_round_batches(scenario, partition, round) for round in range(1, num_rounds + 1)]),
        initial=np.concatenate(initial),
    )


def _everybody_trains(name: str, seed: int, clients: Clients, source: str, learning: Learning) -> Scenario:
    """`drc` really decides, but has no choice: as many must train as there are, and channels never fail."""
    return Scenario(
        name=name,
        rounds=NUM_ROUNDS,
        seed=seed,
        clients=clients,
        data=DataChoice(source=source),
        partition=PartitionChoice(method=PartitionMethod.IID),
        compute=Compute(local_updates=20),
        radio=Radio(fading=Fading(kind=FadingKind.NONE)),
        scheduler=SchedulerChoice(name="drc"),
        learning=learning,
    )


def _draw_images(path: Path, seed: int, *, num_train: int, num_test: int, shape: tuple[int, int, int]) -> None:
    """Writes images that can be told apart: a drawn pattern for each label under noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(64, 192, (_NUM_LABELS, *shape), dtype=np.uint8)
    arrays = {}
    for split, count in (("train", num_train), ("test", num_test)):
        labels = rng.integers(_NUM_LABELS, size=count)
        noise = rng.integers(0, 64, (count, *shape), dtype=np.uint8)
        arrays |= {f"{split}_inputs": patterns[labels] + noise, f"{split}_labels": labels}
    np.savez(path, **arrays)


def _round_batches(scenario: Scenario, partition: Partition, round: int) -> NDArray[np.int64]:
    """Samples of all mini-batches of a round, (clients, updates, batch)."""
    return np.array(
        [
            draw_batches(
                scenario.seed,
                round,
                client,
                samples,
                unit=scenario.learning.unit,
                steps=scenario.compute.local_updates,
                batch=scenario.learning.batch,
            )
            for client, samples in enumerate(partition.indices)
        ]
    )


def _ready_inputs(scenario: Scenario, data: DataSet, inputs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Inputs as bdfl's models see them; a perceptron's are flat."""
    ready = inputs.astype(np.float32)
    scaling = find_scaling(data.train_inputs, scenario.data.normalise)
    if scaling is not None:
        ready -= scaling.centre
        ready *= scaling.factor
    return ready.reshape(len(ready), -1) if scenario.learning.model == MLP else ready
