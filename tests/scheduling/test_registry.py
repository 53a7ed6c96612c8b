"""Schedulers by name: ours, third parties', their parameters, and the test they must pass."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from bdfl.errors import BadSchedulerParameter, UnknownScheduler
from bdfl.scheduling.baselines import all_clients
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.drc import drc
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.scheduling.registry import (
    BASELINES,
    check_scheduler,
    find_scheduler,
    get_scheduler,
    scheduler_names,
    scheduler_parameters,
    with_best_frequencies,
)

OURS = {
    "random", "round-robin", "channel-best", "all", "drc", "exact", "exact-power",
    "fastest-k", "energy-greedy", "age-of-update", "power-of-choice", "oort", "steady", "battery",
}  # fmt: skip

PLUGIN = """
from typing import Literal

from bdfl.scheduling.drc import drc


def patient(problem, *, passes: int = 5, eager: bool = False, share: float = 0.5, order: Literal["up", "down"] = "up"):
    return drc(problem, max_iterations=passes)


def demanding(problem, *, needed: int):
    return drc(problem, max_iterations=needed)
"""

ENTRY_POINTS = """[bdfl.schedulers]
patient = thirdparty:patient
demanding = thirdparty:demanding
missing = thirdparty:nothing_of_that_name
"""


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """A package beside ours, installed the way pip leaves it: a module and its metadata."""
    (tmp_path / "thirdparty.py").write_text(PLUGIN)
    metadata = tmp_path / "thirdparty-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return metadata


def test_our_schedulers_come_through_the_entry_points():
    assert set(scheduler_names()) >= OURS
    assert get_scheduler("drc") is drc


def test_third_party_schedulers_come_through_the_same_door(third_party):
    assert {"patient", "demanding"} <= set(scheduler_names())
    problem = draw_problem(np.random.default_rng(0), 8, min_clients=1)
    decision = get_scheduler("patient", {"passes": 1, "order": "down"})(problem)
    assert decision.iterations == 1
    assert check_scheduler(get_scheduler("patient"), num_rounds=40).ok


def test_parameters_are_bound_by_name():
    problem = draw_problem(np.random.default_rng(0), 8, min_clients=1)
    assert get_scheduler("drc", {"max_iterations": 1})(problem).iterations == 1
    assert scheduler_parameters("drc") == [
        "max_iterations: int = 100",
        "idle_mining: Literal['reserved', 'full'] = 'reserved'",
    ]


def test_whole_numbers_serve_where_floats_are_asked(third_party):
    bound = get_scheduler("patient", {"share": 1}).keywords["share"]
    assert bound == 1.0
    assert isinstance(bound, float)


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("patient", {"speed": 1}, "no parameter 'speed'; it has: passes: int = 5"),
        ("patient", {"passes": "many"}, "'many' given. Expected `int`, got `str`"),
        ("patient", {"passes": 1.5}, "1.5 given"),
        ("patient", {"passes": True}, "True given"),
        ("patient", {"eager": 1}, "1 given"),
        ("patient", {"order": "sideways"}, "'sideways' given"),
        ("drc", {"max_iterations": 0}, "'drc', max_iterations: int = 100: 0 given. Expected `int` >= 1"),
        ("demanding", {}, "needs its parameter needed: int"),
        ("all", {"count": 3}, "no parameter 'count'; it has: frequencies"),
        ("oort", {"frequencies": "fast"}, "Literal['initial', 'best'] = 'initial': 'fast' given"),
    ],
)
def test_a_bad_parameter_is_one_line_with_what_is_allowed(third_party, name, parameters, expected):
    with pytest.raises(BadSchedulerParameter) as caught:
        get_scheduler(name, parameters)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_one_line_with_those_installed():
    with pytest.raises(
        UnknownScheduler, match=r"no scheduler 'best'; installed: age-of-update, all, battery, channel-best, drc"
    ) as caught:
        get_scheduler("best")
    assert "\n" not in str(caught.value)


def test_a_scheduler_that_cannot_be_loaded_is_named(third_party):
    with pytest.raises(UnknownScheduler, match="'missing' cannot be loaded from thirdparty:nothing_of_that_name"):
        get_scheduler("missing")


def test_two_packages_may_not_claim_one_name(third_party):
    (third_party / "entry_points.txt").write_text("[bdfl.schedulers]\ndrc = thirdparty:patient\n")
    with pytest.raises(UnknownScheduler, match="claimed by several packages"):
        get_scheduler("drc")


@pytest.mark.parametrize("choice", [*sorted(OURS), *map(with_best_frequencies, BASELINES), "drc:idle_mining=full"])
def test_our_own_schedulers_pass_the_published_check(choice):
    num_rounds = {"exact": 60, "exact-power": 30, "battery": 20}.get(choice, 120)
    report = check_scheduler(find_scheduler(choice), num_rounds=num_rounds)
    assert report.ok, str(report)
    assert report.num_feasible > num_rounds / 2


def _raises(problem: RoundProblem) -> Decision:
    raise RuntimeError("no idea")


def _gives_nothing(problem: RoundProblem) -> Literal[None]:
    return None


def _overclocks(problem: RoundProblem) -> Decision:
    decision = drc(problem)
    return replace(decision, cpu_hz=decision.cpu_hz * 1.001)


def _counts_in_integers(problem: RoundProblem) -> Decision:
    decision = drc(problem)
    return replace(decision, mining_hz=decision.mining_hz.astype(np.int64))


def _returns_nan(problem: RoundProblem) -> Decision:
    decision = drc(problem)
    return replace(decision, mining_hz=decision.mining_hz * np.nan)


def _gives_up(problem: RoundProblem) -> Decision:
    return infeasible_decision(problem, "too hard")


def _claims_too_much(problem: RoundProblem) -> Decision:
    return replace(drc(problem), bound=1e30)


def _writes_into_its_problem(problem: RoundProblem) -> Decision:
    problem.queue.setflags(write=True)
    problem.queue[0] += 1.0
    return drc(problem)


def _leaves_idle_clients_running(problem: RoundProblem) -> Decision:
    decision = drc(problem)
    return replace(decision, cpu_hz=np.full(problem.num_clients, 1.0) + decision.cpu_hz)


def _selects_too_few(problem: RoundProblem) -> Decision:
    decision = drc(problem)
    nobody = np.zeros(problem.num_clients)
    return replace(decision, selected=nobody > 0, cpu_hz=nobody, power_w=nobody)


class _ChangesItsMind:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, problem: RoundProblem) -> Decision:
        self.calls += 1
        return drc(problem) if self.calls % 2 else all_clients(problem)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (_raises, "raised RuntimeError: no idea"),
        (_gives_nothing, "returned NoneType"),
        (_overclocks, "C3"),
        (_counts_in_integers, "mining_hz is not an array of"),
        (_returns_nan, "mining_hz is not finite"),
        (_gives_up, "infeasible (too hard), but"),
        (_claims_too_much, "is above its own objective"),
        (_writes_into_its_problem, "changed the problem's queue"),
        (_leaves_idle_clients_running, "cpu_hz is not zero where idle"),
        (_selects_too_few, "C2"),
        (_ChangesItsMind(), "differs when asked twice"),
    ],
)
def test_check_finds_what_a_scheduler_does_wrong(scheduler, expected):
    report = check_scheduler(scheduler, num_rounds=40)
    assert not report.ok
    assert any(expected in str(failure) for failure in report.failures)
    assert "failures: 40 rounds" in str(report)


def test_check_is_repeatable():
    assert check_scheduler(_overclocks, num_rounds=20, seed=5) == check_scheduler(_overclocks, num_rounds=20, seed=5)
    assert str(check_scheduler(drc, num_rounds=20)).startswith("passed: 20 rounds")
