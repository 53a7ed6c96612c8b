"""Lemma 1: bound on the distance of learning from a stationary point, as four terms."""

from dataclasses import dataclass

import numpy as np

from bdfl.arrays import PerClient
from bdfl.errors import InvalidProblem


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
    for name, value in (
        ("learning_rate", learning_rate),
        ("local_updates", local_updates),
        ("rounds", rounds),
        ("samples", float(np.sum(samples))),
    ):
        if not value > 0:
            raise InvalidProblem(f"{name}: {value!r} given, must be above 0")
    share = samples / np.sum(samples)
    num_clients = len(share)
    step = learning_rate * smoothness * local_updates  # eta L H, dimensionless
    squared_gradient = gradient_norm**2
    return ConvergenceBound(
        initial_loss=2.0 * initial_gap / (learning_rate * local_updates * rounds),
        mixed_drift=2.0 * step * squared_gradient * float(np.sum(rate * share) * np.sum((1.0 - rate) * share)),
        local_drift=step * num_clients * squared_gradient * float(np.sum((step * rate**2 + rate) * share**2)),
        absence=num_clients * squared_gradient * float(np.sum(((1.0 - rate) * share) ** 2)),
    )
