"""The benchmarks run and say what they mean; how fast anything is, no test asserts."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bdfl.aggregation import get_aggregator
from bdfl.learning.data import load_data
from bdfl.learning.partition import draw_partition
from bdfl.learning.trainer_pool import open_trainer
from bdfl.scenario import Aggregation
from bdfl.scheduling.exact import exact
from benchmarks import hops
from benchmarks.clock import growth_exponent, peak_bytes
from benchmarks.drc_growth import measure_drc
from benchmarks.exact_speed import Case, fit_growth, measure_case, measure_exact
from benchmarks.learning import speed
from benchmarks.learning.cases import digits_scenario, make_workload
from benchmarks.learning.models import build_model
from benchmarks.learning.plain_side import average, make_loop, make_vmap
from benchmarks.learning.sides import Round, Side, is_running, open_side
from benchmarks.learning.workload import Workload, load_workload, save_workload
from benchmarks.ledger import round_cost
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


@pytest.fixture(scope="module")
def digits() -> Workload:
    return make_workload(digits_scenario(0), num_rounds=2)


def test_a_workload_comes_back_from_its_file(tmp_path, digits):
    save_workload(digits, tmp_path / "workload.npz")
    found = load_workload(tmp_path / "workload.npz")
    assert (found.name, found.model, found.learning_rate) == (digits.name, digits.model, digits.learning_rate)
    assert all(
        np.array_equal(getattr(found, name), getattr(digits, name))
        for name in ("inputs", "labels", "test_inputs", "test_labels", "batches", "initial")
    )


def test_the_plain_network_has_the_papers_number_of_parameters(digits):
    weights = np.zeros(1_072_458, np.float32)
    images = np.zeros((1, 32, 32, 3), np.float32)
    build_model(replace(digits, model="paper-cnn", inputs=images, initial=weights))
    with pytest.raises(ValueError, match="1072459 weights given, 1072458 expected"):
        build_model(replace(digits, model="paper-cnn", inputs=images, initial=np.append(weights, 0)))


@pytest.mark.campaign
def test_bdfl_and_plain_pytorch_get_the_same_model_from_the_same_batches(digits):
    scenario = digits_scenario(0)
    data = load_data(scenario.data)
    partition = draw_partition(scenario, data.train_labels, data.num_labels)
    everybody = range(scenario.clients.count)
    plain = [make_loop(digits, everybody), make_vmap(digits, everybody)]
    models = [torch.from_numpy(digits.initial)] * len(plain)
    with open_trainer(scenario, data, partition) as trainer:
        ours = trainer.initial_weights()
        assert (ours == digits.initial).all()
        for round in (1, 2):
            updates = [result.weights for result in trainer.train(ours, round, everybody)]
            ours = get_aggregator(Aggregation())(updates, [1] * len(updates))
            models = [average(train(model, round)) for train, model in zip(plain, models, strict=True)]
    assert not np.allclose(ours, digits.initial, atol=1e-2)
    assert all(np.allclose(model.numpy(), ours, atol=1e-5) for model in models)


@pytest.mark.campaign
def test_sides_take_turns_agree_and_say_what_is_missing(tmp_path):
    sides = (
        speed.bdfl_side("loop", 1, 1),
        speed.plain_side("loop", 2, 1),
        Side("elsewhere", "benchmarks.learning.pfl_side", "usual", 1, 1, environment="nowhere"),
        Side("broken", "benchmarks.learning.nothing", "usual", 1, 1),
    )
    lines: list[str] = []
    case = speed.Case(digits_scenario(0), sides, speed.Plan(0, turns=2, untimed_rounds=0, rounds=2), asked_ms=20.0)
    found = speed.take_turns(case, tmp_path, lines.append)
    ours, plain, elsewhere, broken = speed.speed_rows(found)
    assert (ours.state, plain.state, broken.state) == ("measured", "measured", "failed")
    assert elsewhere.state == f"not installed: {speed.INSTALL}"
    assert any("No module named benchmarks.learning.nothing" in line for line in lines)
    assert (ours.rounds, plain.rounds, plain.speed) == (4, 4, 1.0)
    assert ours.test_loss == pytest.approx(plain.test_loss, rel=1e-5)
    assert all(0.0 < row.median_s <= row.worst_s < row.first_round_s for row in (ours, plain))
    assert all(round.phases_s["schedule"] + round.phases_s["train"] < round.seconds for round in found[0].rounds)


def test_each_bfloat16_side_is_compared_with_the_plain_one_that_uses_as_much():
    def found(side, *seconds):
        return speed.Found(side, turns=[[Round(one, {})] for one in seconds])

    sides = [
        found(speed.bdfl_side("bfloat16", 1, 2), 2.0, 1.0, 4.0),
        found(speed.bdfl_side("bfloat16", 2, 1), 1.0),
        found(speed.plain_side("loop", 1, 2), 9.0, 9.0, 9.0),
        found(speed.plain_side("bfloat16", 1, 2), 2.0, 3.0, 2.0),
        found(speed.plain_side("bfloat16", 2, 1)),
    ]
    text = "bdfl bfloat16 (1 x 2) has 1 times the speed of plain bfloat16, 0.5 to 3 in single turns."
    assert speed.precision_notes(sides) == [text]


def test_what_the_chain_costs_is_told_by_its_parts(tmp_path):
    case = round_cost.Case(digits_scenario(0), rounds=3, workers=1, asked_ms=50.0)
    row, parts = round_cost.measure_case(case, tmp_path)
    assert (row.case, row.members, row.updates) == ("digits", 8, 8.0)
    assert row.training_ms > 0
    assert row.worst_chain_ms >= row.chain_ms > 0
    by_name = {part.part: part for part in parts}
    assert {"signing", "verifying signatures", "mining", "storing", "records", round_cost.OTHER} <= by_name.keys()
    assert all(part.ms > 0 for part in parts)
    assert by_name["signing"].calls >= 8 * 3  # everybody's report or update, and two votes


def test_no_process_of_a_side_outlives_it(tmp_path):
    with open_side(Side("helped", "tests.helped_side", "usual", 2, 1), tmp_path / "workload.npz", tmp_path) as side:
        with side.awake():
            side.play()
        members = side.members()
        assert len(members) >= 2
        assert all(map(is_running, members))
    assert not any(map(is_running, members))


def test_a_run_executes_few_modules_and_local_training_is_near_the_command(coarse_pictures):
    counter = hops.count_calls(1)
    assert {"bdfl.cli.run", "bdfl.protocol.node", "bdfl.ledger.rules"} <= counter.modules
    assert len(counter.modules) <= hops.MOST_MODULES
    assert (counter.way[0], counter.way[-1]) == ("bdfl.cli.run", "bdfl.learning.sgd")
    assert len(counter.way) - 1 <= hops.MOST_HOPS
