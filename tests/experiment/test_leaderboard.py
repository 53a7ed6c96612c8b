"""The leaderboard: every installed scheduler on the same draws, ranked by delay if it leaves nobody out."""

import msgspec
import numpy as np
import pytest

from bdfl.experiment.leaderboard import SERVED, Standing, play_leaderboard, rank
from bdfl.experiment.simulation import simulate
from bdfl.experiment.statistics import Interval, jain_index
from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import (
    BASELINES,
    InvalidChoice,
    choose_scheduler,
    scheduler_names,
    with_best_frequencies,
)

SMALL = Scenario(name="small", rounds=8)
CHOICES = ("random", "drc", "oort", "exact:tradeoff=50")


@pytest.fixture(scope="module")
def board():
    return play_leaderboard([SMALL], CHOICES, num_seeds=3, workers=1)[0]


def find(board, choice):
    return next(one for one in board.standings if one.scheduler == choice)


def test_every_number_is_that_of_the_runs_that_simulate_plays(board):
    scenario = choose_scheduler(SMALL, "oort")
    runs = [simulate(msgspec.structs.replace(scenario, seed=seed)) for seed in range(3)]
    standing = find(board, "oort")
    assert standing.delay_s.mean == pytest.approx(np.mean([run.mean_delay_s for run in runs]), rel=1e-15)
    assert standing.energy_j.mean == pytest.approx(np.mean([run.energy_j.mean() for run in runs]))
    assert standing.shortfall.mean == pytest.approx(np.mean([run.worst_shortfall for run in runs]))
    assert standing.jain.mean == pytest.approx(np.mean([jain_index(run.participation) for run in runs]))
    assert standing.accuracy_percent is None
    assert (board.seeds, board.is_learned, standing.infeasible_rounds) == ([0, 1, 2], False, 0)


def test_whoever_serves_everybody_is_above_the_proven_bound(board):
    for standing in board.standings:
        assert standing.bound_s.mean > 0
        if standing.shortfall.mean == 0:
            assert standing.above_bound_percent.mean >= 0
    assert find(board, "exact:tradeoff=50").delay_s.mean < find(board, "random").delay_s.mean


def test_all_installed_schedulers_play_and_baselines_twice_unless_some_are_named():
    board = play_leaderboard([msgspec.structs.replace(SMALL, rounds=2)], num_seeds=1, with_bound=False, workers=1)[0]
    expected = {*scheduler_names(), *map(with_best_frequencies, BASELINES)}
    assert {one.scheduler for one in board.standings} == expected
    assert all(one.bound_s is None and one.above_bound_percent is None for one in board.standings)


def test_savings_are_against_the_fastest_baseline_that_serves_everybody():
    choices = ("fastest-k:clients=3", "all", "all:frequencies=best", "exact:tradeoff=50")
    scenario = msgspec.structs.replace(SMALL, rounds=40)
    board = play_leaderboard([scenario], choices, num_seeds=2, with_bound=False, workers=1)[0]
    assert find(board, "fastest-k:clients=3").rank is None
    assert board.best_baseline == "all"
    exact, twin = find(board, "exact:tradeoff=50"), find(board, "all:frequencies=best")
    assert exact.reduction_percent.mean == pytest.approx(exact.allocating_percent.mean + exact.choosing_percent.mean)
    assert twin.reduction_percent.mean == pytest.approx(twin.allocating_percent.mean)
    assert twin.allocating_percent == exact.allocating_percent
    assert twin.choosing_percent.mean == 0.0


def test_learning_adds_accuracies_and_the_delays_stay_those_of_the_chain():
    scenario = load_scenario(find_scenario("minimal"), ["rounds=2", "compute.local_updates=2"])
    board = play_leaderboard([scenario], ("power-of-choice",), num_seeds=1, learn=True, workers=1)[0]
    assert board.is_learned
    for standing in board.standings:
        assert 0 < standing.accuracy_percent.mean < 100
        assert np.isnan(standing.accuracy_percent.half_width)
        assert standing.delay_s.mean > 0


def test_data_that_need_a_download_are_not_learned_from():
    scenario = load_scenario(find_scenario("paper-cifar10"), ["rounds=1"])
    board = play_leaderboard([scenario], ("drc",), num_seeds=1, learn=True, with_bound=False, workers=1)[0]
    assert not board.is_learned
    assert board.standings[0].accuracy_percent is None


def standing(name, delay_s, shortfall):
    here = Interval(1.0, 0.0)
    return Standing(
        scheduler=name,
        tradeoff=1.0,
        rank=None,
        delay_s=Interval(delay_s, 0.1),
        bound_s=None,
        above_bound_percent=None,
        reduction_percent=None,
        allocating_percent=None,
        choosing_percent=None,
        energy_j=here,
        energy_use=here,
        selected=here,
        shortfall=Interval(shortfall, 0.0),
        jain=here,
        accuracy_percent=None,
        infeasible_rounds=0,
    )


def test_quick_ones_that_leave_somebody_out_have_no_rank():
    ranked = rank([
        standing("slow", 2.0, 0.0),
        standing("unfair", 0.5, SERVED + 0.01),
        standing("good", 1.0, SERVED),
        standing("never", float("nan"), 0.0),
    ])  # fmt: skip
    assert [(one.scheduler, one.rank) for one in ranked] == [
        ("good", 1), ("slow", 2), ("unfair", None), ("never", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0), ([1, 2, 3], 36 / 42)]
)
def test_jains_index_is_one_for_equals_and_one_nth_for_a_monopoly(values, expected):
    assert jain_index(np.array(values, dtype=float)) == pytest.approx(expected)


def test_mistakes_are_said_before_any_work():
    with pytest.raises(InvalidChoice, match="seeds: 0 given"):
        play_leaderboard([SMALL], CHOICES, num_seeds=0)
    with pytest.raises(InvalidChoice, match="scenarios: none given"):
        play_leaderboard([], CHOICES)
    with pytest.raises(InvalidChoice, match="scenarios: 'small' given twice"):
        play_leaderboard([SMALL, SMALL], CHOICES)
    with pytest.raises(InvalidChoice, match="'drc' given twice"):
        play_leaderboard([SMALL], ("drc", "drc"))
