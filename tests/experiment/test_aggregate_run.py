"""Runs of very many clients: the same numbers as of any run, in memory and output that do not grow with them."""

import json

import numpy as np
import pytest

from bdfl.environment import DrawnRounds, draw_federation, draw_rounds
from bdfl.experiment.run_folder import write_record
from bdfl.experiment.simulation import MAX_KEPT_CLIENTS, is_aggregated, simulate, simulate_aggregate
from bdfl.records import encode_aggregate, encode_run, summarise_aggregate, summarise_run
from bdfl.records.aggregate_run import AggregateRound, spread_clients
from bdfl.report.tables import tabulate_crowd
from bdfl.scenario import Scenario, load_scenario, override_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import choose_scheduler

SMALL = Scenario(name="small", rounds=8)
MOVING = override_scenario(
    SMALL,
    [
        "geometry.mobility.model=random-waypoint",
        "geometry.placement=uniform",
        'energy.budget_j={distribution="uniform", low=0.0, high=0.8, each_round=true}',
        "mining.mode=sampled",
    ],
)
STARVED = override_scenario(SMALL, ["energy.budget_j=0.001"])


@pytest.mark.parametrize("scenario", [SMALL, MOVING, STARVED], ids=["small", "moving", "starved"])
@pytest.mark.parametrize("choice", ["drc", "random", "exact"])
def test_sums_are_those_of_the_run_that_keeps_everything(scenario, choice):
    chosen = choose_scheduler(scenario, choice)
    whole, crowd = simulate(chosen), simulate_aggregate(chosen)
    kept, summed = summarise_run(whole), summarise_aggregate(crowd)
    for name in kept.__struct_fields__:
        assert getattr(summed, name) == pytest.approx(getattr(kept, name), rel=1e-12, nan_ok=True), name
    totals = crowd.clients
    assert np.array_equal(totals.participation, whole.participation)
    assert np.array_equal(totals.queue, whole.next_queue[-1])
    assert np.allclose(totals.mining_j, whole.mining_j.sum(axis=0), rtol=1e-12)
    assert np.array_equal(totals.peak_energy_use, whole.share_of_budget(whole.energy_j).max(axis=0))
    for row, record in zip(crowd.rounds, whole.rounds, strict=True):
        assert row.num_selected == np.count_nonzero(record.selected)
        for name in ("delay_s", "objective", "mining_s", "lyapunov", "iterations", "status", "reason"):
            assert getattr(row, name) == pytest.approx(getattr(record, name), nan_ok=True)


def test_rounds_drawn_as_they_are_played_are_the_rounds_drawn_before():
    federation = draw_federation(MOVING)
    kept, streamed = list(draw_rounds(MOVING, federation)), DrawnRounds(MOVING, federation)
    assert len(streamed) == len(kept)
    for other in (list(streamed), [streamed[place] for place in range(8)], streamed[:], streamed[-8:]):
        for one, two in zip(kept, other, strict=True):
            assert one.round == two.round
            for name in ("gain", "energy_budget_j", "reachable", "position_m"):
                assert np.array_equal(getattr(one, name), getattr(two, name))
    with pytest.raises(IndexError):
        streamed[8]


def test_a_run_is_a_crowd_beyond_what_anybody_reads():
    assert not is_aggregated(override_scenario(SMALL, [f"clients.count={MAX_KEPT_CLIENTS}"]))
    assert is_aggregated(load_scenario(find_scenario("million")))


def test_json_and_tables_do_not_grow_with_the_clients():
    crowds = [
        simulate_aggregate(override_scenario(SMALL, ["rounds=2", f"clients.count={count}"])) for count in (100, 30_000)
    ]
    lengths = [len(encode_aggregate(crowd)) for crowd in crowds]
    assert max(lengths) < 10_000
    assert lengths[1] < 1.2 * lengths[0]
    document = json.loads(encode_aggregate(crowds[1]))
    assert document["num_clients"] == 30_000
    assert [row["round"] for row in document["rounds"]] == [1, 2]
    assert [table.row_count for table in tabulate_crowd(crowds[0])] == [
        table.row_count for table in tabulate_crowd(crowds[1])
    ]


def test_the_spread_of_clients_is_in_order_and_around_their_mean():
    for row in spread_clients(simulate_aggregate(MOVING).clients):
        assert row.least <= row.five_percent <= row.median <= row.ninety_five_percent <= row.most
        assert row.least <= row.mean <= row.most


def test_files_have_a_row_per_round_and_a_row_per_client(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    crowd = simulate_aggregate(STARVED)
    scenario, rounds, clients = write_record(STARVED, crowd, tmp_path)
    assert load_scenario(scenario) == STARVED
    table = parquet.read_table(rounds)
    assert table.column_names == list(AggregateRound.__struct_fields__)
    assert table.num_rows == 8
    assert table["status"].to_pylist() == ["infeasible"] * 8
    assert table["objective"].null_count == 8
    assert parquet.read_table(clients)["queue"].to_pylist() == crowd.clients.queue.tolist()


def test_playing_once_keeps_no_round_and_changes_no_byte():
    from bdfl.experiment.simulation import draw_run, play
    from bdfl.scheduling.registry import get_scheduler

    assert encode_run(simulate(MOVING)) == encode_run(play(MOVING, get_scheduler("drc"), draw_run(MOVING)))
