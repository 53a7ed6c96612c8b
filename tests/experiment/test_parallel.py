"""Sweeps: the same results whoever computes them, and errors before any work."""

import msgspec
import numpy as np
import pytest

from bdfl.errors import UnknownScheduler
from bdfl.experiment.parallel import InvalidSweep, map_runs
from bdfl.experiment.simulation import simulate
from bdfl.experiment.statistics import cumulative_delay, energy_curves, mean_backlog, mean_curves, running_mean
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.registry import choose_scheduler

SMALL = Scenario(name="small", rounds=5)
GROUPS = [
    [choose_scheduler(msgspec.structs.replace(SMALL, seed=seed), choice) for choice in ("drc", "exact", "random")]
    for seed in range(3)
]


def test_one_and_two_workers_give_the_same():
    alone = map_runs(GROUPS, cumulative_delay, workers=1)
    together = map_runs(GROUPS, cumulative_delay, workers=2)
    assert np.array_equal(alone, together)


def test_results_come_in_the_order_given():
    results = map_runs(GROUPS, mean_backlog, workers=1)
    assert np.array_equal(results[2][0], mean_backlog(simulate(GROUPS[2][0])))


def test_progress_counts_groups():
    seen = []
    map_runs(GROUPS, cumulative_delay, workers=1, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_group_with_different_draws_is_refused():
    other = override_scenario(SMALL, ["radio.bandwidth_hz=360e3"])
    with pytest.raises(InvalidSweep, match="more than its scheduler"):
        map_runs([[SMALL, other]], cumulative_delay)


def test_an_unknown_scheduler_is_refused_before_any_work():
    with pytest.raises(UnknownScheduler):
        map_runs([[override_scenario(SMALL, ["scheduler.name=nobody"])]], cumulative_delay)


def test_no_workers_are_refused():
    with pytest.raises(InvalidSweep, match="at least 1"):
        map_runs(GROUPS, cumulative_delay, workers=0)


def test_energy_curves_add_up():
    record = simulate(SMALL)
    curves = energy_curves(record)
    trained = record.energy_j[0][record.selected[0]]
    assert curves.total_j[0] == pytest.approx(trained.mean())
    assert np.allclose(mean_curves([curves, curves]).total_j, curves.total_j)


def test_the_running_mean_ends_at_the_mean():
    values = np.array([1.0, 2.0, 6.0])
    assert running_mean(values).tolist() == [1.0, 1.5, 3.0]
