"""Lemmas 1 and 2 of a run: constants as measured, bounds by their formulas, and the truth about what is not met."""

from dataclasses import replace

import numpy as np
import pytest

from bdfl.experiment import simulate
from bdfl.experiment.bounds import CannotSay, count_steps, estimate_convergence, mean_stretch, mean_weights
from bdfl.records import LearningRound, collect_learning
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.queues import aggregation_bound, convergence_bound

SCENARIO = override_scenario(Scenario(name="small", rounds=6), ["learning.learning_rate=0.01", "clients.count=4"])
RUN = simulate(SCENARIO)
SQUARES = np.square([2.0, 1.5, 1.0, 0.8, 0.7, 0.6])


def row(round, **changes):
    selected = np.flatnonzero(RUN.selected[round - 1]).tolist()
    values = {
        "round": round,
        "selected": selected,
        "outcome": ["trained"] * len(selected),
        "local_loss": [1.0] * len(selected),
        "local_gradient_norm": [3.0 + 0.1 * round] * len(selected),
        "epsilon": [None] * len(selected),
        "update_norm": 0.1,
        "accuracy": 0.5,
        "loss": 1.0,
        "recall": [0.5, 0.5],
        "gradient_norm": float(np.sqrt(SQUARES[round - 1])),
        "global_loss": 2.0 / round,
        "smoothness": None if round == 1 else 1.0 + 0.1 * round,
        "model": "",
    }
    return LearningRound(**(values | changes))


def learned(rows=None, samples=100):
    return collect_learning(
        [row(round) for round in range(1, 7)] if rows is None else rows,
        label_names=("a", "b"),
        label_counts=np.full((4, 2), samples // 2),
        num_parameters=7,
        initial_accuracy=0.5,
        initial_loss=0.7,
    )


def test_constants_are_the_largest_values_seen_and_the_first_loss():
    constants = estimate_convergence(RUN, learned(), SCENARIO).constants
    assert constants.smoothness == pytest.approx(1.6)
    assert constants.gradient_norm == pytest.approx(3.6)
    assert constants.initial_gap == 2.0
    assert constants.learning_rate == 0.01
    assert (constants.fewest_steps, constants.most_steps) == (20, 20)
    assert constants.step == pytest.approx(0.01 * 1.6 * 20)
    assert constants.known_anyway == pytest.approx(3.6**2)


def test_g_is_at_least_the_norm_of_the_full_gradient():
    steep = [row(round, gradient_norm=50.0) for round in range(1, 7)]
    assert estimate_convergence(RUN, learned(steep), SCENARIO).constants.gradient_norm == 50.0


def test_bounds_of_every_horizon_are_those_of_the_one_formula():
    found = estimate_convergence(RUN, learned(), SCENARIO)
    assert len(found.owed) == len(found.achieved) == 6
    for horizon in (1, 6):
        for bound, rate in ((found.owed, RUN.participation_rate), (found.achieved, RUN.participation)):
            assert bound[horizon - 1] == convergence_bound(
                initial_gap=2.0,
                learning_rate=0.01,
                smoothness=found.constants.smoothness,
                gradient_norm=found.constants.gradient_norm,
                local_updates=20,
                rounds=horizon,
                rate=rate,
                samples=np.full(4, 100.0),
            )


def test_lemma_2_is_taken_at_the_mean_weights_of_the_aggregates():
    samples = np.array([100.0, 100.0, 200.0, 400.0])
    unequal = replace(learned(), samples=samples)
    delivered = np.array([[True, True, False, False], [False, False, True, True]] * 3)
    run = replace(RUN, delivered=delivered)
    weight = mean_weights(run, samples)
    assert weight == pytest.approx([1 / 4, 1 / 4, 1 / 6, 1 / 3])
    found = estimate_convergence(run, unequal, SCENARIO)
    assert found.weighted[5] == aggregation_bound(
        initial_gap=2.0,
        learning_rate=0.01,
        smoothness=found.constants.smoothness,
        gradient_norm=found.constants.gradient_norm,
        local_updates=20,
        rounds=6,
        weight=weight,
        samples=samples,
    )


def test_a_round_without_updates_gives_nobody_any_weight():
    delivered = np.array([[True, True, False, False]] + [[False] * 4] * 5)
    weight = mean_weights(replace(RUN, delivered=delivered), np.full(4, 100.0))
    assert weight == pytest.approx([1 / 12, 1 / 12, 0, 0])


def test_in_lemma_2_a_client_that_makes_half_the_steps_has_half_the_weight():
    epochs = override_scenario(SCENARIO, ['learning.unit="epochs"', "learning.local_steps=2", "learning.batch=64"])
    everybody = replace(RUN, delivered=np.ones_like(RUN.delivered))
    unequal = replace(learned(), samples=np.array([0.0, 64.0, 128.0, 128.0]))  # none, 2, 4 and 4 steps
    bound = estimate_convergence(everybody, unequal, epochs).weighted[-1]
    weight, squared_gradient, step = 0.9, 3.6**2, 0.01 * 1.6 * 4  # 0.1 + 0.4 + 0.4 and eta L H
    assert bound.initial_loss == pytest.approx(2 * 2.0 / (0.01 * 4 * 6))
    assert bound.local_drift == pytest.approx(squared_gradient * step * weight)
    assert bound.absence == pytest.approx(squared_gradient * (1 - weight) ** 2)


def test_measured_is_the_running_mean_of_squared_gradient_norms():
    found = estimate_convergence(RUN, learned(), SCENARIO)
    assert found.measured == pytest.approx(np.cumsum(SQUARES) / np.arange(1, 7))
    for bounds in (found.achieved, found.weighted):
        assert found.looseness(bounds) == pytest.approx(bounds[-1].total / SQUARES.mean())


def test_rounds_that_were_not_measured_do_not_enter_the_mean():
    gaps = [row(round, **({} if round in (1, 4) else {"gradient_norm": None})) for round in range(1, 7)]
    found = estimate_convergence(RUN, learned(gaps), SCENARIO)
    assert found.measured[:3] == pytest.approx([SQUARES[0]] * 3)
    assert found.measured[3:] == pytest.approx([(SQUARES[0] + SQUARES[3]) / 2] * 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gradient_norm": None, "global_loss": None, "smoothness": None}, "gradient_every"),
        ({"global_loss": None}, "first model"),
        ({"smoothness": None}, "two different models"),
        ({"local_gradient_norm": []}, "no G"),
    ],
)
def test_what_was_not_measured_is_said_and_not_guessed(changes, reason):
    if "local_gradient_norm" in changes:
        changes = {"selected": [], "outcome": [], "local_loss": [], "local_gradient_norm": [], "epsilon": []}
    rows = [row(round, **changes) for round in range(1, 7)]
    found = estimate_convergence(RUN, learned(rows), SCENARIO)
    assert isinstance(found, CannotSay)
    assert reason in found.reason


def test_a_bound_above_the_square_of_g_is_not_telling():
    found = estimate_convergence(RUN, learned(), override_scenario(SCENARIO, ["learning.learning_rate=1.0"]))
    assert not found.is_telling(found.achieved)
    assert not found.is_telling(found.weighted)


def test_epochs_make_as_many_steps_as_batches_and_each_term_takes_the_worse_number():
    epochs = override_scenario(SCENARIO, ['learning.unit="epochs"', "learning.local_steps=2", "learning.batch=64"])
    assert count_steps(epochs, np.array([0.0, 1.0, 64.0, 65.0])).tolist() == [2, 2, 4]
    unequal = replace(learned(), samples=np.array([10.0, 64.0, 65.0, 300.0]))
    found = estimate_convergence(RUN, unequal, epochs)
    assert (found.constants.fewest_steps, found.constants.most_steps) == (2, 10)
    assert found.owed[-1].initial_loss == pytest.approx(2 * 2.0 / (0.01 * 2 * 6))
    assert any("2 to 10 local steps" in sentence for sentence in found.unmet)


def test_every_assumption_that_is_not_met_is_named():
    changed = override_scenario(
        SCENARIO, ["learning.momentum=0.9", "learning.weight_decay=0.1", 'learning.aggregation.rule="median"']
    )
    rows = [row(1), row(2, outcome=["diverged"] * len(row(2).selected)), *(row(round) for round in range(3, 7))]
    words = " ".join(estimate_convergence(RUN, learned(rows), changed).unmet)
    for expected in ("up to 10 times longer", "Weight decay", "median", "diverged", "beta"):
        assert expected in words


def test_a_run_that_does_what_the_proof_says_has_nothing_unmet():
    everybody = np.ones_like(RUN.selected)
    ideal = replace(RUN, selected=everybody, delivered=everybody, participation_rate=np.ones(4))
    found = estimate_convergence(ideal, learned(), SCENARIO)
    assert found.unmet == ()
    assert found.owed[-1].absence == 0
    assert found.weighted[-1].absence == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize(("scheduler", "is_said"), [("drc", True), ("random", False)])
def test_lemma_2_presumes_a_choice_that_does_not_depend_on_the_past(scheduler, is_said):
    found = estimate_convergence(replace(RUN, scheduler=scheduler), learned(), SCENARIO)
    assert any("chooses by what happened before" in sentence for sentence in found.unmet) == is_said


def test_the_mean_over_those_who_trained_makes_longer_steps_than_the_proof():
    half = replace(RUN, delivered=np.array([[True, True, False, False]] * 6))
    assert mean_stretch(half, np.full(4, 100.0)) == pytest.approx(2.0)
    assert mean_stretch(replace(RUN, delivered=np.zeros_like(RUN.delivered)), np.full(4, 100.0)) == 1.0
