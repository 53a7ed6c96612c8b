"""Virtual queues, their drift, and bounds on the convergence of learning, term by term."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import InvalidProblem
from bdfl.types import PerClient, PerClientMask

# Virtual queues that turn long-run participation (C4) into per-round terms, and their drift.

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


# Lemmas 1 and 2: bounds on the distance of learning from a stationary point, as four terms.


@dataclass(frozen=True, kw_only=True)
class ConvergenceBound:
    """Upper bound on the mean squared gradient norm of the global loss over all rounds, as the sum of four terms.

    Only the first vanishes with the number of rounds; the others are the neighbourhood that learning converges to.
    """

    initial_loss: float  # remaining distance, O(1 / T)
    mixed_drift: float  # local drift of participants, times the absence of the others
    local_drift: float  # local steps of participants
    absence: float  # gradients of absent clients; zero if all participate

    @property
    def neighbourhood(self) -> float:
        """Limit of the bound for infinitely many rounds."""
        return self.mixed_drift + self.local_drift + self.absence

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.initial_loss + self.neighbourhood


def convergence_bound(
    *,
    initial_gap: float,
    learning_rate: float,
    smoothness: float,
    gradient_norm: float,
    local_updates: int,
    rounds: int,
    rate: PerClient,
    samples: PerClient,
) -> ConvergenceBound:
    """Lemma 1's bound on the mean of E|grad F(w(t))|^2 over `rounds` rounds, term by term.

    [Li24, Eq. 36] of F(w(1)) - F* (`initial_gap`), eta, L (`smoothness`), G (`gradient_norm`), H, T, beta_i (`rate`)
    and |D_i| (`samples`). It bounds the norm of the gradient, not of F as printed. It assumes that client i
    participates with probability beta_i; `rate` must be the actual rate. Two slips of the proof are corrected in the
    third term, `local_drift`: L^2 in (52) became L in (53), and E[Gamma_i^2] is beta_i, not beta_i^2 as in (39). It
    reads eta U L H G^2 sum_i (eta L H beta_i^2 + beta_i) (|D_i| / |D|)^2.
    """
    share = _shares(samples, learning_rate, local_updates, rounds)
    num_clients = len(share)
    step = learning_rate * smoothness * local_updates  # eta L H, dimensionless
    squared_gradient = gradient_norm**2
    return ConvergenceBound(
        initial_loss=2.0 * initial_gap / (learning_rate * local_updates * rounds),
        mixed_drift=2.0 * step * squared_gradient * float(np.sum(rate * share) * np.sum((1.0 - rate) * share)),
        local_drift=step * num_clients * squared_gradient * float(np.sum((step * rate**2 + rate) * share**2)),
        absence=num_clients * squared_gradient * float(np.sum(((1.0 - rate) * share) ** 2)),
    )


def aggregation_bound(
    *,
    initial_gap: float,
    learning_rate: float,
    smoothness: float,
    gradient_norm: float,
    local_updates: int,
    rounds: int,
    weight: PerClient,
    samples: PerClient,
) -> ConvergenceBound:
    """Lemma 2's bound on the same mean, for the weighted mean that is really taken, term by term.

    `weight`, (clients,), has each client's expected weight E[q_i] in the model after a round. By [Li24, Eq. 3] q_i is a
    share of the data of those who train, and the weights sum to 1; less is allowed, as in (38) with q_i = Gamma_i p_i.
    With x = eta L H, s = sum_i E[q_i] and delta = sum_i |p_i - E[q_i]|, p_i = |D_i| / |D|, it reads
    2 (F(w(1)) - F*) / (eta H T) + G^2 [s x (1 + delta) + delta^2]. docs/theory.md proves it; it presumes that E[q_i]
    is the same whatever happened before.
    """
    share = _shares(samples, learning_rate, local_updates, rounds)
    total = float(np.sum(weight))
    if not (np.all(weight >= 0) and total <= 1.0 + 1e-9):
        raise InvalidProblem(
            f"weight: {np.min(weight):g} or more, {total:g} in sum given, allowed: 0 or more, at most 1"
        )
    shift = float(np.sum(np.abs(share - weight)))  # delta
    drift = total * learning_rate * smoothness * local_updates  # s x
    squared_gradient = gradient_norm**2
    return ConvergenceBound(
        initial_loss=2.0 * initial_gap / (learning_rate * local_updates * rounds),
        mixed_drift=squared_gradient * drift * shift,
        local_drift=squared_gradient * drift,
        absence=squared_gradient * shift**2,
    )


def _shares(samples: PerClient, learning_rate: float, local_updates: int, rounds: int) -> PerClient:
    """Return each client's share of all data, (clients,); raise `InvalidProblem` unless all given is above 0."""
    for name, value in (
        ("learning_rate", learning_rate),
        ("local_updates", local_updates),
        ("rounds", rounds),
        ("samples", float(np.sum(samples))),
    ):
        if not value > 0:
            raise InvalidProblem(f"{name}: {value!r} given, must be above 0")
    return samples / np.sum(samples)
