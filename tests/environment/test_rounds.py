"""What a round brings is the same for everybody, and what the scenario says."""

import dataclasses
import time

import numpy as np
import pytest

from bdfl.environment import draw_federation, draw_rounds
from bdfl.scenario import Scenario, override_scenario

VARIED = [
    "rounds=6",
    "clients.samples={distribution = 'lognormal', median = 3000, sigma = 0.5}",
    "radio.power_w={distribution = 'uniform', low = 0.1, high = 0.3}",
    "radio.shadowing_db=6",
    "compute.max_hz={distribution = 'choice', values = [1e9, 2e9]}",
    "energy.budget_j={distribution = 'uniform', low = 0.2, high = 0.6, each_round = true}",
    "geometry.placement=uniform",
    "geometry.access_points_m=[[200, 200], [800, 800]]",
    "geometry.access_range_m=400",
    "geometry.mobility.model=random-waypoint",
    "geometry.mobility.max_speed_m_per_s=50",
]


def draw_all(overrides):
    scenario = override_scenario(Scenario(), overrides)
    federation = draw_federation(scenario)
    return federation, list(draw_rounds(scenario, federation))


def columns(value):
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def test_the_papers_round_has_every_client_at_200_m_and_connected():
    federation, states = draw_all(["radio.fading.kind=none"])
    assert [state.round for state in states] == list(range(1, 101))
    for state in states[:3]:
        assert state.gain == pytest.approx(np.full(8, 2.5e-8))
        assert state.energy_budget_j.tolist() == [0.4] * 8
        assert state.reachable.all()
        assert state.is_connected
        assert state.connectivity == pytest.approx(1.0)
    assert federation.cycles.tolist() == [3e8] * 8
    assert federation.power_max_w.tolist() == [0.2] * 8
    assert np.isinf(federation.cpu_max_hz).all()
    assert np.isinf(federation.mining_max_hz).all()


def test_mean_gain_is_that_without_fading():
    _, states = draw_all(["rounds=2000"])
    assert np.mean([state.gain for state in states]) == pytest.approx(2.5e-8, rel=0.01)


@pytest.mark.parametrize("scheduler", ["random", "exact"])
def test_all_schedulers_see_the_same_rounds(scheduler):
    _, states = draw_all(VARIED)
    _, again = draw_all([*VARIED, f"scheduler.name={scheduler}", "scheduler.tradeoff=3"])
    for one, other in zip(states, again, strict=True):
        for name, value in columns(one).items():
            np.testing.assert_array_equal(value, getattr(other, name))


def test_other_seeds_bring_other_rounds():
    _, states = draw_all(VARIED)
    _, others = draw_all([*VARIED, "seed=1"])
    assert (states[0].gain != others[0].gain).all()


def test_nothing_about_a_client_changes_when_clients_are_added():
    few, states = draw_all(VARIED)
    many, more_states = draw_all([*VARIED, "clients.count=50"])
    for name, values in columns(few).items():
        larger = getattr(many, name)
        same = larger[:, :8] if name == "shadowing" else larger[: len(values)]
        np.testing.assert_array_equal(values, same, err_msg=name)
    for state, more in zip(states, more_states, strict=True):
        for name in ("gain", "energy_budget_j", "position_m", "access_point"):
            np.testing.assert_array_equal(getattr(state, name), getattr(more, name)[:8], err_msg=name)


def test_a_longer_run_begins_as_the_shorter_one():
    _, states = draw_all(VARIED)
    _, longer = draw_all([*VARIED, "rounds=12"])
    for one, other in zip(states, longer, strict=False):
        np.testing.assert_array_equal(one.gain, other.gain)
        np.testing.assert_array_equal(one.position_m, other.position_m)


def test_budgets_are_drawn_again_only_where_asked():
    _, each = draw_all(VARIED)
    _, once = draw_all([*VARIED, "energy.budget_j.each_round=false"])
    assert len({state.energy_budget_j.tobytes() for state in each}) == 6
    assert len({state.energy_budget_j.tobytes() for state in once}) == 1
    assert all((state.energy_budget_j >= 0.2).all() and (state.energy_budget_j <= 0.6).all() for state in each)


def test_samples_are_whole_and_at_least_one():
    federation, _ = draw_all(["clients.samples={distribution = 'lognormal', median = 1.5, sigma = 2}", "rounds=1"])
    assert (federation.samples == np.rint(federation.samples)).all()
    assert (federation.samples >= 1).all()


def test_nothing_handed_out_can_be_changed():
    federation, states = draw_all(VARIED)
    for value in (*columns(federation).values(), *columns(states[0]).values()):
        assert not isinstance(value, np.ndarray) or not value.flags.writeable


def test_moving_clients_change_distance_and_cell():
    _, states = draw_all([*VARIED, "rounds=40", "geometry.mobility.seconds_per_round=20", "radio.fading.kind=none"])
    assert len({state.gain.tobytes() for state in states}) == 40
    assert len({state.access_point.tobytes() for state in states}) > 1


def test_a_million_clients_take_about_a_second_a_round():
    scenario = override_scenario(Scenario(), ["clients.count=1000000", "rounds=2"])
    federation = draw_federation(scenario)
    start = time.process_time()
    states = list(draw_rounds(scenario, federation))
    assert time.process_time() - start < 5.0  # of a processor; 0.3 s seen
    assert all(len(state.gain) == 1_000_000 for state in states)
