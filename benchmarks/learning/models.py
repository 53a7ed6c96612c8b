"""The two models and what a hand-written loop needs of them, in plain PyTorch."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.learning.workload import Workload

_TEST_BATCH = 256


def build_model(workload: Workload) -> nn.Module:
    """The workload's model with its first weights."""
    model = _mlp(workload) if workload.model == "mlp" else _paper_cnn()
    write_flat(model.parameters(), torch.from_numpy(workload.initial))
    return model.to(memory_format=torch.channels_last) if workload.inputs.ndim == 4 else model


def input_tensor(inputs: NDArray[np.float32]) -> Tensor:
    """Inputs as a model takes them: images become (samples, channels, height, width) in channels_last memory."""
    tensor = torch.from_numpy(inputs)
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor


def read_flat(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector, row-major whatever their memory format."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


@torch.no_grad()
def write_flat(parameters: Iterable[Tensor], flat: Tensor) -> None:
    """Sets all parameters from one vector."""
    start = 0
    for parameter in parameters:
        parameter.copy_(flat[start : start + parameter.numel()].view(parameter.shape))
        start += parameter.numel()
    if start != flat.numel():
        raise ValueError(f"{flat.numel()} weights given, {start} expected")


@torch.no_grad()
def judge(model: nn.Module, workload: Workload) -> tuple[float, float]:
    """Accuracy and mean loss on the test set."""
    inputs, labels = input_tensor(workload.test_inputs), torch.from_numpy(workload.test_labels)
    right, loss = 0, 0.0
    for some, wanted in zip(inputs.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True):
        scores = model(some)
        right += int((scores.argmax(dim=1) == wanted).sum())
        loss += float(cross_entropy(scores, wanted, reduction="sum"))
    return right / len(labels), loss / len(labels)


def _mlp(workload: Workload) -> nn.Module:
    num_features = int(np.prod(workload.inputs.shape[1:]))
    return nn.Sequential(nn.Linear(num_features, 64), nn.ReLU(), nn.Linear(64, 10))


def _paper_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 128, 5),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(2048, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )
