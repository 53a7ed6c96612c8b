"""Solving a round from JSON: the exact shapes, the proven gap, and errors that name the place."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from bdfl.errors import InvalidProblem
from bdfl.experiment.simulation import decode_problem, prove_bound, solve
from bdfl.scenario import Scenario
from bdfl.scheduling.exact import exact_power
from bdfl.scheduling.problem import Status
from tests.experiment.round_json import CLIENT, PROBLEM as ALIKE

PROBLEM = ALIKE | {
    "clients": [CLIENT | {"queue": 0.1 * number, "gain": 2e-8 + 1e-9 * number} for number in range(8)],
}
ANSWER_KEYS = [
    "status", "selected", "cpu_hz", "mining_hz", "power_w", "energy_j", "delay_s", "mining_s", "objective", "gap",
]  # fmt: skip


def encode(**changes):
    return msgspec.json.encode(PROBLEM | changes)


def test_the_answer_has_exactly_the_published_keys():
    answer = msgspec.json.decode(msgspec.json.encode(solve(decode_problem(encode()), "exact")))
    assert list(answer) == ANSWER_KEYS
    assert answer["status"] == "optimal"
    assert all(len(answer[key]) == 8 for key in ("cpu_hz", "mining_hz", "power_w", "energy_j"))
    idle = [client for client in range(8) if client not in answer["selected"]]
    assert all(answer["cpu_hz"][client] == 0.0 == answer["power_w"][client] for client in idle)
    queues = sum(PROBLEM["clients"][client]["queue"] for client in answer["selected"])
    assert answer["objective"] == pytest.approx(50.0 * answer["delay_s"] - queues)


@pytest.mark.parametrize("scheduler", ["random", "round-robin", "channel-best", "all", "drc"])
def test_a_scheduler_that_proves_nothing_is_measured_against_exact(scheduler):
    best = solve(decode_problem(encode()), "exact")
    answer = solve(decode_problem(encode()), scheduler)
    assert answer.status is Status.FEASIBLE
    scale = max(abs(answer.objective), 50.0 * answer.delay_s)
    assert answer.gap == pytest.approx((answer.objective - best.objective) / scale, abs=1e-8)


def test_a_decision_with_powers_of_its_own_is_measured_against_all_powers():
    problem = decode_problem(encode(clients=[client | {"power_max_w": 0.8} for client in PROBLEM["clients"]]))
    proven = exact_power(problem)
    chosen = replace(proven, bound=-np.inf)  # as of a scheduler that proves nothing
    assert prove_bound(problem, chosen).bound == proven.bound


def test_a_hundred_thousand_clients_come_from_a_file():
    clients = [
        CLIENT | {"queue": 0.001 * (number % 997), "gain": 2e-8 + 1e-13 * (number % 8_191)} for number in range(100_000)
    ]
    text = encode(clients=clients, min_clients=10_000, tradeoff=5e5, work_cycles=8.6e12)
    answer = solve(decode_problem(text), "exact", {"target_gap": 0.05})
    assert answer.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert answer.gap <= 0.05
    assert len(answer.energy_j) == 100_000
    assert len(answer.selected) >= 10_000


def test_an_infeasible_answer_has_a_reason_and_zeros():
    answer = solve(decode_problem(encode(clients=[CLIENT | {"energy_budget_j": 0.0}] * 4)), "exact")
    document = msgspec.json.decode(msgspec.json.encode(answer))
    assert list(document) == [*ANSWER_KEYS, "reason"]
    assert document["status"] == "infeasible"
    assert document["selected"] == []
    assert document["cpu_hz"] == [0.0] * 4
    assert document["objective"] is None is document["gap"]


def test_missing_caps_mean_none():
    optional = ("power_max_w", "cpu_max_hz", "mining_max_hz")
    bare = {key: value for key, value in CLIENT.items() if key not in optional}
    problem = decode_problem(encode(clients=[bare] * 3))
    assert np.isinf(problem.cpu_max_hz).all()
    assert np.isinf(problem.mining_max_hz).all()
    assert problem.power_max_w.tolist() == [0.2] * 3


def test_initial_frequencies_are_the_papers():
    problem = decode_problem(encode())
    assert set(problem.initial_cpu_hz) == {Scenario().compute.initial_hz} == {1e9}
    assert set(problem.initial_mining_hz) == {Scenario().mining.initial_hz} == {1.5e9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "problem: input data was truncated"),
        (encode(clients=[CLIENT | {"gain": "good"}]), r"clients\[0\].gain: expected `float`, got `str`"),
        (encode(speed=1), "problem: object contains unknown field `speed`"),
        (encode(clients=[]), "clients: at least one is needed"),
        (encode(min_clients=9), "min_clients: 9 given, allowed 1 to the 8"),
        (encode(tradeoff=-1), "tradeoff: -1.0 given"),
        (encode(clients=[CLIENT | {"gain": -1.0}] * 3), "gain of client 0"),
        (b"[]", "problem: expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text, message):
    with pytest.raises(InvalidProblem, match=message) as caught:
        decode_problem(text)
    assert "\n" not in str(caught.value)
