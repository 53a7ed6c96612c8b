"""A plain Flower client, as one would write it for Flower. In this folder:

bdfl run quickstart --flower digits_client:client_fn
"""

import torch
from digits_task import Net, load_data, test, train
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp


class DigitsClient(NumPyClient):
    """Learns its own share of the digits."""

    def __init__(self, train_loader, test_loader):
        self.model = Net()
        self.train_loader = train_loader
        self.test_loader = test_loader

    def get_parameters(self, config):
        return [value.numpy() for value in self.model.state_dict().values()]

    def set_parameters(self, parameters):
        names = self.model.state_dict()
        self.model.load_state_dict({name: torch.tensor(array) for name, array in zip(names, parameters, strict=True)})

    def fit(self, parameters, config):
        self.set_parameters(parameters)
        loss = train(self.model, self.train_loader)
        return self.get_parameters(config), len(self.train_loader.dataset), {"train_loss": loss}

    def evaluate(self, parameters, config):
        self.set_parameters(parameters)
        loss, accuracy = test(self.model, self.test_loader)
        return loss, len(self.test_loader.dataset), {"accuracy": accuracy}


def client_fn(context: Context):
    """The client of a partition."""
    loaders = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return DigitsClient(*loaders).to_client()


app = ClientApp(client_fn)
