"""The best frequencies for a given set: as good as `exact` on its set, never better on another."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.conformance import draw_instances, draw_problem, find_faults
from bdfl.scheduling.exact import best_frequencies, earliest_exchange, exact


def test_the_set_of_exact_costs_what_exact_says_and_no_other_set_costs_less():
    rng = np.random.default_rng(2)
    tried = 0
    for instance in draw_instances(rng, 60, max_clients=14):
        problem = instance.problem
        best = exact(problem)
        if not best.is_feasible:
            continue
        least = evaluate(problem, best)
        scale = max(abs(least.objective), problem.tradeoff * least.delay_s)
        again = best_frequencies(problem, best.selected)
        assert abs(evaluate(problem, again).objective - least.objective) <= 1e-9 * scale, instance.description
        able = np.flatnonzero(np.isfinite(earliest_exchange(problem)))
        others = np.isin(np.arange(problem.num_clients), rng.permutation(able)[: problem.min_clients])
        decision = best_frequencies(problem, others)
        assert list(find_faults(problem, decision)) == [], instance.description
        assert evaluate(problem, decision).objective >= least.objective - 1e-9 * scale
        np.testing.assert_array_equal(decision.selected, others)
        tried += 1
    assert tried > 30


def test_sets_that_cannot_be_played_are_infeasible_with_a_reason():
    problem = draw_problem(np.random.default_rng(0), 6, min_clients=2)
    problem = replace(problem, gain=1e3 * problem.gain, reachable=np.arange(6) != 5)
    everybody = np.ones(6, dtype=np.bool_)
    assert best_frequencies(problem, everybody).reason == "5 of the 6 clients asked for can train within their limits"
    assert best_frequencies(problem, np.arange(6) == 0).reason == "1 clients asked for, 2 needed"
    assert best_frequencies(replace(problem, energy_budget_j=np.zeros(6)), everybody).reason.startswith(
        "0 of 6 clients"
    )


@pytest.mark.parametrize("unreachable", [[], [1, 4]])
def test_nobody_out_of_reach_has_an_earliest_time(unreachable):
    problem = draw_problem(np.random.default_rng(1), 6, min_clients=1)
    problem = replace(problem, reachable=~np.isin(np.arange(6), unreachable))
    assert np.isinf(earliest_exchange(problem)[unreachable]).all()
