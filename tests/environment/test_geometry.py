"""Clients stand where they should, move no faster than they may, and are served by the best access point."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bdfl.environment.geometry import attach_clients, move_clients, place_clients
from bdfl.radio import channel_gain
from bdfl.scenario import Geometry, Mobility, MobilityModel, Placement, Radio

ROAMING = Mobility(
    model=MobilityModel.RANDOM_WAYPOINT, min_speed_m_per_s=5.0, max_speed_m_per_s=20.0, seconds_per_round=2.0
)


def test_on_the_ring_every_client_is_at_its_distance_from_its_access_point():
    access_points_m = ((0.0, 0.0), (5000.0, 0.0))
    geometry = Geometry(distance_m=(100.0, 200.0, 300.0), access_points_m=access_points_m)
    away_m = place_clients(geometry, 3, seed=1) - np.array(access_points_m)[[0, 1, 0]]
    assert np.hypot(away_m[:, 0], away_m[:, 1]) == pytest.approx([100.0, 200.0, 300.0])


def test_uniform_placement_fills_the_area():
    position_m = place_clients(Geometry(placement=Placement.UNIFORM, area_m=(100.0, 40.0)), 5000, seed=1)
    assert (position_m >= 0).all()
    assert (position_m <= [100.0, 40.0]).all()
    assert position_m.mean(axis=0) == pytest.approx([50.0, 20.0], rel=0.03)


def test_listed_clients_stand_where_they_are_listed():
    listed = ((1.0, 2.0), (3.0, 4.0))
    geometry = Geometry(placement=Placement.LISTED, client_positions_m=listed)
    assert place_clients(geometry, 2, seed=0).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("placement", [Placement.RING, Placement.UNIFORM])
@pytest.mark.parametrize("mobility", [Mobility(model=MobilityModel.REDRAWN), ROAMING], ids=["redrawn", "roaming"])
def test_a_clients_way_does_not_change_when_clients_are_added(placement, mobility):
    geometry = Geometry(placement=placement, mobility=mobility, area_m=(60.0, 60.0))
    few, many = (move_clients(geometry, place_clients(geometry, num, 9), 9, 12) for num in (5, 50))
    for some_m, all_m in zip(few, many, strict=True):
        assert (some_m == all_m[:5]).all()


def test_static_clients_stay():
    start_m = place_clients(Geometry(), 8, seed=0)
    assert all(position_m is start_m for position_m in move_clients(Geometry(), start_m, 0, 5))


def test_redrawn_clients_are_somewhere_else_each_round_at_the_same_distance():
    geometry = Geometry(mobility=Mobility(model=MobilityModel.REDRAWN))
    rounds = list(move_clients(geometry, place_clients(geometry, 8, 0), 0, 3))
    for position_m in rounds:
        assert np.hypot(*(position_m - 500.0).T) == pytest.approx(np.full(8, 200.0))
    assert len({position_m.tobytes() for position_m in rounds}) == 3


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), pause=st.integers(0, 3))
def test_roaming_clients_stay_in_the_area_and_keep_to_their_speed(seed, pause):
    mobility = Mobility(
        model=MobilityModel.RANDOM_WAYPOINT,
        min_speed_m_per_s=5.0,
        max_speed_m_per_s=20.0,
        seconds_per_round=2.0,
        pause_rounds=pause,
    )
    geometry = Geometry(placement=Placement.UNIFORM, area_m=(300.0, 100.0), mobility=mobility)
    rounds = list(move_clients(geometry, place_clients(geometry, 6, seed), seed, 30))
    assert len(rounds) == 30
    for before_m, after_m in pairwise(rounds):
        assert (after_m >= 0).all()
        assert (after_m <= [300.0, 100.0]).all()
        assert (np.hypot(*(after_m - before_m).T) <= 40.0 * (1 + 1e-12)).all()
    assert (rounds[0] != rounds[-1]).any()


def test_a_client_rests_at_its_waypoint_as_long_as_told():
    mobility = Mobility(
        model=MobilityModel.RANDOM_WAYPOINT, min_speed_m_per_s=1e6, max_speed_m_per_s=1e6, pause_rounds=2
    )
    geometry = Geometry(placement=Placement.UNIFORM, mobility=mobility)
    rounds = list(move_clients(geometry, place_clients(geometry, 1, 0), 0, 10))
    moves = [bool((after_m != before_m).any()) for before_m, after_m in pairwise(rounds)]
    assert moves == [True, False, False] * 3


@given(st.integers(0, 1000), st.floats(0.5, 5))
def test_every_client_is_served_with_the_best_mean_gain(seed, exponent):
    rng = np.random.default_rng(seed)
    position_m, access_point_m = rng.uniform(0, 1000, (20, 2)), rng.uniform(0, 1000, (4, 2))
    shadowing = rng.lognormal(0, 1, (4, 20))
    radio = Radio(path_loss_exponent=exponent)
    served = attach_clients(radio, position_m, access_point_m, shadowing)
    distance_m = np.hypot(*(position_m[None] - access_point_m[:, None]).transpose(2, 0, 1))
    gain = channel_gain(1e-3, shadowing, distance_m, 1.0, exponent)
    assert (served.access_point == gain.argmax(axis=0)).all()
    assert (served.distance_m == distance_m[served.access_point, np.arange(20)]).all()
    assert (served.shadowing == shadowing[served.access_point, np.arange(20)]).all()


def test_without_shadowing_the_nearest_access_point_serves():
    rng = np.random.default_rng(0)
    position_m, access_point_m = rng.uniform(0, 1000, (200, 2)), rng.uniform(0, 1000, (5, 2))
    served = attach_clients(Radio(), position_m, access_point_m, np.ones((5, 200)))
    distance_m = np.hypot(*(position_m[None] - access_point_m[:, None]).transpose(2, 0, 1))
    assert (served.access_point == distance_m.argmin(axis=0)).all()


def test_an_access_point_in_range_serves_before_a_better_one_out_of_range():
    access_point_m, shadowing = np.array([[0.0, 0.0], [300.0, 0.0]]), np.array([[1e-6], [1.0]])
    client_m = np.array([[100.0, 0.0]])
    assert attach_clients(Radio(), client_m, access_point_m, shadowing).access_point.tolist() == [1]
    assert attach_clients(Radio(), client_m, access_point_m, shadowing, range_m=150.0).access_point.tolist() == [0]
    assert attach_clients(Radio(), client_m, access_point_m, shadowing, range_m=50.0).access_point.tolist() == [1]
