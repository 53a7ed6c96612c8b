"""Networks in trouble, and the laws that must hold in all of them: five hundred, half of them with members that lie."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from bdfl.ledger.cache import VerificationCache
from bdfl.scenario import Clients, Faults, Scenario
from bdfl.scenario.schema_learning import Adversaries, Behaviour, QuorumRule
from bdfl.transports.faults import FaultyDelivery, faults_of
from campaigns.faults.laws import (
    check_agreement,
    check_memory,
    check_nobody_left_out,
    check_progress,
    check_validity,
    find_breaches,
)
from campaigns.faults.mutants import MUTANTS
from campaigns.faults.plan import LIES, SECOND_NS, FaultPlan, Partition, Weather, draw_plan
from campaigns.faults.recorder import Committed, Restart, SentVote
from campaigns.faults.timeline import WIDTH, Line, Storyteller, render_timeline
from campaigns.faults.trial import play, try_seed
from tests.transports.calm_network import CALM
from tests.transports.many_networks import NUM_SEEDS, bundle_seeds, validate_laws, validate_noticed


@pytest.mark.parametrize("seeds", bundle_seeds(1))
def test_the_laws_hold_whatever_goes_wrong(seeds):
    """Where members lie; where only machines and networks fail: `test_faults_of_honest_members.py`."""
    validate_laws(seeds)


# Plans


def test_a_seed_is_one_plan():
    assert draw_plan(7) == draw_plan(7)
    assert draw_plan(7) != draw_plan(9)


def test_under_majority_nobody_lies_and_under_bft_fewer_than_a_third():
    for seed in range(100):
        assert draw_plan(seed, QuorumRule.MAJORITY).liars == ()
        plan = draw_plan(seed, QuorumRule.BFT)
        assert 1 <= len(plan.liars) < plan.num_nodes / 3
        assert len(plan.honest) + len(plan.liars) == plan.num_keys


def test_every_lie_and_every_size_is_tried_many_times():
    plans = [draw_plan(seed) for seed in range(NUM_SEEDS)]
    told = [lie for plan in plans for _, lies in plan.liars for lie in lies]
    assert min(told.count(lie) for lie in LIES) >= 8
    assert {plan.num_nodes for plan in plans} == set(range(4, 10))
    assert min(sum(bool(part) for part in parts) for parts in zip(*map(_faults, plans), strict=True)) >= 100


def _faults(plan: FaultPlan) -> tuple[bool, ...]:
    weather = plan.weather
    return (
        weather.loss > 0,
        weather.duplication > 0,
        weather.delay_ns > 0,
        bool(plan.partitions),
        bool(plan.crashes),
        bool(plan.freezes),
        bool(plan.slow),
    )


# The delivery


def test_a_partition_cuts_both_ways_or_one_way_and_only_for_a_while():
    both = Partition(10, 20, frozenset({1}))
    one_way = Partition(10, 20, frozenset({1}), is_one_way=True)
    assert [both.cuts(now, 1, 2) for now in (9, 10, 19, 20)] == [False, True, True, False]
    assert both.cuts(15, 2, 1)
    assert one_way.cuts(15, 1, 2)
    assert not one_way.cuts(15, 2, 1)
    assert not both.cuts(15, 2, 3)


def test_the_postman_loses_doubles_and_delays_as_often_as_told():
    weather = Weather(loss=0.3, duplication=0.2, delay_ns=1000)
    delivery = FaultyDelivery(weather, (), np.random.default_rng(0))
    sent = [delivery.deliveries(0, 0, 1, None) for _ in range(20_000)]
    arrived = [copies for copies in sent if copies]
    assert len(arrived) / len(sent) == pytest.approx(0.7, abs=0.02)
    assert sum(len(copies) == 2 for copies in arrived) / len(arrived) == pytest.approx(0.2, abs=0.02)
    assert np.mean([delay for copies in arrived for delay in copies]) == pytest.approx(1000, rel=0.05)


def test_when_the_faults_stop_everything_arrives_once():
    island = Partition(0, 10**12, frozenset({0}))
    delivery = FaultyDelivery(Weather(loss=1.0), (island,), np.random.default_rng(0), until_ns=50)
    assert list(delivery.deliveries(49, 0, 1, None)) == []
    assert list(delivery.deliveries(50, 0, 1, None)) == [0]


# Lies, each told in a network where nothing else goes wrong

LIAR = 1
# What honest nodes say of each lie; none: it breaks no rule that a single member could see.
REFUSALS = {
    Behaviour.FORGE: ("signature",),
    Behaviour.REPLAY: ("signature",),
    Behaviour.WRONG_MODEL: ("model-aggregate",),
    Behaviour.WRONG_SCHEDULE: ("schedule-", "queues"),
    Behaviour.STALE_UPDATES: ("update-signature",),
    Behaviour.FALSE_WORK: ("work",),
    Behaviour.BAD_BLOB: ("blob",),
}
OFFENCES = {
    Behaviour.TWO_BLOCKS: "TwoBlocks",
    Behaviour.TWO_UPDATES: "TwoUpdates",
    Behaviour.FALSE_WORK: "FalseWork",
}


class Listener(Storyteller):
    """Also hears who refused what."""

    def __init__(self, plan):
        super().__init__(plan)
        self.refusals = {node: [] for node in range(plan.num_nodes)}

    def did(self, now_ns, number, effect):
        super().did(now_ns, number, effect)
        if type(effect).__name__ == "Refused":
            self.refusals[number].append(effect.reason)


def play_calm(*lies, seed=CALM.seed):
    plan = replace(CALM, seed=seed, liars=((LIAR, lies),) if lies else (), camp=frozenset({0, 1}))
    listener = Listener(plan)
    trial, _, error = play(plan, listener, VerificationCache())
    assert error is None
    return trial, listener


def test_a_liar_may_spoil_a_model_and_then_tell_others_of_another():
    trial, _ = play_calm(Behaviour.BAD_BLOB, Behaviour.TWO_UPDATES)
    assert find_breaches(trial, VerificationCache()) == []


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_four_changes_nothing_but_is_noticed(lie):
    trial, listener = play_calm(lie)
    assert find_breaches(trial, VerificationCache()) == []
    honest = trial.plan.honest
    if lie in REFUSALS:
        reasons = [reason for node in honest for reason in listener.refusals[node]]
        assert any(sign in reason for sign in REFUSALS[lie] for reason in reasons)
    if lie in OFFENCES:
        entries = [entry for found in listener.nodes[0].commits for entry in found.block.body.entries]
        assert OFFENCES[lie] in {type(entry).__name__ for entry in entries}


def test_a_model_that_differs_in_one_bit_is_rejected_by_every_honest_node():
    """[Li24, Section III-A, step 4]"""
    trial, listener = play_calm(Behaviour.WRONG_MODEL)
    for node in trial.plan.honest:
        assert any("model-aggregate" in reason for reason in listener.refusals[node])
        assert all(found.block.header.proposer != LIAR for found in listener.nodes[node].commits)


def test_who_drops_updates_does_not_get_its_block_through_in_a_first_attempt():
    trial, listener = play_calm(Behaviour.DROP_UPDATES)
    for node in trial.plan.honest:
        for found in listener.nodes[node].commits:
            header = found.block.header
            assert header.proposer != LIAR or header.attempt > 1


def test_who_votes_twice_is_found_out_where_rounds_last():
    """Members compare what they heard when they say everything again: here often, and votes are late."""
    plan = replace(CALM, weather=Weather(delay_ns=SECOND_NS // 10), resend_ns=SECOND_NS // 10)
    plan = replace(plan, liars=((LIAR, (Behaviour.TWO_VOTES,)),), camp=frozenset({0}))
    listener = Listener(plan)
    trial, _, _ = play(plan, listener, VerificationCache())
    assert find_breaches(trial, VerificationCache()) == []
    entries = [entry for found in listener.nodes[0].commits for entry in found.block.body.entries]
    assert "TwoVotes" in {type(entry).__name__ for entry in entries}


def test_a_silent_member_costs_no_round():
    _, listener = play_calm(Behaviour.SILENT)
    assert len(listener.nodes[0].commits) >= 5
    assert all(found.block.header.proposer != LIAR for found in listener.nodes[0].commits)


# The laws see what they should see


@pytest.fixture(scope="module")
def calm():
    return play_calm()


def change_record(trial, node, **changes):
    """The same trial with other acts of one node."""
    record = Storyteller(trial.plan)
    record.nodes = tuple(
        replace(old, **(changes if number == node else {})) for number, old in enumerate(trial.record.nodes)
    )
    record.restarts, record.held = list(trial.record.restarts), dict(trial.record.held)
    return replace(trial, record=record)


def test_a_calm_network_breaks_no_law(calm):
    trial, _ = calm
    assert find_breaches(trial, VerificationCache()) == []


def test_agreement_sees_two_blocks_of_one_height(calm):
    trial, listener = calm
    first, second, *rest = listener.nodes[2].commits
    wrong_block = second.block.__class__(first.block.header, bytes(8), first.block.signature, first.block.body)
    forked = change_record(trial, 2, commits=[replace(first, block=wrong_block), second, *rest])
    assert "at height 1" in check_agreement(forked, VerificationCache()).what


def test_validity_sees_a_missing_vote_and_a_changed_body(calm):
    trial, listener = calm
    first, *rest = listener.nodes[0].commits
    too_few = Committed(first.now_ns, first.block, first.certificate[:2])
    assert (
        "certificate-quorum"
        in check_validity(change_record(trial, 0, commits=[too_few, *rest]), VerificationCache()).what
    )
    body = rest[0].block.body
    spoiled = first.block.__class__(first.block.header, first.block.nonce, first.block.signature, body)
    changed = Committed(first.now_ns, spoiled, first.certificate)
    assert "body-root" in check_validity(change_record(trial, 0, commits=[changed, *rest]), VerificationCache()).what


def test_progress_sees_who_stays_behind(calm):
    trial, _ = calm
    heights = (*trial.heights[:3], trial.quiet_height)
    assert "node 3" in check_progress(replace(trial, heights=heights), VerificationCache()).what


def test_memory_sees_lost_votes_lost_blocks_and_contradictions(calm):
    trial, listener = calm
    sent, committed = listener.nodes[1].votes[0], listener.nodes[1].commits[0]
    for lost in (Restart(5, 1, (sent,), ()), Restart(5, 1, (), (committed,))):
        forgetful = change_record(trial, 1)
        forgetful.record.restarts.append(lost)
        assert "lost" in check_memory(forgetful, VerificationCache()).what
    vote = sent.signed.vote
    other = sent.signed.__class__(vote.__class__(vote.kind, vote.attempt, bytes(32), *_rest(vote)), bytes(64))
    torn = change_record(trial, 1, votes=[sent, SentVote(9, sent.height, other)])
    assert "two prevotes" in check_memory(torn, VerificationCache()).what


def _rest(vote):
    return vote.voter, vote.updates, vote.reports, vote.mining_ms


def test_nobody_left_out_sees_an_update_that_all_held(calm):
    trial, listener = calm
    found = listener.nodes[0].commits[0]
    body = found.block.body
    gone = body.updates[0].update.client
    rest = found.block.body.__class__(
        *(getattr(body, name) for name in body.__struct_fields__[:-1]), updates=body.updates[1:]
    )
    block = found.block.__class__(found.block.header, found.block.nonce, found.block.signature, rest)
    left_out = change_record(trial, 0, commits=[replace(found, block=block)])
    assert f"member {gone}" in check_nobody_left_out(left_out, VerificationCache()).what


# Stories


def test_a_seed_replays_exactly_and_its_story_fits_the_terminal():
    first, second = try_seed(3, with_story=True), try_seed(3, with_story=True)
    assert first == second
    assert first.story
    assert max(map(len, first.story)) <= WIDTH
    assert replace(try_seed(3), story=first.story) == first


def test_a_story_is_in_order_and_counts_what_is_repeated():
    lines = [Line(2 * SECOND_NS, "1", "b"), Line(SECOND_NS, "0", "a"), *[Line(3 * SECOND_NS, "1", "c")] * 3]
    _, *told = render_timeline(lines)
    assert [line.split() for line in told] == [
        ["1.000", "0", "a"],
        ["2.000", "1", "b"],
        ["3.000", "1", "c", "(3", "times)"],
    ]


# Settings of a scenario


def test_a_scenario_without_faults_has_no_trouble():
    assert faults_of(Scenario(), SECOND_NS) is None
    poisoned = Scenario(adversaries=Adversaries(kind=Behaviour.SIGN_FLIP, members=(1,)))
    assert faults_of(poisoned, SECOND_NS) is None


def test_a_scenario_gets_the_faults_it_asks_for():
    faults = Faults(loss=0.1, partitions=2, crashes=3, freezes=1, slow=2, until_round=5)
    lies = Adversaries(kind=Behaviour.TWO_VOTES, members=(0, 3))
    trouble = faults_of(Scenario(clients=Clients(count=6), faults=faults, adversaries=lies), SECOND_NS)
    assert (len(trouble.crashes), len(trouble.freezes), len(trouble.slow)) == (3, 1, 2)
    assert set(trouble.tampers) == {0, 3}
    assert trouble.quiet_ns == 5 * SECOND_NS
    assert all(crash.after_ns < trouble.quiet_ns for crash in trouble.crashes)


# Mutants that show quickly; all of them: `python -m campaigns faults mutants`

QUICK = [
    ("unsigned-reports", 3, "validity"),
    ("any-aggregate", 11, "validity"),
    ("small-quorum", 1, "validity"),
    ("vote-twice-counted", 0, "validity"),
    ("prevotes-decide", 0, "validity"),
    ("second-prevote", 0, "memory"),
    ("sent-before-kept", 9, "memory"),
    ("forgotten-report", 2, "memory"),
]


@pytest.mark.parametrize(("name", "first", "law"), QUICK)
def test_a_broken_rule_is_noticed_and_put_right_again(name, first, law):
    validate_noticed(name, first, lambda breaches: bool(breaches) and breaches[0].law == law)


def test_a_forgotten_update_is_trained_anew_with_other_bytes_and_makes_an_offender_of_an_honest_node():
    validate_noticed(
        "forgotten-update", 5, lambda breaches: {breach.law for breach in breaches} == {"memory", "innocence"}
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_called_as_the_function_that_it_replaces(mutant):
    """Otherwise it is noticed by a `TypeError`, which says nothing about the laws."""
    for swap in mutant.swaps:
        right = getattr(swap.module, swap.name)
        expected = inspect.signature(right).parameters.values()
        named = {one.name: None for one in expected if one.kind is one.KEYWORD_ONLY}
        inspect.signature(swap.make(right)).bind(*[None] * (len(expected) - len(named)), **named)


def test_mutants_have_names_of_their_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 14
