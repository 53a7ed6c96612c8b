"""A Flower client that learns by a formula: members of a network whose processes start without PyTorch."""

import numpy as np
from flwr.client import NumPyClient

NUM_EXAMPLES = 60


class FormulaClient(NumPyClient):
    """Halves what it is given and adds what its seed draws."""

    def get_parameters(self, config):
        return [np.zeros((4, 2), np.float32), np.ones(2, np.float32)]

    def fit(self, parameters, config):
        trained = [0.5 * array + np.random.normal(size=array.shape).astype(np.float32) for array in parameters]
        return trained, NUM_EXAMPLES, {"train_loss": 1.0}

    def evaluate(self, parameters, config):
        return 1.0, NUM_EXAMPLES, {"accuracy": 0.5}


def client_fn(context):
    return FormulaClient().to_client()
