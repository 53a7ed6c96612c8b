"""No scheduler ever breaks C1 to C3, whatever the round: thousands of random ones, and every corner.

Those that search for long get fewer, and so do those that select among the same candidates as the baselines. With
BDFL_LONG in the environment there are many more; `make campaign` gives 10,000 to each.
"""

import os
from functools import cache

import numpy as np
import pytest

from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import Extreme, draw_instances, draw_problem, find_faults, make_extreme
from bdfl.scheduling.problem import restrict_problem
from bdfl.scheduling.registry import get_scheduler, scheduler_names

IS_LONG = "BDFL_LONG" in os.environ
MOST_ROUNDS = 10_000 if IS_LONG else 1_500
NUM_ROUNDS = {
    "exact": 1_500 if IS_LONG else 300,
    "battery": 200 if IS_LONG else 30,
    "exact-power": 400 if IS_LONG else 100,
    "steady": 1_500 if IS_LONG else 300,
    **dict.fromkeys(("fastest-k", "energy-greedy", "age-of-update", "power-of-choice", "oort"), 300),
}
DRAWING = ("random", "power-of-choice", "oort")  # they draw by client number
LEARNING = ("steady", "battery")  # in rounds as extreme as these their prices are on different ways to the optimum
NAMES = scheduler_names()


@cache
def random_rounds():
    return list(draw_instances(np.random.default_rng(1), MOST_ROUNDS))


@pytest.mark.parametrize("name", NAMES)
def test_no_decision_violates_a_constraint_in_thousands_of_random_rounds(name):
    scheduler = get_scheduler(name)
    for instance in random_rounds()[: NUM_ROUNDS.get(name, MOST_ROUNDS)]:
        assert list(find_faults(instance.problem, scheduler(instance.problem))) == [], instance.description


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extreme", Extreme)
@pytest.mark.parametrize("with_caps", [False, True])
def test_extremes_give_finite_decisions_or_a_typed_infeasible_round(name, extreme, with_caps):
    scheduler = get_scheduler(name)
    rng = np.random.default_rng(7)
    for num_clients in (1, 2, 9, 25):
        problem = make_extreme(draw_problem(rng, num_clients, with_caps=with_caps), extreme)
        decision = scheduler(problem)
        assert list(find_faults(problem, decision)) == []
        if decision.is_feasible:
            outcome = evaluate(problem, decision)
            assert np.isfinite([outcome.delay_s, outcome.objective]).all()
            assert outcome.delay_s > 0
        else:
            assert decision.reason
            assert not decision.selected.any()


@pytest.mark.parametrize("name", NAMES)
def test_extremes_may_come_together(name):
    scheduler = get_scheduler(name)
    rng = np.random.default_rng(11)
    for first in Extreme:
        for second in Extreme:
            problem = draw_problem(rng, 7, with_caps=bool(rng.integers(2)))
            problem = make_extreme(make_extreme(problem, first), second)
            assert list(find_faults(problem, scheduler(problem))) == [], f"{first}, {second}"


@pytest.mark.parametrize("name", NAMES)
def test_no_unreachable_client_trains_or_mines(name):
    scheduler = get_scheduler(name)
    rng = np.random.default_rng(3)
    for _ in range(30):
        problem = draw_problem(rng, 12, min_clients=1, unreachable_share=0.5)
        decision = scheduler(problem)
        assert find_violations(problem, decision) == []
        assert not decision.selected[~problem.reachable].any()
        assert not decision.mining_hz[~problem.reachable].any()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*DRAWING, *LEARNING)])
def test_unreachable_clients_do_not_change_what_the_others_get(name):
    scheduler = get_scheduler(name)
    rng = np.random.default_rng(4)
    for _ in range(30):
        problem = draw_problem(rng, 8, min_clients=1, unreachable_share=0.4)
        alone = restrict_problem(problem, problem.reachable)
        whole, part = evaluate(problem, scheduler(problem)), evaluate(alone, scheduler(alone))
        assert whole.objective == pytest.approx(part.objective, rel=1e-7)
