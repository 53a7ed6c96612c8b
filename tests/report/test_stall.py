"""The figure of the stall shows what it says: F stands still, and the optimum is elsewhere and faster."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.scenario import Scenario
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.drc import drc
from bdfl.scheduling.queues import next_queue
from docs.figures.make_stall import STARTS_HZ, best_frequencies, draw_stall, trace_alternation

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.fixture(scope="module")
def problem():
    return runpy.run_path(str(FIGURES / "make_stall.py"))["stall_problem"]()


@pytest.mark.parametrize("start_hz", STARTS_HZ)
def test_the_alternation_stays_wherever_it_starts(problem, start_hz):
    trace = trace_alternation(problem, start_hz, 30)
    np.testing.assert_allclose(trace.mining_hz, start_hz, rtol=1e-12)
    np.testing.assert_allclose(trace.delay_s, trace.delay_s[0], rtol=1e-12)


def test_the_optimum_for_the_same_set_is_feasible_elsewhere_and_four_percent_faster(problem):
    traces = [trace_alternation(problem, start_hz) for start_hz in STARTS_HZ]
    decision = best_frequencies(problem, traces[0].selected)
    np.testing.assert_array_equal(decision.selected, traces[0].selected)
    assert find_violations(problem, decision) == []
    assert np.ptp(decision.mining_hz) > 2e9
    assert evaluate(problem, decision).delay_s < 0.96 * min(trace.delay_s[-1] for trace in traces)


def test_over_a_whole_run_the_stall_costs_two_to_five_percent():
    queue, gains = np.zeros(8), []
    for problem in round_problems(Scenario(), draw_run(Scenario())):
        known = replace(problem, queue=queue)
        decision = drc(known)
        best_s = evaluate(known, best_frequencies(known, decision.selected)).delay_s
        gains.append(100 * (1 - best_s / evaluate(known, decision).delay_s))
        queue = next_queue(queue, known.participation_rate, decision.selected)
    assert min(gains) > 1.9
    assert max(gains) < 5.3
    assert np.mean(gains) == pytest.approx(4.4, abs=0.05)


def test_the_picture_holds_the_numbers_of_every_curve(problem):
    sheet = draw_stall(problem).sheets[0]
    curves = {row[0] for row in sheet.rows}
    assert curves == {"optimum", *(f"start {start_hz:g} Hz" for start_hz in STARTS_HZ)}


def test_the_documented_picture_is_there_and_light():
    assert (FIGURES / "stall.svg").is_file()
    assert (FIGURES / "stall.png").stat().st_size < 200_000
