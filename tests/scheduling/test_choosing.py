"""`power-of-choice`: candidates by the size of their data, of them the highest losses, or the oldest updates."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.errors import InvalidProblem
from bdfl.scheduling.baselines import draw_order, power_of_choice
from bdfl.scheduling.problem import validate_problem
from tests.scheduling.test_greedy import easy_problem


def test_with_all_as_candidates_the_highest_losses_train():
    problem = easy_problem(0)
    losses = np.array([0.3, 2.0, 0.1, 1.5, 0.2, 0.4, 1.9, 0.9])
    decision = power_of_choice(replace(problem, last_loss=losses), candidates=8, clients=3)
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), [1, 3, 6])


def test_who_has_no_loss_yet_comes_before_all_others():
    losses = np.array([0.3, 2.0, np.nan, 1.5, 0.2, np.nan, 1.9, 0.9])
    decision = power_of_choice(replace(easy_problem(0), last_loss=losses), candidates=8, clients=2)
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), [2, 5])


def test_with_as_many_candidates_as_train_losses_have_no_say():
    problem = easy_problem(1)
    for round in range(1, 20):
        chosen = [
            power_of_choice(replace(problem, round=round, last_loss=losses), candidates=3, clients=3).selected
            for losses in (np.arange(8.0), np.arange(8.0)[::-1])
        ]
        np.testing.assert_array_equal(*chosen)


def test_among_its_candidates_it_never_leaves_a_higher_loss_for_a_lower_one():
    problem = easy_problem(2)
    losses = np.random.default_rng(0).uniform(0, 3, 8)
    for round in range(1, 30):
        asked = replace(problem, round=round, last_loss=losses, samples=np.arange(1.0, 9.0))
        drawn = power_of_choice(asked, candidates=5, clients=5).selected
        chosen = power_of_choice(asked, candidates=5, clients=2).selected
        assert not (chosen & ~drawn).any()
        assert losses[chosen].min() >= losses[drawn & ~chosen].max()


def test_without_losses_the_oldest_updates_of_the_candidates_train():
    problem, memory = easy_problem(3), None
    for round in range(1, 5):
        decision = power_of_choice(replace(problem, round=round, memory=memory), candidates=8, clients=2)
        memory = decision.memory
    np.testing.assert_array_equal(np.sort(memory.last_round), [1, 1, 2, 2, 3, 3, 4, 4])


def test_candidates_are_drawn_in_proportion_to_their_data():
    problem = replace(easy_problem(4, num_clients=4), samples=np.array([1.0, 2.0, 3.0, 4.0]))
    who = np.arange(4)
    first = [draw_order(replace(problem, round=round), who, problem.samples)[0] for round in range(1, 4001)]
    np.testing.assert_allclose(np.bincount(first) / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.025)


def test_clients_without_data_are_drawn_last():
    weight = np.array([0.0, 1.0, 0.0, 5.0])
    order = draw_order(easy_problem(5, num_clients=4), np.arange(4), weight)
    assert set(order[:2]) == {1, 3}
    np.testing.assert_array_equal(order[2:], [0, 2])


def test_losses_of_another_number_of_clients_are_refused():
    with pytest.raises(InvalidProblem, match=r"last_loss: shape \(3,\) given, \(8,\) expected"):
        validate_problem(replace(easy_problem(6), last_loss=np.zeros(3)))


def test_a_memory_that_is_none_of_its_own_is_refused():
    with pytest.raises(InvalidProblem, match="str given"):
        power_of_choice(replace(easy_problem(7), memory="other"))
