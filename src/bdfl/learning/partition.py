"""How labelled data fall to clients."""

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient


def draw_label_counts(
    rng: np.random.Generator, samples: PerClient, num_labels: int, dirichlet: float
) -> NDArray[np.int64]:
    """Number of samples of each label each client holds, (clients, labels); rows sum to `samples`.

    Label shares are drawn for every client from a symmetric Dirichlet distribution [Li24, Section VI-A] and rounded to
    whole samples by largest remainder, the lower label where remainders are equal.
    """
    shares = rng.dirichlet(np.full(num_labels, dirichlet), size=len(samples))
    exact = shares * samples[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = samples.astype(np.int64) - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1, kind="stable")
    gets_one_more: NDArray[np.bool_] = rank < missing[:, None]
    return counts + gets_one_more
