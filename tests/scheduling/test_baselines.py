"""Baselines: as many clients as the paired `drc`, everybody on initial frequencies, and who gets chosen."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.errors import InvalidProblem
from bdfl.scheduling.baselines import (
    BaselineMemory,
    all_clients,
    channel_best,
    decide_for,
    random_scheduler,
    round_robin,
)
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import Extreme, draw_instances, draw_problem, make_extreme
from bdfl.scheduling.drc import drc, start_mining, start_round
from bdfl.scheduling.exact import best_frequencies
from bdfl.scheduling.queues import next_queue
from bdfl.scheduling.registry import BASELINES, get_scheduler

PAIRED = (random_scheduler, round_robin, channel_best)


def easy_problem(seed, num_clients=10, **choices):
    """A random round with enough budget that every reachable client can train."""
    problem = draw_problem(np.random.default_rng(seed), num_clients, min_clients=2, **choices)
    easy = replace(problem, gain=1e3 * problem.gain, energy_budget_j=5.0 + problem.energy_budget_j)
    assert len(start_round(easy).candidates) == np.count_nonzero(easy.reachable)
    return easy


def play(scheduler, problems):
    """Decisions of a scheduler over rounds, with its own queues and memory."""
    queue, memory = problems[0].queue, None
    for problem in problems:
        decision = scheduler(replace(problem, queue=queue, memory=memory))
        queue = next_queue(queue, problem.participation_rate, decision.selected)
        memory = decision.memory
        yield decision


def rounds(seed, num_rounds=30, **choices):
    """Rounds of one run: channels differ, the clients do not."""
    first = replace(easy_problem(seed, **choices), seed=seed, tradeoff=2.0)
    gains = np.random.default_rng(seed).uniform(0.2, 2.0, (num_rounds, first.num_clients))
    return [replace(first, round=t, gain=first.gain * gains[t - 1]) for t in range(1, num_rounds + 1)]


@pytest.mark.parametrize("scheduler", PAIRED)
def test_baselines_select_as_many_as_a_drc_run_of_its_own_on_the_same_rounds(scheduler):
    problems = rounds(3)
    sizes = [decision.selected.sum() for decision in play(scheduler, problems)]
    assert sizes == [decision.selected.sum() for decision in play(drc, problems)]
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("scheduler", [*PAIRED, all_clients])
@pytest.mark.parametrize("seed", range(10))
def test_baselines_compute_at_initial_frequencies_as_far_as_budget_and_cap_allow(scheduler, seed):
    problem = easy_problem(seed, with_caps=True)
    decision = scheduler(problem)
    chosen = decision.selected
    allowed_hz = np.minimum(problem.initial_cpu_hz, problem.cpu_max_hz)
    assert (decision.cpu_hz[chosen] <= allowed_hz[chosen]).all()
    assert (decision.cpu_hz[chosen] > 0).all()
    np.testing.assert_array_equal(decision.mining_hz, start_mining(problem))
    np.testing.assert_array_equal(decision.power_w, np.where(chosen, problem.power_w, 0.0))
    assert find_violations(problem, decision) == []


def test_round_robin_cycles_by_index_and_skips_those_who_cannot_train():
    reachable = np.arange(10) != 4
    problems = [replace(problem, reachable=reachable) for problem in rounds(5)]
    order = np.concatenate([_in_cyclic_order(decision, problems) for decision in _with_cursor(problems)])
    expected = np.resize(np.flatnonzero(reachable), len(order))
    np.testing.assert_array_equal(order, expected)


def _with_cursor(problems):
    cursor = 0
    for decision in play(round_robin, problems):
        yield decision, cursor
        cursor = decision.memory.cursor


def _in_cyclic_order(decision_and_cursor, problems):
    decision, cursor = decision_and_cursor
    chosen = np.flatnonzero(decision.selected)
    return chosen[np.argsort((chosen - cursor) % problems[0].num_clients)]


def test_channel_best_takes_the_highest_gains():
    for problem, decision in zip(rounds(7), play(channel_best, rounds(7)), strict=True):
        size = decision.selected.sum()
        assert set(np.flatnonzero(decision.selected)) == set(np.argsort(-problem.gain)[:size])


def test_channel_best_breaks_ties_by_index():
    problem = easy_problem(0, tradeoff=1e9)
    decision = channel_best(replace(problem, gain=np.full(10, 1e-6)))
    np.testing.assert_array_equal(np.flatnonzero(decision.selected), [0, 1])


def test_random_depends_on_seed_and_round_and_on_nothing_else():
    problem = easy_problem(0, num_clients=30, tradeoff=1e9)
    first = random_scheduler(problem).selected
    np.testing.assert_array_equal(random_scheduler(problem).selected, first)
    others = [random_scheduler(replace(problem, round=number)).selected for number in range(2000, 2020)]
    assert any(not np.array_equal(other, first) for other in others)
    assert not np.array_equal(
        random_scheduler(replace(problem, seed=1)).selected, random_scheduler(replace(problem, seed=2)).selected
    )


def test_random_gives_every_candidate_the_same_chance():
    problem = easy_problem(0, num_clients=5, tradeoff=1e9)
    counts = sum(random_scheduler(replace(problem, round=number)).selected.astype(int) for number in range(2000))
    np.testing.assert_allclose(counts / 2000, 2 / 5, atol=0.05)


def test_all_takes_every_candidate():
    problem = easy_problem(1, unreachable_share=0.4)
    np.testing.assert_array_equal(all_clients(problem).selected, problem.reachable)


@pytest.mark.parametrize("scheduler", PAIRED)
def test_an_infeasible_round_is_infeasible_for_all_and_the_paired_queues_grow(scheduler):
    problem = make_extreme(easy_problem(2), Extreme.NO_BUDGET_AT_ALL)
    decision = scheduler(problem)
    assert not decision.is_feasible
    assert decision.reason == drc(problem).reason
    np.testing.assert_array_equal(decision.memory.reference_queue, problem.queue + problem.participation_rate)


def test_memory_of_another_scheduler_or_federation_is_refused():
    problem = easy_problem(0)
    with pytest.raises(InvalidProblem, match="str given"):
        channel_best(replace(problem, memory="other"))
    with pytest.raises(InvalidProblem, match="of 3 clients"):
        channel_best(replace(problem, memory=BaselineMemory(reference_queue=np.zeros(3), last_round=np.zeros(3))))


@pytest.mark.parametrize("name", BASELINES)
def test_best_frequencies_change_no_selection_and_are_the_best_for_it(name):
    problems = rounds(11, with_caps=True)
    initial = play(get_scheduler(name), problems)
    best = play(get_scheduler(name, {"frequencies": "best"}), problems)
    shorter = 0
    for problem, one, other in zip(problems, initial, best, strict=True):
        np.testing.assert_array_equal(other.selected, one.selected)
        least = best_frequencies(problem, one.selected)
        np.testing.assert_array_equal(other.cpu_hz, least.cpu_hz)
        np.testing.assert_array_equal(other.mining_hz, least.mining_hz)
        assert other.iterations == one.iterations
        shorter += evaluate(problem, other).delay_s < evaluate(problem, one).delay_s
    assert shorter == len(problems)


def test_whatever_is_payable_at_initial_frequencies_is_payable_and_no_slower_at_the_best():
    rng = np.random.default_rng(4)
    tried = 0
    for instance in draw_instances(rng, 400, max_clients=20):
        problem = instance.problem
        start = start_round(problem)
        if start.reason is not None:
            continue
        size = int(rng.integers(problem.min_clients, len(start.candidates) + 1))
        chosen = rng.permutation(start.candidates)[:size]
        initial = decide_for(problem, start, chosen, None, "initial")
        best = decide_for(problem, start, chosen, None, "best")
        assert best.is_feasible, instance.description
        assert find_violations(problem, best) == [], instance.description
        assert evaluate(problem, best).delay_s <= evaluate(problem, initial).delay_s * (1 + 1e-9), instance.description
        tried += 1
    assert tried > 200
