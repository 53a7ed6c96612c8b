"""The judge of all schedulers: numbers worked out by hand, every kind of violation, and what a gap is."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.errors import InvalidDecision
from bdfl.scheduling.checker import (
    decision_status,
    drift_plus_penalty,
    evaluate,
    find_violations,
    optimality_gap,
)
from bdfl.scheduling.problem import Decision, Status, infeasible_decision
from tests.oracles.worked_round import PROBLEM

DECISION = Decision(
    selected=np.array([True, False]),
    cpu_hz=np.array([1e9, 0.0]),
    mining_hz=np.array([2e9, 1e9]),
    power_w=np.array([0.1, 0.0]),
)


def test_costs_are_those_worked_out_by_hand():
    outcome = evaluate(PROBLEM, DECISION)
    np.testing.assert_allclose(outcome.upload_s, [0.5, 0.0])
    np.testing.assert_allclose(outcome.training_s, [0.5, 0.0])
    assert outcome.exchange_s == pytest.approx(1.0)
    assert outcome.mining_s == pytest.approx(0.2)
    assert outcome.delay_s == pytest.approx(1.2)
    np.testing.assert_allclose(outcome.upload_j, [0.05, 0.0])
    np.testing.assert_allclose(outcome.training_j, [0.05, 0.0])
    np.testing.assert_allclose(outcome.mining_j, [0.16, 0.04])
    np.testing.assert_allclose(outcome.energy_j, [0.26, 0.04])
    assert outcome.objective == pytest.approx(10.0)  # 10 * 1.2 - 2
    assert find_violations(PROBLEM, DECISION) == []


def test_a_round_lasts_as_long_as_its_slowest_trainer():
    both = replace(DECISION, selected=np.array([True, True]), cpu_hz=np.array([1e9, 1e9]), power_w=np.array([0.1, 0.1]))
    outcome = evaluate(PROBLEM, both)
    assert outcome.exchange_s == pytest.approx(1.2)  # client 1: 1 s of upload, 0.2 s of training
    assert outcome.objective == pytest.approx(10.0 * 1.4 - 3.0)


def test_what_the_protocol_takes_comes_on_top_of_every_round():
    slower = replace(PROBLEM, overhead_s=0.5)
    assert evaluate(slower, DECISION).delay_s == pytest.approx(evaluate(PROBLEM, DECISION).delay_s + 0.5)
    assert evaluate(slower, DECISION).objective == pytest.approx(15.0)


def test_penalty_is_delay_weighed_against_queues():
    assert drift_plus_penalty(10.0, 1.5, 4.0) == 11.0


@pytest.mark.parametrize(
    ("problem", "decision", "constraint", "client"),
    [
        (replace(PROBLEM, reachable=np.array([True, False])), DECISION, "C1", 1),
        (replace(PROBLEM, reachable=np.array([False, True])), DECISION, "C1", 0),
        (replace(PROBLEM, min_clients=2), DECISION, "C2", None),
        (replace(PROBLEM, energy_budget_j=np.array([0.25, 1.0])), DECISION, "C3", 0),
        (replace(PROBLEM, energy_budget_j=np.array([1.0, 0.0])), DECISION, "C3", 1),
        (replace(PROBLEM, cpu_max_hz=np.array([0.9e9, 2e9])), DECISION, "cap", 0),
        (replace(PROBLEM, mining_max_hz=np.array([3e9, 0.5e9])), DECISION, "cap", 1),
        (PROBLEM, replace(DECISION, power_w=np.array([0.3, 0.0])), "cap", 0),
        (PROBLEM, replace(DECISION, power_w=np.array([0.1, -0.1])), "form", 1),
        (PROBLEM, replace(DECISION, mining_hz=np.array([4e8, -1e8])), "form", 1),
        (PROBLEM, replace(DECISION, cpu_hz=np.array([1e9, -1.0])), "form", 1),
    ],
)
def test_each_kind_of_violation_is_found_alone(problem, decision, constraint, client):
    (found,) = find_violations(problem, decision)
    assert (found.constraint, found.client) == (constraint, client)
    assert str(found).startswith(constraint)
    assert ("client" in str(found)) == (client is not None)


@pytest.mark.parametrize("field", ["cpu_hz", "mining_hz", "power_w"])
def test_what_is_not_a_number_is_a_violation(field):
    broken = replace(DECISION, **{field: np.array([np.nan, 0.0])})
    assert {violation.constraint for violation in find_violations(PROBLEM, broken)} >= {"form"}


@pytest.mark.parametrize(
    "changes",
    [{"mining_hz": np.zeros(2)}, {"cpu_hz": np.zeros(2)}, {"power_w": np.zeros(2)}],
    ids=["mine", "cpu", "tx"],
)
def test_a_round_that_never_ends_is_a_violation(changes):
    constraints = {violation.constraint for violation in find_violations(PROBLEM, replace(DECISION, **changes))}
    assert "form" in constraints


def test_rounding_is_forgiven_and_no_more():
    spent = evaluate(PROBLEM, DECISION).energy_j
    assert find_violations(replace(PROBLEM, energy_budget_j=spent * (1 - 1e-10)), DECISION) == []
    tight = replace(PROBLEM, energy_budget_j=spent * (1 - 1e-8))
    assert [violation.client for violation in find_violations(tight, DECISION)] == [0, 1]
    assert find_violations(tight, DECISION, tolerance=1e-7) == []


def test_power_above_the_given_one_is_allowed_up_to_the_limit():
    assert find_violations(PROBLEM, replace(DECISION, power_w=np.array([0.2, 0.0]))) == []


def test_an_infeasible_decision_violates_nothing_and_is_infinitely_bad():
    nothing = infeasible_decision(PROBLEM, "nobody can")
    outcome = evaluate(PROBLEM, nothing)
    assert find_violations(PROBLEM, nothing) == []
    assert (outcome.objective, outcome.delay_s, outcome.mining_s) == (np.inf, 0.0, 0.0)
    assert not outcome.energy_j.any()
    assert optimality_gap(PROBLEM, outcome, 0.0) == np.inf
    assert decision_status(PROBLEM, nothing, outcome) is Status.INFEASIBLE


def test_a_gap_is_relative_to_the_larger_of_objective_and_weighted_delay():
    outcome = evaluate(PROBLEM, DECISION)  # J = 10, V delay = 12
    assert optimality_gap(PROBLEM, outcome, 7.0) == pytest.approx(3.0 / 12.0)
    assert optimality_gap(PROBLEM, outcome, 11.0) == 0.0
    assert optimality_gap(PROBLEM, outcome, -np.inf) == np.inf
    crowded = replace(PROBLEM, queue=np.array([112.0, 1.0]))
    assert optimality_gap(crowded, evaluate(crowded, DECISION), -110.0) == pytest.approx(0.1)  # J = -100
    balanced = replace(PROBLEM, queue=np.array([12.0, 1.0]))
    assert optimality_gap(balanced, evaluate(balanced, DECISION), -0.6) == pytest.approx(0.05)  # J = 0


@pytest.mark.parametrize(
    ("bound", "status"), [(10.0, Status.OPTIMAL), (10.0 - 1e-9, Status.OPTIMAL), (9.9, Status.FEASIBLE)]
)
def test_a_status_follows_from_the_gap(bound, status):
    decision = replace(DECISION, bound=bound)
    assert decision_status(PROBLEM, decision, evaluate(PROBLEM, decision)) is status


def test_without_a_bound_a_decision_is_only_feasible():
    assert decision_status(PROBLEM, DECISION, evaluate(PROBLEM, DECISION)) is Status.FEASIBLE


@pytest.mark.parametrize("field", ["selected", "cpu_hz", "mining_hz", "power_w"])
def test_a_decision_of_another_shape_is_refused(field):
    with pytest.raises(InvalidDecision, match=rf"^{field}: shape \(3,\) given, \(2,\) expected$"):
        evaluate(PROBLEM, replace(DECISION, **{field: np.zeros(3, dtype=getattr(DECISION, field).dtype)}))
