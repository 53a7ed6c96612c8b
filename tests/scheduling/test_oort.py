"""`oort`: useful and quick clients, untried ones first, more patience when little is gained."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.scheduling.baselines import BaselineMemory, initial_cpu, oort
from bdfl.scheduling.conformance import check_scheduler
from bdfl.scheduling.drc import exchange_time, start_round
from tests.scheduling.test_greedy import easy_problem


def tried(problem, round=50, **changes):
    """The problem some rounds later, when everybody has trained in round 10."""
    memory = BaselineMemory(
        reference_queue=problem.queue, last_round=np.full(problem.num_clients, 10.0), percentile=100.0, **changes
    )
    return replace(problem, round=round, memory=memory)


def times(problem):
    start = start_round(problem)
    return exchange_time(problem, start, initial_cpu(problem, start))


def test_everybody_is_tried_before_the_first_is_asked_again_while_exploration_is_all():
    problem, memory, trained = easy_problem(0, num_clients=9), None, []
    for round in range(1, 4):
        decision = oort(replace(problem, round=round, memory=memory), exploration=1.0, clients=3)
        memory = decision.memory
        trained.append(decision.selected)
    np.testing.assert_array_equal(np.sum(trained, axis=0), 1)


def test_exploration_falls_to_a_fifth_of_those_that_train():
    problem = tried(easy_problem(1, num_clients=20), round=400)
    memory = replace(problem.memory, last_round=np.where(np.arange(20) < 10, 10.0, 0.0))
    decision = oort(replace(problem, memory=memory), clients=10)
    assert np.count_nonzero(decision.selected[10:]) == 2


def test_with_time_for_everybody_the_highest_losses_are_exploited():
    problem = tried(easy_problem(2))
    losses = np.array([0.1, 9.0, 0.1, 8.0, 0.1, 0.1, 0.1, 8.5])
    decision = oort(replace(problem, last_loss=losses, samples=np.ones(8)), clients=3)
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), [1, 3, 7])


def test_with_equal_losses_a_strong_penalty_leaves_the_quickest():
    problem = tried(easy_problem(3))
    memory = replace(problem.memory, percentile=0.0)
    decision = oort(replace(problem, memory=memory), alpha=200.0, clients=2)
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), np.sort(np.argsort(times(problem))[:2]))


def test_without_a_penalty_speed_has_no_say():
    problem = tried(easy_problem(4))
    slower = replace(problem, cycles=problem.cycles * np.linspace(1.0, 9.0, 8), capacitance=problem.capacitance / 100)
    faster = replace(problem, capacitance=problem.capacitance / 100)
    np.testing.assert_array_equal(
        oort(slower, alpha=0.0, clients=3).selected, oort(faster, alpha=0.0, clients=3).selected
    )


def test_long_absence_lifts_a_client_above_its_equals():
    problem = tried(easy_problem(5), round=1000)
    last = np.full(8, 990.0)
    last[6] = 1.0
    chosen = oort(replace(problem, memory=replace(problem.memory, last_round=last)), clients=2).selected
    assert chosen[6]


@pytest.mark.parametrize(("before", "after", "step"), [(2.0, 1.0, 5.0), (1.0, 2.0, 0.0), (1.0, 1.0, 0.0)])
def test_the_pacer_allows_more_time_when_less_is_gained(before, after, step):
    problem = tried(easy_problem(6))
    memory = replace(problem.memory, percentile=30.0, collected=(before,) * 4 + (after,) * 4)
    found = oort(replace(problem, memory=memory), window=4).memory
    assert found.percentile == 30.0 + step
    assert found.collected[:4] == (after,) * 4
    assert len(found.collected) == 5


def test_with_losses_known_it_passes_the_published_check_too():
    def with_losses(problem):
        losses = np.where(np.arange(problem.num_clients) % 3 == 0, np.nan, problem.queue)
        return oort(replace(problem, last_loss=losses, samples=problem.queue))

    report = check_scheduler(with_losses, num_rounds=60)
    assert report.ok, str(report)
