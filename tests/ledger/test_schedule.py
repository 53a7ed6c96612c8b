"""From the chain's integers to a decision and back: what is planned is valid, and what differs from it not votable."""

import dataclasses

import numpy as np
import pytest

from bdfl.environment import draw_federation, draw_rounds
from bdfl.experiment.simulation import Draws, round_problems
from bdfl.learning.participation import draw_participation
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import prospect_after, settle_round
from bdfl.ledger.chain_params import read_decision, read_params
from bdfl.ledger.errors import BadSchedule, NotVotable
from bdfl.ledger.rules import judge_schedule
from bdfl.ledger.schedule import (
    find_candidates,
    idle_schedule,
    judge_plan,
    plan_round,
    plan_schedule,
    round_problem,
    validate_schedule,
)
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.problem import infeasible_decision, problem_columns
from tests.ledger.small_federation import found_federation, genesis_of, replace, small_scenario
from tests.ledger.test_costs import planned_rounds, prospect_of

SCHEDULERS = ["drc", "exact", "exact-power", "all", "random", "round-robin", "channel-best"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_a_scheduler_plans_is_valid_in_ordinary_and_extreme_rounds(scheduler):
    cache = VerificationCache()
    feasible = 0
    for _, params, prospect, schedule in planned_rounds(60, scheduler):
        validate_schedule(params, prospect, schedule, cache)
        feasible += schedule.is_feasible
    assert feasible > 20


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_round_with_few_or_no_candidates_is_planned_too(scheduler):
    params, prospect, _, cache = drawn(scheduler)
    for num_candidates in range(3):
        candidates = dict(list(prospect.candidates.items())[:num_candidates])
        fewer = dataclasses.replace(prospect, candidates=candidates)
        schedule = plan_round(params, fewer, cache).schedule
        validate_schedule(params, fewer, schedule, cache)
        assert schedule.is_feasible == (num_candidates == 2)
        assert set(schedule.selected) <= set(candidates)


def test_whole_units_break_no_plan_of_devices_as_they_are():
    for instance, params, prospect, schedule in planned_rounds(60, "exact"):
        decision = params.scheduler(round_problem(params, prospect))
        assert schedule.is_feasible == decision.is_feasible, (instance.description, schedule.reason)


def test_the_problem_is_the_scenarios_as_near_as_units_come():
    scenario = small_scenario(6)
    small = found_federation(scenario)
    federation = draw_federation(scenario)
    draws = Draws(federation, draw_participation(scenario, federation), list(draw_rounds(scenario, federation)))
    expected = round_problems(scenario, draws)[0]
    params = small.start().params
    found = round_problem(params, prospect_of(params, np.zeros(6)))
    for name, column in problem_columns(expected).items():
        np.testing.assert_allclose(getattr(found, name), column, rtol=1e-8, err_msg=name)
    for name in ("min_clients", "bandwidth_hz", "noise_w_per_hz", "overhead_s", "round", "seed", "tradeoff"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-8), name
    assert found.work_cycles == pytest.approx(expected.work_cycles, rel=1e-8)


def test_candidates_reported_are_reachable_and_do_not_rest():
    conditions = {client: member.conditions for client, member in enumerate(found_federation().genesis.members)}
    far = replace(conditions[2], is_reachable=False)
    found = find_candidates({3: conditions[3], 1: conditions[1], 2: far}, (0, 0, 0, 7), 7, 1)
    assert dict(found) == {1: conditions[1]}
    assert list(find_candidates({3: conditions[3], 1: conditions[1]}, (0, 0, 0, 7), 8, 1)) == [1, 3]


def test_nobody_rests_where_too_few_would_be_left():
    conditions = {client: member.conditions for client, member in enumerate(found_federation().genesis.members)}
    reported = {client: conditions[client] for client in (0, 1, 3)}
    assert list(find_candidates(reported, (0, 0, 0, 7), 7, 2)) == [0, 1]
    assert list(find_candidates(reported, (0, 0, 0, 7), 7, 3)) == [0, 1, 3]


def drawn(scheduler="drc", num_clients=5, seed=3):
    problem = draw_problem(np.random.default_rng(seed), num_clients, min_clients=2, tradeoff=10.0)
    cache = VerificationCache()
    params = read_params(genesis_of(problem, scheduler), cache)
    prospect = prospect_of(params, problem.queue)
    return params, prospect, plan_round(params, prospect, cache).schedule, cache


def test_frequencies_and_powers_are_rounded_down_within_their_caps():
    params, prospect, schedule, cache = drawn()
    exact = read_decision(schedule)
    shifted = dataclasses.replace(
        exact,
        cpu_hz=np.where(exact.selected, exact.cpu_hz + 0.9, 0.0),
        mining_hz=np.where(exact.mining_hz > 0, exact.mining_hz + 0.9, 0.0),
        power_w=np.where(exact.selected, exact.power_w + 0.9e-6, 0.0),
    )
    assert plan_schedule(params, prospect, shifted, cache)[0] == schedule


def test_what_is_above_zero_and_below_a_unit_becomes_one_unit():
    """Nothing at all would never end: who has all the time in the world may plan less than a unit."""
    params, prospect, schedule, cache = drawn()
    exact = read_decision(schedule)
    slow = dataclasses.replace(exact, cpu_hz=np.where(exact.selected, 0.3, 0.0))
    faint = dataclasses.replace(exact, power_w=np.where(exact.selected, 0.3e-6, 0.0))
    endless = replace(params.genesis.law, max_exchange_ns=2**63 - 1)
    params = dataclasses.replace(params, genesis=replace(params.genesis, law=endless))
    for decision, name in ((slow, "cpu_hz"), (faint, "power_uw")):
        planned = plan_schedule(params, prospect, decision, cache)[0]
        assert planned.is_feasible, planned.reason
        assert set(getattr(planned, name)) == {1}
    idle_miner = dataclasses.replace(exact, mining_hz=np.where(np.arange(5) == 0, 0.3, exact.mining_hz))
    assert plan_schedule(params, prospect, idle_miner, cache)[0].mining_hz[0] == 0


def test_a_power_that_is_whole_stays_whole_through_floats():
    params, _, schedule, _ = drawn()
    powers = [params.genesis.members[client].limits.power_uw for client in schedule.selected]
    assert list(schedule.power_uw) == powers


def test_nobody_trains_where_a_decision_breaks_a_constraint_or_has_no_meaning():
    params, prospect, schedule, cache = drawn()
    decision = read_decision(schedule)
    for values in (10 * decision.mining_hz, np.full(5, np.nan), np.full(5, np.inf), -decision.mining_hz):
        planned = plan_schedule(params, prospect, dataclasses.replace(decision, mining_hz=values), cache)[0]
        assert planned == idle_schedule(1, 5, planned.reason)
        assert "in whole units" in planned.reason
        validate_schedule(params, prospect, planned, cache)


def test_reasons_fit_into_a_block():
    params, prospect, _, cache = drawn()
    decision = infeasible_decision(params.problem, "x" * 1000)
    assert plan_schedule(params, prospect, decision, cache)[0].reason == "x" * 200
    assert plan_schedule(params, prospect, infeasible_decision(params.problem, ""), cache)[0].reason


# Votable


def worse(schedule, nano):
    return replace(schedule, objective_nano=schedule.objective_nano + nano)


def test_an_exact_schedule_may_be_a_millionth_of_v_d_worse_and_twice_that_in_each_attempt():
    params, _, own, _ = drawn("exact")
    delay_ns = 2 * 10**9  # V d is 20
    for attempt, slack in ((1, 20_000), (2, 40_000), (4, 160_000)):
        judge_plan(params, own, worse(own, slack), delay_ns, attempt)
        with pytest.raises(NotVotable, match="own-schedule"):
            judge_plan(params, own, worse(own, slack + 1), delay_ns, attempt)
    judge_plan(params, own, worse(own, -(10**9)), delay_ns, 1)
    judge_plan(params, own, worse(own, 2**62), delay_ns, 10_000)


def test_any_other_schedule_must_be_ones_own_within_a_millionth():
    params, _, own, _ = drawn("drc")
    hertz = own.cpu_hz[0]
    judge_plan(params, own, replace(own, cpu_hz=(hertz + hertz // 10**6, *own.cpu_hz[1:])), 1, 1)
    for changed, rule in (
        (replace(own, cpu_hz=(hertz + hertz // 10**6 + 1, *own.cpu_hz[1:])), "own-cpu-hz"),
        (replace(own, mining_hz=(own.mining_hz[0] * 9 // 10, *own.mining_hz[1:])), "own-mining-hz"),
        (replace(own, power_uw=(own.power_uw[0] - 2, *own.power_uw[1:])), "own-power-uw"),
        (replace(own, selected=own.selected[:-1], cpu_hz=own.cpu_hz[:-1], power_uw=own.power_uw[:-1]), "own-selection"),
    ):
        for attempt in (1, 9):
            with pytest.raises(NotVotable, match=rule):
                judge_plan(params, own, changed, 1, attempt)


def test_small_integers_may_differ_by_one():
    params, _, own, _ = drawn("drc")
    judge_plan(params, own, replace(own, power_uw=(own.power_uw[0] - 1, *own.power_uw[1:])), 1, 1)


@pytest.mark.parametrize("scheduler", ["drc", "exact"])
def test_an_idle_round_is_votable_only_where_ones_own_is_idle(scheduler):
    params, _, own, _ = drawn(scheduler)
    idle, other_idle = idle_schedule(1, 5, "nobody"), idle_schedule(1, 5, "nobody at all")
    judge_plan(params, idle, other_idle, 0, 1)
    with pytest.raises(NotVotable):
        judge_plan(params, own, idle, 1, 1)
    if scheduler == "exact":
        judge_plan(params, idle, own, 0, 1)  # valid, and better than nothing
    else:
        with pytest.raises(NotVotable):
            judge_plan(params, idle, own, 0, 1)


@pytest.mark.parametrize("scheduler", ["drc", "exact"])
def test_a_valid_block_with_a_worse_schedule_is_not_votable(scheduler):
    small = found_federation(small_scenario(5, scheduler))
    state = small.start()
    block = small.block(state, small.body(state))
    judge_schedule(state, block, small.cache)
    slow = replace(block.body.next_schedule, mining_hz=tuple(hz // 2 for hz in block.body.next_schedule.mining_hz))
    try:
        validate_schedule_of(small, state, slow)
    except BadSchedule as refusal:
        slow = replace(slow, objective_nano=refusal.expected)
    with pytest.raises(NotVotable):
        judge_schedule(state, small.remade(block, next_schedule=slow), small.cache)


def validate_schedule_of(small, state, schedule):
    settled = settle_round(state, small.updates(state), small.reports(state), ())
    validate_schedule(state.params, prospect_after(state, settled), schedule, small.cache)
