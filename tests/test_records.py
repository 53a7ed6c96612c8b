"""Records: columns and rows are the same run, and JSON says all of it."""

import json

import numpy as np
import pytest

from bdfl.experiment import simulate
from bdfl.records import NOBODY, InvalidRecord, RoundRecord, collect_run, encode_run, summarise_run
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.problem import Status


@pytest.fixture(scope="module")
def record():
    return simulate(Scenario(name="small", rounds=6))


@pytest.fixture(scope="module")
def starved():
    """A run in which some rounds are infeasible: budgets are drawn anew and often too small."""
    changes = ['energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.6, 0.4], each_round=true}']
    return simulate(override_scenario(Scenario(name="starved", rounds=30), changes))


def test_a_round_is_a_row_of_every_column(record):
    third = record.round_record(3)
    assert third.round == 3
    assert np.array_equal(third.cpu_hz, record.cpu_hz[2])
    assert third.delay_s == record.delay_s[2]
    assert third.status is record.status[2]


def test_collecting_the_rounds_gives_the_run_back(record):
    again = collect_run(record.rounds, record, record.participation_rate)
    assert encode_run(again) == encode_run(record)


def test_a_round_that_the_run_does_not_have_is_refused(record):
    with pytest.raises(InvalidRecord, match="round: 7 asked for, the run has 1 to 6"):
        record.round_record(7)


def test_a_run_without_rounds_is_refused(record):
    with pytest.raises(InvalidRecord, match="at least one"):
        collect_run([], record, record.participation_rate)


def test_queues_follow_one_another(record):
    assert np.array_equal(record.queue[1:], record.next_queue[:-1])


def test_delay_is_exchange_and_mining(record):
    assert np.allclose(record.delay_s, record.training_s + record.upload_s + record.mining_s)


def test_mean_delay_counts_only_rounds_that_took_place(starved):
    assert 0 < starved.num_infeasible < starved.num_rounds
    assert starved.mean_delay_s == pytest.approx(starved.total_delay_s / (starved.num_rounds - starved.num_infeasible))
    assert summarise_run(starved).infeasible_rounds == starved.num_infeasible


def test_an_infeasible_round_takes_no_time_costs_nothing_and_lets_queues_grow(starved):
    for row in starved.rounds:
        if row.status is not Status.INFEASIBLE:
            assert row.reason is None
            continue
        assert row.reason
        assert not row.took_place
        assert row.delay_s == 0.0
        assert not row.energy_j.any()
        assert not row.selected.any()
        assert row.slowest == NOBODY
        assert np.allclose(row.next_queue, row.queue + starved.participation_rate)


def test_json_has_one_object_per_round_with_the_fields_of_a_round_record(record):
    document = json.loads(encode_run(record))
    assert document["scheduler"] == "drc"
    assert len(document["rounds"]) == 6
    row = document["rounds"][0]
    assert set(RoundRecord.__dataclass_fields__) | {"energy_j", "exchange_s", "delay_s"} == set(row)
    assert row["selected"] == np.flatnonzero(record.selected[0]).tolist()
    assert row["mining_hz"] == record.mining_hz[0].tolist()
    assert row["winner"] is None
    assert row["gap"] is None  # drc proves nothing


def test_json_of_an_infeasible_round_has_a_reason_and_no_objective(starved):
    rows = [row for row in json.loads(encode_run(starved))["rounds"] if row["status"] == "infeasible"]
    assert len(rows) == starved.num_infeasible
    assert all(row["reason"] and row["objective"] is None and row["slowest"] is None for row in rows)


def test_shortfall_is_what_the_worst_served_client_misses(record):
    missed = record.participation_rate - record.selected.mean(axis=0)
    assert record.worst_shortfall == max(missed.max(), 0.0)
