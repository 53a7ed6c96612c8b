"""Mining capacity of a client that must deliver its model by a common time.

For client i and exchange time tau let r_i(tau) be the energy left for mining if the client trains and uploads with the
least energy by tau. The optimum depends on it through the *mining root* b_i(tau) = (2 r_i(tau)/(chi_i A))^(1/3): with
total mining frequency s, client i can mine at s^(1/3) b_i(tau). It is concave and increasing in tau from `least_s` on;
before that the client cannot take part. There are two families: transmit power given, or free up to a limit.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.compute import mining_scale, training_energy, training_time
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.scheduling.convex import NOTHING, STEEPEST
from bdfl.scheduling.problem import RoundProblem

Times = NDArray[np.float64]  # any shape that broadcasts against (clients,) in its last axis
Indices = NDArray[np.intp]


class Curves(Protocol):
    """The mining root of every client as a function of the exchange time."""

    @property
    def least_s(self) -> PerClient:
        """Earliest possible exchange time (s), (clients,); infinity if a client cannot train at all."""
        ...

    def roots(self, exchange_s: Times) -> tuple[Times, Times]:
        """Mining root and its slope in time; minus STEEPEST with slope 0 before `least_s`."""
        ...

    def final_roots(self) -> PerClient:
        """Mining root with infinite time; minus STEEPEST if a client cannot train."""
        ...

    def take(self, index: Indices | slice) -> Self:
        """Return the same curves for some of the clients."""
        ...

    def settle(self, exchange_s: float) -> tuple[PerClient, PerClient]:
        """Training frequency (Hz) and transmit power (W) that need the least energy to be done by `exchange_s`."""
        ...


def idle_roots(problem: RoundProblem) -> PerClient:
    """Mining root of a client that only mines, (clients,): [Li24, Eq. 12] with the whole budget spent."""
    return np.cbrt(mining_scale(problem.energy_budget_j, problem.capacitance, problem.work_cycles))


def training_inertia(problem: RoundProblem) -> PerClient:
    """Constant k_i (J s^2), (clients,), such that training in x seconds costs k / x^2: [Li24, Eq. 7] at f = c / x."""
    return training_energy(problem.capacitance, problem.cycles, problem.cycles)


@dataclass(frozen=True, eq=False)
class FixedPowerCurves:
    """Curves for the given transmit powers: upload time and energy are constants of the round."""

    least_s: PerClient
    upload_s: PerClient
    cycles: PerClient
    power_w: PerClient
    ceiling: PerClient  # cube of the root with infinite time
    loss: PerClient  # root^3 = ceiling - loss / (tau - upload_s)^2

    def roots(self, exchange_s: Times) -> tuple[Times, Times]:
        inverse = 1.0 / np.maximum(exchange_s - self.upload_s, NOTHING)
        lost = self.loss * inverse * inverse
        root = np.cbrt(np.maximum(self.ceiling - lost, 0.0))
        with np.errstate(over="ignore"):  # long training, and a time before the upload is over
            slope = np.minimum(lost * inverse / np.maximum(1.5 * root * root, 1.0 / STEEPEST), STEEPEST)
        ready = exchange_s >= self.least_s
        return np.where(ready, root, -STEEPEST), np.where(ready, slope, 0.0)

    def final_roots(self) -> PerClient:
        return np.where(np.isfinite(self.least_s), np.cbrt(np.maximum(self.ceiling, 0.0)), -STEEPEST)

    def take(self, index: Indices | slice) -> "FixedPowerCurves":
        return FixedPowerCurves(*(getattr(self, item.name)[index] for item in fields(self)))

    def plain_sum(self, index: Indices) -> Callable[[float], tuple[float, float]]:
        """Sum of the roots of a few clients and its slope, for plain floats: the fast twin of `roots`."""
        terms = np.stack([self.upload_s, self.ceiling, self.loss], axis=1)[index].tolist()

        def total(exchange_s: float) -> tuple[float, float]:
            roots = slopes = 0.0
            for upload_s, ceiling, loss in terms:
                inverse = 1.0 / max(exchange_s - upload_s, NOTHING)
                lost = loss * inverse * inverse
                root = max(ceiling - lost, 0.0) ** (1.0 / 3.0)
                roots += root
                slopes += min(lost * inverse / max(1.5 * root * root, 1.0 / STEEPEST), STEEPEST)
            return roots, slopes

        return total

    def settle(self, exchange_s: float) -> tuple[PerClient, PerClient]:
        spare_s = exchange_s - self.upload_s
        cpu_hz = np.divide(self.cycles, spare_s, out=np.zeros_like(spare_s), where=(self.cycles > 0) & (spare_s > 0))
        return cpu_hz, self.power_w


def fixed_power_curves(problem: RoundProblem) -> FixedPowerCurves:
    """Curves of all clients of `problem` at their given transmit powers."""
    rate = uplink_rate(problem.bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
    upload_s = upload_time(problem.model_bits, rate)
    spare_j = problem.energy_budget_j - upload_energy(problem.power_w, upload_s)
    able = np.isfinite(upload_s) & (spare_j > 0.0) & (problem.cpu_max_hz > 0.0)
    inertia = training_inertia(problem)
    paid_s = np.sqrt(inertia / np.where(able, spare_j, 1.0))
    capped_s = training_time(problem.cycles, problem.cpu_max_hz)
    per_joule = mining_scale(1.0, problem.capacitance, problem.work_cycles)
    return FixedPowerCurves(
        least_s=np.where(able, upload_s + np.maximum(paid_s, capped_s), np.inf),
        upload_s=np.where(able, upload_s, 0.0),
        cycles=problem.cycles,
        power_w=problem.power_w,
        ceiling=np.where(able, per_joule * spare_j, 0.0),
        loss=per_joule * inertia,
    )
