"""Random streams of a run, each determined by (seed, purpose, round, client) and independent of the order of use.

A purpose and a round name a stream. Element i of the first vector drawn from it belongs to client i. It stays the same
when clients are added.
"""

from enum import IntEnum

import numpy as np

from bdfl.scenario import Choice, Lognormal, Normal, PerClientValue, Uniform
from bdfl.types import PerClient


class Purpose(IntEnum):
    """The use of a random stream. Numbers are part of a run's definition: never reuse or change one."""

    SAMPLES = 1
    CYCLES_PER_SAMPLE = 2
    CAPACITANCE = 3
    POWER = 4
    POWER_MAX = 5
    MODEL_BITS = 6
    CPU_MAX = 7
    MINING_MAX = 8
    INITIAL_CPU = 9
    INITIAL_MINING = 10
    ENERGY_BUDGET = 11
    DISTANCE = 12
    DIRECTION = 13
    PLACE = 14
    WAYPOINT = 15
    SHADOWING = 16  # the "round" is the number of the access point
    FADING = 17
    LABELS = 18
    PARTICIPATION = 19
    MINING = 20  # time until a sampled block is found, and its miner
    SCHEDULER = 21
    PARTITION = 22  # assignment of samples to clients
    MODEL = 23  # the initial weights
    BATCHES = 24  # a client's mini-batches in a round
    TRAINING = 25  # other randomness of a client's training, such as dropout
    ATTACK = 26  # the noise that a misbehaving client sends in a round
    FAULTS = 27  # faults of machines and messages
    NOISE = 28  # gradient noise of a client's private training in a round
    SWEEP = 29  # settings of a random sweep; its "round" is the number of the draw, its "client" the key


def stream(seed: int, purpose: Purpose, round: int = 0, client: int | None = None) -> np.random.Generator:
    """Return the random stream of one purpose in one round; round 0 stands for the whole run.

    A purpose draws for all clients from one stream, or for each from its own, never both: numpy does not distinguish a
    missing client from client 0.
    """
    words = [seed, purpose, round] if client is None else [seed, purpose, round, client]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def draw_values(rng: np.random.Generator, value: PerClientValue, num_clients: int) -> PerClient:
    """A value for every client, (clients,): the number or list as given, or draws from the distribution."""
    match value:
        case Uniform(low=low, high=high):
            return low + (high - low) * rng.random(num_clients)
        case Lognormal(median=median, sigma=sigma):
            return median * np.exp(sigma * rng.standard_normal(num_clients))
        case Normal(mean=mean, std=std, low=low, high=high):
            return np.clip(mean + std * rng.standard_normal(num_clients), low, high)
        case Choice(values=values, weights=weights):
            shares = np.cumsum(np.ones(len(values)) if weights is None else weights)
            picked = np.searchsorted(shares / shares[-1], rng.random(num_clients), side="right")
            return np.asarray(values, dtype=np.float64)[picked]
        case tuple():
            return np.array(value, dtype=np.float64)
        case _:
            return np.full(num_clients, float(value))
