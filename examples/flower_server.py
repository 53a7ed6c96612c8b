"""Flower keeps its server, bdfl chooses its clients: python examples/flower_server.py [FOLDER]

The client is one as in Flower's quick start; only `tell` is added, so that the server knows who is who. Then:

    bdfl chain verify FOLDER
    bdfl explore FOLDER
"""

import sys

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn
from torch.nn.functional import cross_entropy

from bdfl.flower import ScheduledFedAvg
from bdfl.learning.data import load_data
from bdfl.learning.partition import draw_partition
from bdfl.scenario import Clients, Scenario, SchedulerChoice

SCENARIO = Scenario(
    name="flower-server",
    rounds=6,
    clients=Clients(count=4, min_selected=2, samples=300),
    scheduler=SchedulerChoice(name="drc"),
)


def load_digits():
    """Handwritten digits, and which of them each client holds."""
    data = load_data(SCENARIO.data)
    return data, draw_partition(SCENARIO, data.train_labels, data.num_labels).indices


def as_tensors(inputs, labels):
    return torch.tensor(inputs, dtype=torch.float32).flatten(1) / 255, torch.tensor(labels)


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


client_app = ClientApp()


@client_app.query()
def tell(message: Message, context: Context) -> Message:
    answer = ConfigRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"config": answer}), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    data, held = load_digits()
    mine = held[int(context.node_config["partition-id"])]
    inputs, labels = as_tensors(data.train_inputs[mine], data.train_labels[mine])
    network = make_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(message.content["config"]["bdfl-local-updates"]):
        optimiser.zero_grad()
        loss = cross_entropy(network(inputs), labels)
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    data, _ = load_digits()
    inputs, labels = as_tensors(data.test_inputs, data.test_labels)
    network = make_network()
    network.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        right = (network(inputs).argmax(dim=1) == labels).double().mean()
    return MetricRecord({"accuracy": right.item()})


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/flower-server"
    strategy = ScheduledFedAvg(SCENARIO, folder=folder, fraction_evaluate=0.0)
    initial = ArrayRecord(make_network().state_dict())
    result = strategy.start(grid, initial, num_rounds=SCENARIO.rounds, evaluate_fn=evaluate)
    record = strategy.record
    for row, number in enumerate(record.round):
        chosen = ", ".join(str(client) for client in record.selected[row].nonzero()[0])
        accuracy = result.evaluate_metrics_serverapp[int(number)]["accuracy"]
        print(f"round {number}: clients {chosen}; {record.delay_s[row]:.3f} s; accuracy {accuracy:.3f}")
    print(f"{record.total_delay_s:.2f} s, {record.energy_j.sum():.2f} J: bdfl chain verify {folder}")


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=SCENARIO.clients.count, backend_config=resources)
