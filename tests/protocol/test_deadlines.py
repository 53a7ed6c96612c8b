"""Deadlines: nobody gains by keeping the others waiting, and nobody is waited for again and again."""

from dataclasses import replace as replace_state

import pytest
from msgspec.structs import replace

from bdfl.identity import Meaning
from bdfl.ledger.block import SignedReport
from bdfl.protocol.consensus import leader_of
from bdfl.protocol.deadlines import (
    ASK_SHARE,
    LATE_BLOCK_FACTOR,
    MAX_BACK_OFF_NS,
    REFILL,
    back_off_ns,
    charge_lateness,
    deadline_ns,
    exchange_ns,
)
from bdfl.protocol.events import FetchBlob, Send, SetTimer, Timer, TimerFired
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.protocol.state import Phase
from bdfl.protocol.transition import Draft
from tests.protocol.manual_network import TIMING, Kind, ManualNetwork, make_block, signer, vote

LATE = 3  # who keeps the others waiting


@pytest.fixture
def network():
    network = ManualNetwork()
    network.start()
    return network


def rounds_ns(network):
    """The modelled exchange of the round, and its deadline."""
    chain = network.nodes[0].state.chain
    return exchange_ns(chain, TIMING, network.cache), deadline_ns(chain, TIMING, network.cache)


def statements(node):
    """What a node says of its own, as one message."""
    state, own = node.state, node.number
    return node.message(Gossip(1, updates=(state.updates[own],), reports=(state.reports[own],)))


def all_but_one(network):
    """Everybody hears everybody but the late member, who hears all."""
    for node in network.nodes[:LATE]:
        network.deliver(node, network.train(node))
        network.deliver(node, network.measure(node))
    late = network.nodes[LATE]
    network.train(late)
    network.measure(late)
    return late


def hear_at(network, node, message, now_ns):
    """A message at a time, with the blobs that it makes the node ask for."""
    for effect in node.give_at(message, now_ns):
        if isinstance(effect, FetchBlob):
            node.receive_blob(network.blobs[effect.blob], LATE, now_ns)


def prevotes(node):
    return [one.block for one in node.votes(Kind.PREVOTE)]


def test_a_block_with_the_proposers_own_statements_inside_waits_long_beyond_the_deadline(network):
    late, voter = all_but_one(network), network.nodes[0]
    assert late.state.phase is Phase.MINING  # it mines while all others wait for it
    block = make_block(late)
    hear_at(network, voter, late.message(Proposal(block)), 1)
    assert voter.state.candidates[block.digest].is_valid
    assert not prevotes(voter)
    assert not [one for one in voter.did(SetTimer) if one.timer is Timer.ATTEMPT]
    exchanged_ns, allowed_ns = rounds_ns(network)
    voter.give(TimerFired(Timer.DEADLINE, 1, 1), allowed_ns)
    assert voter.state.phase is Phase.MINING  # only now can it mine itself
    assert not prevotes(voter)
    ready_ns = allowed_ns + LATE_BLOCK_FACTOR * (allowed_ns - exchanged_ns)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), ready_ns - 1)
    assert not prevotes(voter)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), ready_ns)
    assert prevotes(voter) == [block.digest]


def test_after_the_deadline_members_that_held_different_things_come_together_in_the_next_attempt(network):
    late, voter = all_but_one(network), network.nodes[0]
    block = make_block(late)
    hear_at(network, voter, late.message(Proposal(block)), 1)
    _, allowed_ns = rounds_ns(network)
    voter.give(TimerFired(Timer.DEADLINE, 1, 1), allowed_ns)
    voter.give(TimerFired(Timer.ATTEMPT, 1, 1), allowed_ns + 1)
    assert prevotes(voter) == [block.digest]


def test_a_block_with_another_report_of_its_proposer_than_it_said_waits_as_if_it_had_said_none(network):
    late, voter = all_but_one(network), network.nodes[0]
    true = late.state.reports[LATE]
    worse = replace(true.report, conditions=replace(true.report.conditions, gain_atto=1_000))
    said = SignedReport(worse, signer(LATE).sign(Meaning.REPORT, late.state.chain.place, worse))
    hear_at(network, voter, late.message(Gossip(1, updates=(late.state.updates[LATE],), reports=(said,))), 1)
    block = make_block(late)
    assert true in block.body.reports
    hear_at(network, voter, late.message(Proposal(block)), 2)
    assert voter.state.candidates[block.digest].is_valid
    assert not prevotes(voter)


def without_report_of_last(*, is_told=False):
    """The second round, in which nobody waits for member 3; the others have said all, and it perhaps to the voter."""
    network = ManualNetwork()
    network.start()
    for node in network.nodes[:LATE]:  # member 3 gives its update, and no report
        network.deliver(node, network.train(node))
        network.deliver(node, network.measure(node))
    network.deliver(network.nodes[LATE], network.train(network.nodes[LATE]))
    for node in network.nodes:
        network.fire(node, Timer.DEADLINE)
    network.deliver(network.nodes[0], network.mine(network.nodes[0]))
    late, voter = network.nodes[LATE], network.nodes[0]
    assert LATE not in voter.state.chain.due
    network.measure(late)
    if is_told:
        voter.hear(late.message(Gossip(1, reports=(late.state.reports[LATE],))))
    for node in network.nodes[:LATE]:
        network.deliver(node, network.train(node))
        network.deliver(node, network.measure(node))
    return network, late, voter


def test_what_a_member_that_nobody_waits_for_told_a_few_may_be_missing_in_a_first_block():
    network, _, voter = without_report_of_last(is_told=True)
    assert LATE in voter.state.in_time_reports
    others = network.nodes[1]
    block = make_block(others)
    voter.hear(others.message(Proposal(block)))
    assert [one.block for one in voter.votes(Kind.PREVOTE)][-1] == block.digest


def test_who_is_kept_waiting_asks_and_is_told_by_those_that_were_told(network):
    late, voter, other = all_but_one(network), network.nodes[0], network.nodes[1]
    exchanged_ns, _ = rounds_ns(network)
    hear_at(network, other, statements(late), 1)
    before = len(voter.effects)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + exchanged_ns // ASK_SHARE)
    asked = [one.message for one in voter.effects[before:] if isinstance(one, Send)]
    assert [message.content.wants_answer for message in asked] == [True]
    told = [one for one in other.hear(asked[0]) if isinstance(one, Send)]
    assert [(one.to, one.message.content) for one in told] == [(0, statements(late).content)]
    hear_at(network, voter, told[0].message, exchanged_ns + exchanged_ns // ASK_SHARE)
    assert voter.state.phase is Phase.MINING


@pytest.mark.parametrize("is_late", [False, True])
def test_what_comes_late_is_passed_on_at_once(network, is_late):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    before = len(voter.effects)
    hear_at(network, voter, statements(late), exchanged_ns + is_late)
    said = [one.message.content for one in voter.effects[before:] if isinstance(one, Send)]
    assert said == ([statements(late).content] if is_late else [])


def test_who_lacks_what_more_say_than_may_lie_is_told_nothing(network):
    for node in network.nodes[1:]:
        network.deliver(node, network.train(node), [network.nodes[1]])
        network.deliver(node, network.measure(node), [network.nodes[1]])
    asked = network.nodes[0].message(Gossip(1, wants_answer=True))
    assert not [one for one in network.nodes[1].hear(asked) if isinstance(one, Send) and one.to == 0]


def test_a_report_that_nobody_waits_for_makes_its_authors_block_wait_if_first_seen_in_it():
    network, late, voter = without_report_of_last()
    network.fire(late, Timer.DEADLINE)
    block = make_block(late)
    assert late.state.reports[LATE] in block.body.reports
    voter.hear(late.message(Proposal(block)))
    assert voter.state.candidates[block.digest].is_valid
    assert not [one for one in voter.votes(Kind.PREVOTE) if one.block == block.digest]
    voter.hear(late.message(Gossip(1, reports=(late.state.reports[LATE],)), height=2))
    assert [one for one in voter.votes(Kind.PREVOTE) if one.block == block.digest]


def test_a_late_members_block_waits_four_times_as_long_as_the_others_waited_for_it(network):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    lateness_ns = 10_000_000
    heard_ns = exchanged_ns + lateness_ns
    hear_at(network, voter, statements(late), heard_ns)
    assert voter.state.phase is Phase.MINING
    block = make_block(late)
    hear_at(network, voter, late.message(Proposal(block)), heard_ns + 1)
    assert not prevotes(voter)
    review = [one for one in voter.did(SetTimer) if one.timer is Timer.REVIEW][-1]
    assert review.delay_ns == LATE_BLOCK_FACTOR * lateness_ns - 1
    voter.give(TimerFired(Timer.REVIEW, 1, 1), heard_ns + LATE_BLOCK_FACTOR * lateness_ns - 1)
    assert not prevotes(voter)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), heard_ns + LATE_BLOCK_FACTOR * lateness_ns)
    assert prevotes(voter) == [block.digest]


@pytest.mark.parametrize("speaker", [1, 2])
def test_a_leader_whose_clock_says_otherwise_is_followed_to_a_late_members_block(network, speaker):
    """Nodes measure lateness differently: where each kept to its own measure, attempt after attempt was split."""
    late, voter = all_but_one(network), network.nodes[0]
    heard_ns = rounds_ns(network)[0] + 10_000_000
    hear_at(network, voter, statements(late), heard_ns)
    block = make_block(late)
    hear_at(network, voter, late.message(Proposal(block)), heard_ns + 1)
    leads = leader_of(voter.state.chain, 4) == speaker
    said = voter.message(Gossip(4, votes=(vote(voter, Kind.PREVOTE, 4, block.digest, number=speaker),)))
    voter.give_at(replace(said, sender=speaker), heard_ns + 2)
    assert voter.state.attempt == 4
    assert prevotes(voter) == ([block.digest] if leads else [])


def test_another_members_block_need_not_wait_for_the_late_one(network):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    for node in network.nodes[:LATE]:
        hear_at(network, node, statements(late), exchanged_ns + 10_000_000)
    block = make_block(network.nodes[1])
    hear_at(network, voter, network.nodes[1].message(Proposal(block)), exchanged_ns + 10_000_001)
    assert prevotes(voter) == [block.digest]


def test_who_is_within_the_modelled_exchange_is_not_late(network):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    hear_at(network, voter, statements(late), exchanged_ns)
    block = make_block(late)
    hear_at(network, voter, late.message(Proposal(block)), exchanged_ns + 1)
    assert prevotes(voter) == [block.digest]


def test_lateness_is_taken_off_a_members_patience_and_a_quarter_of_the_rest_is_given_back(network):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, allowed_ns = rounds_ns(network)
    late_ns = allowed_ns - exchanged_ns - 1
    for node in network.nodes[:LATE]:
        hear_at(network, node, statements(late), exchanged_ns + late_ns)
    now_ns = exchanged_ns + late_ns + 4
    network.deliver(network.nodes[1], network.mine(network.nodes[1], now_ns), now_ns=now_ns)
    assert voter.state.chain.height == 1
    left_ns = allowed_ns - late_ns + (exchanged_ns + 4) // REFILL
    assert voter.state.patience_ns == {LATE: left_ns}


def test_a_round_goes_on_without_a_member_whose_patience_is_used_up(network):
    all_but_one(network)
    voter = network.nodes[0]
    exchanged_ns, allowed_ns = rounds_ns(network)
    voter.lose_patience(LATE, 5_000_000)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + exchanged_ns // ASK_SHARE)
    assert voter.state.phase is Phase.COLLECTING
    review = [one for one in voter.did(SetTimer) if one.timer is Timer.REVIEW][-1]
    assert review.delay_ns == 5_000_000 - exchanged_ns // ASK_SHARE < allowed_ns - exchanged_ns
    voter.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + 5_000_000)
    assert voter.state.phase is Phase.MINING
    assert [one.update.client for one in voter.state.mined.body.updates] == [0, 1, 2]


def test_nobody_is_given_up_while_more_are_missing_than_may_lie(network):
    voter = network.nodes[0]
    for node in network.nodes[:2]:
        network.deliver(node, network.train(node))
        network.deliver(node, network.measure(node))
    for member in (2, 3):
        voter.lose_patience(member, 0)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), rounds_ns(network)[1] - 1)
    assert voter.state.phase is Phase.COLLECTING


def test_what_came_late_may_be_left_out_of_a_first_block(network):
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    proposer = network.nodes[1]
    for node in (voter, proposer):
        node.lose_patience(LATE, 10_000_000)
    proposer.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + 10_000_000)
    block_of_others = make_block(proposer)
    hear_at(network, voter, statements(late), exchanged_ns + 9_000_000)  # just before this node would give it up
    hear_at(network, voter, proposer.message(Proposal(block_of_others)), exchanged_ns + 11_000_000)
    assert prevotes(voter) == [block_of_others.digest]


def test_who_was_still_collecting_signs_no_wait(network):
    late, voter = all_but_one(network), network.nodes[0]
    block = make_block(late)
    up_ns, _ = rounds_ns(network)
    assert up_ns > 10_000_000
    hear_at(network, voter, late.message(Proposal(block)), up_ns)
    others = [vote(node, Kind.PREVOTE, 1, block.digest) for node in network.nodes[1:]]
    for signed in others:
        voter.give_at(network.nodes[signed.vote.voter].message(Gossip(1, votes=(signed,))), up_ns)
    cast = voter.votes(Kind.PRECOMMIT)
    assert [one.block for one in cast] == [block.digest]
    assert [one.mining_ms for one in cast] == [0]


def test_a_wait_is_what_was_measured_from_closing_to_the_first_vote(network):
    up_ns = 604_800 * 10**9
    for node in network.nodes:
        network.deliver(node, network.train(node))
    network.deliver(network.nodes[0], network.measure(network.nodes[0]))
    for node in network.nodes[1:]:
        network.deliver(node, network.measure(node), now_ns=up_ns)
    voter, proposer = network.nodes[0], network.nodes[1]
    assert voter.state.mining_since_ns == up_ns
    network.deliver(proposer, network.mine(proposer, up_ns + 250_000_000), now_ns=up_ns + 250_000_000)
    assert [one.mining_ms for one in voter.votes(Kind.PRECOMMIT)] == [250]


def test_of_seven_members_two_may_be_waited_for_and_still_be_blamed_and_three_may_not():
    network = ManualNetwork(7)
    network.start()
    voter = network.nodes[0]
    for member in range(1, 7):
        voter.lose_patience(member, 0)
    for node in network.nodes[:4]:
        network.deliver(node, network.train(node), to=network.nodes[:4])
        network.deliver(node, network.measure(node), to=network.nodes[:4])
    late_ns = rounds_ns(network)[1] - 1
    voter.give(TimerFired(Timer.REVIEW, 1, 1), late_ns)
    assert voter.state.phase is Phase.COLLECTING  # three are missing
    fifth = network.nodes[4]
    network.train(fifth)
    network.measure(fifth)
    hear_of(network, voter, fifth, late_ns)
    voter.give(TimerFired(Timer.REVIEW, 1, 1), late_ns)
    assert voter.state.phase is Phase.MINING  # two are, of whom each may be a liar


def hear_of(network, node, other, now_ns):
    """Hears another's statements at a time, and gets the model."""
    node.give_at(statements(other), now_ns)
    node.receive_blob(network.blobs[other.state.updates[other.number].update.model], other.number, now_ns)


@pytest.mark.parametrize(("late_ns", "may_be_missing"), [(5_000_000, False), (5_000_001, True)])
def test_what_came_later_than_half_of_a_members_patience_may_be_missing_in_a_first_block(late_ns, may_be_missing):
    network = ManualNetwork()
    network.start()
    late, voter = all_but_one(network), network.nodes[0]
    exchanged_ns, _ = rounds_ns(network)
    proposer = network.nodes[1]
    for node in (voter, proposer):
        node.lose_patience(LATE, 10_000_000)
    proposer.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + 10_000_000)
    block = make_block(proposer)
    hear_at(network, voter, statements(late), exchanged_ns + late_ns)
    hear_at(network, voter, proposer.message(Proposal(block)), exchanged_ns + 11_000_000)
    assert prevotes(voter) == ([block.digest] if may_be_missing else [])


def test_who_was_never_heard_loses_what_was_waited_for_it_and_who_is_punctual_has_all_again(network):
    all_but_one(network)
    voter, others = network.nodes[0], network.nodes[:LATE]
    exchanged_ns, allowed_ns = rounds_ns(network)
    for node in others:
        node.lose_patience(LATE, 2_000_000)
        node.lose_patience(1, allowed_ns - 1)
        node.give(TimerFired(Timer.REVIEW, 1, 1), exchanged_ns + 5_000_000)
        assert node.state.phase is Phase.MINING
    now_ns = exchanged_ns + 5_000_000 + 8
    network.deliver(others[1], network.mine(others[1], now_ns), to=others, now_ns=now_ns)
    assert voter.state.chain.height == 1
    refill_ns = (now_ns - 5_000_000) // REFILL
    assert voter.state.patience_ns == {LATE: max(0, 2_000_000 - 5_000_000 + refill_ns)}  # member 1 has all of it again


def test_patience_is_never_less_than_none(network):
    all_but_one(network)
    voter = network.nodes[0]
    voter.lose_patience(LATE, 1)
    draft = Draft(voter.context, voter.state, rounds_ns(network)[0] + 10**12, 0)
    charge_lateness(draft)
    assert draft.patience_ns == {LATE: 0}


def test_a_deadline_that_is_longer_than_ten_minutes_is_not_cut_short_by_the_limit(network):
    chain, slow = network.nodes[0].state.chain, replace_state(TIMING, grace_ns=700 * 10**9)
    for num_idle in (0, 1, 3):
        idle = replace_state(chain, num_idle=num_idle)
        assert back_off_ns(idle, slow, network.cache) == deadline_ns(idle, slow, network.cache) > MAX_BACK_OFF_NS
    for_ever = replace_state(chain, num_idle=10**9)
    assert back_off_ns(for_ever, TIMING, network.cache) == MAX_BACK_OFF_NS


def test_a_live_network_lets_things_last_as_many_times_as_long_as_it_is_told(network):
    chain, slow = network.nodes[0].state.chain, replace_state(TIMING, time_scale=2.5)
    exchanged_ns = exchange_ns(chain, TIMING, network.cache)
    assert exchange_ns(chain, slow, network.cache) == round(2.5 * exchanged_ns)
    assert deadline_ns(chain, slow, network.cache) == 2 * round(2.5 * exchanged_ns) + TIMING.grace_ns
