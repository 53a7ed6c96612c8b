"""What all sides of this benchmark learn: shares of data, a model and its first weights, in one file that all can read.

Only numpy and PyTorch here: Flower reads it in an environment of its own, in which bdfl is not installed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

FILE_VARIABLE = "BDFL_FLOWER_TASK"  # the environment names the file: Flower's workers inherit it
_TEST_BATCH = 256


@dataclass(frozen=True, eq=False)
class Task:
    """Shares of the training data, one for each client, and how each of them trains in a round."""

    model: str  # mlp or paper-cnn
    learning_rate: float
    epochs: int
    batch: int
    inputs: NDArray[np.float32]  # (samples, ...): ready for the model, images with channels first
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]  # (samples,): which client holds each
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    initial: NDArray[np.float32]  # (parameters,)

    @property
    def num_clients(self) -> int:
        return int(self.owners.max()) + 1


def save_task(task: Task, path: Path) -> None:
    """Writes the file that `load_task` reads."""
    np.savez(path, **{name: np.asarray(value) for name, value in vars(task).items()})


@cache
def load_task(path: str | None = None) -> Task:
    """The task in the file, or in the one that the environment names; once in a process."""
    with np.load(path or os.environ[FILE_VARIABLE], allow_pickle=False) as found:
        arrays = ("inputs", "labels", "owners", "test_inputs", "test_labels", "initial")
        return Task(
            model=str(found["model"]),
            learning_rate=float(found["learning_rate"]),
            epochs=int(found["epochs"]),
            batch=int(found["batch"]),
            **{name: found[name] for name in arrays},
        )


def build(task: Task) -> nn.Module:
    """The model with its first weights, as anybody would write it."""
    model = _paper_cnn() if task.model == "paper-cnn" else _mlp(int(np.prod(task.inputs.shape[1:])))
    fill(model, torch.from_numpy(task.initial))
    return model


@torch.no_grad()
def fill(model: nn.Module, flat: torch.Tensor) -> None:
    """Sets all weights from one vector."""
    for parameter, part in zip(
        model.parameters(), flat.split([one.numel() for one in model.parameters()]), strict=True
    ):
        parameter.copy_(part.view(parameter.shape))


@torch.no_grad()
def judge(task: Task, weights: Sequence[NDArray[np.float32]]) -> tuple[float, float]:
    """Accuracy and mean loss of a model, given by its weights, on the test set."""
    model = build(task)
    fill(model, torch.cat([torch.from_numpy(np.array(part, np.float32)).reshape(-1) for part in weights]))
    model.eval()
    inputs, labels = torch.from_numpy(task.test_inputs), torch.from_numpy(task.test_labels)
    right, loss = 0, 0.0
    for some, wanted in zip(inputs.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True):
        scores = model(some)
        right += int((scores.argmax(dim=1) == wanted).sum())
        loss += float(cross_entropy(scores, wanted, reduction="sum"))
    return right / len(labels), loss / len(labels)


def _mlp(num_inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 10))


def _paper_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(2048, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip
