"""The best frequencies of a given set: against an independent solver, by their KKT conditions, and twin by twin."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import NonlinearConstraint, brentq, minimize

from bdfl.compute import mining_work
from bdfl.scheduling.allocation import level_slope, sets_delay, solve_level, solve_set, solve_sets
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.mining_curves import fixed_power_curves, free_power_curves
from bdfl.scheduling.problem import make_problem
from tests.oracles.exhaustive import Costs, costs_of, least_delays, least_exchange
from tests.oracles.markets import draw_able_problem, market_of

FAMILIES = [fixed_power_curves, free_power_curves]


def slsqp_delay(problem):
    """Least round delay (s) with everybody in the set, over tau, f and F at once: SLSQP on the original constraints.

    Variables are the logarithms of tau (s), f (GHz) and F (GHz), so that all are of one size and positive.
    """
    num = problem.num_clients
    bandwidth_hz, noise = problem.bandwidth_hz, problem.noise_w_per_hz
    rate = bandwidth_hz * np.log2(1 + problem.power_w * problem.gain / (bandwidth_hz * noise))
    upload_s, upload_j = problem.model_bits / rate, problem.power_w * problem.model_bits / rate

    def unpack(x):
        return np.exp(x[0]), 1e9 * np.exp(x[1 : num + 1]), 1e9 * np.exp(x[num + 1 :])

    def delay(x):
        exchange_s, _, mining_hz = unpack(x)
        return exchange_s + problem.work_cycles / mining_hz.sum()

    def slack(x):
        exchange_s, cpu_hz, mining_hz = unpack(x)
        mining_s = problem.work_cycles / mining_hz.sum()
        energy_j = upload_j + 0.5 * problem.capacitance * (problem.cycles * cpu_hz**2 + mining_s * mining_hz**3)
        on_time = 1.0 - (upload_s + problem.cycles / cpu_hz) / exchange_s
        return np.concatenate([on_time, 1.0 - energy_j / problem.energy_budget_j])

    spare_j = problem.energy_budget_j - upload_j
    cpu_hz = np.minimum(np.sqrt(spare_j / (problem.capacitance * problem.cycles)), problem.cpu_max_hz)
    left_j = spare_j - 0.5 * problem.capacitance * problem.cycles * cpu_hz**2
    mining_hz = np.minimum(np.cbrt(left_j / problem.capacitance), problem.mining_max_hz)  # what a second of it costs
    start = np.concatenate([[np.max(upload_s + problem.cycles / cpu_hz)], cpu_hz / 1e9, mining_hz / 1e9])
    upper = np.concatenate([[np.inf], problem.cpu_max_hz / 1e9, problem.mining_max_hz / 1e9])
    lower = np.full(2 * num + 1, -12.0)
    found = minimize(
        delay,
        np.log(start),
        method="SLSQP",
        bounds=np.stack([lower, np.log(upper)], axis=1),
        constraints=NonlinearConstraint(slack, 0.0, np.inf),
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return delay(found.x), float(slack(found.x).min())


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning", "ignore:.*:UserWarning")  # SLSQP's, where it tries odd points
@pytest.mark.parametrize("with_caps", [False, True])
def test_the_allocation_of_a_set_agrees_with_slsqp_over_all_variables_at_once(with_caps):
    rng = np.random.default_rng(17)
    num_agreed = 0
    for _ in range(40):
        num_clients = int(rng.integers(1, 7))
        problem = draw_able_problem(rng, num_clients, with_caps=with_caps, tradeoff=1.0)
        enclosure = solve_sets(market_of(problem), np.ones((1, num_clients), dtype=bool))
        delay_s, least_slack = slsqp_delay(problem)
        if least_slack > -1e-9:  # else it ended outside the constraints, where delays are shorter
            assert enclosure.value[0] <= delay_s * (1 + 1e-7)
            num_agreed += abs(enclosure.value[0] / delay_s - 1) <= 1e-6
    assert num_agreed >= 36


@pytest.mark.parametrize("with_power", [False, True])
@pytest.mark.parametrize("with_caps", [False, True])
def test_the_allocation_of_random_sets_agrees_with_golden_sections(with_caps, with_power):
    rng = np.random.default_rng(18)
    curves_of = FAMILIES[with_power]
    for _ in range(4):
        problem = draw_able_problem(rng, 7, with_caps=with_caps, curves_of=curves_of)
        members = rng.uniform(size=(12, 7)) < 0.6
        members[:, 0] = True
        costs = costs_of(problem)
        rows = Costs(*(np.repeat(getattr(costs, name), len(members), axis=0) for name in Costs.__dataclass_fields__))
        least_s = np.repeat(least_exchange(costs, with_power), len(members), axis=0)
        delay_s, _ = least_delays(rows, members, least_s, with_power)
        enclosure = solve_sets(market_of(problem, curves_of), members)
        np.testing.assert_allclose(enclosure.value, delay_s, rtol=1e-9)
        assert np.all(enclosure.bound <= delay_s * (1 + 1e-13))
        assert np.all(enclosure.bound >= enclosure.value * (1 - 1e-10))


@pytest.mark.parametrize("with_caps", [False, True])
@pytest.mark.parametrize("curves_of", FAMILIES)
def test_one_set_from_a_guess_ends_where_the_grid_search_does(curves_of, with_caps):
    rng = np.random.default_rng(19)
    for _ in range(6):
        problem = draw_able_problem(rng, 8, with_caps=with_caps, curves_of=curves_of)
        market = market_of(problem, curves_of)
        members = rng.uniform(size=8) < 0.5
        members[int(rng.integers(8))] = True
        expected = solve_sets(market, members[None])
        for near in (0.2, 1.0, 5.0):
            found = solve_set(market, members, near * float(expected.at[0]))
            np.testing.assert_allclose(found.value, expected.value, rtol=3e-11)
            assert found.bound[0] <= expected.value[0] * (1 + 1e-13)


@pytest.mark.parametrize("solver", [exact, exact_power])
@pytest.mark.parametrize("with_caps", [False, True])
def test_every_budget_is_spent_or_a_cap_reached_and_all_trainers_end_together(solver, with_caps):
    rng = np.random.default_rng(20)
    for _ in range(60):
        problem = draw_able_problem(rng, 7, with_caps=with_caps)
        decision = solver(problem)
        outcome = evaluate(problem, decision)
        assert find_violations(problem, decision) == []
        is_spent = outcome.energy_j >= problem.energy_budget_j * (1 - 1e-9)
        at_cap = decision.mining_hz >= problem.mining_max_hz * (1 - 1e-9)
        assert np.all(is_spent | at_cap)
        done_s = (outcome.upload_s + outcome.training_s)[decision.selected]
        np.testing.assert_allclose(done_s, outcome.exchange_s, rtol=1e-9)


def test_two_equal_clients_and_no_caps_follow_the_closed_form():
    """Uploads take neither time nor energy, so r = E - k / tau^2, and the delay is tau + A (16 r / (chi A))^(-1/2)."""
    work_cycles, chi, cycles, budget_j = mining_work(3e7, 1e-10), 5e-28, 3e8, 0.4
    problem = make_problem(
        min_clients=2, tradeoff=1.0, work_cycles=work_cycles, bandwidth_hz=1e12, noise_w_per_hz=1e-16,
        queue=np.zeros(2), cycles=np.full(2, cycles), capacitance=np.full(2, chi), energy_budget_j=np.full(2, budget_j),
        gain=np.full(2, 1.0), power_w=np.full(2, 1e-9), model_bits=np.full(2, 1e-6),
    )  # fmt: skip
    inertia = 0.5 * chi * cycles**3

    def slope(tau):
        left_j = budget_j - inertia / tau**2
        mining_s = work_cycles * (16.0 * left_j / (chi * work_cycles)) ** -0.5
        return 1.0 - 0.5 * mining_s * (2.0 * inertia / tau**3) / left_j

    tau = brentq(slope, np.sqrt(inertia / budget_j) * (1 + 1e-9), 10.0, xtol=1e-15, rtol=1e-15)
    mining_s = work_cycles * (16.0 * (budget_j - inertia / tau**2) / (chi * work_cycles)) ** -0.5
    outcome = evaluate(problem, exact(problem))
    assert outcome.delay_s == pytest.approx(tau + mining_s, rel=1e-9)
    assert outcome.exchange_s == pytest.approx(tau, rel=1e-5)


positive = st.floats(-6.0, 6.0).map(lambda exponent: 10.0**exponent)


@given(st.lists(st.tuples(positive, st.one_of(positive, st.just(np.inf), st.just(0.0))), min_size=1, max_size=8))
def test_the_level_of_mining_balances_offers_and_need(clients):
    roots, caps = (np.array(column) for column in zip(*clients, strict=True))
    level = float(solve_level(roots[None], caps)[0])

    def excess(log_level):
        trial = np.exp(log_level)
        return np.log(np.minimum(trial * caps, roots).sum()) + 2.0 * log_level

    if not caps.any():
        assert level >= 1e30
        return
    expected = np.exp(brentq(excess, -60.0, 60.0, xtol=1e-14, rtol=1e-14))
    assert level == pytest.approx(expected, rel=1e-11)
    assert solve_level(roots[None], None)[0] == pytest.approx(roots.sum() ** -0.5, rel=1e-14)


@pytest.mark.parametrize("with_caps", [False, True])
@pytest.mark.parametrize("curves_of", FAMILIES)
def test_the_slope_of_a_delay_is_its_derivative_and_the_delay_is_convex(curves_of, with_caps):
    rng = np.random.default_rng(21)
    for _ in range(10):
        problem = draw_able_problem(rng, 5, with_caps=with_caps, curves_of=curves_of)
        market = market_of(problem, curves_of)
        everybody = np.ones((1, 5), dtype=bool)
        times = float(market.curves.least_s.max()) * (1.0 + np.geomspace(1e-3, 10.0, 60))
        values, slopes = sets_delay(market, everybody, times[None])
        steps = np.diff(values[0]) / np.diff(times)
        assert np.all(np.diff(steps) >= -1e-7 * np.abs(steps[:-1]) - 1e-9)
        # Convexity: between two points the mean slope lies between the slopes at both.
        assert np.all(slopes[0, :-1] <= steps + 1e-7 * np.abs(steps) + 1e-9)
        assert np.all(slopes[0, 1:] >= steps - 1e-7 * np.abs(steps) - 1e-9)
        width = 1e-6 * times
        ahead, behind = (sets_delay(market, everybody, (times + sign * width)[None])[0][0] for sign in (1, -1))
        central = (ahead - behind) / (2.0 * width)
        smooth = np.abs(central - slopes[0]) <= 1e-4 * np.abs(central) + 1e-6
        assert np.count_nonzero(~smooth) <= 5  # next to a kink where a cap begins to bind


def test_the_slope_of_the_level_is_its_derivative():
    rng = np.random.default_rng(22)
    for _ in range(50):
        roots, slopes, caps = rng.uniform(0.5, 2.0, 6), rng.uniform(0.0, 1.0, 6), rng.uniform(0.2, 5.0, 6)
        level = solve_level(roots[None], caps)
        if np.min(np.abs(caps * level[0] / roots - 1.0)) < 1e-4:
            continue  # at a kink
        ahead, behind = (solve_level((roots + sign * 1e-6 * slopes)[None], caps)[0] for sign in (1, -1))
        assert level_slope(level, roots[None], slopes[None], caps)[0] == pytest.approx(
            (ahead - behind) / 2e-6, rel=1e-4
        )
