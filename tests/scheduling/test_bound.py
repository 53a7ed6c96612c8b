"""The dual bound: below every scheduler on every path, for any multipliers, and close to the best one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bdfl.experiment.simulation import draw_run, play, round_problems
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.bound import DualBound, dual_bound, fit_multipliers
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import exact
from bdfl.scheduling.registry import choose_scheduler, get_scheduler

CIFAR10 = override_scenario(Scenario(rounds=150), ["partition.dirichlet=0.3"])
RAYLEIGH = override_scenario(Scenario(rounds=60), ["radio.fading.kind=rayleigh", "clients.min_selected=1"])
CHOICES = ("random", "round-robin", "channel-best", "all", "drc", "exact:tradeoff=1", "exact:tradeoff=1000")


def play_choice(scenario, draws, choice):
    chosen = choose_scheduler(scenario, choice)
    return play(chosen, get_scheduler(chosen.scheduler.name, chosen.scheduler.parameters), draws)


def judge(draws, problems, multipliers):
    """The bound that given multipliers prove on these rounds."""
    values = [exact(replace(problem, queue=multipliers, tradeoff=1.0)).bound for problem in problems]
    return DualBound(multipliers, draws.participation_rate, np.array(values))


@pytest.fixture(scope="module")
def rayleigh():
    """Draws and problems of rounds with deep fades."""
    draws = draw_run(RAYLEIGH)
    return draws, round_problems(RAYLEIGH, draws)


@pytest.mark.parametrize("choice", CHOICES)
def test_no_scheduler_beats_the_bound_for_its_own_participation(rayleigh, choice):
    draws, problems = rayleigh
    record = play_choice(RAYLEIGH, draws, choice)
    fitted = fit_multipliers(problems, draws.participation_rate)
    for multipliers in (fitted, 3.0 * fitted, fit_multipliers(problems, record.participation)):
        bound = judge(draws, problems, multipliers)
        mean_s = record.delay_s.sum() / len(problems)
        # A round it could not play took no time and nobody took part: it may be 0 where the bound counts more.
        missed_s = bound.values_s[~record.took_place].sum() / len(problems)
        assert bound.for_participation(record.participation) - missed_s <= mean_s * (1 + 1e-12)


@settings(max_examples=25)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-4, 2.0)), min_size=8, max_size=8))
def test_any_multipliers_give_a_bound(multipliers):
    scenario = Scenario(rounds=6)
    draws = draw_run(scenario)
    bound = judge(draws, round_problems(scenario, draws), np.array(multipliers))
    for choice in ("round-robin", "drc", "exact"):
        record = play_choice(scenario, draws, choice)
        assert bound.for_participation(record.participation) <= record.mean_delay_s * (1 + 1e-12)


def test_without_multipliers_it_is_the_least_delay_of_each_round_alone():
    scenario = Scenario(rounds=10)
    draws = draw_run(scenario)
    problems = round_problems(scenario, draws)
    bound = judge(draws, problems, np.zeros(8))
    least_s = [evaluate(problem, exact(problem)).delay_s for problem in problems]
    np.testing.assert_allclose(bound.values_s, least_s, rtol=1e-9)
    assert bound.mean_s == pytest.approx(np.mean(least_s), rel=1e-9)


def test_fitted_multipliers_beat_none():
    draws = draw_run(CIFAR10)
    problems = round_problems(CIFAR10, draws)
    nothing = judge(draws, problems, np.zeros(8))
    fitted = dual_bound(problems, problems, draws.participation_rate)
    assert np.all(fitted.multipliers >= 0.0)
    assert fitted.mean_s > nothing.mean_s * 1.001


def test_exact_comes_within_two_percent_of_the_bound_on_the_papers_scenario():
    draws = draw_run(CIFAR10)
    others = draw_run(override_scenario(CIFAR10, ["seed=1000"]))
    bound = dual_bound(round_problems(CIFAR10, others), round_problems(CIFAR10, draws), draws.participation_rate)
    record = play_choice(CIFAR10, draws, "exact:tradeoff=50")
    lowest_s = bound.for_participation(record.participation)
    assert lowest_s <= record.mean_delay_s <= 1.02 * lowest_s
    assert record.worst_shortfall <= 0.02


def test_the_error_is_that_of_a_mean():
    bound = DualBound(np.zeros(1), np.zeros(1), np.array([1.0, 2.0, 4.0, 5.0]))
    assert bound.mean_s == 3.0
    assert bound.error_s == pytest.approx(np.sqrt(10.0 / 3.0) / 2.0)
    assert DualBound(np.zeros(1), np.zeros(1), np.array([1.0])).error_s == np.inf


def test_infeasible_rounds_bound_nothing():
    scenario = Scenario(rounds=4)
    draws = draw_run(scenario)
    problems = [replace(problem, energy_budget_j=np.zeros(8)) for problem in round_problems(scenario, draws)]
    bound = dual_bound(problems, problems, draws.participation_rate)
    np.testing.assert_array_equal(bound.values_s, 0.0)
