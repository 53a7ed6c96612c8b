"""Rounds in which energy has a price: the optimum, its certificate, and the closed form of mining."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from bdfl.scheduling import exact as exact_module
from bdfl.scheduling.allocation import Market, split_mining
from bdfl.scheduling.checker import evaluate, find_violations, gap_scale
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.exact import best_frequencies, earliest_exchange, exact, exact_power
from bdfl.scheduling.mining_curves import fixed_power_curves
from tests.oracles.exhaustive import (
    COLUMNS,
    Costs,
    all_sets,
    costs_of,
    golden_section,
    least_energy,
    least_exchange,
)

STEPS = 34  # golden sections, nested: of the exchange time and of the total mining frequency


def draw_priced(seed, num_clients, *, with_caps=False):
    rng = np.random.default_rng([seed, num_clients])
    problem = draw_problem(rng, num_clients, with_caps=with_caps, tradeoff=float(np.exp(rng.uniform(0.0, 5.0))))
    price = np.exp(rng.uniform(-4.0, 3.0, num_clients)) * problem.tradeoff * (rng.uniform(size=num_clients) < 0.8)
    return replace(problem, energy_price=price)


def mining_cost(costs, price, left_j, total_hz):
    """Cheapest energy (in the objective) to mine at `total_hz` (rows, 1); infinity beyond what is payable.

    Every client pays y chi/2 A/s F^3, so the marginal cost per hertz is the same for all below their limits: bisection.
    """
    per_cube = 0.5 * costs.capacitance * costs.work_cycles / total_hz
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.minimum(np.cbrt(np.maximum(left_j, 0.0) / per_cube), costs.mining_max_hz)
        steep = 3.0 * price * per_cube
        low, high = np.full_like(total_hz, 1e-25), np.full_like(total_hz, 1e15)
        for _ in range(50):
            middle = np.sqrt(low * high)
            enough = np.minimum(most, np.sqrt(middle / steep)).sum(axis=1, keepdims=True) >= total_hz
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        mining_hz = np.minimum(most, np.sqrt(high / steep))
    cost = (price * per_cube * mining_hz**3).sum(axis=1, keepdims=True)
    payable = most.sum(axis=1, keepdims=True) >= total_hz
    return np.where(payable, cost, 1e30 * total_hz)


def brute_force(problems):
    """Least objective of each problem over all sets; no slopes, no roots.

    Golden sections of the exchange time and of the total frequency, nested.
    """
    each = [costs_of(problem) for problem in problems]
    costs = Costs(*(np.concatenate([getattr(one, name) for one in each]) for name in COLUMNS))
    least_s = least_exchange(costs, with_power=False)
    every = all_sets(least_s.shape[1])
    enough = every.sum(axis=1) >= np.array([problem.min_clients for problem in problems])[:, None]
    owner, number = np.nonzero(enough & ~(np.isinf(least_s) @ every.T))
    sets, costs, least_s = every[number], costs.take(owner), least_s[owner]
    price = np.array([problem.energy_price for problem in problems])[owner]
    tradeoff = np.array([problem.tradeoff for problem in problems])[owner, None]
    energy = least_energy(costs.take(sets), False)

    def cost_at(exchange_s):
        spent_j = np.zeros_like(costs.gain)
        spent_j[sets] = energy(np.broadcast_to(exchange_s, sets.shape)[sets])
        left_j = costs.energy_budget_j - spent_j
        fixed = tradeoff * exchange_s + (price * spent_j).sum(axis=1, keepdims=True)

        def at(log_hz):
            total_hz = np.exp(log_hz)
            delay_s = costs.work_cycles[:, :1] / total_hz
            return fixed + tradeoff * delay_s + mining_cost(costs, price, left_j, total_hz)

        ends = np.full_like(exchange_s, np.log(1e4)), np.full_like(exchange_s, np.log(1e12))
        return golden_section(at, *ends, STEPS)[1]

    start_s = np.where(sets, least_s, 0.0).max(axis=1, keepdims=True)
    width = np.cbrt(cost_at(2.0 * start_s) / tradeoff)
    _, cost = golden_section(
        lambda share: cost_at(start_s + (share * width) ** 3), np.zeros_like(width), np.ones_like(width), STEPS
    )
    cost = np.minimum(cost, cost_at(start_s))[:, 0]
    cost -= np.array([members @ problems[row].queue for row, members in zip(owner, sets, strict=True)])
    return [np.min(cost[owner == row], initial=np.inf) for row in range(len(problems))]


@pytest.mark.parametrize("with_caps", [False, True])
@pytest.mark.parametrize("num_clients", [1, 2, 4])
def test_exact_with_prices_equals_brute_force(num_clients, with_caps):
    problems = [draw_priced(seed, num_clients, with_caps=with_caps) for seed in range(8)]
    decisions = [exact(problem) for problem in problems]
    for problem, decision, best in zip(problems, decisions, brute_force(problems), strict=True):
        assert decision.is_feasible == np.isfinite(best)
        if not decision.is_feasible:
            continue
        outcome = evaluate(problem, decision)
        scale = gap_scale(problem, outcome)
        assert find_violations(problem, decision) == []
        assert best - 1e-5 * scale <= outcome.objective <= best + 1e-9 * scale  # the search is coarse, from above
        assert outcome.objective - decision.bound <= 1e-9 * scale
    assert sum(decision.is_feasible for decision in decisions) >= 4


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 7])
def test_with_prices_on_shared_spectrum_no_set_is_better(seed):
    rng = np.random.default_rng(seed)
    problem = replace(
        draw_priced(seed, 5, with_caps=seed % 2 == 1), access_point=rng.integers(0, 1 + seed % 3, 5).astype(np.int64)
    )
    decision = exact(problem)
    assert decision.is_feasible
    outcome = evaluate(problem, decision)
    assert find_violations(problem, decision) == []
    found = (best_frequencies(problem, members) for members in all_sets(5) if members.sum() >= problem.min_clients)
    best = min(evaluate(problem, one).objective for one in found if one.is_feasible)
    assert outcome.objective == pytest.approx(best, abs=1e-9 * gap_scale(problem, outcome))
    assert outcome.objective - decision.bound <= 1e-9 * gap_scale(problem, outcome)


def test_the_bound_of_shared_spectrum_with_prices_holds_for_any_set():
    rng = np.random.default_rng(0)
    problem = replace(draw_priced(1, 20), access_point=np.zeros(20, dtype=np.int64), min_clients=1)
    bound = exact(problem, target_gap=1e-3).bound
    able = np.isfinite(earliest_exchange(problem))
    assert able.sum() > 12
    sets = rng.uniform(size=(60, 20)) < rng.uniform(0.0, 0.9, (60, 1))
    decided = [best_frequencies(problem, members & able) for members in sets]
    objectives = [evaluate(problem, one).objective for one in decided if one.is_feasible]
    assert len(objectives) >= 10
    assert min(objectives) >= bound


def test_a_cap_that_meets_a_limit_at_the_optimum_is_no_obstacle():
    """At such a level the worth of a root jumps; the optima of these rounds lie there."""
    problems = [draw_priced(seed, 3, with_caps=True) for seed in (154, 159)]
    for problem, best in zip(problems, brute_force(problems), strict=True):
        decision = exact(problem)
        outcome = evaluate(problem, decision)
        assert outcome.objective <= best + 1e-9 * gap_scale(problem, outcome)
        assert outcome.objective - decision.bound <= 1e-9 * gap_scale(problem, outcome)


@pytest.mark.parametrize("seed", range(12))
def test_a_set_costs_what_a_numeric_solver_finds(seed):
    problem = replace(draw_priced(seed, 5, with_caps=seed % 2 == 1), min_clients=1)
    least_s = fixed_power_curves(problem).least_s
    members = np.isfinite(least_s) & (np.arange(5) % 2 == seed % 2)
    if not members.any():
        members = np.isfinite(least_s)
    decision = best_frequencies(problem, members)
    outcome = evaluate(problem, decision)
    energy = least_energy(Costs(*(getattr(costs_of(problem), name)[0][members] for name in COLUMNS)), False)
    price, earliest_s = problem.energy_price, float(least_s[members].max())
    unit_hz = decision.mining_hz.sum()

    def parts(point):
        exchange_s, mining_hz = earliest_s * (1.0 + point[0] ** 2), unit_hz * point[1:]
        spent_j = np.zeros(5)
        spent_j[members] = energy(np.full(int(members.sum()), exchange_s))
        mining_s = problem.work_cycles / mining_hz.sum()
        return exchange_s + mining_s, spent_j + 0.5 * problem.capacitance * mining_s * mining_hz**3

    def cost(point):
        delay_s, energy_j = parts(point)
        return (problem.tradeoff * delay_s + price @ energy_j) / gap_scale(problem, outcome)

    limits = {"type": "ineq", "fun": lambda point: 1.0 - parts(point)[1] / problem.energy_budget_j}
    bounds = [(0.0, None), *((0.0, cap / unit_hz) for cap in problem.mining_max_hz)]
    found = np.sqrt(max(outcome.exchange_s / earliest_s - 1.0, 0.0)), decision.mining_hz / unit_hz
    for start in (np.concatenate([[found[0]], 0.9 * found[1]]), np.full(6, 0.15)):
        start = np.minimum(start, [bound[1] or np.inf for bound in bounds])
        other = minimize(cost, start, bounds=bounds, constraints=[limits], method="SLSQP", options={"maxiter": 300})
        if other.success and np.all(limits["fun"](other.x) >= -1e-9):
            queue = problem.queue[members].sum() / gap_scale(problem, outcome)
            assert outcome.objective / gap_scale(problem, outcome) <= other.fun - queue + 1e-7


def test_unlimited_mining_has_a_closed_form():
    rng = np.random.default_rng(0)
    price, capacitance, work = rng.uniform(0.01, 0.1, 6), rng.uniform(3e-28, 9e-28, 6), 7e8
    market = Market(
        curves=None,
        idle=np.full(6, 1e9),
        caps=None,
        queue=np.zeros(6),
        tradeoff=1.0,
        work_cycles=work,
        min_clients=1,
        cube_price=0.5 * price * capacitance * work,
    )
    split = split_mining(market, market.idle)
    closed = 1.5 * work * np.sum((price * capacitance) ** -0.5) ** (-2 / 3)
    assert work * split.level**3 + np.sum(market.cube_price * split.roots**3) == pytest.approx(closed, rel=1e-13)


@pytest.mark.parametrize("with_caps", [False, True])
def test_the_bound_for_many_clients_is_below_the_optimum(monkeypatch, with_caps):
    problems = [draw_priced(seed, 9, with_caps=with_caps) for seed in range(8)]
    optima = [exact(problem) for problem in problems]
    monkeypatch.setattr(exact_module, "MAX_ENUMERATED", 1)
    gaps = []
    for problem, optimum in zip(problems, optima, strict=True):
        decision = exact(problem)
        assert decision.is_feasible == optimum.is_feasible
        if not optimum.is_feasible:
            continue
        outcome, best = evaluate(problem, decision), evaluate(problem, optimum).objective
        assert find_violations(problem, decision) == []
        assert decision.bound <= best + 1e-12 * gap_scale(problem, outcome)
        gaps.append((outcome.objective - decision.bound) / gap_scale(problem, outcome))
    assert len(gaps) >= 4
    assert max(gaps) <= 0.1
    assert np.median(gaps) <= (5e-3 if with_caps else 1e-8)


@pytest.mark.parametrize("num_clients", [5, 20])
def test_a_price_of_zero_changes_nothing(num_clients):
    problem = replace(draw_priced(3, num_clients), energy_price=None)
    free = exact(replace(problem, energy_price=np.zeros(num_clients)))
    assert free.bound == exact(problem).bound
    assert np.array_equal(free.mining_hz, exact(problem).mining_hz)


@pytest.mark.parametrize("num_clients", [4, 30])
def test_dearer_energy_is_spent_less(num_clients):
    problem = replace(draw_priced(1, num_clients), energy_price=np.full(num_clients, 1.0), tradeoff=50.0)
    spent_j = [
        evaluate(problem, exact(replace(problem, energy_price=problem.energy_price * factor))).energy_j.sum()
        for factor in (0.0, 0.1, 1.0, 10.0, 100.0, 1e4)
    ]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(spent_j))
    assert spent_j[-1] < 0.5 * spent_j[0]


@pytest.mark.parametrize("seed", range(6))
def test_free_powers_never_cost_more(seed):
    problem = draw_priced(seed, 5)
    fixed, free = exact(problem), exact_power(replace(problem, power_max_w=problem.power_w))
    if fixed.is_feasible:
        outcome = evaluate(problem, free)
        assert outcome.objective <= evaluate(problem, fixed).objective * (1 + 1e-12) + 1e-12
        assert outcome.objective - free.bound <= 1e-9 * gap_scale(problem, outcome)
        assert find_violations(problem, free) == []
