"""Greedy schedulers: nothing of their size is quicker, or thriftier, and nobody waits longer than he must."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from bdfl.scheduling.baselines import age_of_update, all_clients, energy_greedy, fastest_k
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.drc import start_round

GREEDY = (fastest_k, energy_greedy, age_of_update)


def easy_problem(seed, num_clients=8, **choices):
    """A random round with enough budget that every client can train."""
    problem = draw_problem(np.random.default_rng(seed), num_clients, min_clients=2, **choices)
    return replace(problem, gain=1e3 * problem.gain, energy_budget_j=5.0 + problem.energy_budget_j, seed=seed)


def outcomes_of_sets(problem, size):
    """What every set of that size costs at the frequencies of the baselines."""
    everybody = all_clients(problem)
    for members in combinations(np.flatnonzero(everybody.selected), size):
        selected = np.isin(np.arange(problem.num_clients), members)
        decision = replace(
            everybody,
            selected=selected,
            cpu_hz=np.where(selected, everybody.cpu_hz, 0.0),
            power_w=np.where(selected, everybody.power_w, 0.0),
        )
        yield evaluate(problem, decision)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 4])
def test_no_set_of_its_size_is_quicker_than_the_fastest_or_thriftier_than_the_thrifty(seed, size):
    problem = easy_problem(seed, with_caps=bool(seed % 2))
    outcomes = list(outcomes_of_sets(problem, size))
    quick, thrifty = (
        evaluate(problem, fastest_k(problem, clients=size)),
        evaluate(problem, energy_greedy(problem, clients=size)),
    )
    assert quick.delay_s == min(outcome.delay_s for outcome in outcomes)
    assert thrifty.energy_j.sum() == pytest.approx(min(outcome.energy_j.sum() for outcome in outcomes), rel=1e-12)


def test_by_age_all_clients_train_equally_often_and_none_waits_longer_than_a_cycle():
    problem, memory, trained = easy_problem(3, num_clients=9), None, []
    for round in range(1, 28):
        decision = age_of_update(replace(problem, round=round, memory=memory), clients=3)
        memory = decision.memory
        trained.append(decision.selected)
    counts = np.sum(trained, axis=0)
    np.testing.assert_array_equal(counts, 9)
    for start in range(0, 27, 3):
        assert np.sum(trained[start : start + 3], axis=0).max() == 1


def test_of_equal_ages_the_quickest_train_first():
    problem = easy_problem(4)
    np.testing.assert_array_equal(age_of_update(problem, clients=3).selected, fastest_k(problem, clients=3).selected)


def test_who_comes_back_after_a_long_time_out_of_reach_goes_first():
    problem = easy_problem(5, num_clients=6)
    away = replace(problem, reachable=np.arange(6) != 2)
    memory = None
    for round in range(1, 5):
        memory = age_of_update(replace(away, round=round, memory=memory), clients=2).memory
    assert age_of_update(replace(problem, round=5, memory=memory), clients=2).selected[2]


@pytest.mark.parametrize("scheduler", GREEDY)
def test_a_number_of_clients_stays_within_m_and_all_who_can_train(scheduler):
    problem = easy_problem(6)
    for asked, given in ((1, 2), (3, 3), (99, len(start_round(problem).candidates))):
        decision = scheduler(problem, clients=asked)
        assert np.count_nonzero(decision.selected) == given
        assert find_violations(problem, decision) == []
