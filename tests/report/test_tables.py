"""Tables: 80 columns, every number there, infeasible rounds shown."""

import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from bdfl.experiment import Interval, compare, simulate
from bdfl.experiment.bounds import bound_long_run
from bdfl.experiment.simulation import decode_problem, solve
from bdfl.report.tables import (
    gap_text,
    interval,
    number,
    tabulate_answer,
    tabulate_bound,
    tabulate_comparison,
    tabulate_numbers,
    tabulate_run,
    tabulate_scenario,
    tabulate_verdicts,
)
from bdfl.scenario import Scenario, describe_scenario, override_scenario


def render(*tables):
    text = StringIO()
    for table in tables:
        Console(width=80, file=text).print(table)
    return text.getvalue()


STARVED = override_scenario(
    Scenario(name="starved", rounds=12),
    ['energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.5, 0.5], each_round=true}'],
)


def test_a_comparison_fits_and_is_not_cut():
    found = compare(Scenario(name="s", rounds=4), num_seeds=2, frontier_tradeoffs=(), workers=1)
    text = render(*tabulate_comparison(found))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for name in ("random", "round-robin", "channel-best", "drc", "exact V=50", "lower bound"):
        assert name in text


def test_infeasible_rounds_are_counted_and_explained():
    found = compare(STARVED, ("drc",), num_seeds=2, frontier_tradeoffs=(), with_bound=False, workers=1)
    count = found.results[0].infeasible_rounds
    assert re.search(rf"drc .* {count} ", render(*tabulate_comparison(found)))
    record = simulate(STARVED)
    first = int(record.round[~record.took_place][0])
    assert f"infeasible: round {first} " in render(*tabulate_run(record))


def test_a_run_fits():
    text = render(*tabulate_run(simulate(Scenario(name="s", rounds=30))))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_many_clients_are_cut_with_a_word():
    record = simulate(override_scenario(Scenario(rounds=2), ["clients.count=50"]))
    assert "30 more clients" in render(*tabulate_run(record))


def test_a_scenario_shows_value_unit_default_and_source():
    text = render(tabulate_scenario("s", describe_scenario(Scenario())))
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"bandwidth_hz\s+180000.0\s+Hz\s+180000.0\s+paper", text)
    assert "[radio.fading]" in text
    assert "calibrated" in text
    assert "…" not in text


def test_an_answer_is_shown_client_by_client():
    client = (
        b'{"queue":0.4,"cycles":3e8,"capacitance":5e-28,"energy_budget_j":0.4,"gain":2.5e-8,"power_w":0.2,'
        b'"model_bits":1e6}'
    )
    head = b'{"min_clients":1,"tradeoff":50,"work_cycles":6.9e8,"bandwidth_hz":18e4,"noise_w_per_hz":1e-16,"clients":['
    problem = decode_problem(head + client + b"]}")
    assert "optimal" in render(tabulate_answer(solve(problem, "exact"), "exact"))


def test_a_bound_is_shown_with_its_error():
    found = bound_long_run(Scenario(name="s", rounds=4))
    text = render(*tabulate_bound(found))
    assert f"{found.bound_s:.5f}" in text
    assert found.confident_s < found.bound_s


def test_verdicts_say_holds_or_fails():
    text = render(tabulate_verdicts([("a", True, "1"), ("b", False, "2")]))
    assert "holds" in text
    assert "FAILS" in text


def test_numbers_do_not_repeat_the_word_above():
    text = render(tabulate_numbers("t", ["data", "n", "x"], [["SVHN", "a", 1.0], ["SVHN", "b", None]]))
    assert text.count("SVHN") == 1


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(np.nan), "-"),
        (number(1.23456, 2, " %"), "1.23 %"),
        (interval(Interval(1.0, 0.25)), "1.00 ± 0.25"),
        (interval(Interval(1.0, float("nan"))), "1.00"),
        (interval(None), "-"),
        (gap_text(0.0), "0"),
        (gap_text(1.5e-7), "1.5e-07"),
    ],
)
def test_numbers_are_shown_short(shown, text):
    assert shown == text
