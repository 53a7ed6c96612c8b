"""Recorded gains: both layouts, both formats, and every way a file can be wrong."""

import os
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bdfl.environment import draw_federation, draw_rounds
from bdfl.environment.draws import BadEnergyTrace, BadTrace, read_energy_trace, read_gain_trace
from bdfl.errors import MissingExtra
from bdfl.scenario import load_scenario

LONG = "round,client,gain\n1,0,1e-8\n1,1,2e-8\n2,1,4e-8\n2,0,3e-8\n"
GAINS = [[1e-8, 2e-8], [3e-8, 4e-8]]


def write(tmp_path, text, name="gains.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        "round,0,1\n1,1e-8,2e-8\n2,3e-8,4e-8\n",
        "\ufeffgain, round ,client,note\n1e-8,1,0,7\n2e-8,1,1,7\n4e-8,2,1,7\n\n3e-8,2,0,7\n",
        LONG + "3,0,1\n1,2,-5\n",
    ],
    ids=["long", "wide", "other order and columns", "more rounds and clients"],
)
def test_a_trace_is_read_in_either_layout(tmp_path, text):
    assert read_gain_trace(write(tmp_path, text), 2, 2).tolist() == GAINS


@pytest.mark.parametrize(
    "columns",
    [
        {"round": [1, 1, 2, 2], "client": [0, 1, 0, 1], "gain": [1e-8, 2e-8, 3e-8, 4e-8]},
        {"round": [1, 2], "0": [1e-8, 3e-8], "1": [2e-8, 4e-8]},
    ],
    ids=["long", "wide"],
)
def test_a_trace_is_read_from_parquet(tmp_path, columns):
    path = tmp_path / "gains.parquet"
    parquet.write_table(pa.table(columns), path)
    assert read_gain_trace(path, 2, 2).tolist() == GAINS


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "columns none, expected round, client, gain, or round and one column per client: 0, 1, ..."),
        ("round,client\n1,0\n", "columns round, client, expected round, client, gain, or round and one column"),
        ("0,1\n1,1\n", "columns 0, 1, expected round"),
        (LONG.replace("2,1,4e-8\n", ""), "no gain for round 2, client 1, expected one for each of 2 rounds and 2 cl"),
        ("round,client,gain\n", "no gain for round 1, client 0, expected one for each"),
        (LONG + "2,1,4e-8\n", "2 gains for round 2, client 1, expected one for each of 2 rounds and 2 clients"),
        (LONG.replace("4e-8", "-4e-8"), "gain -4e-08 for round 2, client 1, expected a finite number of at least 0"),
        (LONG.replace("4e-8", "nan"), "gain nan for round 2, client 1, expected a finite number of at least 0"),
        (LONG.replace("4e-8", "inf"), "gain inf for round 2, client 1, expected a finite number of at least 0"),
        (LONG.replace("2,1,4e-8", "0,1,4e-8"), "round 0, expected whole numbers from 1"),
        (LONG.replace("2,1,4e-8", "2,-1,4e-8"), "client -1, expected whole numbers from 0"),
        (LONG.replace("2,1,4e-8", "2,0.5,4e-8"), "client 0.5, expected whole numbers from 0"),
        (LONG.replace("4e-8", "good"), "could not convert string 'good' to float64 at row 2, column 3, expected a li"),
        (LONG.replace("2,1,4e-8", "2,1"), "the number of columns changed from 3 to 2 at row 3, expected a line of"),
        ("round,client,gain\n1,0\n", "2 values in a row, expected one for each of 3 columns"),
    ],
)
def test_a_bad_trace_is_refused_in_one_line(tmp_path, text, line):
    path = write(tmp_path, text)
    with pytest.raises(BadTrace) as caught:
        read_gain_trace(path, 2, 2)
    assert str(caught.value).startswith(f"radio.trace {path}: {line}")
    assert "\n" not in str(caught.value)


def test_a_missing_trace_is_refused_in_one_line(tmp_path):
    with pytest.raises(BadTrace, match=r"gains.csv: no such file, expected a CSV or Parquet file"):
        read_gain_trace(tmp_path / "gains.csv", 2, 2)


def test_a_file_of_far_more_bytes_than_its_gains_may_take_is_not_read(tmp_path):
    path = write(tmp_path, "round,client,gain\n1,0,1.0\n")
    os.truncate(path, 40 * 10**9)
    with pytest.raises(BadTrace, match=r"40000000000 bytes, at most \d+ expected"):
        read_gain_trace(path, 1, 1)


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = write(tmp_path, "", "gains.parquet")
    with pytest.raises(MissingExtra, match=r"a trace in Parquet needs pyarrow: pip install .*\[trace\]"):
        read_gain_trace(path, 2, 2)


@pytest.mark.parametrize("content", ["not parquet", "text"])
def test_bad_parquet_is_refused_in_one_line(tmp_path, content):
    path = write(tmp_path, content, "gains.parquet")
    if content == "text":
        parquet.write_table(pa.table({"round": ["a"], "0": ["b"]}), path)
    with pytest.raises(BadTrace) as caught:
        read_gain_trace(path, 2, 2)
    assert str(caught.value).endswith("expected a Parquet file with columns of numbers")
    assert "\n" not in str(caught.value)


def test_a_run_takes_its_gains_from_the_trace_beside_its_scenario(tmp_path):
    write(tmp_path, LONG)
    path = write(
        tmp_path, 'rounds = 2\n[clients]\ncount = 2\nmin_selected = 1\n[radio]\ntrace = "gains.csv"\n', "traced.toml"
    )
    scenario = load_scenario(path)
    states = list(draw_rounds(scenario, draw_federation(scenario)))
    assert np.array([state.gain for state in states]).tolist() == GAINS


def test_a_trace_shorter_than_the_run_is_refused_before_the_first_round(tmp_path):
    write(tmp_path, LONG)
    path = write(
        tmp_path, 'rounds = 3\n[clients]\ncount = 2\nmin_selected = 1\n[radio]\ntrace = "gains.csv"\n', "traced.toml"
    )
    scenario = load_scenario(path)
    with pytest.raises(BadTrace, match="no gain for round 3, client 0, expected one for each of 3 rounds"):
        draw_rounds(scenario, draw_federation(scenario))


def test_recorded_energies_are_the_budgets_of_rounds_in_both_layouts(tmp_path):
    long = LONG.replace("gain", "joules")
    assert read_energy_trace(write(tmp_path, long), 2, 2).tolist() == GAINS
    write(tmp_path, "round,0,1\n1,0.5,0.1\n2,0.0,0.7\n", "harvest.csv")
    path = write(
        tmp_path, 'rounds = 2\n[clients]\ncount = 2\nmin_selected = 1\n[energy]\ntrace = "harvest.csv"\n', "sun.toml"
    )
    scenario = load_scenario(path)
    states = list(draw_rounds(scenario, draw_federation(scenario)))
    assert [state.energy_budget_j.tolist() for state in states] == [[0.5, 0.1], [0.0, 0.7]]
    with pytest.raises(BadEnergyTrace, match=r"energy\.trace .*no joules for round 3, client 0"):
        read_energy_trace(tmp_path / "harvest.csv", 3, 2)
