"""The decimal twin of the cost model: it agrees with the float one, and with numbers worked out by hand."""

import dataclasses
import math
from decimal import getcontext, localcontext
from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.ledger.block import Schedule
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import ChainParams, read_decision, read_params
from bdfl.ledger.costs import assess_schedule, slowest_exchange_ns
from bdfl.ledger.schedule import Prospect, find_candidates, idle_schedule, plan_round, round_problem
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import draw_instances
from tests.ledger.small_federation import genesis_of, replace
from tests.oracles.worked_round import PROBLEM

NANO = 10**9
MAX_QUEUE = 10**17  # longer ones, summed, do not fit into 64 bits


def prospect_of(params: ChainParams, queue) -> Prospect:
    """Round 1 of the genesis, with queues of this length."""
    members = params.genesis.members
    conditions = {client: member.conditions for client, member in enumerate(members)}
    queue_nano = [min(round(float(length) * NANO), MAX_QUEUE) for length in queue]
    return Prospect(params.chain, 1, queue_nano, find_candidates(conditions, [0] * len(members), 1, 1), None)


@cache
def planned_rounds(num_rounds: int, scheduler: str):
    """Random rounds, ordinary and extreme, in integers: parameters, prospect and what the scheduler makes of them."""
    return list(_plan_rounds(num_rounds, scheduler))


def _plan_rounds(num_rounds: int, scheduler: str):
    for instance in draw_instances(np.random.default_rng(7), num_rounds, max_clients=10):
        cache = VerificationCache()
        params = read_params(genesis_of(instance.problem, scheduler), cache)
        prospect = prospect_of(params, instance.problem.queue)
        yield instance, params, prospect, plan_round(params, prospect, cache).schedule


@pytest.mark.parametrize("scheduler", ["drc", "exact", "exact-power", "all"])
def test_costs_agree_with_the_float_checker_in_nine_digits(scheduler):
    num_feasible = 0
    for instance, params, prospect, schedule in planned_rounds(80, scheduler):
        if not schedule.is_feasible:
            continue
        num_feasible += 1
        found = assess_schedule(params.genesis, params.members, schedule, prospect.candidates, prospect.queue_nano)
        problem = round_problem(params, prospect)
        outcome = evaluate(problem, read_decision(schedule))
        described = instance.description
        assert found.modelled.exchange_ns == pytest.approx(outcome.exchange_s * 1e9, rel=1e-9, abs=1), described
        assert found.modelled.mining_ns == pytest.approx(outcome.mining_s * 1e9, rel=1e-9, abs=1), described
        assert found.modelled.delay_ns == pytest.approx(outcome.delay_s * 1e9, rel=1e-9, abs=1), described
        np.testing.assert_allclose(
            found.modelled.energy_pj, outcome.energy_j * 1e12, rtol=1e-9, atol=1, err_msg=described
        )
        scale = problem.tradeoff * outcome.delay_s + float(np.sum(problem.queue))
        assert found.objective_nano == pytest.approx(outcome.objective * 1e9, abs=1 + scale)  # 1e-9 of both terms
        assert found.objective_nano == schedule.objective_nano
        assert found.breaches == ()
    assert num_feasible > 30


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0])
def test_constraints_agree_with_the_float_checker(factor):
    verdicts = set()
    for instance, params, prospect, schedule in planned_rounds(60, "drc"):
        if not schedule.is_feasible:
            continue
        for name in ("cpu_hz", "power_uw", "mining_hz"):
            changed = replace(schedule, **{name: tuple(int(value * factor) for value in getattr(schedule, name))})
            found = assess_schedule(params.genesis, params.members, changed, prospect.candidates, prospect.queue_nano)
            violations = find_violations(round_problem(params, prospect), read_decision(changed), tolerance=1e-6)
            assert bool(found.breaches) == bool(violations), (instance.description, name, found.breaches, violations)
            verdicts.add(bool(violations))
    assert verdicts == {False, True} or factor < 1


GENESIS = genesis_of(
    dataclasses.replace(PROBLEM, queue=np.zeros(2), mining_max_hz=np.array([3e9, np.inf]), overhead_s=0.25)
)
CANDIDATES = {client: member.conditions for client, member in enumerate(GENESIS.members)}
QUEUE_NANO = (2 * NANO, NANO)
SCHEDULE = Schedule(1, (0,), (10**9,), (100_000,), (2 * 10**9, 10**9), 0, "")


def assess(schedule=SCHEDULE, candidates=CANDIDATES, genesis=GENESIS):
    return assess_schedule(genesis, genesis.members, schedule, candidates, QUEUE_NANO)


def breaches(schedule=SCHEDULE, candidates=CANDIDATES, genesis=GENESIS):
    return [(breach.constraint, breach.client) for breach in assess(schedule, candidates, genesis).breaches]


def test_costs_are_those_worked_out_by_hand():
    found = assess()
    assert found.modelled.exchange_ns == 1_000_000_000  # half a second each for upload and training
    assert found.modelled.mining_ns == 200_000_000
    assert found.modelled.delay_ns == 1_450_000_000
    assert found.modelled.energy_pj == (260_000_000_000, 40_000_000_000)
    assert found.objective_nano == 12_500_000_000  # 10 * 1.45 - 2
    assert found.breaches == ()


def test_every_constraint_is_watched():
    assert breaches(candidates={1: CANDIDATES[1]}) == [("C1", 0)]
    assert breaches(candidates={0: CANDIDATES[0]}) == [("C1", 1)]
    physics = replace(GENESIS.physics, min_clients=2)
    assert breaches(genesis=replace(GENESIS, physics=physics)) == [("C2", None)]
    assert breaches(replace(SCHEDULE, cpu_hz=(2 * 10**9 + 1,))) == [("cap", 0)]
    assert breaches(replace(SCHEDULE, mining_hz=(3 * 10**9 + 1, 10**9))) == [("cap", 0)]
    assert breaches(replace(SCHEDULE, power_uw=(200_001,))) == [("cap", 0)]
    assert breaches(replace(SCHEDULE, power_uw=(200_000,))) == []
    assert breaches(replace(SCHEDULE, mining_hz=(10**9, 10**10))) == [("C3", 1)]  # client 1 has no cap
    assert breaches(replace(SCHEDULE, cpu_hz=(0,))) == [("form", 0)]
    assert breaches(replace(SCHEDULE, power_uw=(0,))) == [("form", 0)]
    assert breaches(replace(SCHEDULE, mining_hz=(0, 0))) == [("form", None)]
    deaf = CANDIDATES | {0: replace(CANDIDATES[0], gain_atto=0)}
    assert breaches(candidates=deaf) == [("form", 0)]


def test_nobody_may_train_and_upload_for_longer_than_the_genesis_allows():
    def capped(max_exchange_ns):
        return replace(GENESIS, law=replace(GENESIS.law, max_exchange_ns=max_exchange_ns))

    assert breaches(genesis=capped(1_000_000_000)) == []  # just as long
    assert breaches(genesis=capped(999_999_999)) == [("exchange", 0)]


def test_a_budget_may_be_overdrawn_by_a_millionth_and_no_more():
    spent = assess().modelled.energy_pj[0]
    for budget, expected in ((spent, []), (spent - spent // 1_000_001, []), (spent - spent // 900_000, [("C3", 0)])):
        candidates = CANDIDATES | {0: replace(CANDIDATES[0], energy_budget_pj=budget)}
        assert breaches(candidates=candidates) == expected


def test_a_client_without_cycles_trains_in_no_time_at_any_frequency():
    limits = replace(GENESIS.members[0].limits, cycles=0)
    genesis = replace(GENESIS, members=(replace(GENESIS.members[0], limits=limits), GENESIS.members[1]))
    found = assess(replace(SCHEDULE, cpu_hz=(0,)), genesis=genesis)
    assert found.breaches == ()
    assert found.modelled.exchange_ns == 500_000_000


def test_costs_beyond_64_bits_are_a_breach_and_no_crash():
    candidates = CANDIDATES | {0: replace(CANDIDATES[0], gain_atto=1)}
    found = assess(replace(SCHEDULE, power_uw=(1,)), candidates)
    assert ("form", None) in [(breach.constraint, breach.client) for breach in found.breaches]
    assert found.modelled.delay_ns == 0


def test_an_idle_round_costs_nothing():
    found = assess(idle_schedule(1, 2, "nobody is there"))
    assert (found.objective_nano, found.breaches) == (0, ())
    assert found.modelled.delay_ns == 0
    assert found.modelled.energy_pj == (0, 0)


def test_the_arithmetic_of_others_does_not_matter():
    expected = assess()
    with localcontext() as context:
        context.prec = 3
        assert assess() == expected
        assert getcontext().prec == 3


large = st.integers(0, 2**63 - 1)


@given(cpu_hz=large, power_uw=large, first_hz=large, second_hz=large, gain_atto=large, energy_budget_pj=large)
def test_any_integers_are_judged(cpu_hz, power_uw, first_hz, second_hz, gain_atto, energy_budget_pj):
    limits = replace(GENESIS.members[0].limits, cpu_max_hz=None, mining_max_hz=None, power_max_uw=2**63 - 1)
    genesis = replace(GENESIS, members=(replace(GENESIS.members[0], limits=limits), GENESIS.members[1]))
    conditions = replace(CANDIDATES[0], gain_atto=gain_atto, energy_budget_pj=energy_budget_pj)
    schedule = Schedule(1, (0,), (cpu_hz,), (power_uw,), (first_hz, second_hz), 0, "")
    found = assess(schedule, CANDIDATES | {0: conditions}, genesis)
    assert 0 <= found.modelled.delay_ns < 2**63
    assert all(0 <= energy < 2**63 for energy in found.modelled.energy_pj)
    assert abs(found.objective_nano) < 2**63


def test_the_slowest_exchange_is_that_of_the_member_that_needs_longest_with_what_it_can_pay_for():
    first = GENESIS.members[0]

    def slowest_ns(*members):
        return slowest_exchange_ns(GENESIS.physics, members)

    def changed(member, part, **changes):
        return replace(member, **{part: replace(getattr(member, part), **changes)})

    upload_ns = slowest_ns(changed(first, "limits", cycles=0))
    assert upload_ns == 500_000_000  # as in the round worked out by hand
    rich = changed(first, "conditions", energy_budget_pj=10**18)
    at_1_ghz = changed(rich, "limits", initial_cpu_hz=10**9, cpu_max_hz=None)
    training_ns = first.limits.cycles  # at 1 GHz
    assert slowest_ns(at_1_ghz) == upload_ns + training_ns
    assert slowest_ns(changed(at_1_ghz, "limits", cpu_max_hz=10**9 // 2)) == upload_ns + 2 * training_ns
    assert slowest_ns(changed(at_1_ghz, "limits", cpu_max_hz=2 * 10**9)) == upload_ns + training_ns
    poor = changed(at_1_ghz, "conditions", energy_budget_pj=50_000_000_000 + 80_000_000_000)
    hertz = math.sqrt(0.08 / (first.limits.capacitance / 1e36 * first.limits.cycles))
    assert slowest_ns(poor) == pytest.approx(upload_ns + first.limits.cycles / hertz * 1e9, rel=1e-9)
    assert slowest_ns(at_1_ghz, poor) == slowest_ns(poor, at_1_ghz) == slowest_ns(poor)
    for nothing in (
        changed(at_1_ghz, "conditions", is_reachable=False),
        changed(at_1_ghz, "conditions", gain_atto=0),
        changed(at_1_ghz, "limits", power_uw=0),
        changed(at_1_ghz, "conditions", energy_budget_pj=50_000_000_000),  # its upload takes all of it
    ):
        assert slowest_ns(nothing) == 0
        assert slowest_ns(nothing, at_1_ghz) == slowest_ns(at_1_ghz)
    assert slowest_ns() == 0
