"""Mining roots against the cost equations they are derived from."""

import numpy as np
import pytest

from bdfl.compute import mining_energy, mining_time, training_energy
from bdfl.radio import uplink_rate, upload_time
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.mining_curves import free_power_curves, idle_roots, training_inertia


@pytest.fixture
def problem():
    return draw_problem(np.random.default_rng(7), 12, min_clients=1)


def test_mining_at_the_idle_roots_spends_every_budget_exactly(problem):
    roots = idle_roots(problem)
    mining_hz = roots * roots.sum() ** 0.5  # s^(1/3) a_i with s = (sum a_i)^(3/2)
    mining_s = mining_time(problem.work_cycles, mining_hz)
    np.testing.assert_allclose(
        mining_energy(problem.capacitance, mining_s, mining_hz), problem.energy_budget_j, rtol=1e-12
    )


def test_training_for_x_seconds_costs_the_inertia_over_x_squared(problem):
    spent_j = training_energy(problem.capacitance, problem.cycles, problem.cycles / 0.7)
    np.testing.assert_allclose(training_inertia(problem) / 0.7**2, spent_j, rtol=1e-14)


def test_a_chosen_power_uploads_in_what_training_leaves(problem):
    curves = free_power_curves(problem)
    able = np.isfinite(curves.least_s)
    at_s = float(2.0 * np.max(curves.least_s[able]))
    cpu_hz, power_w = curves.settle(at_s)
    assert (power_w[able] <= problem.power_max_w[able]).all()
    rate = uplink_rate(problem.bandwidth_hz, power_w, problem.gain, problem.noise_w_per_hz)
    done_s = upload_time(problem.model_bits, rate) + problem.cycles / cpu_hz
    np.testing.assert_allclose(done_s[able], at_s, rtol=1e-9)
