"""Bounds: below every scheduler that serves every client, long-run or on the very rounds."""

import numpy as np
import pytest

from bdfl.experiment.bounds import NoBound, bound_long_run, bound_path
from bdfl.experiment.simulation import draw_run, play
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.registry import choose_scheduler, get_scheduler

SCENARIO = Scenario(name="small", rounds=40)


def test_no_run_that_serves_every_client_is_faster_than_its_path_allows():
    draws = draw_run(SCENARIO)
    least_s = bound_path(SCENARIO, draws).bound_s
    served = 0
    for choice in ("all", "drc:tradeoff=10", "exact:tradeoff=1", "exact:tradeoff=10", "exact:tradeoff=30"):
        scenario = choose_scheduler(SCENARIO, choice)
        record = play(scenario, get_scheduler(scenario.scheduler.name), draws)
        served += record.worst_shortfall == 0
        assert record.worst_shortfall > 0 or record.mean_delay_s >= least_s
    assert served >= 3


def test_the_path_bound_is_close_to_what_exact_achieves():
    draws = draw_run(SCENARIO)
    achieved = play(choose_scheduler(SCENARIO, "exact:tradeoff=30"), get_scheduler("exact"), draws).mean_delay_s
    assert 0.97 * achieved <= bound_path(SCENARIO, draws).bound_s <= achieved


def test_the_long_run_bound_agrees_with_the_path_within_its_error():
    found = bound_long_run(SCENARIO)
    assert found.confident_s == pytest.approx(found.bound_s - 2 * found.error_s)
    assert found.bound_s == pytest.approx(found.path.bound_s, abs=4 * found.error_s)
    assert found.path == bound_path(SCENARIO, draw_run(SCENARIO))
    assert len(found.multipliers_s) == 8
    assert min(found.multipliers_s) >= 0


def test_the_bound_does_not_depend_on_the_unit_of_time():
    slow = override_scenario(
        SCENARIO,
        ["radio.model_bits=1e7", "compute.cycles_per_sample=5e4", "mining.difficulty=3e8", "energy.budget_j=4"],
    )
    usual = bound_path(SCENARIO, draw_run(SCENARIO))
    assert bound_path(slow, draw_run(slow)).bound_s == pytest.approx(10 * usual.bound_s, rel=1.1e-4)


def test_infeasible_rounds_are_left_out():
    starved = override_scenario(
        SCENARIO,
        ['energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.5, 0.5], each_round=true}'],
    )
    found = bound_long_run(starved)
    assert 0 < found.infeasible_rounds < 40
    assert found.bound_s > 0.5
    nothing = override_scenario(SCENARIO, ["energy.budget_j=0.001"])
    assert np.isnan(bound_path(nothing, draw_run(nothing)).bound_s)


def test_the_path_is_bounded_from_both_sides_and_whole_participations_cost_more():
    path = bound_path(SCENARIO, draw_run(SCENARIO))
    assert -1e-9 <= path.gap <= 1.1e-4
    assert path.bound_s <= path.whole_s <= 1.01 * path.bound_s


def test_sampled_mining_has_no_bound():
    with pytest.raises(NoBound, match="sampled given"):
        bound_long_run(override_scenario(SCENARIO, ["mining.mode=sampled"]))
