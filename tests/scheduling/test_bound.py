"""The dual bound: below every scheduler on every path, for any multipliers, and close to the best one."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog

from bdfl.experiment.simulation import draw_run, play, round_problems
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.bound import DualBound, dual_bound, fit_bound
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import best_frequencies, exact
from bdfl.scheduling.registry import choose_scheduler, get_scheduler

CIFAR10 = override_scenario(Scenario(rounds=150), ["partition.dirichlet=0.3"])
RAYLEIGH = override_scenario(Scenario(rounds=60), ["radio.fading.kind=rayleigh", "clients.min_selected=1"])
CHOICES = ("random", "round-robin", "channel-best", "all", "drc", "exact:tradeoff=1", "exact:tradeoff=1000")


def play_choice(scenario, draws, choice):
    chosen = choose_scheduler(scenario, choice)
    return play(chosen, get_scheduler(chosen.scheduler.name, chosen.scheduler.parameters), draws)


def least_delay(problems, rate):
    """Least mean delay of a random choice among all sets that meets the rates: the program as it stands."""
    num_rounds, num_clients = len(problems), len(rate)
    sets = [np.array(bits, dtype=bool) for bits in product((False, True), repeat=num_clients)]
    costs, chosen, rounds = [], [], []
    for number, problem in enumerate(problems):
        for members in sets:
            decision = best_frequencies(problem, members)
            if decision.is_feasible:
                costs.append(evaluate(problem, decision).delay_s)
                chosen.append(members)
                rounds.append(number)
    one_each = (np.arange(num_rounds)[:, None] == np.array(rounds)).astype(float)
    solved = linprog(
        np.array(costs) / num_rounds,
        A_ub=-np.array(chosen, dtype=float).T / num_rounds,
        b_ub=-rate,
        A_eq=one_each,
        b_eq=np.ones(num_rounds),
    )
    assert solved.status == 0
    return solved.fun


@pytest.fixture(scope="module")
def rayleigh():
    """Draws and problems of rounds with deep fades."""
    draws = draw_run(RAYLEIGH)
    return draws, round_problems(RAYLEIGH, draws)


@pytest.mark.parametrize("choice", CHOICES)
def test_no_scheduler_beats_the_bound_for_its_own_participation(rayleigh, choice):
    draws, problems = rayleigh
    record = play_choice(RAYLEIGH, draws, choice)
    fitted = fit_bound(problems, draws.participation_rate).multipliers
    for multipliers in (fitted, 3.0 * fitted, fit_bound(problems, record.participation).multipliers):
        bound = dual_bound(multipliers, problems, draws.participation_rate)
        mean_s = record.delay_s.sum() / len(problems)
        # A round it could not play took no time and nobody took part: it may be 0 where the bound counts more.
        missed_s = bound.values_s[~record.took_place].sum() / len(problems)
        assert bound.for_participation(record.participation) - missed_s <= mean_s * (1 + 1e-12)


@settings(max_examples=25)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-4, 2.0)), min_size=8, max_size=8))
def test_any_multipliers_give_a_bound(multipliers):
    scenario = Scenario(rounds=6)
    draws = draw_run(scenario)
    bound = dual_bound(np.array(multipliers), round_problems(scenario, draws), draws.participation_rate)
    for choice in ("round-robin", "drc", "exact"):
        record = play_choice(scenario, draws, choice)
        assert bound.for_participation(record.participation) <= record.mean_delay_s * (1 + 1e-12)


def test_without_multipliers_it_is_the_least_delay_of_each_round_alone():
    scenario = Scenario(rounds=10)
    draws = draw_run(scenario)
    problems = round_problems(scenario, draws)
    bound = dual_bound(np.zeros(8), problems, draws.participation_rate)
    least_s = [evaluate(problem, exact(problem)).delay_s for problem in problems]
    np.testing.assert_allclose(bound.values_s, least_s, rtol=1e-9)
    assert bound.mean_s == pytest.approx(np.mean(least_s), rel=1e-9)


def test_fitted_multipliers_beat_none():
    draws = draw_run(CIFAR10)
    problems = round_problems(CIFAR10, draws)
    nothing = dual_bound(np.zeros(8), problems, draws.participation_rate)
    fitted = fit_bound(problems, draws.participation_rate)
    assert np.all(fitted.multipliers >= 0.0)
    assert fitted.mean_s > nothing.mean_s * 1.001


def test_exact_comes_within_two_percent_of_the_bound_on_the_papers_scenario():
    draws = draw_run(CIFAR10)
    others = draw_run(override_scenario(CIFAR10, ["seed=1000"]))
    multipliers = fit_bound(round_problems(CIFAR10, others), draws.participation_rate).multipliers
    bound = dual_bound(multipliers, round_problems(CIFAR10, draws), draws.participation_rate)
    record = play_choice(CIFAR10, draws, "exact:tradeoff=50")
    lowest_s = bound.for_participation(record.participation)
    assert lowest_s <= record.mean_delay_s <= 1.02 * lowest_s
    assert record.worst_shortfall <= 0.02


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["radio.fading.kind=rayleigh"],
        ["mining.max_hz=1.2e9"],
        ['energy.budget_j={distribution="choice", values=[0.2, 0.4, 0.8]}'],
    ],
    ids=["alike", "rayleigh", "capped", "unlike"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_fitted_bound_is_the_optimum_of_the_program_over_all_sets(changes, seed):
    scenario = override_scenario(Scenario(rounds=10, seed=seed), ["clients.count=6", *changes])
    draws = draw_run(scenario)
    problems = round_problems(scenario, draws)
    fitted = fit_bound(problems, draws.participation_rate)
    least_s = least_delay(problems, fitted.rate)
    assert least_s * (1 - 1.001e-4) <= fitted.mean_s <= least_s * (1 + 1e-9)
    assert least_s * (1 - 1e-9) <= fitted.attained_s <= least_s * (1 + 1.001e-4)


def test_a_client_that_cannot_train_often_enough_counts_with_the_rounds_in_which_it_can():
    scenario = Scenario(rounds=10)
    draws = draw_run(scenario)
    problems = round_problems(scenario, draws)
    away = np.arange(8) > 0
    problems = [replace(problem, reachable=away) if number > 1 else problem for number, problem in enumerate(problems)]
    fitted = fit_bound(problems, draws.participation_rate)
    assert fitted.rate[0] == pytest.approx(0.2, rel=1e-5)
    assert fitted.rate[0] < draws.participation_rate[0]
    assert fitted.mean_s <= fitted.attained_s <= fitted.mean_s * (1 + 1.001e-4)


def test_many_clients_have_a_proven_bound_too():
    scenario = override_scenario(Scenario(rounds=6), ["clients.count=40"])
    draws = draw_run(scenario)
    fitted = fit_bound(round_problems(scenario, draws), draws.participation_rate)
    assert np.any(fitted.multipliers > 0)
    assert fitted.mean_s <= fitted.attained_s * (1 + 1e-9)


def test_the_error_is_that_of_a_mean():
    bound = DualBound(np.zeros(1), np.zeros(1), np.array([1.0, 2.0, 4.0, 5.0]))
    assert bound.mean_s == 3.0
    assert bound.error_s == pytest.approx(np.sqrt(10.0 / 3.0) / 2.0)
    assert DualBound(np.zeros(1), np.zeros(1), np.array([1.0])).error_s == np.inf


def test_infeasible_rounds_bound_nothing():
    scenario = Scenario(rounds=4)
    draws = draw_run(scenario)
    problems = [replace(problem, energy_budget_j=np.zeros(8)) for problem in round_problems(scenario, draws)]
    bound = fit_bound(problems, draws.participation_rate)
    np.testing.assert_array_equal(bound.values_s, 0.0)
    assert bound.attained_s == 0.0
