"""Virtual queues that turn long-run participation (C4) into per-round terms, and their drift."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient, PerClientMask

_Lengths = TypeVar("_Lengths", PerClient, NDArray[np.int64])


def next_queue(queue: _Lengths, rate: _Lengths, participated: PerClientMask | NDArray[np.int64]) -> _Lengths:
    """Queues after a round, (clients,): [Li24, Eq. 16] max(Z_i + beta_i - Gamma_i, 0).

    Integers of some unit stay integers; `participated` then counts the same unit.
    """
    return np.maximum(queue + rate - participated, 0)


def lyapunov(queue: PerClient) -> float:
    """Lyapunov function of the queues: [Li24, Eq. 18] half the sum of Z_i^2."""
    return 0.5 * float(np.sum(queue**2))


def lyapunov_drift(queue: PerClient, queue_after: PerClient) -> float:
    """Growth of the Lyapunov function over one round.

    [Li24, Eq. 19] for the realised round; the sum over clients is part of `lyapunov`.
    """
    return lyapunov(queue_after) - lyapunov(queue)


def squared_queue_bound(queue: PerClient, rate: PerClient, participated: PerClientMask) -> PerClient:
    """Upper bound on the squared queues after a round, (clients,).

    [Li24, Eq. 20] Z_i^2 + beta_i^2 + Gamma_i^2 + 2 Z_i (beta_i - Gamma_i).
    """
    return queue**2 + rate**2 + participated + 2.0 * queue * (rate - participated)


def drift_constant(rate: PerClient) -> float:
    """Constant Q of the drift bound: [Li24, Eq. 21] half the sum of beta_i^2 + 1."""
    return 0.5 * float(np.sum(rate**2 + 1.0))


def drift_bound(queue: PerClient, rate: PerClient, participated: PerClientMask) -> float:
    """Upper bound on the drift of a round: [Li24, Eq. 21] sum of Z_i (beta_i - Gamma_i), plus Q."""
    return float(np.sum(queue * (rate - participated))) + drift_constant(rate)
