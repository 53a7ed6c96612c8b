"""Simulation: the checker's numbers, the same draws for all, mining planned or sampled."""

import numpy as np
import pytest

from bdfl.experiment.simulation import draw_mining, draw_run, play, simulate
from bdfl.radio import uplink_rate
from bdfl.records import NOBODY, encode_run
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.problem import Decision, Status
from bdfl.scheduling.queues import squared_queue_bound
from bdfl.scheduling.registry import choose_scheduler, get_scheduler

SMALL = Scenario(name="small", rounds=8)


@pytest.mark.parametrize("choice", ["random", "round-robin", "channel-best", "all", "drc", "exact", "exact-power"])
def test_the_same_scenario_gives_the_same_record(choice):
    scenario = choose_scheduler(SMALL, choice)
    assert encode_run(simulate(scenario)) == encode_run(simulate(scenario))


def test_every_scheduler_sees_the_same_draws():
    seen = []

    def spy(problem) -> Decision:
        seen.append((problem.gain, problem.energy_budget_j, problem.reachable))
        return get_scheduler("drc")(problem)

    draws = draw_run(SMALL)
    for choice in ("drc", "exact"):
        play(choose_scheduler(SMALL, choice), spy, draws)
    first, second = seen[:8], seen[8:]
    assert all(
        np.array_equal(a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_shared_draws_give_what_a_run_of_its_own_gives():
    draws = draw_run(SMALL)
    alone = encode_run(simulate(SMALL))
    play(choose_scheduler(SMALL, "exact"), get_scheduler("exact"), draws)
    assert encode_run(play(SMALL, get_scheduler("drc"), draws)) == alone


@pytest.mark.parametrize("choice", ["random", "round-robin", "channel-best", "all", "drc", "exact"])
def test_drift_and_squared_queues_stay_below_their_bounds_in_every_round(choice):
    record = simulate(choose_scheduler(Scenario(rounds=40), choice))
    assert np.all(record.drift <= record.drift_bound + 1e-9)
    for row in record.rounds:
        bound = squared_queue_bound(row.queue, record.participation_rate, row.selected)
        assert np.all(row.next_queue**2 <= bound + 1e-9)


def test_no_client_exceeds_its_budget():
    record = simulate(Scenario(rounds=20))
    assert np.all(record.energy_j <= record.energy_budget_j * (1 + 1e-9))


def test_gaps_are_proven_on_request():
    assert np.isnan(simulate(SMALL).gap).all()
    proven = simulate(SMALL, prove_gaps=True)
    assert np.all(proven.gap > 0)
    assert simulate(choose_scheduler(SMALL, "exact")).mean_gap <= 1e-9


def test_proving_gaps_changes_nothing_else():
    with_gaps, without = simulate(SMALL, prove_gaps=True), simulate(SMALL)
    assert np.array_equal(with_gaps.delay_s, without.delay_s)
    assert np.array_equal(with_gaps.next_queue, without.next_queue)


def test_every_round_is_reported_as_it_is_played():
    rounds = []
    simulate(SMALL, on_round=lambda row: rounds.append(row.round))
    assert rounds == list(range(1, 9))


def test_sampled_mining_changes_what_happened_and_not_what_was_planned():
    planned = simulate(SMALL)
    sampled = simulate(override_scenario(SMALL, ["mining.mode=sampled"]))
    assert np.array_equal(sampled.mining_hz, planned.mining_hz)
    assert np.array_equal(sampled.planned_mining_s, planned.mining_s)
    assert np.array_equal(sampled.objective, planned.objective)
    assert not np.any(sampled.mining_s == planned.mining_s)
    assert np.allclose(sampled.mining_j / planned.mining_j, (sampled.mining_s / planned.mining_s)[:, np.newaxis])
    assert np.all((sampled.winner >= 0) & (sampled.winner < 8))
    assert np.all(planned.winner == NOBODY)


def test_sampled_mining_has_the_mean_and_the_winners_of_proof_of_work():
    mining_hz = np.array([3e9, 0.0, 1e9])
    draws = [draw_mining(SMALL, round, mining_hz) for round in range(4000)]
    times = np.array([mining_s for mining_s, _ in draws])
    winners = np.bincount([winner for _, winner in draws], minlength=3) / len(draws)
    assert np.mean(times) == pytest.approx(3e7 / 4e9, rel=0.06)
    assert np.std(times) == pytest.approx(3e7 / 4e9, rel=0.08)
    assert winners == pytest.approx([0.75, 0.0, 0.25], abs=0.03)


def test_unreachable_clients_never_train():
    changes = ["geometry.placement=uniform", "geometry.access_range_m=420", "geometry.mobility.model=redrawn"]
    record = simulate(override_scenario(Scenario(rounds=15), changes))
    assert not record.is_connected.all()
    assert np.all(record.num_selected <= record.num_reachable)
    assert np.all(record.num_selected[record.took_place] >= 3)
    few = record.num_reachable < 3
    assert all(record.status[row] is Status.INFEASIBLE for row in np.flatnonzero(few))


CROWDED = override_scenario(
    SMALL,
    [
        "radio.sharing=equal",
        "radio.bandwidth_hz=720e3",
        "geometry.placement=uniform",
        "geometry.access_points_m=[[250, 500], [750, 500]]",
        "energy.budget_j=2",
    ],
)


@pytest.mark.parametrize("choice", ["random", "all", "drc", "exact"])
def test_whoever_uploads_through_an_access_point_has_its_share_of_the_band(choice):
    draws = draw_run(CROWDED)
    record = play(choose_scheduler(CROWDED, choice), get_scheduler(choice), draws)
    assert record.num_infeasible == 0
    for row, state in zip(record.rounds, draws.states, strict=True):
        client = row.slowest
        sharing = row.selected & (state.access_point == state.access_point[client])
        share_hz = 720e3 / np.count_nonzero(sharing)
        rate = uplink_rate(share_hz, row.power_w[[client]], state.gain[[client]], CROWDED.radio.noise_w_per_hz)
        assert row.upload_s == pytest.approx(CROWDED.radio.model_bits / rate[0], rel=1e-12)


def test_a_band_that_nobody_shares_is_a_dedicated_one():
    alone = [f"geometry.access_points_m={[[100.0 * number, 0.0] for number in range(8)]}", "geometry.distance_m=1"]
    shared = simulate(override_scenario(SMALL, ["radio.sharing=equal", *alone]))
    dedicated = simulate(override_scenario(SMALL, alone))
    np.testing.assert_array_equal(shared.selected, dedicated.selected)
    assert shared.delay_s == pytest.approx(dedicated.delay_s, rel=1e-9)
