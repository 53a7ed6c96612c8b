"""How a block moves a chain on: queues, rests, offenders, difficulty, and what everybody works out again."""

import dataclasses
from itertools import cycle

import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import INT_LIMIT
from bdfl.identity import Place
from bdfl.ledger.block import MAX_TIME_MS, TwoVotes
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import NO_PARENT, apply_block, modelled_costs, required_difficulty, settle_round, start_chain
from bdfl.ledger.member_set import quorum_size
from bdfl.ledger.rules import validate_proposal
from bdfl.ledger.schedule import MAX_REST
from bdfl.scenario.schema_learning import QuorumRule
from tests.ledger.small_federation import found_federation, replace, small_scenario

NANO = 10**9
SMALL = found_federation(small_scenario(4, "all"))
START = SMALL.start()
STATE, CERTIFICATE = SMALL.grow(START, 1)


def rates(state):
    return [member.limits.rate_nano for member in state.genesis.members]


def advance(small, state, certificate, **parts):
    """The chain after a valid block of these parts, and the votes for it."""
    block = small.block(state, small.body(state, certificate, **parts))
    validate_proposal(state, block, small.cache)
    return apply_block(state, block, small.cache), small.certificate(state, block.digest)


@pytest.mark.parametrize(
    ("num_members", "majority", "bft"), [(1, 1, 1), (3, 2, 3), (4, 3, 3), (7, 4, 5), (8, 5, 6), (9, 5, 7)]
)
def test_quorums_by_hand(num_members, majority, bft):
    assert quorum_size(QuorumRule.MAJORITY, num_members) == majority
    assert quorum_size(QuorumRule.BFT, num_members) == bft


@given(st.integers(1, 4096))
def test_two_quorums_share_a_member_and_under_bft_an_honest_one(num_members):
    assert 2 * quorum_size(QuorumRule.MAJORITY, num_members) > num_members
    num_lying = (num_members - 1) // 3
    assert 2 * quorum_size(QuorumRule.BFT, num_members) - num_members > num_lying
    assert quorum_size(QuorumRule.BFT, num_members) <= num_members - num_lying


def test_a_chain_begins_at_its_genesis():
    assert START.height == 0
    assert START.tip == START.chain
    assert START.tip_parent == NO_PARENT
    assert START.place == Place(START.chain, 1, START.chain)
    assert START.model == SMALL.genesis.model.initial
    assert START.schedule == SMALL.genesis.schedule
    assert START.difficulty == SMALL.genesis.law.difficulty == 30
    assert START.queue_nano == (0, 0, 0, 0)
    assert set(START.conditions) == {0, 1, 2, 3}


def test_a_block_becomes_the_tip():
    block = SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE))
    after = apply_block(STATE, block, SMALL.cache)
    assert (after.height, after.tip, after.tip_parent) == (2, block.digest, STATE.tip)
    assert after.place == Place(STATE.chain, 3, block.digest)
    assert after.tip_place == block.header.place
    assert after.model == block.body.model
    assert after.schedule == block.body.next_schedule
    assert after.queue_nano == block.body.queue_nano


# Time


def test_the_median_time_past_is_that_of_the_last_eleven_blocks_and_the_genesis_counts_as_one():
    state, certificate = START, ()
    first_ms = SMALL.genesis.time_ms
    assert state.least_time_ms == first_ms + 1
    stamps = [first_ms]
    for place in range(12):
        stamps.append(state.least_time_ms if place % 3 == 0 else first_ms + 1000 * place)
        block = SMALL.block(state, SMALL.body(state, certificate, reports=[], updates=[]), time_ms=stamps[-1])
        certificate = SMALL.certificate(state, block.digest)
        validate_proposal(state, block, SMALL.cache)
        state = apply_block(state, block, SMALL.cache)
        last = sorted(stamps[-11:])
        assert state.least_time_ms == last[(len(last) - 1) // 2] + 1
    assert state.times_ms == tuple(stamps[-11:])


def test_no_time_ends_a_chain():
    state, certificate = START, ()
    for _ in range(4):
        body = SMALL.body(state, certificate, reports=[], updates=[])
        block = SMALL.block(state, body, time_ms=MAX_TIME_MS)
        validate_proposal(state, block, SMALL.cache)
        certificate, state = SMALL.certificate(state, block.digest), apply_block(state, block, SMALL.cache)
    assert state.least_time_ms == MAX_TIME_MS


def test_one_block_far_ahead_does_not_move_the_median():
    block = SMALL.block(START, SMALL.body(START), time_ms=MAX_TIME_MS)
    assert apply_block(START, block, SMALL.cache).least_time_ms == SMALL.genesis.time_ms + 1


# Who counts


def test_queues_grow_by_the_rate_and_shrink_by_taking_part():
    body = SMALL.body(START, updates=SMALL.updates(START, without=[2]))
    assert body.queue_nano == (0, 0, rates(START)[2], 0)


def test_a_declined_update_is_no_participation_and_no_miss():
    updates = [SMALL.declined(START, 2), *SMALL.updates(START, without=[2])]
    settled = settle_round(START, updates, [], ())
    assert settled.queue_nano[2] == rates(START)[2]
    assert settled.misses == (0, 0, 0, 0)
    assert settled.rests_until == (0, 0, 0, 0)


def test_who_does_not_report_is_no_candidate_and_its_queue_stands_still():
    state, certificate = advance(SMALL, STATE, CERTIFICATE, reports=SMALL.reports(STATE, without=[1]))
    assert 1 not in state.conditions
    assert 1 not in state.schedule.selected
    assert state.schedule.mining_hz[1] == 0
    assert state.schedule.mining_hz[0] > 0
    after, _ = advance(SMALL, state, certificate)
    assert after.queue_nano[1] == state.queue_nano[1]
    assert 1 in after.schedule.selected  # it has reported again


def test_who_reports_but_cannot_be_scheduled_keeps_growing():
    reports = SMALL.reports(STATE)
    for changes in ({"energy_budget_pj": 0}, {"is_reachable": False}, {"gain_atto": 0}):
        report = reports[1].report
        poor = SMALL.sign_report(STATE, replace(report, conditions=replace(report.conditions, **changes)))
        state, certificate = advance(SMALL, STATE, CERTIFICATE, reports=[reports[0], poor, *reports[2:]])
        assert 1 not in state.schedule.selected
        after, _ = advance(SMALL, state, certificate)
        assert after.queue_nano[1] == state.queue_nano[1] + rates(STATE)[1]


def test_a_scheduled_member_that_is_not_heard_sits_out_longer_and_longer():
    small = found_federation(small_scenario(4, "all"))
    state, certificate = small.start(), ()
    rested = []
    while state.height < 10:
        is_scheduled = 2 in state.schedule.selected
        assert is_scheduled != state.is_resting(2)
        before = state.queue_nano[2]
        state, certificate = advance(small, state, certificate, updates=small.updates(state, without=[2]))
        rested.append(not is_scheduled)
        assert state.queue_nano[2] == before + (rates(state)[2] if is_scheduled else 0)
    # missed in 1, rests in 2; missed in 3, rests in 4 to 6; missed in 7, rests in 8 to 14
    assert rested == [False, True, False, True, True, True, False, True, True, True]
    assert state.misses[2] == 3
    assert state.rests_until[2] == 14


def test_nobody_sits_out_more_than_63_rounds():
    for misses in (5, 6, 100):
        state = dataclasses.replace(STATE, misses=(0, misses, 0, 0))
        settled = settle_round(state, SMALL.updates(STATE, without=[1]), [], ())
        assert settled.rests_until[1] == STATE.height + 1 + MAX_REST


def test_an_update_ends_the_row_of_misses():
    state = dataclasses.replace(STATE, misses=(0, 4, 0, 0), rests_until=(0, STATE.height, 0, 0))
    assert settle_round(state, SMALL.updates(state), [], ()).misses == (0, 0, 0, 0)
    declined = [SMALL.declined(state, 1), *SMALL.updates(state, without=[1])]
    assert settle_round(state, declined, [], ()).misses == (0, 0, 0, 0)


def test_members_that_were_not_scheduled_miss_nothing():
    state = dataclasses.replace(STATE, schedule=replace(STATE.schedule, selected=(0,)), misses=(0, 3, 0, 0))
    settled = settle_round(state, SMALL.updates(STATE, without=[1, 2, 3]), [], ())
    assert settled.misses == (0, 3, 0, 0)


def test_an_offender_is_never_scheduled_again_and_its_queue_stands_still():
    proof = TwoVotes(STATE.place, SMALL.vote(STATE, bytes(32), 3), SMALL.vote(STATE, bytes([1]) * 32, 3))
    state, certificate = advance(SMALL, STATE, CERTIFICATE, entries=[proof])
    assert state.offenders == {3}
    for _ in range(2):
        assert 3 not in state.schedule.selected
        assert state.schedule.mining_hz[3] == 0
        before = state.queue_nano[3]
        state, certificate = advance(SMALL, state, certificate, entries=[proof])  # known: left out of the body
        assert state.queue_nano[3] == before
    assert state.offenders == {3}


def test_a_round_without_reports_is_idle_and_the_chain_goes_on():
    state, certificate = advance(SMALL, STATE, CERTIFICATE, reports=[])
    assert not state.schedule.is_feasible
    assert state.schedule.mining_hz == (0, 0, 0, 0)
    modelled = modelled_costs(state, SMALL.cache)
    assert (modelled.delay_ns, modelled.energy_pj) == (0, (0, 0, 0, 0))
    after, certificate = advance(SMALL, state, certificate)
    assert after.model == state.model
    assert after.misses == (0, 0, 0, 0)
    assert after.schedule.is_feasible


# Difficulty


def waits(*mining_ms):
    """A certificate with these waits; who signed is of no account, and the federation is small."""
    voters = cycle(range(len(SMALL.signers)))
    return tuple(
        SMALL.vote(START, bytes(32), voter, mining_ms=wait) for voter, wait in zip(voters, mining_ms, strict=False)
    )


def state_with(target_ms: int, difficulty: int = 1000):
    law = replace(SMALL.genesis.law, target_ms=target_ms)
    params = dataclasses.replace(STATE.params, genesis=replace(SMALL.genesis, law=law))
    return dataclasses.replace(STATE, params=params, difficulty=difficulty)


@pytest.mark.parametrize(
    ("mining_ms", "expected"),
    [
        ((100, 100, 100), 1000),
        ((80, 80, 5_000_000), 1250),  # one slow voter has no say
        ((0, 125, 125), 800),
        ((125, 80, 80, 125), 1250),  # of an even number the shorter middle wait
        ((1, 1, 1), 2000),
        ((0, 0, 0), 1000),  # nobody knows
        ((0, 0, 5_000_000), 1000),
        ((0, 1, 125), 1000),  # who does not know changes nothing
        ((10_000, 10_000, 10_000), 500),
    ],
)
def test_difficulty_follows_the_median_wait_within_a_factor_of_two(mining_ms, expected):
    assert required_difficulty(state_with(100), 1, waits(*mining_ms)) == expected


def test_difficulty_stays_without_a_target_or_votes():
    assert required_difficulty(state_with(0), 1, waits(1, 1, 1)) == 1000
    assert required_difficulty(state_with(100), 1, ()) == 1000


@pytest.mark.parametrize(("attempt", "expected"), [(1, 1000), (2, 500), (3, 250), (10, 1), (11, 1), (10_000, 1)])
def test_every_attempt_halves_the_difficulty_down_to_one(attempt, expected):
    assert required_difficulty(state_with(0), attempt, ()) == expected


def test_difficulty_stays_within_what_the_chain_can_hold():
    assert required_difficulty(state_with(100, INT_LIMIT - 1), 1, waits(1, 1, 1)) == INT_LIMIT
    assert required_difficulty(state_with(100, 1), 1, waits(9999, 9999, 9999)) == 1


def test_attempts_do_not_lower_the_difficulty_of_later_blocks():
    block = SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE), attempt=4)
    assert block.header.difficulty == 3
    assert apply_block(STATE, block, SMALL.cache).difficulty == 30


# What everybody works out again


@pytest.mark.parametrize("scheduler", ["round-robin", "random", "channel-best"])
def test_a_node_that_applies_the_blocks_remembers_what_the_proposer_did(scheduler):
    small = found_federation(small_scenario(5, scheduler))
    follower = start_chain(small.genesis, VerificationCache(max_entries=0))
    state, certificate = small.start(), ()
    for _ in range(4):
        block = small.block(state, small.body(state, certificate))
        certificate = small.certificate(state, block.digest)
        state = apply_block(state, block, small.cache)
        follower = apply_block(follower, block, VerificationCache(max_entries=0))
        assert follower.memory.cursor == state.memory.cursor
        assert (follower.memory.reference_queue == state.memory.reference_queue).all()
        assert follower.schedule == state.schedule
        assert follower.queue_nano == state.queue_nano


def test_the_costs_of_a_round_are_those_judged_when_it_was_scheduled():
    modelled = modelled_costs(STATE, SMALL.cache)
    body = SMALL.body(STATE, CERTIFICATE)
    assert body.modelled == modelled
    assert modelled.delay_ns == pytest.approx(modelled.exchange_ns + modelled.mining_ns, abs=1)
    budgets = [member.conditions.energy_budget_pj for member in SMALL.genesis.members]
    assert all(spent <= budget * (1 + 1e-6) for spent, budget in zip(modelled.energy_pj, budgets, strict=True))


@pytest.mark.parametrize("lie_ms", [1, 2**63 - 1])
@pytest.mark.parametrize("honest_ms", [(80, 120), (100, 100), (0, 120), (0, 0)])
def test_a_third_of_liars_moves_the_difficulty_no_further_than_some_honest_wait_does(lie_ms, honest_ms):
    state = state_with(100)
    alone = [required_difficulty(state, 1, waits(wait, wait, wait)) for wait in honest_ms]
    found = required_difficulty(state, 1, waits(*honest_ms, lie_ms))
    assert min(alone) <= found <= max(alone)


@given(num_members=st.integers(4, 16), data=st.data())
def test_as_many_liars_as_a_quorum_bears_move_no_difficulty_beyond_what_the_honest_measured(num_members, data):
    num_lying, quorum = (num_members - 1) // 3, quorum_size(QuorumRule.BFT, num_members)
    num_honest = data.draw(st.integers(quorum - num_lying, num_members - num_lying))
    honest_ms = data.draw(st.lists(st.integers(0, 10_000), min_size=num_honest, max_size=num_honest))
    lies_ms = data.draw(st.lists(st.integers(0, INT_LIMIT), min_size=num_lying, max_size=num_lying))
    state = state_with(100)
    alone = [required_difficulty(state, 1, waits(wait, wait, wait)) for wait in honest_ms]
    assert min(alone) <= required_difficulty(state, 1, waits(*honest_ms, *lies_ms)) <= max(alone)


@given(st.lists(st.integers(1, 2**63 - 1), max_size=4), st.integers(1, 8))
def test_waits_that_most_voters_do_not_know_change_no_difficulty(known_ms, more):
    unknown = [0] * (len(known_ms) + more)
    assert required_difficulty(state_with(100), 1, waits(*known_ms, *unknown)) == 1000


@pytest.mark.parametrize("lie_ms", [1, 2**63 - 1])
def test_liars_that_sign_extreme_waits_at_every_height_leave_the_difficulty_where_the_honest_measure_the_target(lie_ms):
    per_hash_ms, target_ms = 0.1, 100  # so 1,000 hashes take the target
    state = state_with(target_ms, difficulty=64)
    for height in range(60):
        wait_ms = state.difficulty * per_hash_ms
        honest = [max(1, round(wait_ms * factor)) for factor in (0.8, 1.25)]  # luck differs
        state = dataclasses.replace(state, difficulty=required_difficulty(state, 1, waits(*honest, lie_ms)))
        if height > 10:
            assert 790 <= state.difficulty <= 1260
