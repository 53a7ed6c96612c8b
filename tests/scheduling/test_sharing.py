"""Shared spectrum: costs by the share that a set leaves, and decisions against brute force over sets."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from bdfl.radio import uplink_rate
from bdfl.scheduling.baselines import all_clients, random_scheduler
from bdfl.scheduling.checker import decision_status, evaluate, find_violations, optimality_gap
from bdfl.scheduling.conformance import draw_instances, draw_problem
from bdfl.scheduling.drc import drc
from bdfl.scheduling.exact import best_frequencies, exact, exact_power
from bdfl.scheduling.problem import (
    Decision,
    Status,
    count_uploaders,
    share_among,
    share_at_most,
)
from bdfl.scheduling.registry import get_scheduler, scheduler_names


def draw_shared(seed, num_clients, num_access_points=1, **options):
    """A round at whose access points 1 to `num_clients` uploads share a band that some can pay for."""
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, num_clients, **options)
    return replace(
        problem,
        bandwidth_hz=problem.bandwidth_hz * rng.uniform(1.0, 4.0),
        access_point=rng.integers(0, num_access_points, num_clients),
    )


def all_sets(num_clients, least):
    for size in range(least, num_clients + 1):
        for chosen in combinations(range(num_clients), size):
            members = np.zeros(num_clients, dtype=np.bool_)
            members[list(chosen)] = True
            yield members


def brute_force(problem):
    """The least objective over all sets, each solved by itself at the bandwidth that it leaves."""
    least = np.inf
    for members in all_sets(problem.num_clients, problem.min_clients):
        alone = replace(share_among(problem, members), access_point=None)
        decision = best_frequencies(alone, members)
        if decision.is_feasible:
            least = min(least, evaluate(alone, decision).objective)
    return least


@pytest.mark.parametrize("seed", range(5))
def test_uploads_take_and_cost_what_the_rate_of_their_share_says(seed):
    problem = draw_shared(seed, 7, 2, min_clients=1)
    rng = np.random.default_rng(seed)
    members = rng.random(7) < 0.6
    columns = {name: np.where(members, rng.uniform(0.5, 1.0, 7), 0.0) for name in ("cpu_hz", "power_w")}
    outcome = evaluate(problem, Decision(selected=members, mining_hz=np.full(7, 1e9), **columns))
    for client in range(7):
        here = members & (problem.access_point == problem.access_point[client])
        share_hz = problem.bandwidth_hz / max(here.sum(), 1)
        rate = uplink_rate(share_hz, columns["power_w"][[client]], problem.gain[[client]], problem.noise_w_per_hz)
        upload_s = problem.model_bits[client] / rate[0] if members[client] else 0.0
        assert outcome.upload_s[client] == pytest.approx(upload_s, rel=1e-12)
        assert outcome.upload_j[client] == pytest.approx(upload_s * columns["power_w"][client], rel=1e-12)


def test_who_uploads_alone_has_all_the_bandwidth():
    problem = draw_shared(3, 6, 6, min_clients=1)
    problem = replace(problem, access_point=np.arange(6))
    alone = replace(problem, access_point=None)
    for scheduler in (drc, exact, exact_power, all_clients, random_scheduler):
        shared, ordinary = scheduler(problem), scheduler(alone)
        assert shared.selected.tolist() == ordinary.selected.tolist()
        assert evaluate(problem, shared).objective == pytest.approx(evaluate(alone, ordinary).objective, rel=1e-9)


@pytest.mark.parametrize("num_access_points", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_exact_is_the_best_of_all_sets(seed, num_access_points):
    options = {"with_caps": seed % 2 == 1, "unreachable_share": 0.2 * (seed % 3 == 2)}
    problem = draw_shared(seed, 3 + seed % 4, num_access_points, min_clients=1 + seed % 3, **options)
    least, decision = brute_force(problem), exact(problem)
    assert decision.is_feasible == np.isfinite(least)
    if decision.is_feasible:
        outcome = evaluate(problem, decision)
        assert find_violations(problem, decision) == []
        assert outcome.objective == pytest.approx(least, rel=1e-9, abs=1e-9 * problem.tradeoff * outcome.delay_s)
        assert decision.bound <= least + 1e-9 * abs(least)
        assert decision_status(problem, decision, outcome) is Status.OPTIMAL


@pytest.mark.parametrize("num_access_points", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_a_search_is_below_every_set_and_its_decision_close(seed, num_access_points, monkeypatch):
    problem = draw_shared(seed, 7, num_access_points, min_clients=2)
    least = brute_force(problem)
    monkeypatch.setattr("bdfl.scheduling.exact.MAX_ENUMERATED", 3)
    decision = exact(problem)
    assert decision.is_feasible == np.isfinite(least)
    if decision.is_feasible:
        outcome = evaluate(problem, decision)
        assert find_violations(problem, decision) == []
        scale = max(abs(least), problem.tradeoff * outcome.delay_s)
        assert decision.bound <= least + 1e-9 * scale
        assert least <= outcome.objective + 1e-9 * scale
        assert optimality_gap(problem, outcome, least) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_of_many_clients_at_one_access_point_the_gap_is_small(seed):
    problem = draw_shared(seed, 20)
    decision = exact(problem)
    assert find_violations(problem, decision) == []
    assert not decision.is_feasible or optimality_gap(problem, evaluate(problem, decision), decision.bound) < 0.05


@pytest.mark.parametrize("name", scheduler_names())
@pytest.mark.parametrize("seed", range(6))
def test_every_scheduler_keeps_the_constraints(name, seed):
    problem = draw_shared(seed, 5 + 5 * (seed % 3), 1 + seed % 3, min_clients=1 + seed % 4, with_caps=seed % 2 == 1)
    decision = get_scheduler(name)(problem)
    assert find_violations(problem, decision) == []
    best = exact(problem)
    if decision.is_feasible and name != "exact-power":
        assert best.is_feasible
        outcome = evaluate(problem, decision)
        scale = max(abs(outcome.objective), problem.tradeoff * outcome.delay_s)
        assert best.bound <= outcome.objective + 1e-9 * scale


@pytest.mark.parametrize("name", scheduler_names())
def test_every_scheduler_keeps_the_constraints_of_extreme_rounds(name):
    rng = np.random.default_rng(1)
    for instance in draw_instances(np.random.default_rng(2), 60, max_clients=10):
        access_point = rng.integers(0, 3, instance.problem.num_clients)
        problem = replace(instance.problem, access_point=access_point)
        assert find_violations(problem, get_scheduler(name)(problem)) == [], instance.description


@pytest.mark.parametrize("seed", range(6))
def test_the_best_frequencies_of_a_set_beat_any_other_of_the_same_set(seed):
    problem = draw_shared(seed, 6, 2, min_clients=2)
    decision = drc(problem)
    if decision.is_feasible:
        best = best_frequencies(problem, decision.selected)
        assert find_violations(problem, best) == []
        assert evaluate(problem, best).delay_s <= evaluate(problem, decision).delay_s * (1 + 1e-9)


def test_uploaders_are_counted_at_each_access_point():
    problem = replace(draw_shared(0, 5), access_point=np.array([0, 2, 0, 2, 2]))
    members = np.array([True, True, True, False, True])
    assert count_uploaders(problem, members).tolist() == [2, 2, 2, 2, 2]
    assert count_uploaders(problem, ~members).tolist() == [0, 1, 0, 1, 1]
    assert (share_at_most(problem, 2).model_bits / problem.model_bits).tolist() == [2, 2, 2, 2, 2]
    assert share_among(replace(problem, access_point=None), members).model_bits is problem.model_bits
