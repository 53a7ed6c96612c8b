"""Mining capacity of a client that must deliver its model by a common time, with fixed or free upload power.

For client i and exchange time tau let r_i(tau) be the energy left for mining if the client trains and uploads with the
least energy by tau. The optimum depends on it through the *mining root* b_i(tau) = (2 r_i(tau)/(chi_i A))^(1/3): with
total mining frequency s, client i can mine at s^(1/3) b_i(tau). It is concave and increasing in tau from `least_s` on;
before that the client cannot take part.

If clients may choose their transmit power, the best split of their time is solved inside. By an exchange time tau a
client uploads for u seconds, at the power this needs, and trains for tau - u. Upload energy is convex and decreasing in
u, training energy convex in tau - u, so the least energy is convex and decreasing in tau, as for given powers.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bdfl.compute import mining_scale, training_energy, training_time
from bdfl.radio import power_for_upload_time, uplink_rate, upload_energy, upload_time
from bdfl.scheduling.convex import NOTHING, STEEPEST
from bdfl.scheduling.problem import RoundProblem
from bdfl.types import PerClient, PerClientMask

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


_SPLIT_STEPS = 100
_SPLIT_TOLERANCE = 1e-9  # relative: the next step is exact to rounding
_SMALL_EXPONENT = 1e-3
_LEAST_STEPS = 200  # from the left every step at most doubles the time


@dataclass(frozen=True, eq=False)
class FreePowerCurves:
    """Curves for transmit powers between zero and each client's limit."""

    least_s: PerClient
    shortest_upload_s: PerClient  # at the highest power
    shortest_training_s: PerClient  # at the highest frequency
    cycles: PerClient
    inertia: PerClient  # k: training for x seconds costs k / x^2
    nats_per_hz: PerClient  # c = m ln 2 / B
    noise_over_gain_w: PerClient  # n = B N0 / h: uploading for u seconds costs n u (e^(c/u) - 1)
    budget_j: PerClient
    per_joule: PerClient  # root^3 gained by a joule
    max_power_w: PerClient

    def roots(self, exchange_s: Times) -> tuple[Times, Times]:
        ready = exchange_s >= self.least_s
        at = np.where(ready, exchange_s, np.where(np.isfinite(self.least_s), self.least_s, 1.0))
        upload_s, is_last = self._split(at)
        power_cubed = self.per_joule * np.maximum(self.budget_j - self._energy(at, upload_s), 0.0)
        root = np.cbrt(power_cubed)
        saved = np.where(is_last, self._upload_saving(upload_s), self._training_saving(at - upload_s))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(saved > 0.0, np.minimum(self.per_joule * saved / (3.0 * root * root), STEEPEST), 0.0)
        return np.where(ready, root, -STEEPEST), np.where(ready, slope, 0.0)

    def final_roots(self) -> PerClient:
        spare_j = self.budget_j - self.noise_over_gain_w * self.nats_per_hz
        return np.where(np.isfinite(self.least_s), np.cbrt(self.per_joule * np.maximum(spare_j, 0.0)), -STEEPEST)

    def take(self, index: Indices | slice) -> "FreePowerCurves":
        return FreePowerCurves(*(getattr(self, item.name)[index] for item in fields(self)))

    def settle(self, exchange_s: float) -> tuple[PerClient, PerClient]:
        at = np.where(exchange_s >= self.least_s, exchange_s, np.where(np.isfinite(self.least_s), self.least_s, 1.0))
        upload_s, _ = self._split(at)
        spare_s = at - upload_s
        cpu_hz = np.divide(self.cycles, spare_s, out=np.zeros_like(spare_s), where=(self.cycles > 0) & (spare_s > 0))
        power_w = power_for_upload_time(self.nats_per_hz, upload_s, self.noise_over_gain_w)
        return cpu_hz, np.minimum(power_w, self.max_power_w)

    def _energy(self, exchange_s: Times, upload_s: Times) -> Times:
        """Upload and training energy (J) of a split."""
        upload_j = upload_s * power_for_upload_time(self.nats_per_hz, upload_s, self.noise_over_gain_w)
        energy_j: Times = upload_j + self.inertia / np.maximum(exchange_s - upload_s, NOTHING) ** 2
        return energy_j

    def _upload_saving(self, upload_s: Times) -> Times:
        """Energy saved per second (W) of more upload time."""
        saved_w: Times = self.noise_over_gain_w * _convexity(self.nats_per_hz / upload_s)
        return saved_w

    def _training_saving(self, spare_s: Times) -> Times:
        """Energy saved per second (W) of more training time."""
        saved_w: Times = 2.0 * self.inertia / np.maximum(spare_s, NOTHING) ** 3
        return saved_w

    def _split(self, exchange_s: Times) -> tuple[Times, NDArray[np.bool_]]:
        """Upload time (s) of least total energy, and whether it is as long as training allows.

        At the optimum another second saves as much in upload as in training. The logarithm of that ratio falls with the
        upload time and is nearly straight: Newton's method, kept inside a bracket.
        """
        shape = np.broadcast_shapes(exchange_s.shape, self.least_s.shape)
        shortest = np.broadcast_to(self.shortest_upload_s, shape)
        longest = np.maximum(exchange_s - self.shortest_training_s, shortest)
        trains = self.inertia > 0.0
        log_inertia = np.log(2.0 * np.where(trains, self.inertia, 1.0) / self.noise_over_gain_w)

        def log_ratio(upload_s: Times) -> tuple[Times, Times]:
            exponent = self.nats_per_hz / upload_s
            spare_s = np.maximum(exchange_s - upload_s, NOTHING)
            worth = _convexity(exponent)
            value = np.log(worth) - log_inertia + 3.0 * np.log(spare_s)
            return value, exponent**2 * np.exp(exponent) / (worth * upload_s) + 3.0 / spare_s

        is_first = trains & (log_ratio(shortest)[0] <= 0.0)
        is_last = ~is_first & (~trains | (log_ratio(longest)[0] >= 0.0))
        settled = is_first | is_last
        low, high, upload_s = shortest, longest, 0.5 * (shortest + longest)
        for _ in range(_SPLIT_STEPS):
            value, fall = log_ratio(upload_s)
            low, high = np.where(value > 0.0, upload_s, low), np.where(value > 0.0, high, upload_s)
            following = upload_s + value / fall
            inside = (following >= low) & (following <= high)
            following = np.where(inside, following, 0.5 * (low + high))
            settled |= np.abs(following - upload_s) <= _SPLIT_TOLERANCE * upload_s
            upload_s = following
            if settled.all():
                break
        return np.where(is_last, longest, np.where(is_first, shortest, upload_s)), is_last


def _convexity(exponent: Times) -> Times:
    """Evaluate x e^x - (e^x - 1) without cancellation for small x."""
    small = exponent < _SMALL_EXPONENT
    series = exponent**2 * (1 / 2 + exponent * (1 / 3 + exponent * (1 / 8 + exponent * (1 / 30 + exponent / 144))))
    return np.where(small, series, exponent * np.exp(exponent) - np.expm1(exponent))


def free_power_curves(problem: RoundProblem) -> FreePowerCurves:
    """Curves of all clients of `problem` with transmit power up to `power_max_w`."""
    top = problem.power_max_w
    rate = uplink_rate(problem.bandwidth_hz, top, problem.gain, problem.noise_w_per_hz)
    able = (rate > 0.0) & (problem.cpu_max_hz > 0.0) & (problem.energy_budget_j > 0.0)
    gain = np.where(able, problem.gain, 1.0)
    nats_per_hz = problem.model_bits * np.log(2.0) / problem.bandwidth_hz
    noise_over_gain_w = problem.bandwidth_hz * problem.noise_w_per_hz / gain
    spare_j = problem.energy_budget_j - noise_over_gain_w * nats_per_hz  # with infinite time
    able &= spare_j > 0.0
    inertia = training_inertia(problem)
    shortest_upload_s = np.where(able, upload_time(problem.model_bits, np.where(able, rate, 1.0)), 1.0)
    shortest_training_s = np.where(able, training_time(problem.cycles, problem.cpu_max_hz), 0.0)
    paid_s = np.sqrt(inertia / np.where(able, spare_j, 1.0))
    start_s = shortest_upload_s + np.maximum(shortest_training_s, paid_s)
    curves = FreePowerCurves(
        least_s=np.where(able, start_s, np.inf),
        shortest_upload_s=shortest_upload_s,
        shortest_training_s=shortest_training_s,
        cycles=problem.cycles,
        inertia=inertia,
        nats_per_hz=nats_per_hz,
        noise_over_gain_w=noise_over_gain_w,
        budget_j=problem.energy_budget_j,
        per_joule=mining_scale(1.0, problem.capacitance, problem.work_cycles),
        max_power_w=top,
    )
    return FreePowerCurves(
        np.where(able, _payable_from(curves, start_s, able), np.inf),
        *(getattr(curves, item.name) for item in fields(curves)[1:]),
    )


def _payable_from(curves: FreePowerCurves, start_s: PerClient, able: PerClientMask) -> PerClient:
    """Earliest exchange time (s) that the budget pays for, (clients,).

    Newton's method from the left on the energy, which falls and is convex: it never passes the root.
    """
    time_s = start_s
    for _ in range(_LEAST_STEPS):
        upload_s, is_last = curves._split(time_s)
        saved_w = np.where(is_last, curves._upload_saving(upload_s), curves._training_saving(time_s - upload_s))
        missing_j = curves._energy(time_s, upload_s) - curves.budget_j
        short = able & (missing_j > 1e-15 * curves.budget_j) & (saved_w > 0.0)
        step_s = np.divide(missing_j, saved_w, out=np.zeros_like(missing_j), where=short)
        time_s = time_s + step_s
        if np.all(step_s <= 1e-15 * time_s):
            break
    return time_s
