"""Trackers hear all that a run does, and whatever they do the run does not notice."""

import math

import numpy as np
import pytest

from bdfl.experiment import simulate
from bdfl.plugins import BadFunction
from bdfl.records import LearningRound
from bdfl.scenario import Scenario, override_scenario
from bdfl.tracking import Outcome, Tracking, open_tracker, track_run, tracked_run
from bdfl.tracking.tracker import RoundScalars, UnknownTracker, parameters_of, tracker_names
from tests.tracking.recording import Failing, Remembering

SCENARIO = override_scenario(Scenario(name="small", rounds=5), ["clients.count=4", "scheduler.tradeoff=20.0"])


def learning_round(**changes):
    row = {
        "round": 1, "selected": [0, 2], "outcome": ["trained", "no-samples"], "local_loss": [0.5, None],
        "local_gradient_norm": [1.0, None], "epsilon": [None, None], "update_norm": 0.25, "accuracy": 0.75,
        "loss": None, "recall": None,
        "gradient_norm": None, "global_loss": None, "smoothness": None, "model": "",
    }  # fmt: skip
    return LearningRound(**(row | changes))


def test_every_round_is_told_with_what_its_record_says():
    tracker = Remembering()
    with track_run({"mine": tracker}, tracked_run(SCENARIO), pytest.fail) as tracking:
        run = simulate(SCENARIO, on_round=tracking.settle)
    assert [round for round, _ in tracker.rounds] == [1, 2, 3, 4, 5]
    values = {name: [found[name] for _, found in tracker.rounds] for name in tracker.rounds[0][1]}
    assert values["time/delay_s"] == run.delay_s.tolist()
    assert np.allclose(values["time/total_s"], np.cumsum(run.delay_s))
    assert np.allclose(values["energy/total_j"], run.energy_j.sum(axis=1))
    assert np.allclose(values["energy/highest_share"], run.share_of_budget(run.energy_j).max(axis=1))
    assert np.allclose(values["queue/mean"], run.next_queue.mean(axis=1))
    assert values["queue/longest"] == run.next_queue.max(axis=1).tolist()
    assert values["participation/selected"] == run.num_selected.tolist()
    assert values["participation/least_share"][-1] == run.participation.min()
    assert values["schedule/objective"] == run.objective.tolist()
    assert not any(name.startswith(("learning/", "chain/")) for name in values)
    assert tracker.ends == [(Outcome.FINISHED, [])]


def test_learning_and_the_chain_are_told_where_there_are_any():
    record = simulate(SCENARIO).round_record(1)
    found = RoundScalars().of_round(record, learning_round())
    learned = {name: value for name, value in found.items() if name.startswith(("learning/", "chain/"))}
    assert learned == {
        "learning/accuracy": 0.75, "learning/local_loss": 0.5, "learning/update_norm": 0.25, "chain/height": 1.0,
    }  # fmt: skip
    diverged = RoundScalars().of_round(record, learning_round(update_norm=math.inf, local_loss=[None, None]))
    assert not {"learning/update_norm", "learning/local_loss", "learning/loss"} & set(diverged)


def test_the_largest_epsilon_spent_so_far_is_told_where_training_is_private():
    record, scalars = simulate(SCENARIO).round_record(1), RoundScalars()
    spent = [[None, None], [0.5, None], [None, 1.5], [0.75, None]]
    found = [scalars.of_round(record, learning_round(epsilon=row)).get("privacy/epsilon") for row in spent]
    assert found == [None, 0.5, 1.5, 1.5]


def test_parameters_are_what_the_scenario_changes_and_who_schedules():
    assert parameters_of(Scenario()) == {
        "rounds": Scenario().rounds, "seed": 0, "scheduler.name": Scenario().scheduler.name,
    }  # fmt: skip
    found = parameters_of(override_scenario(SCENARIO, ["clients.samples={distribution='choice', values=[1, 2]}"]))
    assert found["clients.count"] == 4
    assert found["scheduler.tradeoff"] == 20.0
    assert "choice" in found["clients.samples"]
    assert "name" not in found


@pytest.mark.parametrize(("when", "told"), [("begin", 0), (1, 1), (3, 3), ("finish", 5)])
def test_a_tracker_that_fails_is_left_out_and_said_once(when, told):
    failing, other, lines = Failing(when), Remembering(), []
    with track_run({"bad:one": failing, "other": other}, tracked_run(SCENARIO), lines.append) as tracking:
        run = simulate(SCENARIO, on_round=tracking.settle)
    assert np.array_equal(run.delay_s, simulate(SCENARIO).delay_s)
    assert lines == ["bad:one: OSError: [Errno 28] No space left on device; going on without it"]
    assert len(failing.rounds) == told
    assert len(other.rounds) == 5
    assert len(failing.ends) == (when == "finish")


@pytest.mark.parametrize(("error", "outcome"), [(KeyboardInterrupt, Outcome.INTERRUPTED), (ValueError, Outcome.FAILED)])
def test_trackers_hear_how_a_run_ended(error, outcome):
    tracker = Remembering()
    with pytest.raises(error), track_run({"mine": tracker}, tracked_run(SCENARIO), pytest.fail):
        raise error
    assert tracker.ends == [(outcome, [])]


def test_what_a_tracker_says_is_one_short_line():
    lines = []
    tracking = Tracking({"x": Failing("begin", RuntimeError("a\nb" * 500))}, lines.append)
    tracking.begin(tracked_run(SCENARIO))
    assert len(lines[0]) < 260
    assert "\n" not in lines[0]


def test_ours_are_found_by_name():
    assert {"mlflow", "tensorboard"} <= set(tracker_names())


def test_somebodys_own_is_found_by_module_and_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_trackers_here.py").write_text(
        "from tests.tracking.recording import Remembering\n"
        "def make(where):\n    found = Remembering()\n    found.where = where\n    return found\n"
        "def broken(where):\n    raise ValueError(where)\n"
        "def nothing(where):\n    return 3\n"
    )
    assert open_tracker("own_trackers_here:make").where == ""
    assert open_tracker("own_trackers_here:make:some:where").where == "some:where"
    with pytest.raises(BadFunction, match="ValueError: x, expected a tracker"):
        open_tracker("own_trackers_here:broken:x")
    with pytest.raises(BadFunction, match="has no begin and no round and no finish"):
        open_tracker("own_trackers_here:nothing")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("tensorbord", "NAME:WHERE with a NAME of mlflow, tensorboard, or module:function expected"),
        ("", "module:function expected"),
        ("no_such_module:x", "a module no_such_module that can be imported"),
        ("tensorboard:", "no folder given, tensorboard:FOLDER expected"),
    ],
)
def test_what_cannot_be_opened_says_what_can(choice, expected):
    with pytest.raises((UnknownTracker, Exception), match=expected):
        open_tracker(choice)
