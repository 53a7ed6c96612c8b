"""Federated averaging by hand in plain PyTorch: what a careful person writes without any framework.

`loop` trains client after client with `torch.optim.SGD`, or half of them in a second process; `bfloat16` does so under
`torch.autocast`; `vmap` trains all in one call of `torch.func`. A round's mini-batches are gathered at once per client
and then sliced.
"""

import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from benchmarks.learning.gate import Gate, read_arguments
from benchmarks.learning.models import build_model, input_tensor, judge, read_flat, write_flat
from benchmarks.learning.workload import Workload, load_workload

TrainClients = Callable[[Tensor, int], Tensor]  # global model and round to updated models, (clients, parameters)


def make_loop(workload: Workload, clients: Sequence[int], kind: str = "loop") -> TrainClients:
    """Trains these clients one after the other."""
    model = build_model(workload)
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=workload.learning_rate)
    inputs, labels = torch.from_numpy(workload.inputs), torch.from_numpy(workload.labels)

    def train(weights: Tensor, round: int) -> Tensor:
        batches = torch.from_numpy(workload.round_batches(round))
        updates = []
        for client in clients:
            write_flat(parameters, weights)
            chosen = batches[client].reshape(-1)
            client_inputs = input_tensor(inputs[chosen].numpy()).split(workload.batch)
            for some, wanted in zip(client_inputs, labels[chosen].split(workload.batch), strict=True):
                optimiser.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16"):
                    loss = cross_entropy(model(some), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            updates.append(read_flat(parameters))
        return torch.stack(updates)

    return train


def make_vmap(workload: Workload, clients: Sequence[int]) -> TrainClients:
    """Trains these clients at once: one more axis on every parameter and batch."""
    model = build_model(workload)
    names = [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]
    inputs, labels = torch.from_numpy(workload.inputs), torch.from_numpy(workload.labels)

    def loss(parameters: dict[str, Tensor], some: Tensor, wanted: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (some,)), wanted)

    gradients = vmap(grad(loss))

    def train(weights: Tensor, round: int) -> Tensor:
        batches = torch.from_numpy(workload.round_batches(round))[list(clients)].transpose(0, 1)
        parts = weights.split([shape.numel() for shape in shapes])
        parameters = {
            name: part.view(shape).repeat(len(clients), *[1] * len(shape))
            for name, shape, part in zip(names, shapes, parts, strict=True)
        }
        for some, wanted in zip(inputs[batches], labels[batches], strict=True):
            for name, slope in gradients(parameters, some, wanted).items():
                parameters[name].sub_(slope, alpha=workload.learning_rate)
        return torch.cat([parameter.reshape(len(clients), -1) for parameter in parameters.values()], dim=1)

    return train


def with_helper(workload: Workload, path: Path, kind: str, threads: int) -> TrainClients:
    """Trains the first half of the clients here and the others in a second process, at the same time."""
    half = (workload.num_clients + 1) // 2
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_help, args=(theirs, path, half, kind, threads), daemon=True).start()
    train_here = make_loop(workload, range(half), kind)

    def train(weights: Tensor, round: int) -> Tensor:
        ours.send((weights.numpy(), round))
        updates = train_here(weights, round)
        return torch.cat([updates, torch.from_numpy(ours.recv())])

    return train


def average(updates: Tensor) -> Tensor:
    """The next global model; all clients hold equally much."""
    return updates.mean(dim=0)


def play(gate: Gate, workload: Workload, train: TrainClients) -> nn.Module:
    """Rounds for as long as the gate opens; the model that came out."""
    weights, round = torch.from_numpy(workload.initial), 0
    while gate.opens():
        round += 1
        weights = average(train(weights, round))
    model = build_model(workload)
    write_flat(model.parameters(), weights)
    return model


def _help(connection: Connection, path: Path, first_client: int, kind: str, threads: int) -> None:
    torch.set_num_threads(threads)
    workload = load_workload(path)
    train = make_loop(workload, range(first_client, workload.num_clients), kind)
    while True:
        weights, round = connection.recv()
        connection.send(train(torch.from_numpy(weights), round).numpy())


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, kind, processes, threads = read_arguments()
    gate = Gate()
    torch.set_num_threads(threads)
    workload = load_workload(path)
    everybody = range(workload.num_clients)
    if processes == 2:
        train = with_helper(workload, path, kind, threads)
    else:
        train = make_vmap(workload, everybody) if kind == "vmap" else make_loop(workload, everybody, kind)
    accuracy, loss = judge(play(gate, workload, train), workload)
    gate.close(accuracy, loss, f"Python {sys.version.split()[0]}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
