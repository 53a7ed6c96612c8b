"""Trainers in one process and in several: the same bits, and no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdfl.errors import MissingExtra, install_command
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome, TrainingFailed
from tests.prepared_processes import use_prepared_processes

SIZES = (40, 33, 5, 0, 100)
PATIENCE_S = 240  # a busy machine starts processes slowly
OWN = """
import multiprocessing, os, time
from torch import nn

class Fatal(nn.Linear):
    def forward(self, inputs):
        if self.training and multiprocessing.parent_process() is not None:
            os._exit(3)
        return super().forward(inputs)

class Slow(nn.Linear):
    def forward(self, inputs):
        if self.training:
            time.sleep(1000)
        return super().forward(inputs)

def convolving(input_shape, num_labels):
    return nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
                         nn.LazyLinear(num_labels))

def fatal(input_shape, num_labels):
    return Fatal(input_shape[0], num_labels)

def slow(input_shape, num_labels):
    return Slow(input_shape[0], num_labels)
"""
PARENT = """
import multiprocessing, sys, time
import numpy as np
from bdfl.learning.data import make_data_set
from bdfl.learning.partition import Partition
from bdfl.learning.trainer_pool import open_trainer
from bdfl.scenario import Scenario, override_scenario

if __name__ == "__main__":
    inputs, labels = np.random.default_rng(1).random((20, 6)), np.arange(20) % 4
    data = make_data_set("small", inputs, labels, inputs, labels)
    partition = Partition((np.arange(10), np.arange(10, 20)), np.full((2, 4), 2))
    scenario = override_scenario(Scenario(), ["learning.model=own_worker_models:slow"])
    with open_trainer(scenario, data, partition, workers=2) as trainer:
        trainer.evaluate(trainer.initial_weights())
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        trainer.train(trainer.initial_weights(), 1, [0, 1])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_worker_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda name: f"learning.model=own_worker_models:{name}"


@pytest.fixture
def prepared(monkeypatch):
    use_prepared_processes(monkeypatch)


def hear_interrupts():
    """In a new process: Ctrl-C counts, even where the tests run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def parent(own, tmp_path):
    """A process that is training in two others for a long time, and their numbers."""
    (tmp_path / "parent.py").write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, "parent.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    children = [int(word) for word in process.stdout.readline().split()]
    assert len(children) == 2, process.stderr.read()
    time.sleep(0.2)  # into the training
    yield process, children
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_end(pids):
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "processes left behind"
        time.sleep(0.05)


def everything(scenario, data, partition, workers):
    """All a trainer can give, as bytes."""
    with open_trainer(scenario, data, partition, workers=workers) as trainer:
        weights = trainer.initial_weights()
        results = trainer.train(weights, 1, [4, 0, 3, 1, 2]) + trainer.train(weights, 2, [0])
        evaluation, gradient = trainer.evaluate(weights), trainer.full_gradient(weights)
    found = [
        (result.client, result.outcome, result.weights is not None and result.weights.tobytes(), result.loss.hex())
        for result in results
    ]
    judged = evaluation.accuracy, evaluation.loss.hex(), evaluation.recall.tobytes()
    return weights.tobytes(), found, judged, gradient.loss.hex(), gradient.gradient.tobytes()


@pytest.fixture
def others():
    """Processes that other tests left running, such as those of a sweep."""
    return set(multiprocessing.active_children())


def test_two_workers_give_the_bits_of_one(settings, small_data, deal, others):
    data = small_data(num_train=2600, num_test=4500)
    partition = deal(data, (*SIZES[:-1], 2400))
    scenario = settings("learning.momentum=0.9", "learning.unit=epochs", "learning.local_steps=2")
    alone, together = (everything(scenario, data, partition, workers) for workers in (1, 2))
    assert [outcome for _, outcome, *_ in alone[1]].count(Outcome.TRAINED) == 5
    assert alone == together
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.usefixtures("prepared")
def test_two_workers_give_the_bits_of_one_with_convolutions_and_dropout(own, settings, small_data, deal):
    data = small_data((8, 9, 3), as_bytes=True, num_train=200)
    scenario = settings(own("convolving"))
    assert everything(scenario, data, deal(data, SIZES), 1) == everything(scenario, data, deal(data, SIZES), 2)


@pytest.mark.usefixtures("prepared")
def test_a_worker_that_dies_is_told_in_one_line(own, settings, small_data, deal, others):
    data = small_data()
    with (
        pytest.raises(TrainingFailed, match=r"^a training process ended by itself .*; fewer workers may help$"),
        open_trainer(settings(own("fatal")), data, deal(data, SIZES), workers=2) as trainer,
    ):
        trainer.train(trainer.initial_weights(), 1, [0, 1, 2])
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_end_when_their_parent_is_killed(parent):
    process, children = parent
    assert all(map(is_running, children))
    process.send_signal(signal.SIGKILL)
    assert_end(children)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_an_interrupt_ends_everything_at_once_and_workers_say_nothing(parent):
    process, children = parent
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert_end(children)
    assert errors.count("Traceback") == 1  # the parent's own
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.usefixtures("prepared")
def test_data_that_vanish_are_told_in_one_line(settings, small_data, deal, tmp_path):
    data = small_data()
    np.save(tmp_path / "inputs.npy", data.train_inputs)
    data = replace(data, train_inputs=np.load(tmp_path / "inputs.npy", mmap_mode="r"))
    (tmp_path / "inputs.npy").unlink()
    with (
        pytest.raises(TrainingFailed, match=r"^the data cannot be opened in a training process: FileNotFoundError: "),
        open_trainer(settings(), data, deal(data, SIZES), workers=2) as trainer,
    ):
        trainer.train(trainer.initial_weights(), 1, [0])


@pytest.mark.parametrize("workers", [0, -1])
def test_nobody_trains_with_no_workers(settings, small_data, deal, workers):
    data = small_data()
    with (
        pytest.raises(InvalidTraining, match=f"^workers: {workers} given, at least 1 is needed$"),
        open_trainer(settings(), data, deal(data, SIZES), workers=workers),
    ):
        pass


def test_without_torch_the_line_says_how_to_get_it(settings, small_data, deal, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    data = small_data()
    with (
        pytest.raises(MissingExtra) as caught,
        open_trainer(settings(), data, deal(data, SIZES)),
    ):
        pass
    assert str(caught.value) == f"training needs PyTorch: {install_command('learn')}"


def test_training_without_privacy_needs_no_opacus():
    modules = "bdfl.learning.trainer, bdfl.transports.live.training_worker"
    code = f"import sys; sys.modules['opacus'] = None; import {modules}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_everything_but_training_works_without_torch():
    """Also for speed: processes that import it take seconds to begin."""
    sources = Path(__file__).parents[2] / "src"
    paths = [path.relative_to(sources) for path in sorted(sources.rglob("*.py")) if path.name != "__main__.py"]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    code = f"""
import importlib, sys
sys.modules["torch"] = None
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == [
        f"{name} torch"
        for name in (
            "bdfl.learning.dp_sgd",
            "bdfl.learning.models",
            "bdfl.learning.optimizers",
            "bdfl.learning.sgd",
            "bdfl.learning.torch_model",
            "bdfl.learning.trainer",
            "bdfl.transports.live.share_trainer",
        )
    ]
