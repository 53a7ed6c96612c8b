"""Mini-batches of a client, drawn from (seed, round, client), and Poisson sampling from given chances."""

import numpy as np
from numpy.typing import NDArray

from bdfl.environment import Purpose, stream
from bdfl.scenario import LocalUnit

Samples = NDArray[np.int64]  # numbers of samples in the training set


def draw_batches(
    seed: int, round: int, client: int, samples: Samples, *, unit: LocalUnit, steps: int, batch: int
) -> list[Samples]:
    """Mini-batches of a client in a round, in order: passes without replacement, reshuffled each time.

    Updates: `steps` batches of equal size; a remainder that does not fill a batch is left out of its pass. Epochs:
    `steps` passes over all samples; the last batch of each may be smaller. A client with less than a batch uses all its
    samples in each.
    """
    if len(samples) == 0:
        return []
    rng = stream(seed, Purpose.BATCHES, round, client)
    size = min(batch, len(samples))
    if unit is LocalUnit.EPOCHS:
        num_used, num_passes = len(samples), steps
    else:
        per_pass = len(samples) // size
        num_used, num_passes = per_pass * size, -(-steps // per_pass)  # enough passes for all steps
    batches: list[Samples] = []
    for _ in range(num_passes):
        order = rng.permutation(samples)[:num_used]
        batches += [order[start : start + size] for start in range(0, num_used, size)]
    return batches if unit is LocalUnit.EPOCHS else batches[:steps]


def sampling_rate(batch: int, num_samples: int) -> float:
    """Probability that a private step takes a given sample: `batch` samples on average, or all if there are fewer."""
    return min(1.0, batch / num_samples) if num_samples else 0.0


def num_private_steps(unit: LocalUnit, steps: int, batch: int, num_samples: int) -> int:
    """Steps of a client in a round of private training; an epoch is as many as would see every sample once."""
    if num_samples == 0:
        return 0
    return steps * -(-num_samples // batch) if unit is LocalUnit.EPOCHS else steps


def take_samples(samples: Samples, rate: float, chances: NDArray[np.float64]) -> Samples:
    """Samples of a private step: those whose chance (uniform, one for each) is below the rate; there may be none."""
    return samples[chances < rate]
