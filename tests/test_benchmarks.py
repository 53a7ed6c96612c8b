"""The benchmarks run and say what they mean; how fast anything is, no test asserts."""

import csv
import math

import pytest

from bdfl.scheduling.exact import exact
from benchmarks.clock import growth_exponent, peak_bytes
from benchmarks.drc_growth import measure_drc
from benchmarks.exact_speed import Case, fit_growth, measure_case, measure_exact
from benchmarks.results import describe_run, tabulate, write_results
from benchmarks.rounds import Family, draw_round

CASES = [
    Case(Family.PAPER, 4, 1e-9, num_rounds=2, repeats=1, asked_ms=1.0),
    Case(Family.CELL, 6, 1e-9, num_rounds=2, repeats=1),
    Case(Family.WIDE, 30, 1e-3, num_rounds=1, repeats=1),
    Case(Family.CAPPED, 30, 1e-3, num_rounds=1, repeats=1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_a_case_reaches_its_gap_and_fills_every_column(case):
    row = measure_case(case, seed=0)
    assert row.clients == case.num_clients
    assert 0.0 <= row.worst_gap <= case.target_gap
    assert 0.0 < row.median_ms <= row.worst_ms
    assert min(row.passes, row.drc_ms, row.peak_mb, row.bytes_per_client) > 0.0


def test_results_become_tables_and_files_with_one_value_per_cell(tmp_path):
    lines: list[str] = []
    results = [*measure_exact(CASES[:2], 0, lines.append), *measure_drc([10, 20], 1, 0, lines.append)]
    assert len(lines) == 2 + 2 * 2
    assert all(tabulate(result).row_count == len(result.cells) for result in results)
    markdown, values = write_results(tmp_path, results, describe_run("python -m benchmarks", 0))
    with values.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(result.cells) * len(result.columns) for result in results)
    assert {row["table"] for row in rows} == {"exact-speed", "exact-cost", "drc"}
    assert all(result.title in markdown.read_text() for result in results)


@pytest.mark.parametrize("family", Family)
def test_a_round_depends_on_seed_family_size_and_number_alone(family):
    first, again, other = (draw_round(family, 8, number, 0) for number in (1, 1, 2))
    assert (first.gain == again.gain).all()
    assert (first.queue == again.queue).all()
    assert not (first.gain == other.gain).any()


@pytest.mark.parametrize("family", [Family.CELL, Family.WIDE])
def test_a_large_round_leaves_a_choice(family):
    for number in range(3):
        share = exact(draw_round(family, 500, number, 0), target_gap=1e-2).selected.mean()
        assert 0.1 <= share <= 0.9


def test_growth_is_fitted_from_a_thousand_clients_on():
    assert growth_exponent([10, 100, 1000], [3.0, 30.0, 300.0]) == pytest.approx(1.0)
    assert math.isnan(growth_exponent([10, 10], [1.0, 2.0]))
    small = measure_case(CASES[1], seed=0)
    assert fit_growth([small, small]) == []


def test_peak_memory_is_what_an_action_held_at_once():
    assert peak_bytes(lambda: bytearray(1_000_000)) == pytest.approx(1_000_000, rel=0.01)
