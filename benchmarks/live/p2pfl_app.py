"""p2pfl's nodes for a workload, in the style of its MNIST example: all in one process, joined by gRPC."""

import lightning
import torch
from datasets import Dataset, DatasetDict
from p2pfl.communication.protocols.protobuff.grpc import GrpcCommunicationProtocol
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.learning.models import build_model
from benchmarks.learning.workload import Workload

_LOOPBACK = "127.0.0.1"
_INPUT, _LABEL = "input", "label"


class Perceptron(lightning.LightningModule):
    """The workload's model, trained by gradient descent with momentum."""

    def __init__(self, workload: Workload, momentum: float) -> None:
        super().__init__()
        self.model = build_model(workload)
        self.lr_rate, self._momentum = workload.learning_rate, momentum

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
        return cross_entropy(self.model(batch[_INPUT]), batch[_LABEL])

    def test_step(self, batch: dict[str, Tensor], number: int) -> None:
        scores = self.model(batch[_INPUT])
        self.log("test_loss", cross_entropy(scores, batch[_LABEL]))
        self.log("test_metric", (scores.argmax(dim=1) == batch[_LABEL]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr_rate, momentum=self._momentum)


def make_node(workload: Workload, client: int, momentum: float) -> Node:
    """A client's node. One epoch of its data is the batches of one round of bdfl's, in their order, every round."""
    return Node(
        LightningModel(Perceptron(workload, momentum)),
        _client_data(workload, client),
        protocol=GrpcCommunicationProtocol(),
        addr=_LOOPBACK,  # p2pfl picks a free port
    )


def _client_data(workload: Workload, client: int) -> P2PFLDataset:
    """The client's batches, one after the other, and its share of the test set: p2pfl divides both."""
    chosen = workload.round_batches(1)[client].reshape(-1)
    tested = slice(client, None, workload.num_clients)
    rows = DatasetDict(
        {
            "train": Dataset.from_dict({_INPUT: workload.inputs[chosen], _LABEL: workload.labels[chosen]}),
            "test": Dataset.from_dict({_INPUT: workload.test_inputs[tested], _LABEL: workload.test_labels[tested]}),
        }
    )
    return P2PFLDataset(rows, batch_size=workload.batch, dataset_name=workload.name)
