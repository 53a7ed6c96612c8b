"""`exact` and `exact-power` find what exhaustive search over all training sets finds, and prove it."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.scheduling.checker import decision_status, evaluate, find_violations
from bdfl.scheduling.conformance import Extreme, draw_problem, make_extreme
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Status
from tests.oracles.exhaustive import exhaustive_search

NUM_INSTANCES = 5_040
NUM_POWER_INSTANCES = 240
SIZES = range(1, 11)
POWER_SIZES = range(1, 7)
CAPS = ("no caps", "CPU caps", "mining caps", "CPU and mining caps")
BATCH_SETS = 14 * 2**10  # training sets searched at a time, to stay in the processor's cache
AGREEMENT = 1e-9  # of max(|J|, V delay)
POWER_SEARCH_ACCURACY = 1e-9  # what the oracle's grid and golden sections may leave


def draw_capped(rng, num_clients, caps):
    """A random round with this kind of caps.

    In about every eighth nobody waits, in every eighth everybody is needed, in every eighth rounds take extra time.
    """
    unlimited = np.full(num_clients, np.inf)
    problem = draw_problem(rng, num_clients, with_caps=True)
    if "CPU" not in caps:
        problem = replace(problem, cpu_max_hz=unlimited)
    if "mining" not in caps:
        problem = replace(problem, mining_max_hz=unlimited)
    corner = rng.integers(8)
    if corner == 0:
        return replace(problem, queue=np.zeros(num_clients))
    if corner == 1:
        return replace(problem, min_clients=num_clients)
    return replace(problem, overhead_s=float(rng.uniform(0.0, 2.0))) if corner == 2 else problem


def solved_instances(num, num_clients, caps, with_power=False):
    """Pairs of random problem and its optimum until `num` of them are feasible."""
    rng = np.random.default_rng([num_clients, CAPS.index(caps), with_power])
    num_at_once, num_feasible = BATCH_SETS >> num_clients, 0
    while num_feasible < num:
        problems = [draw_capped(rng, num_clients, caps) for _ in range(min(num_at_once, num - num_feasible))]
        optima = exhaustive_search(problems, with_power)
        num_feasible += sum(optimum.is_feasible for optimum in optima)
        yield from zip(problems, optima, strict=True)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("num_clients", SIZES)
def test_exact_equals_exhaustive_search(num_clients, caps):
    num = NUM_INSTANCES // (len(SIZES) * len(CAPS))
    num_feasible = 0
    for problem, optimum in solved_instances(num, num_clients, caps):
        decision = exact(problem)
        assert decision.is_feasible == optimum.is_feasible
        if not optimum.is_feasible:
            continue
        num_feasible += 1
        outcome = evaluate(problem, decision)
        scale = max(abs(optimum.objective), problem.tradeoff * optimum.delay_s)
        assert abs(outcome.objective - optimum.objective) <= AGREEMENT * scale
        assert decision.bound <= optimum.objective + 1e-12 * scale
        assert decision_status(problem, decision, outcome) is Status.OPTIMAL
        assert find_violations(problem, decision) == []
    assert num_feasible == num


def test_at_least_five_thousand_instances_are_compared():
    assert NUM_INSTANCES >= 5_000
    assert NUM_INSTANCES % (len(SIZES) * len(CAPS)) == 0


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("num_clients", POWER_SIZES)
def test_exact_power_equals_a_fine_search_over_sets_times_and_powers(num_clients, caps):
    num = NUM_POWER_INSTANCES // (len(POWER_SIZES) * len(CAPS))
    num_feasible = 0
    for problem, optimum in solved_instances(num, num_clients, caps, with_power=True):
        decision = exact_power(problem)
        assert decision.is_feasible == optimum.is_feasible
        if not optimum.is_feasible:
            continue
        num_feasible += 1
        outcome = evaluate(problem, decision)
        scale = max(abs(optimum.objective), problem.tradeoff * optimum.delay_s)
        assert outcome.objective <= optimum.objective + AGREEMENT * scale
        assert outcome.objective >= optimum.objective - POWER_SEARCH_ACCURACY * scale
        assert decision.bound <= optimum.objective + 1e-12 * scale
        assert decision_status(problem, decision, outcome) is Status.OPTIMAL
        assert find_violations(problem, decision) == []
        given_power = exact(problem)  # allowed here too, since no power_w is above its power_max_w
        assert outcome.objective <= evaluate(problem, given_power).objective + 1e-11 * scale
    assert num_feasible == num


@pytest.mark.parametrize(("solver", "with_power"), [(exact, False), (exact_power, True)])
def test_unreachable_clients_are_left_out_of_the_optimum(solver, with_power):
    rng = np.random.default_rng(5)
    reachable = np.array([True, False, True, True, False, True])
    problems = [replace(draw_problem(rng, 6, min_clients=1, with_caps=True), reachable=reachable) for _ in range(20)]
    num_feasible = 0
    for problem, optimum in zip(problems, exhaustive_search(problems, with_power), strict=True):
        decision = solver(problem)
        assert decision.is_feasible == optimum.is_feasible
        if optimum.is_feasible:
            num_feasible += 1
            assert evaluate(problem, decision).objective == pytest.approx(optimum.objective, rel=1e-8)
            assert not decision.selected[~reachable].any()
    assert num_feasible >= 15


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize(("solver", "with_power"), [(exact, False), (exact_power, True)])
def test_equal_clients_are_solved_exactly_although_sets_of_a_size_tie(solver, with_power, caps):
    rng = np.random.default_rng(8)
    num_feasible = 0
    for num_clients in (1, 2, 5):
        drawn = [draw_capped(rng, num_clients, caps) for _ in range(8)]
        alike = [make_extreme(problem, Extreme.EQUAL_CLIENTS) for problem in drawn]
        # Where everybody is needed, nobody can mine at the earliest exchange time: the delay starts at infinity.
        problems = alike + [replace(problem, min_clients=num_clients) for problem in alike]
        for problem, optimum in zip(problems, exhaustive_search(problems, with_power), strict=True):
            decision = solver(problem)
            assert decision.is_feasible == optimum.is_feasible
            if optimum.is_feasible:
                num_feasible += 1
                scale = max(abs(optimum.objective), problem.tradeoff * optimum.delay_s)
                assert abs(evaluate(problem, decision).objective - optimum.objective) <= AGREEMENT * scale
                assert decision.bound <= optimum.objective + 1e-12 * scale
    assert num_feasible >= 30
