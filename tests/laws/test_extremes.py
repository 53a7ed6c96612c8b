"""`exact` and `exact-power` at the ends of what float64 and a federation allow: finite, feasible, bounded, silent."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.scheduling.checker import evaluate, find_violations, optimality_gap
from bdfl.scheduling.conformance import Extreme, draw_problem, make_extreme
from bdfl.scheduling.exact import exact, exact_power
from tests.oracles.exhaustive import exhaustive_search

SOLVERS = pytest.mark.parametrize("solver", [exact, exact_power])
SIZES = (1, 2, 8, 13, 30)


def fill(problem, **values):
    """The problem with whole columns set to one value each."""
    return replace(problem, **{name: np.full(problem.num_clients, value) for name, value in values.items()})


CORNERS = {
    "tiny budgets": lambda problem: fill(problem, energy_budget_j=1e-12),
    "tiny budgets that suffice": lambda problem: fill(
        problem, energy_budget_j=1e-12, cycles=1e3, model_bits=1.0, gain=1e-6, power_w=1e-6
    ),
    "huge budgets": lambda problem: fill(problem, energy_budget_j=1e6),
    "a tiny and huge budgets": lambda problem: replace(
        problem, energy_budget_j=np.where(np.arange(problem.num_clients) == 0, 1e-12, 1e6)
    ),
    "tiny gains": lambda problem: fill(problem, gain=1e-20),
    "faint gains, huge budgets": lambda problem: fill(problem, gain=1e-13, energy_budget_j=1e6),
    "huge gains": lambda problem: fill(problem, gain=1e3),
    "tiny trade-off": lambda problem: replace(problem, tradeoff=1e-9),
    "huge trade-off": lambda problem: replace(problem, tradeoff=1e9),
    "tiny trade-off, nobody waits": lambda problem: replace(fill(problem, queue=0.0), tradeoff=1e-9),
    "huge queues": lambda problem: fill(problem, queue=1e15),
    "tiny mining caps": lambda problem: fill(problem, mining_max_hz=1e-3),
    "tiny CPU caps": lambda problem: fill(problem, cpu_max_hz=1e3),
    "tiny caps of both kinds": lambda problem: fill(problem, cpu_max_hz=1e3, mining_max_hz=1e-3),
    "caps that exactly do not bind": lambda problem: fill(problem, cpu_max_hz=1e300, mining_max_hz=1e300),
    "no cycles": lambda problem: fill(problem, cycles=0.0),
    "no cycles, equal clients": lambda problem: make_extreme(fill(problem, cycles=0.0), Extreme.EQUAL_CLIENTS),
    "little work to mine": lambda problem: replace(problem, work_cycles=1e-6),
    "long training on some, slow channels on others": lambda problem: replace(
        fill(problem, energy_budget_j=1e4),
        cycles=np.where(np.arange(problem.num_clients) % 2 == 0, 1e13, 1e7),
        gain=np.where(np.arange(problem.num_clients) % 2 == 0, 1e-11, 1e-7),
    ),
    "much work to mine": lambda problem: replace(problem, work_cycles=1e20),
    "everybody needed": lambda problem: replace(problem, min_clients=problem.num_clients),
    "equal clients": lambda problem: make_extreme(problem, Extreme.EQUAL_CLIENTS),
    "equal clients, everybody needed": lambda problem: replace(
        make_extreme(problem, Extreme.EQUAL_CLIENTS), min_clients=problem.num_clients
    ),
    "only one can mine": lambda problem: replace(
        problem, mining_max_hz=np.where(np.arange(problem.num_clients) == 0, problem.mining_max_hz, 0.0)
    ),
    "only one has energy": lambda problem: replace(
        problem, min_clients=1, energy_budget_j=np.where(np.arange(problem.num_clients) == 0, 0.5, 0.0)
    ),
    "no power to choose": lambda problem: fill(problem, power_w=0.0, power_max_w=0.0),
    "huge power": lambda problem: fill(problem, power_w=1e3, power_max_w=1e4),
}


def check(problem, decision):
    """Finite, feasible, and with a bound not above what was reached; returns whether there is a decision at all."""
    assert find_violations(problem, decision) == []
    columns = np.concatenate([decision.cpu_hz, decision.mining_hz, decision.power_w])
    assert np.isfinite(columns).all()
    assert np.all(columns >= 0.0)
    if decision.is_feasible:
        outcome = evaluate(problem, decision)
        assert np.isfinite([outcome.delay_s, outcome.objective, decision.bound]).all()
        assert decision.bound <= outcome.objective
    else:
        assert decision.reason
    return decision.is_feasible


# Uploads so long that the time they leave for training has no digits left; the oracle's has none either.
BEYOND_THE_ORACLE = {
    "fainter gains, huger budgets": lambda problem: fill(problem, gain=1e-20, energy_budget_j=1e12),
}


@SOLVERS
@pytest.mark.parametrize("corner", [*CORNERS, *BEYOND_THE_ORACLE])
@pytest.mark.parametrize("with_caps", [False, True])
def test_every_corner_gives_a_sound_decision(solver, corner, with_caps):
    rng = np.random.default_rng(50)
    for num_clients in SIZES:
        problem = draw_problem(rng, num_clients, with_caps=with_caps, min_clients=1)
        problem = (CORNERS | BEYOND_THE_ORACLE)[corner](problem)
        check(problem, solver(problem))


@pytest.mark.parametrize("with_power", [False, True])
@pytest.mark.parametrize("corner", CORNERS)
def test_corners_are_solved_as_exhaustive_search_does(corner, with_power):
    rng = np.random.default_rng(51)
    problems = [CORNERS[corner](draw_problem(rng, 4, with_caps=with_caps)) for with_caps in (False, True, True)]
    for problem, optimum in zip(problems, exhaustive_search(problems, with_power), strict=True):
        decision = (exact_power if with_power else exact)(problem)
        assert decision.is_feasible == optimum.is_feasible
        if optimum.is_feasible:
            outcome = evaluate(problem, decision)
            scale = max(abs(optimum.objective), problem.tradeoff * optimum.delay_s)
            assert outcome.objective <= optimum.objective + 1e-9 * scale
            assert decision.bound <= optimum.objective + 1e-12 * scale


@SOLVERS
@pytest.mark.parametrize("with_caps", [False, True])
def test_one_reachable_of_fifty_is_scheduled_as_if_alone(solver, with_caps):
    rng = np.random.default_rng(52)
    num_feasible = 0
    for _ in range(6):
        problem = draw_problem(rng, 50, with_caps=with_caps, min_clients=1)
        problem = replace(problem, reachable=np.arange(50) == int(rng.integers(50)))
        decision = solver(problem)
        if check(problem, decision):
            num_feasible += 1
            np.testing.assert_array_equal(decision.selected, problem.reachable)
            np.testing.assert_array_equal(decision.mining_hz > 0.0, problem.reachable)
            assert optimality_gap(problem, evaluate(problem, decision), decision.bound) <= 1e-9
    assert num_feasible >= 3


@SOLVERS
def test_the_objective_scales_with_its_weights(solver):
    rng = np.random.default_rng(53)
    for _ in range(5):
        problem = draw_problem(rng, 6, with_caps=True, min_clients=1, tradeoff=1.0)
        outcome = evaluate(problem, solver(problem))
        for factor in (1e-9, 1e-3, 1e3, 1e9):
            scaled = replace(problem, tradeoff=factor, queue=factor * problem.queue)
            assert evaluate(scaled, solver(scaled)).delay_s == pytest.approx(outcome.delay_s, rel=1e-6)
