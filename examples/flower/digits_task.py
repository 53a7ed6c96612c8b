"""What every Flower project has: a model, the data of a partition, a training and a test loop. Nothing of bdfl."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EVERY_FIFTH = 5  # digit of a partition is for the test


class Net(nn.Module):
    """A perceptron for digits of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):
        return self.layers(images)


@cache
def load_data(partition, num_partitions, batch=32):
    """Loaders of a client's own training and test digits."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[partition::num_partitions]
    labels = torch.tensor(digits.target)[partition::num_partitions]
    is_test = torch.arange(len(labels)) % EVERY_FIFTH == 0
    train, test = (TensorDataset(images[chosen], labels[chosen]) for chosen in (~is_test, is_test))
    return DataLoader(train, batch_size=batch, shuffle=True), DataLoader(test, batch_size=256)


def train(model, loader, epochs=2, learning_rate=0.1):
    """Trains the model in place; its mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    model.train()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(model, loader):
    """Mean loss and accuracy."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        scores = model(images)
        loss += cross_entropy(scores, labels, reduction="sum").item()
        right += (scores.argmax(dim=1) == labels).sum().item()
        count += len(labels)
    return loss / count, right / count
