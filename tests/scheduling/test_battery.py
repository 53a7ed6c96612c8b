"""Batteries: their conservation law, the scheduler made for them, and its dual bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bdfl.errors import InvalidProblem
from bdfl.experiment.bounds import bound_path
from bdfl.experiment.simulation import Draws, draw_run, play, play_rounds, round_problems
from bdfl.gym import SchedulingEnv
from bdfl.ledger.genesis import physics_of
from bdfl.scenario import ScenarioError, load_scenario, scenario_digest
from bdfl.scheduling.battery import battery, battery_bound
from bdfl.scheduling.conformance import check_scheduler, draw_problem
from bdfl.scheduling.problem import Battery, restrict_problem
from bdfl.scheduling.registry import find_scheduler, get_scheduler

ON_BATTERIES = ["energy.horizon=run", "clients.count=5", "clients.min_selected=2", "participation.mean=0.5"]
ROUNDING = 1e-9


def on_batteries(rounds, *changes):
    return load_scenario("paper-cifar10", [*ON_BATTERIES, f"rounds={rounds}", *changes])


def received_j(draws):
    """Energy received up to and including each round, (rounds, clients)."""
    return np.cumsum([state.energy_budget_j for state in draws.states], axis=0)


@given(
    incomes=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=30),
    share=st.floats(0.0, 1.0),
    capacity_j=st.floats(0.1, 20.0),
)
def test_energy_received_is_spent_held_or_lost(incomes, share, capacity_j):
    held = Battery(charge_j=np.zeros(1), capacity_j=np.array([capacity_j]), income_j=np.zeros(1))
    spent_j = lost_j = 0.0
    for income_j in incomes:
        before_j = held.charge_j[0]
        held = held.receive(np.array([income_j]))
        lost_j += before_j + income_j - held.charge_j[0]
        energy_j = share * held.charge_j
        spent_j += energy_j[0]
        held = held.spend(energy_j)
        assert 0.0 <= held.charge_j[0] <= capacity_j
    assert lost_j >= -1e-12
    assert sum(incomes) == pytest.approx(spent_j + lost_j + held.charge_j[0], abs=1e-9)


@pytest.mark.parametrize("name", ["battery", "exact", "drc", "steady", "channel-best:frequencies=best", "random"])
def test_a_run_conserves_the_energy_of_every_battery(name):
    scenario = on_batteries(12, "energy.charge_j=0.3", "energy.capacity_j=1.1")
    draws = draw_run(scenario)
    record = play(scenario, find_scheduler(name), draws)
    charge_j = np.full(5, 0.3)
    for row, state in enumerate(draws.states):
        charge_j = np.minimum(charge_j + state.energy_budget_j, 1.1)
        np.testing.assert_allclose(record.energy_budget_j[row], charge_j, rtol=1e-12)
        assert np.all(record.energy_j[row] <= record.energy_budget_j[row] * (1 + ROUNDING))
        charge_j = np.maximum(charge_j - record.energy_j[row], 0.0)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    name=st.sampled_from(["battery", "battery", "exact", "drc"]),
    budget=st.sampled_from(
        [0.4, '{distribution="uniform", low=0.3, high=1.0, each_round=true}', "[0.3,0.5,0.4,1.0,0.6]"]
    ),
    fading=st.sampled_from(["rician", "rayleigh"]),
)
def test_nobody_has_spent_more_than_it_received_at_any_time(seed, name, budget, fading):
    scenario = on_batteries(6, f"seed={seed}", f"energy.budget_j={budget}", f"radio.fading.kind={fading}")
    draws = draw_run(scenario)
    record = play(scenario, get_scheduler(name), draws)
    assert np.all(np.cumsum(record.energy_j, axis=0) <= received_j(draws) * (1 + ROUNDING))


def test_a_budget_of_rounds_is_a_battery_that_keeps_nothing():
    """With a capacity of one income, what is not spent is lost: the paper's C3."""
    rounds = on_batteries(8, "energy.horizon=round")
    run = on_batteries(8, "energy.capacity_j=0.4")
    for name in ("exact", "drc", "channel-best"):
        kept, budgeted = (play(one, get_scheduler(name), draw_run(one)) for one in (run, rounds))
        np.testing.assert_array_equal(kept.selected, budgeted.selected)
        np.testing.assert_allclose(kept.delay_s, budgeted.delay_s, rtol=1e-9)


def test_saving_energy_for_training_is_faster_than_spending_it_at_once():
    scenario = on_batteries(40)
    draws = draw_run(scenario)
    saving = play(scenario, battery, draws)
    spending = play(scenario, get_scheduler("exact"), draws)
    bound_s = bound_path(scenario, draws).bound_s
    assert saving.worst_shortfall <= 0.02
    assert bound_s <= saving.mean_delay_s < 0.98 * spending.mean_delay_s


def test_the_bound_holds_for_every_schedule_on_batteries_at_any_prices():
    scenario = on_batteries(10, "participation.rates=[0.2,0.2,0.2,0.2,0.2]")
    draws = draw_run(scenario)
    bound_s = bound_path(scenario, draws).bound_s
    for name in ("battery", "exact", "drc", "channel-best", "all"):
        record = play(scenario, get_scheduler(name), draws)
        if record.worst_shortfall == 0.0:
            assert record.mean_delay_s >= bound_s * (1 - ROUNDING)
    per_round_s = bound_path(
        on_batteries(10, "energy.horizon=round", "participation.rates=[0.2,0.2,0.2,0.2,0.2]"), draws
    ).bound_s
    assert bound_s < per_round_s


def test_the_bound_lowers_rates_that_a_client_cannot_attain():
    """Who has no energy, ever, cannot take part: the bound is that of the others, and no schedule is below it."""
    scenario = on_batteries(10, "energy.budget_j=[0.4,0.0,0.4,0.4,0.4]", "participation.rates=[0.2,0.2,0.2,0.2,0.2]")
    draws = draw_run(scenario)
    path = bound_path(scenario, draws)
    assert path.bound_s <= play(scenario, battery, draws).mean_delay_s
    assert path.bound_s <= path.whole_s
    assert np.isnan(path.attained_s)


def test_a_bound_needs_batteries():
    scenario = on_batteries(2, "energy.horizon=round")
    problems = round_problems(scenario, draw_run(scenario))
    with pytest.raises(InvalidProblem, match="battery: none given"):
        battery_bound(problems, problems, np.full(5, 0.5))


def test_a_part_of_a_problem_has_no_batteries():
    problem = draw_problem(np.random.default_rng(0), 3)
    held = Battery(charge_j=np.ones(3), capacity_j=np.ones(3), income_j=np.ones(3))
    assert restrict_problem(replace(problem, battery=held), np.array([0, 2])).battery is None


def test_it_passes_the_conformance_test_with_and_without_batteries():
    report = check_scheduler(battery, num_rounds=20, max_clients=8)
    assert report.ok, str(report)


def test_without_batteries_it_is_steady():
    scenario = on_batteries(4, "energy.horizon=round")
    alone, other = (play(scenario, get_scheduler(name), draw_run(scenario)) for name in ("battery", "steady"))
    np.testing.assert_array_equal(alone.selected, other.selected)
    np.testing.assert_array_equal(alone.delay_s, other.delay_s)


def test_who_is_away_owes_no_participation():
    """A client that is there for the second half alone is served in half as many rounds as it would be."""
    scenario = on_batteries(24)
    draws = draw_run(scenario)
    away = np.arange(5) == 0
    states = [
        replace(one, available=~away, reachable=one.reachable & ~away) if one.round <= 12 else one
        for one in draws.states
    ]
    trained = np.zeros(5)
    for planned in play_rounds(scenario, battery, Draws(draws.federation, draws.participation_rate, states)):
        planned.settle(planned.decision.selected)
        trained += planned.decision.selected
    owed = draws.participation_rate * np.where(away, 12, 24)
    np.testing.assert_allclose(trained, owed, atol=1.0)


@pytest.mark.parametrize("name", ["battery", "exact", "channel-best"])
def test_who_shares_spectrum_lives_on_the_same_batteries(name):
    scenario = on_batteries(6, "radio.sharing=equal", "radio.bandwidth_hz=720e3")
    draws = draw_run(scenario)
    record = play(scenario, get_scheduler(name), draws)
    assert record.took_place.any()
    assert np.all(np.cumsum(record.energy_j, axis=0) <= received_j(draws) * (1 + ROUNDING))


def test_a_client_without_income_never_trains_nor_mines():
    scenario = on_batteries(4, "energy.budget_j=[0.4,0.0,0.4,0.4,0.4]")
    record = play(scenario, battery, draw_run(scenario))
    assert record.took_place.all()
    assert np.all(record.energy_j[:, 1] == 0.0)


def test_an_agent_lives_on_the_same_batteries():
    scenario = on_batteries(5)
    env = SchedulingEnv(scenario)
    env.reset(seed=scenario.seed)
    for _ in range(5):
        env.play(get_scheduler("drc")(env.problem))
    simulated = play(scenario, get_scheduler("drc"), draw_run(scenario))
    np.testing.assert_array_equal(env.record.energy_budget_j, simulated.energy_budget_j)
    np.testing.assert_array_equal(env.record.delay_s, simulated.delay_s)


def test_sampled_mining_never_leaves_a_battery_below_empty():
    scenario = on_batteries(8, "mining.mode=sampled", "mining.miss_probability=0.3")
    record = play(scenario, get_scheduler("exact"), draw_run(scenario))
    assert np.all(record.energy_budget_j >= 0.4)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("energy.horizon=run", 'energy.horizon: "run" given, allowed is round on a chain'),
        ("energy.price=2", "energy.price: 2.0 given, allowed is 0 on a chain"),
    ],
)
def test_a_chain_refuses_what_its_rules_do_not_know(change, line):
    scenario = load_scenario("minimal", [change])
    with pytest.raises(ScenarioError, match=line):
        physics_of(scenario)


def test_keys_of_batteries_need_a_horizon():
    with pytest.raises(
        ScenarioError, match=r'energy.charge_j: 1.0 given, allowed is no such key where energy.horizon is "ro'
    ):
        load_scenario("minimal", ["energy.charge_j=1.0"])


def test_a_price_of_the_scenario_saves_energy():
    free, dear = (load_scenario("minimal", ["scheduler.name=exact", f"energy.price={price}"]) for price in (0, 50))
    spent = [play(one, get_scheduler("exact"), draw_run(one)) for one in (free, dear)]
    assert spent[1].energy_j.sum() < 0.8 * spent[0].energy_j.sum()
    assert np.nanmax(spent[1].gap) <= 1e-9
    assert scenario_digest(free) == scenario_digest(load_scenario("minimal", ["scheduler.name=exact"]))
