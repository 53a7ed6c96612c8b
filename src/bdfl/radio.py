"""Gain, rate, upload time and upload energy of a wireless uplink, as pure functions of arrays."""

import numpy as np
from numpy.typing import NDArray

from bdfl.types import PerClient

BITS_PER_BYTE = 8


def channel_gain(
    reference_gain: float,
    fading: PerClient,
    distance_m: PerClient,
    reference_distance_m: float,
    path_loss_exponent: float,
) -> PerClient:
    """Channel power gain (dimensionless) from client to access point, (clients,).

    [Li24, Section III-D] h_i = h0 rho_i (d0 / d_i)^v. Distances below d0 count as d0: the law is a far-field one.
    """
    far_m = np.maximum(distance_m, reference_distance_m)
    gain: PerClient = reference_gain * fading * (reference_distance_m / far_m) ** path_loss_exponent
    return gain


def signal_to_noise(bandwidth_hz: float, power_w: PerClient, gain: PerClient, noise_w_per_hz: float) -> PerClient:
    """Signal-to-noise ratio of the uplink (dimensionless), (clients,): P_i h_i / (B N0), see `uplink_rate`."""
    return power_w * gain / (bandwidth_hz * noise_w_per_hz)


def uplink_rate(bandwidth_hz: float, power_w: PerClient, gain: PerClient, noise_w_per_hz: float) -> PerClient:
    """Uplink rate (bit/s), (clients,).

    [Li24, Eq. 8] R_i = B log2(1 + P_i h_i / (B N0)). Zero gain or power gives rate zero.
    """
    ratio = signal_to_noise(bandwidth_hz, power_w, gain, noise_w_per_hz)
    rate: PerClient = bandwidth_hz * np.log1p(ratio) / np.log(2.0)
    return rate


def gain_for_rate(
    bandwidth_hz: float, power_w: PerClient, rate_bit_per_s: PerClient, noise_w_per_hz: float
) -> PerClient:
    """Channel power gain (dimensionless) at which the uplink has that rate, (clients,).

    [Li24, Eq. 8] solved for h_i: (B N0 / P_i) (2^(R_i / B) - 1). Rate zero gives gain zero. A gain too large for a
    float, or a rate above zero at power zero, gives infinity.
    """
    with np.errstate(over="ignore", divide="ignore"):
        ratio = np.expm1(rate_bit_per_s / bandwidth_hz * np.log(2.0))
        gain: PerClient = np.where(rate_bit_per_s > 0, ratio * bandwidth_hz * noise_w_per_hz / power_w, 0.0)
    return gain


def upload_time(model_bits: PerClient, rate_bit_per_s: PerClient) -> PerClient:
    """Upload time (s), (clients,).

    [Li24, Eq. 9] m_i / R_i. A model at rate zero never arrives: infinity.
    """
    return np.divide(model_bits, rate_bit_per_s, out=np.full_like(rate_bit_per_s, np.inf), where=rate_bit_per_s > 0)


def upload_energy(power_w: PerClient, upload_s: PerClient) -> PerClient:
    """Upload energy (J), (clients,).

    [Li24, Eq. 10] P_i m_i / R_i. A model that never arrives costs infinity, even at power zero.
    """
    return np.multiply(power_w, upload_s, out=np.full_like(upload_s, np.inf), where=np.isfinite(upload_s))


def power_for_upload_time(
    nats_per_hz: NDArray[np.float64], upload_s: NDArray[np.float64], noise_over_gain_w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Transmit power (W) that uploads a model in exactly `upload_s`, shaped as its arguments broadcast together.

    [Li24, Eq. 8] solved for P_i: (B N0 / h_i) (2^(m_i / (B t)) - 1), with m_i ln 2 / B and B N0 / h_i given.
    """
    return noise_over_gain_w * np.expm1(nats_per_hz / upload_s)
