"""Small-scale fading and shadowing of a radio channel, as power gains."""

import math
from typing import assert_never

import numpy as np

from bdfl.arrays import PerClient
from bdfl.scenario import Fading, FadingKind


def draw_fading(rng: np.random.Generator, fading: Fading, num_clients: int) -> PerClient:
    """Small-scale power gain rho_i (dimensionless, mean 1), (clients,): [Li24, Section III-D].

    `rayleigh` is exponential; `rician` is |sqrt(K/(K+1)) + n|^2 with complex normal n of power 1/(K+1); `nakagami` is
    gamma with shape m and mean 1.
    """
    match fading.kind:
        case FadingKind.NONE:
            return np.ones(num_clients)
        case FadingKind.RAYLEIGH:
            return rng.standard_exponential(num_clients)
        case FadingKind.RICIAN:
            direct = math.sqrt(fading.k_factor / (fading.k_factor + 1.0))
            scattered = math.sqrt(0.5 / (fading.k_factor + 1.0)) * rng.standard_normal((num_clients, 2))
            return (direct + scattered[:, 0]) ** 2 + scattered[:, 1] ** 2
        case FadingKind.NAKAGAMI:
            return rng.standard_gamma(fading.shape, num_clients) / fading.shape
        case unknown:
            assert_never(unknown)


def draw_shadowing(rng: np.random.Generator, shadowing_db: float, num_clients: int) -> PerClient:
    """Shadowing of the links to one access point as power gain (dimensionless, median 1), (clients,).

    Normal in dB with standard deviation `shadowing_db`, hence log-normal.
    """
    return 10.0 ** (shadowing_db / 10.0 * rng.standard_normal(num_clients))
