"""Flower's apps for a workload, in the style of its PyTorch quick start: train on a message, average on the server.

Beyond the quick start, for speed: a worker loads data and builds the model once, not in every message.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.learning.gate import Gate
from benchmarks.learning.models import build_model, input_tensor, judge
from benchmarks.learning.workload import Workload, load_workload


class Enough(Exception):
    """The benchmark wants no further round."""


class GatedAverage(FedAvg):
    """Federated averaging whose rounds begin when the gate opens, so a round lasts from its plan to the next plan."""

    def __init__(self, gate: Gate, num_clients: int) -> None:
        super().__init__(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=num_clients)
        self._gate = gate
        self.arrays: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        if not self._gate.opens():
            raise Enough
        return super().configure_train(server_round, arrays, config, grid)


def make_client_app(path: str, threads: int) -> ClientApp:
    """The app of every client; which one it is says the node's configuration."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        return train_client(path, message, context)

    return app


def train_client(path: str, message: Message, context: Context) -> Message:
    """The client's updated model, and how much data stand behind it."""
    workload, model, inputs, labels = _load(path)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=workload.learning_rate)
    batches = workload.round_batches(int(message.content["config"]["server-round"]))
    chosen = torch.from_numpy(batches[int(context.node_config["partition-id"])]).reshape(-1)
    client_inputs = input_tensor(inputs[chosen].numpy()).split(workload.batch)
    for some, wanted in zip(client_inputs, labels[chosen].split(workload.batch), strict=True):
        optimiser.zero_grad()
        cross_entropy(model(some), wanted).backward()
        optimiser.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


def make_server_app(path: str, gate: Gate, pull_interval_s: float | None, versions: str) -> ServerApp:
    """The app of the server; `pull_interval_s` sets how often it asks for replies, None leaves that to Flower."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        if pull_interval_s is not None:
            grid.pull_interval = pull_interval_s
        workload = load_workload(Path(path))
        model = build_model(workload)
        strategy = GatedAverage(gate, workload.num_clients)
        try:
            strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=1_000_000)
        except Enough:
            model.load_state_dict(strategy.arrays.to_torch_state_dict())
            gate.close(*judge(model, workload), versions)

    return app


@cache
def _load(path: str) -> tuple[Workload, nn.Module, Tensor, Tensor]:
    workload = load_workload(Path(path))
    return workload, build_model(workload), torch.from_numpy(workload.inputs), torch.from_numpy(workload.labels)
