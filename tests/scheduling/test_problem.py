"""A problem is checked when made: one line names the field, the client, what was given and what is allowed."""

from dataclasses import fields

import numpy as np
import pytest

from bdfl.errors import InvalidProblem
from bdfl.scheduling.problem import infeasible_decision, make_problem, restrict_problem

GOOD = {
    "min_clients": 1,
    "tradeoff": 1.0,
    "work_cycles": 1e8,
    "bandwidth_hz": 1e5,
    "noise_w_per_hz": 1e-16,
    "queue": np.array([0.0, 1.0, 2.0]),
    "cycles": np.full(3, 1e8),
    "capacitance": np.full(3, 1e-28),
    "energy_budget_j": np.full(3, 0.4),
    "gain": np.full(3, 1e-8),
    "power_w": np.full(3, 0.2),
    "model_bits": np.full(3, 1e6),
}
SCALARS = ("tradeoff", "work_cycles", "bandwidth_hz", "noise_w_per_hz")
FROM_ZERO = ("queue", "cycles", "energy_budget_j", "gain", "power_w", "power_max_w", "participation_rate")
ABOVE_ZERO = ("capacitance", "model_bits", "initial_cpu_hz", "initial_mining_hz")
CAPS = ("cpu_max_hz", "mining_max_hz")
COLUMNS = FROM_ZERO + ABOVE_ZERO + CAPS


def refuse(message, **changes):
    with pytest.raises(InvalidProblem) as caught:
        make_problem(**(GOOD | changes))
    assert str(caught.value) == message


def test_no_clients_are_refused():
    empty = {name: np.empty(0) for name, value in GOOD.items() if isinstance(value, np.ndarray)}
    refuse("clients: at least one is needed, none given", **empty)


@pytest.mark.parametrize("given", [0, -1, 4])
def test_fewer_than_one_or_more_than_all_needed_clients_are_refused(given):
    refuse(f"min_clients: {given} given, allowed 1 to the 3 clients there are", min_clients=given)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("given", [0.0, -1.0, np.inf, np.nan])
def test_scalars_must_be_finite_and_positive(name, given):
    refuse(f"{name}: {given!r} given, must be a finite number above 0", **{name: given})


@pytest.mark.parametrize("given", [-0.1, np.inf, np.nan])
def test_the_overhead_must_be_finite_and_not_negative(given):
    refuse(f"overhead_s: {given!r} given, must be a finite number of at least 0", overhead_s=given)


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "queue"])
def test_columns_must_have_one_entry_per_client(name):
    refuse(f"{name}: shape (2,) given, (3,) expected", **{name: np.ones(2)})


def test_a_table_is_no_column():
    refuse("queue: shape (3, 1) given, (3,) expected", queue=np.zeros((3, 1)))


def test_the_reachable_must_be_one_entry_per_client():
    refuse("reachable: shape (2,) given, (3,) expected", reachable=np.ones(2, dtype=bool))


@pytest.mark.parametrize("name", FROM_ZERO + CAPS)
@pytest.mark.parametrize("given", [-1e-300, -np.inf, np.nan])
def test_negative_entries_are_refused_with_the_client_they_belong_to(name, given):
    value = np.float64(given)
    refuse(f"{name} of client 1: {value!r} given, must be at least 0", **{name: np.array([1.0, given, given])})


@pytest.mark.parametrize("name", ABOVE_ZERO)
@pytest.mark.parametrize("given", [0.0, -1.0, np.nan])
def test_sizes_must_be_above_zero(name, given):
    value = np.float64(given)
    refuse(f"{name} of client 2: {value!r} given, must be above 0", **{name: np.array([1.0, 1.0, given])})


@pytest.mark.parametrize("name", FROM_ZERO + ABOVE_ZERO)
def test_only_caps_may_be_infinite(name):
    with pytest.raises(InvalidProblem, match=rf"^{name} of client 0: "):
        make_problem(**(GOOD | {name: np.array([np.inf, 1.0, 1.0])}))


@pytest.mark.parametrize("name", [*FROM_ZERO, *CAPS])
def test_zero_is_allowed_where_it_means_something(name):
    assert not getattr(make_problem(**(GOOD | {name: np.zeros(3)})), name).any()


def test_what_is_left_out_is_unlimited_reachable_and_as_in_the_paper():
    problem = make_problem(**GOOD)
    assert np.isinf(problem.cpu_max_hz).all()
    assert np.isinf(problem.mining_max_hz).all()
    assert problem.reachable.all()
    np.testing.assert_array_equal(problem.power_max_w, problem.power_w)
    np.testing.assert_array_equal(problem.initial_cpu_hz, 1e9)
    np.testing.assert_array_equal(problem.initial_mining_hz, 1.5e9)
    np.testing.assert_array_equal(problem.participation_rate, 0.0)
    assert problem.num_clients == 3


def test_a_problem_is_a_copy_that_cannot_be_written():
    queue = np.array([0.0, 1.0, 2.0])
    problem = make_problem(**(GOOD | {"queue": queue}))
    queue[0] = 9.0
    assert problem.queue[0] == 0.0
    for item in fields(problem):
        value = getattr(problem, item.name)
        if isinstance(value, np.ndarray):
            assert not value.flags.writeable, item.name


def test_a_restricted_problem_has_the_same_values_of_fewer_clients():
    keep = np.array([True, False, True])
    problem = make_problem(**GOOD)
    part = restrict_problem(problem, keep)
    for item in fields(problem):
        whole, fewer = getattr(problem, item.name), getattr(part, item.name)
        if isinstance(whole, np.ndarray):
            np.testing.assert_array_equal(fewer, whole[keep])
        else:
            assert fewer == whole


def test_an_infeasible_decision_does_nothing_for_a_reason():
    decision = infeasible_decision(make_problem(**GOOD), "too dark", memory=3)
    assert not decision.is_feasible
    assert (decision.reason, decision.memory, decision.bound) == ("too dark", 3, -np.inf)
    assert not decision.selected.any()
    assert not np.concatenate([decision.cpu_hz, decision.mining_hz, decision.power_w]).any()
