"""Privacy accounting: Opacus's accountants as a pure function of integers recorded on the chain.

The guarantee is that of the subsampled Gaussian mechanism. A step takes each of a client's samples independently with
the same probability (Poisson sampling), clips its gradient, and adds noise to the sum. Epsilon can be recomputed from
the noise, the rate, the number of steps and delta.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.encoding import INT_LIMIT
from bdfl.errors import require
from bdfl.learning.training import InvalidTraining, num_local_steps
from bdfl.scenario import Accountant, LocalUnit, Scenario
from bdfl.scenario.schema_learning import ATTO, MICRO

_WHOLE_ORDERS = tuple(range(2, 64))
_LEAST_NOISE, _MOST_NOISE = 1e-3, 10_000.0  # range searched for a noise that meets an epsilon
_PRECISION = 4e-3  # relative, of that noise
_NEARLY = 0.9  # integer orders overestimate the noise by less than this factor


def validate_opacus() -> None:
    """Raise `MissingExtra` unless Opacus is installed; import it without its changes to the root logger."""
    require("private training", "opacus")
    with _as_it_was():
        import opacus  # noqa: F401


def sampling_rate(batch: int, num_samples: int) -> float:
    """Probability that a private step takes a given sample: `batch` samples on average, or all if there are fewer."""
    return min(1.0, batch / num_samples) if num_samples else 0.0


def num_private_steps(unit: LocalUnit, steps: int, batch: int, num_samples: int) -> int:
    """Steps of a client in a round of private training; an epoch is as many as would see every sample once."""
    if num_samples == 0:
        return 0
    return steps * -(-num_samples // batch) if unit is LocalUnit.EPOCHS else steps


@dataclass(frozen=True)
class Mechanism:
    """Parameters that determine a client's epsilon, except the number of rounds it trained in."""

    noise_micro: int  # standard deviation of the noise over the clipping norm, in 1e-6
    batch: int  # expected number of samples in a step
    samples: int  # |D_i|
    steps: int  # noisy steps in a round
    delta_atto: int  # in 1e-18
    accountant: Accountant

    @property
    def noise_multiplier(self) -> float:
        return self.noise_micro / MICRO

    @property
    def rate(self) -> float:
        """Probability that a step takes a given sample."""
        return sampling_rate(self.batch, self.samples)

    @property
    def delta(self) -> float:
        return self.delta_atto / ATTO


def mechanism_of(scenario: Scenario, samples: int, noise_micro: int) -> Mechanism:
    """Return the mechanism of a client with `samples` samples in a private scenario."""
    learning, privacy = scenario.learning, scenario.privacy
    steps = num_private_steps(learning.unit, num_local_steps(scenario), learning.batch, samples)
    return Mechanism(noise_micro, learning.batch, samples, steps, privacy.delta_atto, privacy.accountant)


def noise_micro_of(scenario: Scenario, samples: Sequence[int]) -> int:
    """Noise multiplier of a private scenario in 1e-6, as given or as `privacy.epsilon` requires.

    For an epsilon it is rounded up and so large that no client spends more, even if it trains in all rounds. `samples`
    are the sizes of all clients' data sets.
    """
    privacy = scenario.privacy
    if privacy.noise_micro is not None:
        return privacy.noise_micro
    if privacy.epsilon is None:
        raise InvalidTraining("privacy: off, expected a noise_multiplier or an epsilon")
    mechanisms = {mechanism_of(scenario, int(size), 1) for size in samples if size > 0}
    return max((_noise_for(privacy.epsilon, one, one.steps * scenario.rounds) for one in mechanisms), default=MICRO)


def spent_micro(mechanism: Mechanism, rounds: int) -> int:
    """Epsilon spent in `rounds` rounds, in 1e-6, rounded up; 0 for a client without data or before its first round."""
    num_steps = rounds * mechanism.steps
    if num_steps == 0 or mechanism.samples == 0:
        return 0
    epsilon = _spent(mechanism.accountant, mechanism.noise_micro, mechanism.rate, num_steps, mechanism.delta)
    return min(math.ceil(epsilon * MICRO), INT_LIMIT) if math.isfinite(epsilon) else INT_LIMIT


@cache
def _spent(accountant: Accountant, noise_micro: int, rate: float, num_steps: int, delta: float) -> float:
    if accountant is Accountant.RDP:
        return max(0.0, _spent_by_orders(noise_micro / MICRO, rate, num_steps, delta, _orders()))
    with _as_it_was():
        from opacus.accountants import PRVAccountant

        prv: Any = PRVAccountant()
        prv.history = [(noise_micro / MICRO, rate, num_steps)]
        return max(0.0, float(prv.get_epsilon(delta)))


@cache
def _orders() -> tuple[float, ...]:
    validate_opacus()
    with _as_it_was():
        from opacus.accountants import RDPAccountant

        return tuple(RDPAccountant.DEFAULT_ALPHAS)


@cache
def _step_divergence(noise: float, rate: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Renyi divergences of one step for these orders; divergences of several steps add up."""
    with _as_it_was():
        from opacus.accountants.analysis import rdp

        return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders))


@cache
def _noise_for(epsilon: float, mechanism: Mechanism, num_steps: int) -> int:
    """Least noise multiplier, in 1e-6 and approximately, at which `num_steps` steps spend at most `epsilon`.

    Integer orders are fast to evaluate and give an upper bound on the noise. The accountant's own result lies just
    below.
    """
    rate, delta = mechanism.rate, mechanism.delta
    validate_opacus()

    def is_enough_by_whole_orders(noise: float) -> bool:
        return _spent_by_orders(noise, rate, num_steps, delta, _WHOLE_ORDERS) <= epsilon

    def is_enough(noise: float) -> bool:
        noise_micro = math.ceil(noise * MICRO)
        return _spent(mechanism.accountant, noise_micro, rate, num_steps, delta) <= epsilon

    high = 1.0
    while not is_enough_by_whole_orders(high):
        high *= 2.0
        if high > _MOST_NOISE:
            raise InvalidTraining(
                f"privacy.epsilon: {epsilon:g} given, less than any noise gives in {num_steps} steps with delta"
                f" {delta:g}"
            )
    enough = _bisect(_LEAST_NOISE, high, is_enough_by_whole_orders)
    return math.ceil(_bisect(_NEARLY * enough, enough, is_enough) * MICRO)


def _bisect(low: float, high: float, is_enough: Callable[[float], bool]) -> float:
    """Least number that is enough, up to `_PRECISION`; `high` must be enough."""
    while high > low * (1.0 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _spent_by_orders(noise: float, rate: float, num_steps: int, delta: float, orders: tuple[float, ...]) -> float:
    with _as_it_was():
        from opacus.accountants.analysis import rdp

        divergence = _step_divergence(noise, rate, orders) * num_steps
        return float(rdp.get_privacy_spent(orders=orders, rdp=divergence, delta=delta)[0])


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Use Opacus inside: restore the root logger's handlers afterwards and suppress advice on orders.

    Opacus advises more orders if the best one is the first or the last. The bound holds without them.
    """
    handlers = list(logging.root.handlers)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the (largest|smallest) alpha")
            yield
    finally:
        logging.root.handlers[:] = handlers
