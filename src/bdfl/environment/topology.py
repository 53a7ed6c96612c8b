"""The graph of clients and access points, and constraint C1 on it.

Nodes are the clients, then the access points. A client links to the access point that serves it if that is in range.
Access points link to each other. Clients link to each other where the scenario allows it.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from bdfl.arrays import PerClientMask
from bdfl.environment.geometry import Attachment, Points
from bdfl.errors import BdflError
from bdfl.scenario import Geometry

Links: TypeAlias = NDArray[np.int64]  # (links, 2): the two nodes of each link

SPECTRAL_LIMIT = 1000  # nodes of the largest dense eigenproblem solved for a round (0.1 s)
PEER_LINK_LIMIT = 20_000_000  # more would fill the memory


class TooManyLinks(BdflError):
    """More direct links between clients than fit in memory."""


@dataclass(frozen=True, eq=False)
class Topology:
    """The graph of one round with its components and connectivity."""

    links: Links
    reachable: PerClientMask  # in the component with the most clients (of equals, the one with the lowest client)
    is_connected: bool  # C1: every client reaches every other
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


def find_topology(links: Links, num_clients: int, num_access_points: int) -> Topology:
    """Return the graph's components and connectivity as seen by its clients.

    Access points outside the component of the clients are ignored: an idle access point far away does not break C1.
    """
    num_nodes = num_clients + num_access_points
    ones = np.ones(len(links), dtype=np.int8)
    graph = coo_array((ones, (links[:, 0], links[:, 1])), shape=(num_nodes, num_nodes))
    _, component = connected_components(graph, directed=False)
    clients_in = np.bincount(component[:num_clients])
    largest = int(component[np.argmax(clients_in[component[:num_clients]])])  # the first client in a largest one
    reachable = component[:num_clients] == largest
    is_connected = bool(reachable.all())
    connectivity = 0.0
    if is_connected:
        connectivity = _connectivity(links, num_clients, component == largest)
    return Topology(links, reachable, is_connected, connectivity)


def _connectivity(links: Links, num_clients: int, alive: NDArray[np.bool_]) -> float:
    """Second-smallest Laplacian eigenvalue of the nodes in `alive`, or NaN above the limit."""
    number = np.cumsum(alive) - 1
    links = number[links[alive[links].all(axis=1)]]
    num_nodes = int(np.count_nonzero(alive))
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
