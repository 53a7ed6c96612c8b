"""What the child process works out is what the library's own functions say; its death costs one answer."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bdfl.audit.influence import leave_out
from bdfl.audit.lineage import trace_model
from bdfl.environment import draw_federation, draw_rounds
from bdfl.experiment.comparison import compare
from bdfl.experiment.simulation import simulate, solve
from bdfl.experiment.statistics import mean_interval
from bdfl.explorer import BadRequest, Busy, NotHere
from bdfl.explorer.documents import ModelDocument, WhatIfDocument, WhatIfSettings
from bdfl.explorer.library import Library, open_library
from bdfl.explorer.worker import SWEPT_SEEDS
from bdfl.explorer.worker_client import FindIntervals, TraceModel, WorkerClient
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records.parquet import write_parquet
from bdfl.scenario import dump_scenario
from tests.browser.folders import RunWriter, change_update, example_scenario, tamper

INTERVALS = list[tuple[float, float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunWriter(tmp_path_factory.mktemp("helper") / "run").finish()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("helper") / "record"
    path.mkdir()
    scenario = example_scenario()
    write_parquet(simulate(scenario), None, path)
    (path / "scenario.toml").write_text(dump_scenario(scenario))
    return path


@pytest.fixture(scope="module")
def library(run: Path, record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    broken = tamper(run, tmp_path_factory.mktemp("helper") / "broken", 5, change_update)
    with open_library([run, record, broken]) as library:
        yield library


def check_what_if(library: Library, answer: WhatIfDocument, run: int) -> None:
    problem, _ = library._run(run).problem_at(answer.height)
    for choice in answer.choices:
        expected = solve(problem, choice.scheduler)
        assert choice.selected == expected.selected
        assert choice.objective == expected.objective
        assert choice.energy_j == expected.energy_j
        assert choice.delay_s == pytest.approx(choice.training_s + choice.upload_s + choice.mining_s)


@pytest.mark.parametrize("run_number", [0, 1])
def test_what_if_says_what_solve_says(library: Library, run_number: int) -> None:
    answer = library.what_if(run_number, 4, WhatIfSettings())
    check_what_if(library, answer, run_number)
    assert answer.recorded is not None
    assert answer.certificate.bound is not None
    rivals = [choice for choice in answer.choices if choice.scheduler != "exact-power"]  # whose powers are its own
    best = min(choice.objective for choice in rivals if choice.objective is not None)
    assert answer.certificate.bound <= best + 1e-9 * abs(best)


def test_the_recorded_decision_costs_what_the_chain_says(library: Library) -> None:
    for height in (1, 4, 12):
        block, answer = library.block(0, height), library.what_if(0, height, WhatIfSettings())
        assert answer.recorded is not None
        assert block.schedule is not None
        assert answer.recorded.selected == block.schedule.selected
        assert answer.recorded.objective == pytest.approx(block.schedule.objective, abs=1e-8)
        assert block.modelled is not None
        assert answer.recorded.delay_s == pytest.approx(block.modelled.delay_s, abs=1e-8)
        np.testing.assert_allclose(answer.recorded.energy_j, block.modelled.energy_j, atol=1e-11)


def test_more_budget_and_bandwidth_never_cost_time(library: Library) -> None:
    plain = library.what_if(0, 4, WhatIfSettings())
    rich = library.what_if(0, 4, WhatIfSettings(budget_scale=4.0, bandwidth_hz=2 * plain.problem.bandwidth_hz))
    before = {choice.scheduler: choice for choice in plain.choices}
    for choice in rich.choices:
        if choice.scheduler in ("exact", "all"):
            assert choice.objective is not None
            assert choice.objective <= (before[choice.scheduler].objective or np.inf) + 1e-9


@pytest.mark.parametrize(
    "settings",
    [
        WhatIfSettings(tradeoff=0.0),
        WhatIfSettings(budget_scale=1e9),
        WhatIfSettings(client=99, gain_db=-80.0),
        WhatIfSettings(client=1),
        WhatIfSettings(gain_db=-80.0),
        WhatIfSettings(bandwidth_hz=-1.0),
    ],
)
def test_settings_outside_their_limits_are_refused(library: Library, settings: WhatIfSettings) -> None:
    with pytest.raises(BadRequest):
        library.what_if(0, 4, settings)


def test_lineage_is_that_of_the_audit(library: Library, run: Path) -> None:
    page = library.model(0, 9, without=1, other=4)
    with ChainStore.open(run / "chain", read_only=True) as chain:
        trace, without = trace_model(chain, 9), leave_out(chain, 1, block=9)
    assert page.model == trace.model
    assert [(one.client, one.weight, one.num_blocks) for one in page.contributions] == [
        (one.client, one.weight, one.num_blocks) for one in trace.contributions
    ]
    assert page.without is not None
    assert page.without.distance == without.distance
    assert page.without.changed_in == list(without.changed_in)
    assert [parent.height for parent in page.parents] == [*range(9, 0, -1), 0]
    assert page.compare is not None
    assert page.compare.distance == pytest.approx(
        np.sqrt(sum(tensor.distance**2 for tensor in page.compare.tensors)), rel=1e-6
    )


def test_places_are_those_that_were_drawn(library: Library) -> None:
    scenario = example_scenario()
    federation = draw_federation(scenario)
    states = list(draw_rounds(scenario, federation))
    page = library.network(0, 3)
    assert page.has_positions
    found = [(client.x_m, client.y_m) for client in page.clients]
    np.testing.assert_allclose(found, states[2].position_m, atol=0.006)
    gains = [client.gain_db for client in page.clients]
    np.testing.assert_allclose(gains, 10 * np.log10(states[2].gain), atol=0.006)


def test_a_record_tells_the_same_rounds_as_its_table(library: Library) -> None:
    record = simulate(example_scenario())
    rounds = library.rounds(1)
    np.testing.assert_allclose(rounds.delay_s, record.delay_s, rtol=1e-5)
    np.testing.assert_allclose(rounds.mean_queue, record.next_queue.mean(axis=1), rtol=1e-5)
    counts = msgspec.json.decode(rounds.clients.count)
    np.testing.assert_array_equal(counts, np.cumsum(record.delivered, axis=0))
    overview = library.overview(1)
    assert overview.kind == "record"
    assert overview.summary.energy_use == pytest.approx(record.mean_energy_use, rel=1e-5)
    with pytest.raises(NotHere):
        library.block(1, 1)


def test_a_record_names_the_clients_whose_updates_are_missing(tmp_path: Path) -> None:
    record = simulate(example_scenario())
    delivered = record.delivered.copy()
    delivered[1:3] = False
    write_parquet(replace(record, delivered=delivered), None, tmp_path)
    with open_library([tmp_path]) as library:
        rows = {row.height: row for row in library.blocks(0, 1, 3).blocks}
        for height, row in rows.items():
            chosen = np.flatnonzero(record.selected[height - 1]).tolist()
            assert (row.trained, row.missing) == (([], chosen) if height > 1 else (chosen, []))
        missed = [library.client(0, number).num_missed for number in range(record.num_clients)]
    np.testing.assert_array_equal(missed, record.selected[1:3].sum(axis=0))


def test_the_law_finds_the_same_block_broken(library: Library) -> None:
    until_s = time.monotonic() + 240
    for run, is_valid in ((0, True), (2, False)):
        found = library.verify(run)
        while found.state == "computing" and time.monotonic() < until_s:
            time.sleep(0.05)
            found = library.verify(run)
        assert found.is_valid is is_valid
        if not is_valid:
            assert found.failure is not None
            assert found.failure.height == library.overview(run).problems[0].height == 5


def test_differences_are_paired_by_round(library: Library) -> None:
    found = library.compare()
    one = next(row for row in found.paired if (row.a, row.b, row.metric) == (0, 1, "delay_s"))
    differences = np.subtract(library.rounds(0).delay_s, library.rounds(1).delay_s)
    expected = mean_interval(differences)
    assert one.n == 12
    assert one.mean == pytest.approx(expected.mean, rel=1e-4)
    assert one.half_width == pytest.approx(expected.half_width, rel=1e-4)


def test_the_death_of_the_child_costs_one_answer_at_most(run: Path) -> None:
    worker = WorkerClient()
    request = FindIntervals(differences=[[1.0, 2.0]])
    try:
        assert worker.ask(request, INTERVALS)[0][0] == 1.5
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        for _ in range(2):
            try:
                assert worker.ask(request, INTERVALS)[0][0] == 1.5
            except Busy:
                continue
        assert worker.ask(request, INTERVALS)[0][0] == 1.5
        with pytest.raises(Busy, match="no answer within"):
            worker.ask(TraceModel(chain=str(run / "chain"), height=9, without=None, other=None), ModelDocument, 0.0)
        with pytest.raises(NotHere):
            worker.ask(TraceModel(chain=str(run / "chain"), height=99, without=None, other=None), ModelDocument)
    finally:
        worker.close()
    assert worker.pid is None


def test_the_frontier_of_whole_runs_is_what_playing_one_of_its_points_gives(library: Library) -> None:
    deadline_s = time.monotonic() + 240
    while (found := library.frontier(1)).state == "computing":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert found.state == "done"
    assert {one.scheduler for one in found.points} == {"drc", "exact"}
    point = next(one for one in found.points if one.scheduler == "drc")
    scenario = msgspec.structs.replace(example_scenario(), rounds=found.rounds)
    again = compare(
        scenario,
        ("drc",),
        num_seeds=SWEPT_SEEDS,
        frontier_tradeoffs=(point.tradeoff,),
        with_bound=False,
        workers=1,
    )
    [same] = [one for one in again.frontier if one.tradeoff == point.tradeoff]
    assert (point.delay_s, point.shortfall) == pytest.approx((same.delay_s.mean, same.shortfall.mean))
