"""Positions, mobility, attachment to access points, and the graph of both with its connectivity (C1).

Nodes are the clients, then the access points. A client links to the access point that serves it if that is in range.
Access points link to each other. Clients link to each other where the scenario allows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from bdfl.environment.draws import Purpose, draw_values, stream
from bdfl.errors import BdflError
from bdfl.radio import channel_gain
from bdfl.scenario import Geometry, Mobility, MobilityModel, Placement, Radio
from bdfl.types import PerClient, PerClientMask

# Positions and movement of the clients, and the access points that serve them.

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


Links: TypeAlias = NDArray[np.int64]  # (links, 2): the two nodes of each link

SPECTRAL_LIMIT = 1000  # nodes of the largest dense eigenproblem solved for a round (0.1 s)
PEER_LINK_LIMIT = 20_000_000  # more would fill the memory


class TooManyLinks(BdflError):
    """More direct links between clients than fit in memory."""


@dataclass(frozen=True, eq=False)
class Topology:
    """The graph of one round with its components and connectivity."""

    links: Links  # also of clients that are away
    reachable: PerClientMask  # in the component with the most clients (of equals, the one with the lowest client)
    is_connected: bool  # C1: every client that is there reaches every other
    connectivity: float  # lambda_2 of the Laplacian; 0 if not connected; NaN if connected, but too large or one node


def link_nodes(geometry: Geometry, position_m: Points, attachment: Attachment) -> Links:
    """Links (node, node) of the round's graph, (links, 2): clients are numbered first, then access points."""
    num_clients = len(position_m)
    access_point_m = np.array(geometry.access_points_m, dtype=np.float64)
    client = np.arange(num_clients)
    if geometry.access_range_m is not None:
        client = client[attachment.distance_m <= geometry.access_range_m]
    access = np.column_stack((client, num_clients + attachment.access_point[client]))
    if geometry.backbone_range_m is None:
        backbone = np.column_stack(np.triu_indices(len(access_point_m), 1))
    else:
        backbone = KDTree(access_point_m).query_pairs(geometry.backbone_range_m, output_type="ndarray")
    peers = np.empty((0, 2), dtype=np.int64)
    if geometry.peer_range_m is not None:
        peers = _link_peers(position_m, geometry.peer_range_m)
    return np.concatenate((access, num_clients + backbone, peers)).astype(np.int64)


def _link_peers(position_m: Points, range_m: float) -> Links:
    tree = KDTree(position_m)
    num_links = (int(tree.count_neighbors(tree, range_m)) - len(position_m)) // 2
    if num_links > PEER_LINK_LIMIT:
        raise TooManyLinks(
            f"geometry.peer_range_m: {range_m:g} given, which makes {num_links} links between clients, "
            f"allowed are {PEER_LINK_LIMIT}"
        )
    return tree.query_pairs(range_m, output_type="ndarray")


def find_topology(
    links: Links, num_clients: int, num_access_points: int, available: PerClientMask | None = None
) -> Topology:
    """Return the graph's components and connectivity as seen by its clients.

    Access points outside the component of the clients are ignored: an idle access point far away does not break C1.
    So are clients that are not `available`, with their links: they forward nothing.
    """
    num_nodes = num_clients + num_access_points
    is_there = np.ones(num_nodes, dtype=np.bool_)
    if available is not None:
        is_there[:num_clients] = available
    ends = links[is_there[links].all(axis=1)]
    ones = np.ones(len(ends), dtype=np.int8)
    graph = coo_array((ones, (ends[:, 0], ends[:, 1])), shape=(num_nodes, num_nodes))
    _, component = connected_components(graph, directed=False)
    clients_in = np.bincount(component[:num_clients], is_there[:num_clients])
    largest = int(component[np.argmax(clients_in[component[:num_clients]])])  # the first client in a largest one
    alive = (component == largest) & is_there
    reachable = alive[:num_clients]
    is_connected = bool(np.array_equal(reachable, is_there[:num_clients]))
    connectivity = 0.0
    if is_connected:
        connectivity = _connectivity(links, num_clients, alive)
    return Topology(links, reachable, is_connected, connectivity)


def _connectivity(links: Links, num_clients: int, alive: NDArray[np.bool_]) -> float:
    """Second-smallest Laplacian eigenvalue of the nodes in `alive`, or NaN above the limit."""
    number = np.cumsum(alive) - 1
    links = number[links[alive[links].all(axis=1)]]
    num_nodes, num_clients = int(np.count_nonzero(alive)), int(np.count_nonzero(alive[:num_clients]))
    if num_nodes <= SPECTRAL_LIMIT:
        return algebraic_connectivity(laplacian(links, num_nodes))
    has_peers = bool((links < num_clients).all(axis=1).any())
    if has_peers or 2 * (num_nodes - num_clients) > SPECTRAL_LIMIT:
        return float("nan")
    return _star_connectivity(links, num_clients, num_nodes - num_clients)


def laplacian(links: Links, num_nodes: int) -> NDArray[np.float64]:
    """Laplacian L = D - A, (nodes, nodes): [Li24, Eq. 5] of the adjacency matrix A of [Li24, Eq. 4]."""
    adjacency = np.zeros((num_nodes, num_nodes))
    adjacency[links[:, 0], links[:, 1]] = 1.0
    adjacency[links[:, 1], links[:, 0]] = 1.0
    return np.diag(adjacency.sum(axis=1)) - adjacency


def algebraic_connectivity(matrix: NDArray[np.float64]) -> float:
    """Second-smallest eigenvalue lambda_2 of a Laplacian, above 0 exactly if its graph is connected.

    [Li24, Section III-B], C1. A single node has none: NaN.
    """
    if len(matrix) < 2:
        return float("nan")
    return float(np.linalg.eigvalsh(matrix)[1])


def _star_connectivity(links: Links, num_clients: int, num_access_points: int) -> float:
    """Eigenvalue lambda_2 of a graph whose clients have one link each, to their access point; exact for any size.

    Clients of one access point are interchangeable, so an eigenvector either differs among them and vanishes elsewhere
    (eigenvalue 1) or gives them one value. The latter live in a matrix with two rows per access point.
    """
    is_access = links[:, 0] < num_clients
    served = np.bincount(links[is_access, 1] - num_clients, minlength=num_access_points).astype(np.float64)
    backbone = laplacian(links[~is_access] - num_clients, num_access_points)
    coupling = np.diag(-np.sqrt(served))
    together = np.block([[backbone + np.diag(served), coupling], [coupling, np.eye(num_access_points)]])
    used = np.flatnonzero(np.concatenate((np.ones(num_access_points), served)))  # no second row without clients
    smallest = algebraic_connectivity(together[np.ix_(used, used)])
    return min(smallest, 1.0) if served.max() > 1 else smallest
