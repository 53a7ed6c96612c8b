"""Verdicts on whole runs: real schedules of the shipped scenarios, with accuracies made up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdfl.experiment import simulate
from bdfl.learning.data import make_data_set
from bdfl.records import LearningRecord
from bdfl.records.learning import FORMAT, JournalHeader
from bdfl.reproduce.results import PAPER_ACCURACY_PERCENT
from bdfl.reproduce.training import PlannedRun, TrainedRun, summarise_run
from bdfl.reproduce.verdicts import (
    DataSetRuns,
    common_levels,
    describe_unjudged,
    differences_of,
    final_percent,
    judge_runs,
    reach_level,
    total_s,
)
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import choose_scheduler

SHIPPED = load_scenario(find_scenario("paper-cifar10"))
HEADER = JournalHeader(
    format=FORMAT, version="", torch="", scenario_digest="", data_digest="", num_parameters=1, initial_model="",
    initial_accuracy=0.1, initial_loss=2.3,
)  # fmt: skip


def learned(accuracy):
    """A record of learning with these accuracies, one per round."""
    rounds, nothing = len(accuracy), np.full(len(accuracy), np.nan)
    return LearningRecord(
        label_names=tuple("0123456789"), samples=np.full(8, 3000.0), label_counts=np.full((8, 10), 300),
        num_parameters=1, initial_accuracy=0.1, initial_loss=2.3, outcome=np.full((rounds, 8), "trained"),
        local_loss=np.ones((rounds, 8)), local_gradient_norm=np.ones((rounds, 8)), epsilon=np.full((rounds, 8), np.nan),
        update_norm=np.ones(rounds),
        accuracy=np.array(accuracy), loss=np.ones(rounds), recall=np.ones((rounds, 10)), gradient_norm=nothing,
        global_loss=nothing, smoothness=nothing,
    )  # fmt: skip


@pytest.fixture(scope="module")
def records():
    choices = ("random", "channel-best", "drc", "exact:tradeoff=50")
    return {choice: simulate(choose_scheduler(SHIPPED, choice), prove_gaps=False) for choice in choices}


def runs_of(records, finals, used=SHIPPED):
    """Runs that rise evenly to their final accuracies (%), a list of seeds for each scheduler."""
    data = make_data_set("none", *(np.zeros((2, 1)), np.arange(2)) * 2)

    def run(choice, final):
        planned = PlannedRun("cifar10", choice, used, Path("run"))
        accuracy = np.linspace(0.1, final / 100, SHIPPED.rounds)
        return TrainedRun(planned, summarise_run(planned, records[choice], learned(accuracy), HEADER, data))

    by_choice = {choice: [run(choice, final) for final in of_seeds] for choice, of_seeds in finals.items()}
    return DataSetRuns("cifar10", SHIPPED, used, by_choice)


def holds(found, part):
    """Whether the verdict whose claim has these words holds; none if it was not passed."""
    verdicts = judge_runs(found, common_levels(found.runs))
    return next((verdict.holds for verdict in verdicts if part in verdict.claim), None)


def papers(records, *, off=0.0):
    """Final accuracies as the paper's, `off` points beside them."""
    paper = PAPER_ACCURACY_PERCENT["cifar10"]
    return {choice: [paper.get(choice, paper["drc"]) + off] for choice in records}


def test_whole_runs_on_shipped_delays_are_set_beside_the_papers_times(records):
    assert holds(runs_of(records, papers(records)), "time within 3 %") is True


def test_times_that_are_off_are_found(records):
    slower = {choice: replace(record, overhead_s=record.overhead_s + 0.1) for choice, record in records.items()}
    assert holds(runs_of(slower, papers(records)), "time within 3 %") is False


@pytest.mark.parametrize("change", ["rounds=50", "clients.samples=100"])
def test_times_of_parts_or_of_other_delays_are_not_judged(records, change):
    used = load_scenario(find_scenario("paper-cifar10"), [change])
    assert holds(runs_of(records, papers(records), used), "time within") is None


def test_more_samples_that_take_as_many_cycles_leave_times_comparable(records):
    changes = ["clients.samples=6000", "compute.cycles_per_sample=2500"]
    used = load_scenario(find_scenario("paper-cifar10"), changes)
    assert holds(runs_of(records, papers(records), used), "time within") is True


@pytest.mark.parametrize(("off", "expected"), [(0.0, True), (-1.9, True), (-2.1, False), (2.1, False)])
def test_accuracy_is_the_papers_within_two_points(records, off, expected):
    assert holds(runs_of(records, papers(records, off=off)), "of the paper's (random") is expected


@pytest.mark.parametrize(("exact", "expected"), [(74.0, True), (70.0, False)])
def test_ours_must_reach_the_baseline_that_came_out_best(records, exact, expected):
    finals = {"random": [60.0], "channel-best": [74.5], "drc": [75.0], "exact:tradeoff=50": [exact]}
    assert holds(runs_of(records, finals), "below the best baseline's") is expected


def test_a_scheduler_that_learns_slower_is_not_called_fastest(records):
    finals = {"random": [75.0], "drc": [75.0], "exact:tradeoff=50": [75.0]}
    assert holds(runs_of(records, finals), "needs least simulated seconds") is True
    finals["exact:tradeoff=50"] = [50.0]
    assert holds(runs_of(records, finals), "needs least simulated seconds") is False


def test_an_accuracy_counts_from_the_first_round_that_has_it(records):
    found = runs_of(records, {"drc": [75.0]})
    accuracy = found.runs[0].accuracy
    round, time_s = reach_level(found.runs[0], 50.0)
    assert reach_level(found.runs[0], 75.1) is None
    assert accuracy[round - 2] < 0.5 <= accuracy[round - 1]
    assert time_s == pytest.approx(float(np.sum(records["drc"].delay_s[:round])))


def test_levels_are_reached_by_all_and_by_no_untrained_model(records):
    assert common_levels(runs_of(records, {"drc": [75.0], "random": [58.0]}).runs) == [45.0, 50.0, 55.0]
    assert common_levels(runs_of(records, {"drc": [75.0], "random": [12.0]}).runs) == []


def test_noise_is_judged_only_where_seeds_can_tell(records):
    telling = runs_of(records, {"random": [74.0, 75.0, 76.0], "drc": [74.1, 75.0, 75.9]})
    assert holds(telling, "beyond the noise") is True
    different = runs_of(records, {"random": [74.0, 75.0, 76.0], "drc": [64.1, 65.0, 65.9]})
    assert holds(different, "beyond the noise") is False
    vague = runs_of(records, {"random": [60.0, 75.0, 90.0], "drc": [80.0, 60.0, 65.0]})
    assert holds(vague, "beyond the noise") is None
    assert any("is not judged" in note for note in describe_unjudged(vague, [5.0]))


def test_differences_are_paired_over_seeds(records):
    found = runs_of(records, {"random": [70.0, 75.0, 80.0], "drc": [71.0, 76.5, 81.5]})
    points = differences_of(final_percent, found)["drc"]
    assert points.mean == pytest.approx(4 / 3)
    assert points.half_width == pytest.approx(4.302653 * np.std([1.0, 1.5, 1.5], ddof=1) / 3**0.5, rel=1e-6)
    seconds = differences_of(total_s, found)["drc"]
    assert seconds.mean == pytest.approx(float(np.sum(records["drc"].delay_s) - np.sum(records["random"].delay_s)))
    assert differences_of(final_percent, runs_of(records, {"random": [70.0], "drc": [71.0]})) == {}
