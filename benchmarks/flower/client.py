"""The client that both sides run as it is: a Flower ClientApp in the style of Flower's PyTorch quick start.

Like there, a process loads its data once; a model, an optimiser and a loader are made for every message.
"""

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.flower.task import build, load_task

app = ClientApp()


def first_model() -> nn.Module:
    """The model that every run begins with."""
    return build(load_task())


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the model of the message on this client's share."""
    task = load_task()
    model = build(task)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = share(int(context.node_config["partition-id"]))
    loader = DataLoader(data, batch_size=task.batch, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    model.train()
    total = 0.0
    for _ in range(task.epochs):
        for inputs, labels in loader:
            optimiser.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            optimiser.step()
            total += loss.item()
    metrics = MetricRecord({"train_loss": total / (task.epochs * len(loader)), "num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@cache
def share(client: int) -> TensorDataset:
    """What this client holds."""
    task = load_task()
    held = np.flatnonzero(task.owners == client)
    return TensorDataset(torch.from_numpy(task.inputs[held]), torch.from_numpy(task.labels[held]))
