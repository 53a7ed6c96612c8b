"""Mining roots as functions of the exchange time: concave, rising, with true slopes, and what the equations leave."""

import numpy as np
import pytest

from bdfl.compute import training_energy, training_time
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.scheduling.mining_curves import STEEPEST, fixed_power_curves, free_power_curves, idle_roots
from tests.oracles.exhaustive import costs_of, least_energy, least_exchange
from tests.oracles.markets import draw_able_problem

FAMILIES = pytest.mark.parametrize("curves_of", [fixed_power_curves, free_power_curves])
CAPS = pytest.mark.parametrize("with_caps", [False, True])
NUM_CLIENTS = 40


def draw_curves(curves_of, with_caps, seed=30):
    problem = draw_able_problem(np.random.default_rng(seed), NUM_CLIENTS, with_caps=with_caps, curves_of=curves_of)
    return problem, curves_of(problem)


@FAMILIES
@CAPS
def test_roots_rise_and_are_concave_up_to_what_an_idle_client_has(curves_of, with_caps):
    problem, curves = draw_curves(curves_of, with_caps)
    times = curves.least_s * (1.0 + np.geomspace(1e-4, 100.0, 80))[:, None]  # (times, clients)
    roots, slopes = curves.roots(times)
    steps = np.diff(roots, axis=0) / np.diff(times, axis=0)
    scale = idle_roots(problem) / times[:-1]
    assert np.all(steps >= -1e-12 * scale)
    assert np.all(np.diff(steps, axis=0) <= 1e-9 * scale[:-1] * (times[1:-1] / np.diff(times, axis=0)[:-1]))
    assert np.all(slopes[:-1] >= steps * (1 - 1e-6) - 1e-9 * scale)
    assert np.all(slopes[1:] <= steps * (1 + 1e-6) + 1e-9 * scale)
    assert np.all(roots <= curves.final_roots() * (1 + 1e-12))
    assert np.all(curves.final_roots() <= idle_roots(problem))


@FAMILIES
@CAPS
def test_slopes_are_derivatives(curves_of, with_caps):
    _, curves = draw_curves(curves_of, with_caps)
    times = curves.least_s * (1.0 + np.geomspace(1e-2, 30.0, 40))[:, None]
    width = 1e-5 * (times - curves.least_s)
    central = (curves.roots(times + width)[0] - curves.roots(times - width)[0]) / (2.0 * width)
    slopes = curves.roots(times)[1]
    off = np.abs(slopes - central) > 1e-5 * np.abs(central) + 1e-9 * curves.final_roots() / times
    assert np.count_nonzero(off) <= 0.005 * off.size  # next to where a power or a frequency leaves its limit


@FAMILIES
@CAPS
def test_roots_are_what_the_cost_equations_leave(curves_of, with_caps):
    problem, curves = draw_curves(curves_of, with_caps)
    with_power = curves_of is free_power_curves
    costs = costs_of(problem)
    np.testing.assert_allclose(curves.least_s, least_exchange(costs, with_power)[0], rtol=1e-10)
    for factor in (1.001, 1.1, 3.0, 50.0):
        time = curves.least_s * factor
        left_j = problem.energy_budget_j - least_energy(costs, with_power)(time[None])[0]
        expected = 2.0 * left_j / (problem.capacitance * problem.work_cycles)
        scale = idle_roots(problem) ** 3
        assert np.all(np.abs(curves.roots(time)[0] ** 3 - expected) <= 1e-9 * scale)


@FAMILIES
@CAPS
def test_what_is_settled_ends_on_time_within_limits_and_costs_what_the_roots_say(curves_of, with_caps):
    problem, curves = draw_curves(curves_of, with_caps)
    for time in np.quantile(curves.least_s, [0.3, 0.7, 1.0]) * 1.01:
        cpu_hz, power_w = curves.settle(float(time))
        ready = curves.least_s <= time
        rate = uplink_rate(problem.bandwidth_hz, power_w, problem.gain, problem.noise_w_per_hz)
        upload_s = upload_time(problem.model_bits, rate)
        done_s = upload_s + training_time(problem.cycles, cpu_hz)
        used_j = upload_energy(power_w, upload_s) + training_energy(problem.capacitance, problem.cycles, cpu_hz)
        left = 2.0 * (problem.energy_budget_j - used_j) / (problem.capacitance * problem.work_cycles)
        roots = curves.roots(np.array([time]))[0]
        limit_w = problem.power_w if curves_of is fixed_power_curves else problem.power_max_w
        np.testing.assert_allclose(done_s[ready], time, rtol=1e-12)
        assert np.all((cpu_hz <= problem.cpu_max_hz * (1 + 1e-12))[ready])
        assert np.all((power_w <= limit_w * (1 + 1e-12))[ready])
        assert np.all(np.abs(roots**3 - left)[ready] <= 1e-10 * idle_roots(problem)[ready] ** 3)


@FAMILIES
def test_before_its_earliest_time_a_client_offers_less_than_nothing(curves_of):
    _, curves = draw_curves(curves_of, with_caps=True)
    roots, slopes = curves.roots(curves.least_s * (1 - 1e-9))
    assert np.all(roots == -STEEPEST)
    assert np.all(slopes == 0.0)
    assert np.all(curves.roots(curves.least_s)[0] >= 0.0)


@CAPS
def test_free_power_is_never_worse_than_the_given_one(with_caps):
    problem, free = draw_curves(free_power_curves, with_caps)
    given = fixed_power_curves(problem)
    assert np.all(free.least_s <= given.least_s * (1 + 1e-12))
    able = np.isfinite(given.least_s)
    for factor in (1.0, 1.5, 10.0):
        time = np.where(able, given.least_s, 1.0) * factor * (1 + 1e-12)
        assert np.all((free.roots(time)[0] >= given.roots(time)[0] - 1e-6 * idle_roots(problem))[able])


@FAMILIES
def test_taking_some_clients_keeps_their_curves(curves_of):
    _, curves = draw_curves(curves_of, with_caps=True)
    index = np.array([3, 1, 30])
    time = curves.least_s * 1.7
    whole, part = curves.roots(time), curves.take(index).roots(time[index])
    np.testing.assert_allclose(np.stack(part), np.stack(whole)[:, index], rtol=1e-12)


def test_sums_for_plain_floats_are_those_of_the_arrays():
    _, curves = draw_curves(fixed_power_curves, with_caps=True)
    index = np.array([0, 7, 8, 20])
    total = curves.plain_sum(index)
    for time in float(curves.least_s[index].max()) * np.array([1.0, 1.0001, 2.0, 40.0]):
        roots, slopes = curves.take(index).roots(np.array([time]))
        assert total(float(time)) == pytest.approx((roots.sum(), slopes.sum()), rel=1e-13)
