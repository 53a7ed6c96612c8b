"""Whole networks whose members change on the way."""

from dataclasses import replace

import pytest

from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.member_set import find_change, read_member_set
from bdfl.ledger.store import MemoryStore
from bdfl.ledger.verify import verify_chain
from bdfl.scenario.schema_learning import Behaviour, QuorumRule
from campaigns.faults.laws import check_members_only, check_progress, expected_height, find_breaches
from campaigns.faults.mutants import MUTANTS
from campaigns.faults.plan import SECOND_NS, Crash, Offer, Partition, Weather, draw_plan
from campaigns.faults.recorder import SentVote
from campaigns.faults.timeline import Storyteller
from campaigns.faults.trial import Tools, judge_plan, play, try_seed
from tests.transports.calm_network import CALM

NEVER = 10_000
PLAN = replace(CALM, seed=21, scheduler="drc")


def offer(member, at_s=1.0, nodes=(0,), **options):
    return Offer(int(at_s * SECOND_NS), nodes, member, options.pop("expires", NEVER), **options)


def run(*offers, **changes):
    """The trial of a plan with these offers in which no law is broken, and its longest chain."""
    plan = replace(PLAN, offers=offers, **changes)
    trial, _, error = play(plan, Storyteller(plan), VerificationCache())
    assert error is None
    assert find_breaches(trial, VerificationCache()) == []
    commits = max((trial.record.nodes[node].commits for node in plan.honest), key=len)
    return trial, [found.block for found in commits]


def rolls(trial, blocks):
    roll = read_member_set(trial.genesis, blocks)
    return roll.active, roll


def store_of(trial, blocks, node):
    """The chain of one node, as it would be stored."""
    store = MemoryStore(trial.genesis, trial.find_blob(trial.genesis.model.initial))
    for found in trial.record.nodes[node].commits:
        for blob in {found.block.body.model, *(signed.update.model for signed in found.block.body.updates)} - {b""}:
            store.put_blob(blob, trial.find_blob(blob))
        store.append(found.block, found.certificate)
    return store


@pytest.mark.parametrize("quorum", list(QuorumRule))
@pytest.mark.parametrize("scheduler", ["drc", "exact", "all", "round-robin"])
def test_one_joins_four_and_takes_part(quorum, scheduler):
    trial, blocks = run(offer(4), quorum=quorum, scheduler=scheduler)
    active, roll = rolls(trial, blocks)
    assert active == {0, 1, 2, 3, 4}
    first = roll.first_heights[4]
    votes = [sent.height for sent in trial.record.nodes[4].votes]
    assert min(votes) >= first
    assert any(4 in {signed.update.client for signed in block.body.updates} for block in blocks)
    assert trial.heights[4] >= trial.quiet_height + 3
    found = verify_chain(store_of(trial, blocks, 4))
    assert found.is_valid, found.failure


@pytest.mark.parametrize("quorum", list(QuorumRule))
def test_one_of_five_leaves_and_ends_cleanly(quorum):
    trial, blocks = run(offer(2), num_nodes=5, quorum=quorum)
    active, roll = rolls(trial, blocks)
    assert active == {0, 1, 3, 4}
    last = roll.last_heights[2]
    assert trial.heights[2] == last
    assert all(2 not in block.body.schedule.selected for block in blocks if block.header.height > last)
    assert all(block.header.proposer != 2 for block in blocks if block.header.height > last)
    assert verify_chain(store_of(trial, blocks, 0)).is_valid


def test_an_offender_is_removed_and_the_rest_go_on():
    liars = ((1, (Behaviour.TWO_BLOCKS,)),)
    trial, blocks = run(offer(1, at_s=3.0), liars=liars, camp=frozenset({0, 1}))
    active, _ = rolls(trial, blocks)
    assert active == {0, 2, 3}
    assert any(type(entry).__name__ == "TwoBlocks" for block in blocks for entry in block.body.entries)


def test_one_joins_while_the_network_is_in_two():
    island = Partition(SECOND_NS, 4 * SECOND_NS, frozenset({3}))
    trial, blocks = run(offer(4, at_s=1.5), partitions=(island,))
    active, _ = rolls(trial, blocks)
    assert active == {0, 1, 2, 3, 4}


def test_a_change_offered_to_an_island_waits_until_it_is_back():
    island = Partition(SECOND_NS, 4 * SECOND_NS, frozenset({3}))
    trial, blocks = run(offer(4, at_s=1.5, nodes=(3,)), partitions=(island,), scheduler="all")
    change = next(block for block in blocks if find_change(block.body.entries) is not None)
    first = next(found for found in trial.record.nodes[0].commits if found.block == change)
    assert first.now_ns >= island.end_ns


def test_a_dead_member_is_removed_so_that_one_more_may_fail():
    """Under bft three of four decide; a silent one removed, all three must, and with a fifth three of four again."""
    silent = ((1, (Behaviour.SILENT,)),)
    trial, blocks = run(offer(1, at_s=0.5), offer(4, at_s=0.5), liars=silent)
    active, _ = rolls(trial, blocks)
    assert active == {0, 2, 3, 4}
    last = blocks[-1].header.height
    certificate = next(found for found in trial.record.nodes[0].commits if found.height == last).certificate
    assert {signed.vote.voter for signed in certificate} <= active


def test_a_member_is_replaced_while_messages_are_lost_and_nodes_crash():
    trial, blocks = run(
        offer(4, nodes=(0, 2)),
        offer(0, nodes=(1, 2)),
        weather=Weather(loss=0.2, duplication=0.1, delay_ns=SECOND_NS // 50),
        crashes=(Crash(2, 2 * SECOND_NS, 3, SECOND_NS), Crash(4, 3 * SECOND_NS, 3, SECOND_NS)),
    )
    active, roll = rolls(trial, blocks)
    assert active == {1, 2, 3, 4}
    assert trial.heights[0] == roll.last_heights[0]


def test_who_was_removed_while_it_was_away_learns_of_it():
    island = Partition(SECOND_NS, 7 * SECOND_NS, frozenset({2}))
    trial, blocks = run(offer(2, at_s=1.5), num_nodes=5, partitions=(island,))
    _, roll = rolls(trial, blocks)
    last = trial.record.nodes[2].commits[-1]
    assert last.height == roll.last_heights[2]
    assert last.now_ns > island.end_ns
    assert trial.quiet_height > roll.last_heights[2]


@pytest.mark.parametrize("flaw", [{"is_agreed": False}, {"expires": 1}])
def test_a_change_that_is_void_changes_nothing(flaw):
    trial, blocks = run(offer(4, **flaw), offer(0, **flaw))
    active, _ = rolls(trial, blocks)
    assert active == {0, 1, 2, 3}
    assert trial.heights[4] == 0


# The campaign


def test_in_two_seeds_of_eight_the_members_change_and_the_rest_of_a_plan_does_not_depend_on_it():
    plans = [draw_plan(seed) for seed in range(200)]
    honest = [plan.seed for plan in plans if plan.offers and not plan.selfish]
    assert honest == [seed for seed in range(200) if seed % 8 in (4, 5)]
    offers = [offer for plan in plans for offer in plan.offers]
    assert {one.member < plan.num_nodes for plan in plans for one in plan.offers} == {True, False}
    assert {one.is_agreed for one in offers} == {True, False}
    for plan in plans:
        leavers = {one.member for one in plan.offers if one.member < plan.num_nodes}
        liars = {member for member, _ in plan.liars}
        assert 3 * len(liars - leavers) < plan.num_nodes - len(leavers)
        assert 3 * len(liars) < plan.num_nodes - len(leavers - liars)


def test_a_story_tells_of_offers_and_changes():
    story = "\n".join(try_seed(4, with_story=True).story)
    assert "OFFER to" in story
    assert "MEMBERS CHANGE" in story


def test_progress_knows_who_has_to_get_how_far():
    trial, blocks = run(offer(4), offer(0))
    roll = read_member_set(trial.genesis, blocks)
    quiet = trial.quiet_height
    assert expected_height(roll, 1, quiet) == quiet + 3
    assert expected_height(roll, 0, quiet) == roll.last_heights[0]
    assert expected_height(roll, 4, quiet) == quiet + 3
    assert expected_height(roll, 4, 0) == 0
    assert expected_height(roll, 5, quiet) == 0
    behind = (*trial.heights[:4], 1)
    assert "node 4" in check_progress(replace(trial, heights=behind), VerificationCache()).what


def test_members_only_sees_a_vote_of_who_is_no_member():
    trial, blocks = run(offer(4), offer(0))
    first = read_member_set(trial.genesis, blocks).first_heights[4]
    record = trial.record.nodes[4]
    early = SentVote(0, first - 1, record.votes[0].signed)
    record.votes.insert(0, early)
    assert f"node 4 voted at height {first - 1}" in check_members_only(trial, VerificationCache()).what


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("change-at-once", {}),
        ("old-quorum", {}),
        ("expired-change", {"expires": 1}),
        ("few-assents", {"is_agreed": False}),
    ],
)
def test_a_broken_rule_of_membership_is_noticed(name, options):
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    plan = replace(PLAN, offers=(offer(4, **options),))
    assert "validity" in {breach.law for breach in judge_plan(plan, Tools(), applied=mutant.applied()).breaches}
    assert judge_plan(plan, Tools()).is_good
