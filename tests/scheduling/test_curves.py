"""What clients can give to mining, against the cost equations it is derived from."""

import numpy as np
import pytest

from bdfl.compute import mining_energy, mining_time, training_energy
from bdfl.radio import uplink_rate, upload_time
from bdfl.scheduling.curves import fixed_power_curves, idle_roots, training_inertia
from bdfl.scheduling.instances import draw_problem
from bdfl.scheduling.power import free_power_curves


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


@pytest.mark.parametrize("curves_of", [fixed_power_curves, free_power_curves])
def test_roots_rise_and_are_concave_in_the_exchange_time(problem, curves_of):
    curves = curves_of(problem)
    able = np.flatnonzero(np.isfinite(curves.least_s))
    assert len(able) > 4
    for client in able:
        times = curves.least_s[client] * np.linspace(1.0, 4.0, 200)
        roots, slopes = (column[:, client] for column in curves.roots(times[:, None]))
        assert (np.diff(roots) >= -1e-12 * roots[-1]).all()
        assert (np.diff(slopes) <= 1e-9 * np.abs(slopes[:-1])).all()
        assert (roots <= curves.final_roots()[client] * (1 + 1e-12)).all()


def test_a_chosen_power_uploads_in_what_training_leaves(problem):
    curves = free_power_curves(problem)
    at_s = float(2.0 * np.max(curves.least_s[np.isfinite(curves.least_s)]))
    cpu_hz, power_w = curves.settle(at_s)
    able = np.isfinite(curves.least_s)
    assert (power_w[able] <= problem.power_max_w[able]).all()
    rate = uplink_rate(problem.bandwidth_hz, power_w, problem.gain, problem.noise_w_per_hz)
    done_s = upload_time(problem.model_bits, rate) + problem.cycles / cpu_hz
    np.testing.assert_allclose(done_s[able], at_s, rtol=1e-9)
