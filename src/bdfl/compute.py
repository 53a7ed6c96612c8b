"""Training and mining time and energy of a client's processor, as pure functions of arrays."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bdfl.types import PerClient

Seconds = TypeVar("Seconds", float, NDArray[np.float64])  # of one round, or of many


def training_cycles(cycles_per_sample: PerClient, local_updates: float, samples: PerClient) -> PerClient:
    """CPU cycles of one round of local training, (clients,): c_i = phi_i H |D_i|, the numerator of [Li24, Eq. 6]."""
    return cycles_per_sample * local_updates * samples


def training_time(cycles: PerClient, cpu_hz: PerClient) -> PerClient:
    """Training time (s), (clients,).

    [Li24, Eq. 6] c_i / f_i. No cycles take no time; some cycles at frequency zero never end: infinity.
    """
    never = np.where(cycles > 0, np.inf, 0.0)
    return np.divide(cycles, cpu_hz, out=never, where=cpu_hz > 0)


def training_energy(capacitance: PerClient, cycles: PerClient, cpu_hz: PerClient) -> PerClient:
    """Training energy (J), (clients,): [Li24, Eq. 7] (chi_i / 2) c_i f_i^2."""
    return 0.5 * capacitance * cycles * cpu_hz**2


def mining_work(difficulty: float, miss_probability: float) -> float:
    """Work A (cycles) such that mining takes A / sum F: A = -alpha ln(1 - p0), from [Li24, Eq. 11].

    `miss_probability` is 1 - p0, the chance that a block takes longer than planned.
    """
    return float(-difficulty * np.log(miss_probability))


def mining_time(work_cycles: float, mining_hz: PerClient) -> float:
    """Mining time (s) of a block.

    [Li24, Eq. 11] A / sum_j F_j over all clients. Infinity if no client mines.
    """
    total_hz = float(np.sum(mining_hz))
    return work_cycles / total_hz if total_hz > 0 else float("inf")


def mining_energy(capacitance: PerClient, mining_s: float, mining_hz: PerClient) -> PerClient:
    """Mining energy (J), (clients,): [Li24, Eq. 12] (chi_i / 2) d_bloc F_i^3; frequency zero costs nothing."""
    return np.where(mining_hz > 0, 0.5 * capacitance * np.where(mining_hz > 0, mining_s, 0.0) * mining_hz**3, 0.0)


def mining_scale(energy_j: PerClient | float, capacitance: PerClient, work_cycles: float) -> PerClient:
    """F_i^3 / sum F (Hz^2) that `energy_j` pays for, (clients,): M of [Li24, Eq. 31], which is [Li24, Eq. 12] inverted.

    2 e_i / (chi_i A) with e_i the budget left by upload and training; training energy is quadratic in f_i, not cubic as
    printed.
    """
    return 2.0 * energy_j / (capacitance * work_cycles)


def round_delay(exchange_s: Seconds, mining_s: Seconds, overhead_s: Seconds) -> Seconds:
    """Round delay (s): [Li24, Eq. 13], the slowest selected client's training and upload, then mining.

    `overhead_s` is the constant time per round that the paper leaves out: downlink, verification and voting.
    """
    return exchange_s + mining_s + overhead_s
