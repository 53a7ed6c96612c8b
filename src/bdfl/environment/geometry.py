"""Positions and movement of the clients, and the access points that serve them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.environment.draws import Purpose, draw_values, stream
from bdfl.radio import channel_gain
from bdfl.scenario import Geometry, Mobility, MobilityModel, Placement, Radio

Points: TypeAlias = NDArray[np.float64]  # (points, 2): x, y in m
AccessPoint: TypeAlias = NDArray[np.int64]  # (clients,): number of the access point that serves the client


def place_clients(geometry: Geometry, num_clients: int, seed: int, round: int = 0) -> Points:
    """Positions (m) of the clients by their placement, (clients, 2); another round is another draw.

    On the ring only the direction is drawn again: a client keeps its distance for the whole run.
    """
    if geometry.placement is Placement.LISTED:
        return np.array(geometry.client_positions_m, dtype=np.float64)
    if geometry.placement is Placement.UNIFORM:
        return stream(seed, Purpose.PLACE, round).random((num_clients, 2)) * np.array(geometry.area_m, dtype=np.float64)
    distance_m = draw_values(stream(seed, Purpose.DISTANCE), geometry.distance_m, num_clients)
    angle = 2.0 * np.pi * stream(seed, Purpose.DIRECTION, round).random(num_clients)
    access_point_m = np.array(geometry.access_points_m, dtype=np.float64)
    center_m = access_point_m[np.arange(num_clients) % len(access_point_m)]
    offset_m = np.column_stack((distance_m * np.cos(angle), distance_m * np.sin(angle)))
    return center_m + offset_m


@dataclass(frozen=True, eq=False)
class _Walk:
    """State of the random-waypoint walk: position, target, speed and rounds left to rest of every client."""

    position_m: Points
    waypoint_m: Points
    speed_m_per_s: PerClient
    rest_rounds: NDArray[np.int64]


def move_clients(geometry: Geometry, start_m: Points, seed: int, num_rounds: int) -> Iterator[Points]:
    """Positions (m) of the clients in rounds 1, 2, ..., (clients, 2) each, from `start_m` in round 1.

    Random waypoint: go straight to a point drawn in the area at a drawn speed, rest, repeat. The time between two
    rounds is nominal and independent of the scheduler. A client that arrives early waits at its waypoint.
    """
    mobility = geometry.mobility
    num_clients = len(start_m)
    if mobility.model is MobilityModel.REDRAWN:
        yield from (place_clients(geometry, num_clients, seed, round) for round in range(1, num_rounds + 1))
        return
    if mobility.model is MobilityModel.STATIC:
        yield from (start_m for _ in range(num_rounds))
        return
    walk = _Walk(start_m, start_m, np.zeros(num_clients), np.zeros(num_clients, dtype=np.int64))
    yield walk.position_m
    for round in range(2, num_rounds + 1):
        walk = _step(walk, mobility, np.array(geometry.area_m), stream(seed, Purpose.WAYPOINT, round))
        yield walk.position_m


def _step(walk: _Walk, mobility: Mobility, area_m: NDArray[np.float64], rng: np.random.Generator) -> _Walk:
    """Return the walk one round later."""
    drawn = rng.random((len(walk.position_m), 3))  # for all, used or not: draws do not depend on other clients
    leaves = (walk.position_m == walk.waypoint_m).all(axis=1) & (walk.rest_rounds == 0)
    waypoint_m = np.where(leaves[:, None], drawn[:, :2] * area_m, walk.waypoint_m)
    slow, fast = mobility.min_speed_m_per_s, mobility.max_speed_m_per_s
    speed_m_per_s = np.where(leaves, slow + (fast - slow) * drawn[:, 2], walk.speed_m_per_s)

    step_m = speed_m_per_s * mobility.seconds_per_round
    way_m = waypoint_m - walk.position_m
    left_m = np.hypot(way_m[:, 0], way_m[:, 1])
    arrives = left_m <= step_m
    share = np.divide(step_m, left_m, out=np.zeros_like(step_m), where=~arrives)
    position_m = np.where(arrives[:, None], waypoint_m, walk.position_m + share[:, None] * way_m)

    was_there = (walk.position_m == waypoint_m).all(axis=1)
    resting = np.maximum(walk.rest_rounds - 1, 0)
    rest_rounds = np.where(arrives & ~was_there, mobility.pause_rounds, resting)
    return _Walk(position_m, waypoint_m, speed_m_per_s, rest_rounds)


@dataclass(frozen=True, eq=False)
class Attachment:
    """Access point, distance and shadowing of each client, (clients,) each."""

    access_point: AccessPoint
    distance_m: PerClient
    shadowing: PerClient  # power gain


def attach_clients(
    radio: Radio,
    position_m: Points,
    access_point_m: Points,
    shadowing: NDArray[np.float64],
    range_m: float | None = None,
) -> Attachment:
    """Attach every client to the access point in range with the best mean gain, or to the best of all if none is.

    Of equals the first wins. The mean gain is that of path loss and `shadowing`, (access points, clients); fading has
    mean 1.
    """
    farthest_m = np.inf if range_m is None else range_m
    is_in_range = np.zeros(len(position_m), dtype=np.bool_)
    best_gain = np.full(len(position_m), -np.inf)
    access_point = np.zeros(len(position_m), dtype=np.int64)
    distance_m, served_shadowing = np.zeros(len(position_m)), np.ones(len(position_m))
    for number, (x_m, y_m) in enumerate(access_point_m):  # one at a time: memory stays linear in clients
        far_m = np.hypot(position_m[:, 0] - x_m, position_m[:, 1] - y_m)
        mean_gain = channel_gain(
            radio.reference_gain, shadowing[number], far_m, radio.reference_distance_m, radio.path_loss_exponent
        )
        hears = far_m <= farthest_m
        better = (hears & ~is_in_range) | ((hears == is_in_range) & (mean_gain > best_gain))
        is_in_range |= hears
        best_gain[better], access_point[better] = mean_gain[better], number
        distance_m[better], served_shadowing[better] = far_m[better], shadowing[number][better]
    return Attachment(access_point, distance_m, served_shadowing)
