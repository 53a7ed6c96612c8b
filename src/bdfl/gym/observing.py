"""Observation of a round: four numbers between 0 and 1 for every client."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.radio import uplink_rate
from bdfl.scheduling.problem import RoundProblem

Observation = NDArray[np.float32]

COLUMNS = ("channel", "queue", "budget", "speed")


def observation_space(num_clients: int) -> spaces.Space[Any]:
    """Four blocks of one number per client, in the order of `COLUMNS`."""
    return spaces.Box(0.0, 1.0, shape=(len(COLUMNS) * num_clients,), dtype=np.float32)


def observe(problem: RoundProblem, earliest_s: PerClient, usual_budget_j: float) -> Observation:
    """Observe the round in four blocks, each x / (1 + x) of a measured value, hence within 0 to 1.

    `channel`: spectral efficiency of the uplink (bit/s/Hz); `queue`: Z_i; `budget`: E_i in units of `usual_budget_j`;
    `speed`: 1 / `earliest_s`, the earliest completion of the client (s), so 0 for one that cannot train.
    """
    rate = uplink_rate(problem.bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
    scale_j = max(usual_budget_j, float(np.finfo(np.float64).tiny))
    columns = [
        _squash(rate / problem.bandwidth_hz),
        _squash(problem.queue),
        problem.energy_budget_j / (scale_j + problem.energy_budget_j),
        1.0 / (1.0 + earliest_s),
    ]
    return np.concatenate(columns).astype(np.float32)


def _squash(values: PerClient) -> PerClient:
    return values / (1.0 + values)
