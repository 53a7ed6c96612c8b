"""A round whose costs are worked out by hand."""

import numpy as np

from bdfl.scheduling.problem import make_problem

# Client 0 trains and mines, client 1 only mines. Signal to noise is 3 and 1, so rates are 2 and 1 Mbit/s.
PROBLEM = make_problem(
    min_clients=1,
    tradeoff=10.0,
    work_cycles=6e8,
    bandwidth_hz=1e6,
    noise_w_per_hz=1e-14,
    queue=np.array([2.0, 1.0]),
    cycles=np.array([5e8, 2e8]),
    capacitance=np.array([2e-28, 4e-28]),
    energy_budget_j=np.array([1.0, 1.0]),
    gain=np.array([3e-7, 1e-7]),
    power_w=np.array([0.1, 0.1]),
    power_max_w=np.array([0.2, 0.1]),
    model_bits=np.array([1e6, 1e6]),
    cpu_max_hz=np.array([2e9, 2e9]),
    mining_max_hz=np.array([3e9, 3e9]),
)
