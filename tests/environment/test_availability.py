"""Clients that come and go: the law of their stays, the trace, and what being away means for a run."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from bdfl.environment import draw_availability, draw_federation, draw_rounds
from bdfl.environment.draws import BadAvailability, read_availability
from bdfl.environment.geometry import find_topology
from bdfl.scenario import Scenario, load_scenario, override_scenario

TRACE = "client,from,to\n0,1,2\n1,2,2\n0,4,9\n2,1,1\n2,2,4\n"
PRESENT = [[True, False, True], [True, True, True], [False, False, True], [True, False, True]]
COMING = ["availability.leave_probability=0.1", "availability.return_probability=0.3"]


def presence(overrides):
    return np.array(list(draw_availability(override_scenario(Scenario(), overrides))))


def write(tmp_path, text, name="there.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("leave", [0.02, 0.3, 0.9])
def test_clients_stay_return_and_are_there_as_the_chain_says(leave):
    back = 0.25
    there = presence(
        [
            "clients.count=4000",
            "rounds=60",
            f"availability.leave_probability={leave}",
            f"availability.return_probability={back}",
        ]
    )
    share = back / (leave + back)
    assert there.mean(axis=1) == pytest.approx(np.full(60, share), abs=5 * np.sqrt(share * (1 - share) / 4000))
    before, after = there[:-1], there[1:]
    for started, chance in ((before, leave), (~before, back)):
        changed = (before != after)[started].mean()
        assert changed == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / started.sum()))


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(0, 20))
def test_a_client_comes_and_goes_alike_whoever_else_does(seed, few, more):
    chances = "availability.leave_probability={distribution = 'uniform', low = 0.1, high = 0.9}"
    one, other = (
        presence([chances, "clients.min_selected=1", f"clients.count={count}", f"seed={seed}", "rounds=5"])
        for count in (few, few + more)
    )
    np.testing.assert_array_equal(one, other[:, :few])


def test_who_never_leaves_is_always_there_and_who_never_returns_is_not():
    chances = "availability.leave_probability=[0, 0, 1, 0.5, 0, 0, 0, 0]"
    there = presence([chances, "availability.return_probability=[0, 1, 0, 0, 0, 0, 0, 0]"])
    assert there.all(axis=0).tolist() == [True, True, False, False, True, True, True, True]
    assert not there[:, 2:4].any()


def test_without_the_table_everybody_is_there():
    assert presence(["rounds=3"]).tolist() == [[True] * 8] * 3


@pytest.mark.parametrize(
    "text",
    [TRACE, "to,client,note,from\n2,0,0,1\n2,1,0,2\ninf,0,0,4\n4,2,0,1\n3,2,0,2\n5,7,0,1\n9,1,0,5\n"],
    ids=["plain", "other order, overlapping stays, more clients and rounds, no end"],
)
def test_a_trace_says_who_is_there_from_when_to_when(tmp_path, text):
    assert read_availability(write(tmp_path, text), 4, 3).tolist() == PRESENT


def test_a_trace_is_read_from_parquet(tmp_path):
    path = tmp_path / "there.parquet"
    parquet.write_table(pa.table({"client": [0, 1, 0, 2], "from": [1, 2, 4, 1], "to": [2, 2, 4, 4]}), path)
    assert read_availability(path, 4, 3).tolist() == PRESENT


stays = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12), st.integers(0, 12)), max_size=12)


@given(stays, st.integers(1, 8), st.integers(1, 4))
def test_a_client_is_there_exactly_in_the_rounds_of_its_rows(tmp_path_factory, rows, num_rounds, num_clients):
    lines = [f"{client},{first},{first + length}" for client, first, length in rows]
    path = write(tmp_path_factory.mktemp("stays"), "\n".join(["client,from,to", *lines]))
    expected = [
        [any(who == client and first <= round <= first + length for who, first, length in rows)
         for client in range(num_clients)]
        for round in range(1, num_rounds + 1)
    ]  # fmt: skip
    assert read_availability(path, num_rounds, num_clients).tolist() == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "columns none, expected client, from, to"),
        ("client,from\n0,1\n", "columns client, from, expected client, from, to"),
        ("client,from,to\n0,3,2\n", "client 0 from 3 to 2, expected a last round not before the first"),
        ("client,from,to\n0,0,2\n", "from 0, expected whole numbers from 1"),
        ("client,from,to\n0,1,2.5\n", "to 2.5, expected whole numbers from 1"),
        ("client,from,to\n0,1,nan\n", "to nan, expected whole numbers from 1"),
        ("client,from,to\n-1,1,2\n", "client -1, expected whole numbers from 0"),
        ("client,from,to\n0,1,soon\n", "could not convert string 'soon' to float64"),
    ],
)
def test_a_bad_trace_is_refused_in_one_line_before_the_first_round(tmp_path, text, line):
    path = write(tmp_path, text)
    scenario = override_scenario(Scenario(), [f"availability.trace={path}"])
    with pytest.raises(BadAvailability) as caught:
        draw_rounds(scenario, draw_federation(scenario))
    assert str(caught.value).startswith(f"availability.trace {path}: {line}")
    assert "\n" not in str(caught.value)


def test_a_run_takes_the_trace_beside_its_scenario(tmp_path):
    write(tmp_path, TRACE)
    text = 'rounds = 4\n[clients]\ncount = 3\nmin_selected = 1\n[availability]\ntrace = "there.csv"\n'
    scenario = load_scenario(write(tmp_path, text, "coming.toml"))
    states = list(draw_rounds(scenario, draw_federation(scenario)))
    assert [state.available.tolist() for state in states] == PRESENT
    assert [state.reachable.tolist() for state in states] == PRESENT
    assert all(state.is_connected for state in states)


def test_nothing_else_about_a_round_changes_with_who_is_there():
    usual = override_scenario(Scenario(), ["rounds=6", "geometry.mobility.model=redrawn"])
    coming = override_scenario(usual, COMING)
    for one, other in zip(*(draw_rounds(each, draw_federation(each)) for each in (usual, coming)), strict=True):
        for name in ("gain", "energy_budget_j", "position_m", "access_point"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 2), pairs)
def test_who_is_away_is_no_part_of_the_graph(there, num_access_points, pairs):
    available = np.array(there)
    num_clients = len(there)
    num_nodes = num_clients + num_access_points
    links = np.array([pair for pair in pairs if pair[0] < pair[1] < num_nodes], dtype=np.int64).reshape(-1, 2)
    found = find_topology(links, num_clients, num_access_points, available)
    assert not found.reachable[~available].any()
    if available.any():
        stays = np.concatenate((available, np.ones(num_access_points, dtype=np.bool_)))
        number = np.cumsum(stays) - 1
        left = number[links[stays[links].all(axis=1)]]
        alone = find_topology(left, int(available.sum()), num_access_points)
        assert found.reachable[available].tolist() == alone.reachable.tolist()
        assert found.is_connected == alone.is_connected
        assert found.connectivity == pytest.approx(alone.connectivity, nan_ok=True)


def test_a_neighbour_that_is_away_forwards_nothing():
    links = np.array([[0, 3], [0, 1], [1, 2]])  # an access point, its client, and two in a row behind it
    assert find_topology(links, 3, 1).reachable.all()
    found = find_topology(links, 3, 1, np.array([True, False, True]))
    assert found.reachable.tolist() == [True, False, False]
    assert not found.is_connected
