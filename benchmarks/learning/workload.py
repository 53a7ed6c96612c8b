"""What every side computes: the same data, clients, mini-batches and first model, in one file that all can read.

Only numpy here: other frameworks read it from environments of their own, in which bdfl is not installed.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Workload:
    """Rounds in which all clients train. Batches repeat after the rounds that were drawn."""

    name: str
    model: str  # mlp or paper-cnn
    learning_rate: float
    inputs: NDArray[np.float32]  # (samples, features), or images (samples, height, width, channels): ready for a model
    labels: NDArray[np.int64]  # (samples,)
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    batches: NDArray[np.int64]  # (rounds, clients, updates, batch): numbers of samples
    initial: NDArray[np.float32]  # (parameters,): the first model, tensor after tensor, row-major

    @property
    def num_clients(self) -> int:
        return int(self.batches.shape[1])

    @property
    def batch(self) -> int:
        return int(self.batches.shape[3])

    def round_batches(self, round: int) -> NDArray[np.int64]:
        """Samples of every mini-batch of a round (counted from 1), (clients, updates, batch)."""
        found: NDArray[np.int64] = self.batches[(round - 1) % len(self.batches)]
        return found


def save_workload(workload: Workload, path: Path) -> None:
    """Writes the `.npz` file that `load_workload` reads."""
    np.savez(path, **{item.name: np.asarray(getattr(workload, item.name)) for item in fields(Workload)})


def load_workload(path: Path) -> Workload:
    """The workload in a file of `save_workload`."""
    with np.load(path, allow_pickle=False) as found:
        return Workload(
            name=str(found["name"]),
            model=str(found["model"]),
            learning_rate=float(found["learning_rate"]),
            inputs=found["inputs"],
            labels=found["labels"],
            test_inputs=found["test_inputs"],
            test_labels=found["test_labels"],
            batches=found["batches"],
            initial=found["initial"],
        )
