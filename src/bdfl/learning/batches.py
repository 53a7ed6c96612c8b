"""Which samples a client sees in which mini-batch: drawn from (seed, round, client) alone."""

import numpy as np
from numpy.typing import NDArray

from bdfl.environment import Purpose, stream
from bdfl.scenario import LocalUnit

Samples = NDArray[np.int64]  # numbers of samples in the training set


def draw_batches(
    seed: int, round: int, client: int, samples: Samples, *, unit: LocalUnit, steps: int, batch: int
) -> list[Samples]:
    """The client's mini-batches in a round, in order: passes without replacement, reshuffled each time.

    Updates: `steps` batches of equal size; what is left at the end of a pass and would not fill a batch is left out of
    that pass. Epochs: `steps` passes over everything, the last batch of each as small as it falls. A client with less
    than a batch uses all it has in each.
    """
    if len(samples) == 0:
        return []
    rng = stream(seed, Purpose.BATCHES, round, client)
    size = min(batch, len(samples))
    if unit is LocalUnit.EPOCHS:
        num_used, num_passes = len(samples), steps
    else:
        per_pass = len(samples) // size
        num_used, num_passes = per_pass * size, -(-steps // per_pass)  # as many passes as hold all steps
    batches: list[Samples] = []
    for _ in range(num_passes):
        order = rng.permutation(samples)[:num_used]
        batches += [order[start : start + size] for start in range(0, num_used, size)]
    return batches if unit is LocalUnit.EPOCHS else batches[:steps]
