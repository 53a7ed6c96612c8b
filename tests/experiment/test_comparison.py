"""Comparison: paired on the same draws, the same for any number of workers."""

import msgspec
import numpy as np
import pytest

from bdfl.experiment.comparison import compare
from bdfl.experiment.simulation import simulate
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.registry import InvalidChoice, choose_scheduler

SMALL = Scenario(name="small", rounds=6)
CHOICES = ("random", "channel-best", "drc", "exact:tradeoff=50")


@pytest.fixture(scope="module")
def comparison():
    return compare(SMALL, CHOICES, num_seeds=4, frontier_tradeoffs=(1.0, 100.0), workers=1)


def test_one_and_two_workers_give_the_same(comparison):
    again = compare(SMALL, CHOICES, num_seeds=4, frontier_tradeoffs=(1.0, 100.0), workers=2)
    assert msgspec.json.encode(again) == msgspec.json.encode(comparison)


def test_every_run_is_the_one_that_simulate_plays(comparison):
    scenario = msgspec.structs.replace(choose_scheduler(SMALL, "exact:tradeoff=50"), seed=2)
    assert comparison.results[3].per_seed[2].total_delay_s == simulate(scenario).total_delay_s


def test_differences_are_paired_and_against_the_best_baseline(comparison):
    totals = {
        result.scheduler: np.array([summary.total_delay_s for summary in result.per_seed])
        for result in comparison.results
    }
    assert comparison.best_baseline == comparison.reference == "channel-best"
    drc = comparison.results[2]
    assert drc.difference_s.mean == pytest.approx(np.mean(totals["drc"] - totals["channel-best"]))
    assert drc.reduction_percent.mean == pytest.approx(np.mean(100 * (1 - totals["drc"] / totals["channel-best"])))
    assert comparison.results[1].difference_s.mean == 0.0


BOTH = (
    "random",
    "random:frequencies=best",
    "channel-best:frequencies=best",
    "channel-best",
    "drc",
    "exact:tradeoff=50",
)


def test_what_a_scheduler_saves_is_split_into_allocating_and_choosing():
    found = compare(SMALL, BOTH, num_seeds=3, frontier_tradeoffs=(), with_bound=False, workers=1)
    delay_s = {one.scheduler: np.array([summary.mean_delay_s for summary in one.per_seed]) for one in found.results}
    assert found.best_baseline == "channel-best"
    results = {one.scheduler: one for one in found.results}
    baseline_s, allocated_s = delay_s["channel-best"], delay_s["channel-best:frequencies=best"]
    exact = results["exact:tradeoff=50"]
    assert exact.allocating_percent.mean == pytest.approx(100 * np.mean(1 - allocated_s / baseline_s))
    for name in ("exact:tradeoff=50", "channel-best:frequencies=best", "random:frequencies=best"):
        one = results[name]
        assert one.reduction_percent.mean == pytest.approx(one.allocating_percent.mean + one.choosing_percent.mean)
    assert results["channel-best:frequencies=best"].choosing_percent.mean == 0.0
    for name in ("random", "channel-best", "drc"):
        assert results[name].choosing_percent is None is results[name].allocating_percent


def test_a_baseline_with_parameters_is_split_by_its_own_twin():
    choices = ("oort:alpha=1", "oort:frequencies=best", "oort:alpha=1,frequencies=best", "exact")
    found = compare(SMALL, choices, num_seeds=1, frontier_tradeoffs=(), with_bound=False, workers=1)
    assert found.best_baseline == "oort:alpha=1"
    assert found.results[2].choosing_percent.mean == 0.0
    alone = compare(SMALL, choices[1::2], num_seeds=1, frontier_tradeoffs=(), with_bound=False, workers=1)
    assert alone.best_baseline == "oort:frequencies=best"
    assert alone.results[1].allocating_percent.mean == 0.0


def test_energy_is_that_of_a_client_in_a_round(comparison):
    for place, result in enumerate(comparison.results):
        scenario = choose_scheduler(SMALL, CHOICES[place])
        runs = [simulate(msgspec.structs.replace(scenario, seed=seed)) for seed in range(4)]
        assert result.energy_j.mean == pytest.approx(np.mean([run.energy_j.mean() for run in runs]))
        assert result.energy_use.mean == pytest.approx(result.energy_j.mean / 0.4)


def test_the_energy_frontier_plays_every_scheduler_at_every_share_of_the_budgets():
    choices = ("channel-best", "exact:tradeoff=50")
    found = compare(
        SMALL, choices, num_seeds=2, frontier_tradeoffs=(5.0,), frontier_budgets=(0.8, 1.0), with_bound=False, workers=1
    )
    points = [(point.scheduler, point.tradeoff, point.budget_share) for point in found.energy_frontier]
    assert points == [
        (choice, v, share) for share in (0.8, 1.0) for choice, v in ((choices[0], 100.0), (choices[1], 50.0))
    ]
    less = [
        simulate(override_scenario(choose_scheduler(SMALL, choices[1]), ["energy.budget_j=0.32", f"seed={seed}"]))
        for seed in range(2)
    ]
    assert found.energy_frontier[1].delay_s.mean == pytest.approx(np.mean([run.mean_delay_s for run in less]))
    assert found.energy_frontier[1].energy_j.mean == pytest.approx(0.32)
    assert found.energy_frontier[3].delay_s.mean == found.results[1].delay_s.mean
    assert [(point.scheduler, point.budget_share) for point in found.frontier] == [("exact", 1.0)]


def test_the_reference_may_be_chosen():
    options = {"frontier_tradeoffs": (), "with_bound": False, "workers": 1}
    chosen = compare(SMALL, ("drc", "random"), num_seeds=2, reference="drc", **options)
    assert chosen.reference == "drc"
    assert chosen.best_baseline == "random"


def test_without_a_baseline_the_first_is_the_reference_and_there_is_no_reduction():
    chosen = compare(SMALL, ("drc", "exact"), num_seeds=2, frontier_tradeoffs=(), with_bound=False, workers=1)
    assert chosen.reference == "drc"
    assert chosen.results[1].reduction_percent is None


def test_the_frontier_has_every_v_for_every_scheduler_that_weighs(comparison):
    points = [(point.scheduler, point.tradeoff) for point in comparison.frontier]
    assert points == [("drc", 1.0), ("drc", 100.0), ("exact", 1.0), ("exact", 100.0)]


def test_a_larger_v_is_never_slower_in_the_long_run():
    frontier = compare(
        Scenario(rounds=40), ("exact",), num_seeds=2, frontier_tradeoffs=(1.0, 100.0), with_bound=False, workers=1
    ).frontier
    assert frontier[1].delay_s.mean < frontier[0].delay_s.mean
    assert frontier[1].shortfall.mean >= frontier[0].shortfall.mean


def test_infeasible_rounds_are_counted():
    starving = override_scenario(SMALL, ["energy.budget_j=0.01"])
    found = compare(starving, ("drc", "random"), num_seeds=2, frontier_tradeoffs=(), with_bound=False, workers=1)
    assert [result.infeasible_rounds for result in found.results] == [12, 12]
    assert np.isnan(found.results[0].delay_s.mean)


def test_cumulative_time_ends_at_the_total(comparison):
    for result in comparison.results:
        assert result.cumulative_s[-1] == pytest.approx(result.total_s.mean)


@pytest.mark.parametrize(
    ("seeds", "reference", "message"), [(0, None, "seeds: 0 given"), (1, "exact", "reference: 'exact' given")]
)
def test_what_cannot_be_compared_is_refused(seeds, reference, message):
    with pytest.raises(InvalidChoice, match=message):
        compare(SMALL, ("drc",), num_seeds=seeds, reference=reference)


def test_no_scheduler_that_serves_every_client_beats_the_bound(comparison):
    assert comparison.bound.mean > 0
    for result in comparison.results:
        assert result.worst_shortfall > 0 or result.above_bound_percent.mean > 0


def test_the_bound_holds_for_a_scheduler_that_chooses_its_power():
    scenario = Scenario(name="small", rounds=20)
    found = compare(scenario, ("exact", "exact-power:tradeoff=10"), num_seeds=1, frontier_tradeoffs=(), workers=1)
    assert found.results[1].above_bound_percent.mean > 0


def test_sampled_delays_are_not_held_against_a_bound_on_planned_ones():
    sampled = override_scenario(SMALL, ["mining.mode=sampled"])
    found = compare(sampled, ("drc",), num_seeds=1, frontier_tradeoffs=(), workers=1)
    assert found.bound is None is found.results[0].above_bound_percent
