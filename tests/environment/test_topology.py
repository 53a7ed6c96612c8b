"""C1: the graph of clients and access points, its components and its second Laplacian eigenvalue."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.environment import geometry as topology
from bdfl.environment.geometry import (
    Attachment,
    TooManyLinks,
    algebraic_connectivity,
    attach_clients,
    find_topology,
    laplacian,
    link_nodes,
)
from bdfl.scenario import Geometry, Radio


def path(num):
    return np.column_stack((np.arange(num - 1), np.arange(1, num)))


def complete(num):
    return np.column_stack(np.triu_indices(num, 1))


def star(num):
    return np.column_stack((np.zeros(num - 1, dtype=np.int64), np.arange(1, num)))


@pytest.mark.parametrize("num", [2, 3, 8, 40])
def test_connectivity_of_known_graphs_is_their_closed_form(num):
    assert algebraic_connectivity(laplacian(path(num), num)) == pytest.approx(2 - 2 * math.cos(math.pi / num))
    assert algebraic_connectivity(laplacian(complete(num), num)) == pytest.approx(num)
    if num > 2:
        assert algebraic_connectivity(laplacian(star(num), num)) == pytest.approx(1.0)


def test_laplacian_is_degree_minus_adjacency():
    assert laplacian(path(3), 3).tolist() == [[1, -1, 0], [-1, 2, -1], [0, -1, 1]]


def test_one_node_has_no_connectivity():
    assert math.isnan(algebraic_connectivity(laplacian(np.empty((0, 2), dtype=np.int64), 1)))


@given(st.integers(1, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_a_graph_is_connected_exactly_if_its_second_eigenvalue_is_positive(num_clients, pairs):
    links = np.array([pair for pair in pairs if pair[0] < pair[1] < num_clients], dtype=np.int64).reshape(-1, 2)
    found = find_topology(links, num_clients, 0)
    if num_clients > 1:
        eigenvalue = algebraic_connectivity(laplacian(links, num_clients))
        assert found.is_connected == (eigenvalue > 1e-9)
        assert found.connectivity == pytest.approx(eigenvalue, abs=1e-9)
    assert found.is_connected == found.reachable.all()


def make_graph(geometry, position_m):
    access_point_m = np.array(geometry.access_points_m)
    shadowing = np.ones((len(access_point_m), len(position_m)))
    served = attach_clients(Radio(), position_m, access_point_m, shadowing, geometry.access_range_m)
    return find_topology(link_nodes(geometry, position_m, served), len(position_m), len(access_point_m))


TWO_CELLS = np.array([[0.0, 10.0], [990.0, 10.0], [1000.0, 10.0], [1010.0, 10.0], [20.0, 10.0]])


def test_access_points_join_their_cells():
    geometry = Geometry(access_points_m=((0.0, 0.0), (1000.0, 0.0)), access_range_m=50.0)
    assert make_graph(geometry, TWO_CELLS).is_connected


def test_of_separate_cells_the_one_with_most_clients_is_reachable():
    geometry = Geometry(access_points_m=((0.0, 0.0), (1000.0, 0.0)), access_range_m=50.0, backbone_range_m=500.0)
    found = make_graph(geometry, TWO_CELLS)
    assert not found.is_connected
    assert found.connectivity == 0.0
    assert found.reachable.tolist() == [False, True, True, True, False]


def test_of_equal_cells_the_one_with_the_first_client_is_reachable():
    geometry = Geometry(access_points_m=((1000.0, 0.0), (0.0, 0.0)), access_range_m=50.0, backbone_range_m=500.0)
    assert make_graph(geometry, TWO_CELLS[[0, 1, 2, 4]]).reachable.tolist() == [True, False, False, True]


def test_a_client_out_of_range_is_cut_off_unless_a_peer_is_near():
    position_m = np.array([[0.0, 0.0], [40.0, 0.0], [80.0, 0.0]])
    alone = Geometry(access_points_m=((0.0, 0.0),), access_range_m=50.0)
    assert make_graph(alone, position_m).reachable.tolist() == [True, True, False]
    helped = Geometry(access_points_m=((0.0, 0.0),), access_range_m=50.0, peer_range_m=40.0)
    assert make_graph(helped, position_m).is_connected


def test_an_idle_access_point_far_away_breaks_nothing():
    geometry = Geometry(access_points_m=((0.0, 0.0), (9000.0, 0.0)), backbone_range_m=100.0)
    found = make_graph(geometry, TWO_CELLS)
    assert found.is_connected
    assert found.connectivity == pytest.approx(1.0)  # a star: the idle one is no part of it


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 5))
def test_connectivity_of_many_clients_without_peers_is_that_of_the_dense_matrix(served_by, num_access_points):
    access_point = np.array([min(number, num_access_points - 1) for number in served_by])
    num_clients = len(access_point)
    served = Attachment(access_point, np.zeros(num_clients), np.ones(num_clients))
    line = tuple((float(number), 0.0) for number in range(num_access_points))
    geometry = Geometry(access_points_m=line, backbone_range_m=1.0)
    links = link_nodes(geometry, np.zeros((num_clients, 2)), served)
    dense = algebraic_connectivity(laplacian(links, num_clients + num_access_points))
    assert topology._star_connectivity(links, num_clients, num_access_points) == pytest.approx(dense, abs=1e-9)


def test_a_hundred_thousand_clients_of_one_access_point_are_a_star():
    found = make_graph(Geometry(), np.full((100_000, 2), 400.0))
    assert found.is_connected
    assert found.connectivity == pytest.approx(1.0)


def test_connectivity_of_a_large_graph_with_peers_is_not_computed_but_its_components_are():
    position_m = np.column_stack((np.arange(3000.0), np.zeros(3000)))
    found = make_graph(Geometry(access_range_m=1e4, peer_range_m=1.5), position_m)
    assert found.is_connected
    assert math.isnan(found.connectivity)


def test_more_peer_links_than_memory_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(topology, "PEER_LINK_LIMIT", 10)
    with pytest.raises(TooManyLinks) as caught:
        make_graph(Geometry(peer_range_m=100.0), np.zeros((6, 2)))
    assert str(caught.value) == (
        "geometry.peer_range_m: 100 given, which makes 15 links between clients, allowed are 10"
    )
