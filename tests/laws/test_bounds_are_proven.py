"""Above a dozen clients sets are found by prices: their bounds are never above the optimum, and mostly meet it."""

import os
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

import bdfl.scheduling.exact
from bdfl.scheduling.checker import decision_status, evaluate, find_violations, optimality_gap
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Status
from bdfl.scheduling.registry import get_scheduler
from tests.oracles.exhaustive import exhaustive_search

BATCH = 20
KINDS = {"no caps": (False, False), "CPU caps": (True, False), "mining caps": (False, True), "both caps": (True, True)}


def draw_kind(rng, num_clients, kind, **choices):
    """A random round with this kind of caps."""
    problem = draw_problem(rng, num_clients, with_caps=True, **choices)
    unlimited = np.full(num_clients, np.inf)
    with_cpu_caps, with_mining_caps = KINDS[kind]
    problem = problem if with_cpu_caps else replace(problem, cpu_max_hz=unlimited)
    return problem if with_mining_caps else replace(problem, mining_max_hz=unlimited)


def judge(problem, optimum, decision):
    """Relative loss against the optimum, and whether the decision is proven optimal; checks the bound on the way."""
    assert find_violations(problem, decision) == []
    outcome = evaluate(problem, decision)
    scale = max(abs(optimum.objective), problem.tradeoff * optimum.delay_s)
    assert decision.bound <= optimum.objective + 1e-12 * scale
    loss = (outcome.objective - optimum.objective) / scale
    assert loss >= -1e-9
    is_proven = decision_status(problem, decision, outcome) is Status.OPTIMAL
    assert not is_proven or loss <= 1e-9
    return loss, is_proven


def judge_all(rng, kind, sizes, num, **options):
    """Losses and proofs of `exact` on `num` random rounds of each size, feasible ones only."""
    losses, proofs = [], []
    for num_clients in sizes:
        for _ in range(num // BATCH):
            problems = [draw_kind(rng, num_clients, kind) for _ in range(BATCH)]
            for problem, optimum in zip(problems, exhaustive_search(problems), strict=True):
                decision = exact(problem, **options)
                assert decision.is_feasible == optimum.is_feasible
                if optimum.is_feasible:
                    loss, is_proven = judge(problem, optimum, decision)
                    losses.append(loss)
                    proofs.append(is_proven)
    return np.array(losses), np.array(proofs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1, 2, 3, 4), (5, 6, 7), (8,)])
def test_prices_alone_never_promise_too_much(monkeypatch, kind, sizes):
    """No set is enumerated at all: 720 rounds, 3,200 with BDFL_LONG in the environment."""
    monkeypatch.setattr(bdfl.scheduling.exact, "MAX_ENUMERATED", 0)
    rng = np.random.default_rng([len(sizes), list(KINDS).index(kind), 1])
    num = 20 if len(sizes) > 1 else 40
    if "BDFL_LONG" in os.environ:
        num = 40 if KINDS[kind][1] else 160  # certificates are dear where mining caps bind
    losses, _ = judge_all(rng, kind, sizes, num, max_evaluations=60)
    assert len(losses) >= 0.75 * num * len(sizes)
    assert np.mean(losses <= 1e-9) >= 0.95
    assert losses.max() <= 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_few_doubtful_clients_enumerated_nearly_every_set_is_proven_optimal(monkeypatch, kind):
    monkeypatch.setattr(bdfl.scheduling.exact, "MAX_ENUMERATED", 4)
    rng = np.random.default_rng([list(KINDS).index(kind), 2])
    losses, proofs = judge_all(rng, kind, (6, 8), 40)
    assert np.mean(losses <= 1e-9) >= 0.98
    assert np.mean(proofs) >= 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_just_above_a_dozen_clients_the_optimum_of_all_subsets_is_found(kind):
    rng = np.random.default_rng([list(KINDS).index(kind), 3])
    num_judged = 0
    for num_clients in (13, 14):
        problem = draw_kind(rng, num_clients, kind, min_clients=int(rng.integers(1, 6)))
        problem = replace(problem, gain=np.maximum(problem.gain, 1e-8))  # so that nearly all can train
        (optimum,) = exhaustive_search([problem])
        if optimum.is_feasible:
            num_judged += 1
            loss, is_proven = judge(problem, optimum, exact(problem))
            assert loss <= 1e-9
            assert is_proven
    assert num_judged >= 1


@pytest.mark.parametrize("num_clients", [20, 35, 60])
def test_without_mining_caps_dozens_of_clients_are_solved_to_a_tiny_gap(num_clients):
    rng = np.random.default_rng([num_clients, 4])
    num_solved = 0
    for _ in range(25):
        problem = draw_kind(rng, num_clients, "CPU caps", min_clients=int(rng.integers(1, num_clients // 3)))
        decision = exact(problem)
        if decision.is_feasible:
            num_solved += 1
            assert optimality_gap(problem, evaluate(problem, decision), decision.bound) <= 1e-5
    assert num_solved >= 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_clients", [20, 60, 250, 1000])
def test_no_other_scheduler_gets_below_a_bound(kind, num_clients):
    rng = np.random.default_rng([num_clients, list(KINDS).index(kind), 5])
    others = [get_scheduler(name) for name in ("drc", "random", "round-robin", "channel-best", "all")]
    for _ in range(3):
        problem = draw_kind(rng, num_clients, kind, min_clients=int(rng.integers(1, num_clients // 4)))
        proven = exact(problem)
        if not proven.is_feasible:
            continue
        best = evaluate(problem, proven)
        lowered = exact_power(problem, max_evaluations=20) if num_clients <= 60 else proven
        scale = max(abs(best.objective), problem.tradeoff * best.delay_s)
        assert lowered.bound <= best.objective + 1e-12 * scale
        for decision in chain((other(problem) for other in others), best_of_other_sets(rng, problem, proven.selected)):
            if decision.is_feasible:
                assert evaluate(problem, decision).objective >= proven.bound - 1e-12 * scale


def best_of_other_sets(rng, problem, selected):
    """The best decisions of sets near the given one: by `exact` on a problem in which only they can train.

    Whoever is left out keeps mining, but cannot train with a processor that stands still.
    """
    for share in (0.02, 0.1, 0.5):
        members = selected ^ (rng.uniform(size=problem.num_clients) < share)
        if np.count_nonzero(members) >= problem.min_clients:
            queue = np.where(members, 1e6 * (1.0 + problem.queue), 0.0)  # so that nobody in it is left out
            yield exact(replace(problem, queue=queue, cpu_max_hz=np.where(members, problem.cpu_max_hz, 0.0)))
