"""Runs in which clients come and go: nobody away is scheduled, and nobody away falls behind."""

import numpy as np
import pytest

from bdfl.environment import draw_availability
from bdfl.experiment.bounds import bound_path
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.simulation import (
    draw_run,
    play,
    play_rounds,
    round_problems,
    simulate,
    simulate_aggregate,
    stream_run,
)
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records.aggregate_run import summarise_aggregate
from bdfl.scenario import Scenario, load_scenario, override_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.bound import fit_bound
from bdfl.scheduling.checker import find_violations
from bdfl.scheduling.problem import Status
from bdfl.scheduling.registry import choose_scheduler, get_scheduler, scheduler_names

COMING = override_scenario(
    Scenario(name="coming"),
    ["rounds=40", "availability.leave_probability=0.15", "availability.return_probability=0.4"],
)
THERE = np.array(list(draw_availability(COMING)))


@pytest.mark.parametrize("name", scheduler_names())
def test_who_is_away_neither_trains_nor_mines(name):
    scheduler = get_scheduler(name)
    num_played = 0
    for planned in play_rounds(COMING, scheduler, draw_run(COMING)):
        away = ~THERE[planned.problem.round - 1]
        assert find_violations(planned.problem, planned.decision) == []
        assert not planned.decision.selected[away].any()
        assert not planned.decision.mining_hz[away].any()
        assert planned.decision.is_feasible == (np.count_nonzero(~away) >= 3)
        num_played += planned.decision.is_feasible
        planned.settle(planned.decision.selected)
    assert num_played >= 30


@pytest.mark.parametrize("choice", ["drc", "exact", "round-robin"])
def test_queues_grow_by_the_rate_of_those_there_and_stand_still_while_away(choice):
    draws = draw_run(COMING)
    record = play(choose_scheduler(COMING, choice), get_scheduler(choice), draws)
    owed = np.where(THERE, draws.participation_rate, 0.0)
    np.testing.assert_array_equal(record.next_queue, np.maximum(record.queue + owed - record.selected, 0.0))
    assert (record.next_queue == record.queue)[~THERE].all()
    assert np.all(record.drift <= record.drift_bound + 1e-9)


def test_the_baselines_pair_with_the_very_run_of_drc():
    draws = draw_run(COMING)
    drc, random = (play(choose_scheduler(COMING, name), get_scheduler(name), draws) for name in ("drc", "random"))
    assert random.num_selected.tolist() == drc.num_selected.tolist()


def test_a_client_owes_its_rate_of_the_rounds_in_which_it_is_there():
    draws = draw_run(COMING)
    record = play(choose_scheduler(COMING, "all"), get_scheduler("all"), draws)
    assert record.participation_rate == pytest.approx(draws.participation_rate * THERE.mean(axis=0))
    took = THERE & record.took_place[:, None]
    np.testing.assert_array_equal(record.selected, took)
    assert record.num_reachable.tolist() == THERE.sum(axis=1).tolist()


def test_an_aggregated_run_owes_the_same():
    eager = override_scenario(COMING, ["participation.rates=0.9"])
    assert summarise_aggregate(simulate_aggregate(eager)).worst_shortfall == simulate(eager).worst_shortfall > 0


def test_a_round_without_enough_clients_there_is_infeasible():
    scenario = override_scenario(COMING, ["availability.return_probability=0.02"])
    record = simulate(scenario)
    few = np.array(list(draw_availability(scenario))).sum(axis=1) < 3
    assert [status is Status.INFEASIBLE for status in record.status] == few.tolist()
    assert few.any()


def test_no_run_is_faster_than_the_bound_of_its_rounds_and_participation_allows():
    draws = draw_run(COMING)
    problems = round_problems(COMING, draws)
    bound = fit_bound(problems, draws.participation_rate * THERE.mean(axis=0))
    for choice in ("all", "drc", "exact"):
        record = play(choose_scheduler(COMING, choice), get_scheduler(choice), draws)
        assert np.mean(record.delay_s) >= bound.for_participation(record.participation) - 1e-12
    served = play(choose_scheduler(COMING, "all"), get_scheduler("all"), draws)
    assert served.worst_shortfall == 0.0
    assert bound_path(COMING, draws).bound_s <= served.mean_delay_s


def test_drawing_again_gives_the_same_presence():
    for one, other in zip(draw_run(COMING).states, stream_run(COMING).states, strict=True):
        np.testing.assert_array_equal(one.available, other.available)


TRACE = "client,from,to\n" + "".join(f"{client},1,6\n" for client in range(5)) + "5,1,1\n5,4,6\n6,1,2\n7,1,3\n7,5,6\n"


def test_on_a_chain_who_is_away_sends_no_report_and_is_scheduled_as_in_a_simulation(tmp_path):
    (tmp_path / "there.csv").write_text(TRACE)
    changes = ["rounds=6", "learning.gradient_every=0", f"availability.trace={tmp_path / 'there.csv'}"]
    scenario = load_scenario(find_scenario("quickstart"), changes)
    federated = prepare_run(scenario)
    with (
        create_run_folder(tmp_path / "run", scenario) as folder,
        open_trainer(scenario, federated.data, federated.partition, workers=1) as trainer,
    ):
        record, _ = train_run(federated, trainer, folder)
    simulated = play(scenario, get_scheduler("drc"), federated.draws)
    np.testing.assert_array_equal(record.selected, simulated.selected)
    assert record.next_queue == pytest.approx(simulated.next_queue, abs=1e-8)
    assert record.delay_s == pytest.approx(simulated.delay_s, rel=1e-6)
    there = np.array([state.available for state in federated.draws.states])
    assert not (record.mining_hz > 0)[~there].any()
    with ChainStore.open(tmp_path / "run" / "chain") as chain:
        for round in range(2, 7):  # reported in the block before
            reporters = {signed.report.client for signed in chain.block(round - 1).body.reports}
            assert reporters == set(np.flatnonzero(there[round - 1]))
