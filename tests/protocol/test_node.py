"""Clauses of the protocol, each provoked by hand."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import (
    Block,
    FalseWork,
    ModelUpdate,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
    Vote,
)
from bdfl.ledger.genesis import conditions_of
from bdfl.ledger.rules import aggregate_updates
from bdfl.protocol.events import (
    Commit,
    FetchBlob,
    KeptProgress,
    KeptStatement,
    Measure,
    Measured,
    Mine,
    Refused,
    Send,
    SetTimer,
    Started,
    StopMining,
    Store,
    Timer,
    TimerFired,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import BlockWanted, Decided, DecidedWanted, Gossip, Proposal
from bdfl.protocol.node import begin, step
from bdfl.protocol.state import MOVES, Phase, Recovered, is_same
from bdfl.protocol.transition import Draft, IllegalMove
from bdfl.scenario import QuorumRule
from docs.figures.make_diagrams import draw_diagram
from tests.protocol.manual_network import (
    TIMING,
    Kind,
    ManualNetwork,
    make_block,
    model_bytes,
    replace_sender,
    say_votes,
    signer,
    vote,
)


@pytest.fixture
def network():
    network = ManualNetwork()
    network.start()
    return network


def test_a_round_that_nothing_disturbs_is_decided_in_one_attempt_by_all(network):
    network.play_round(winner=2)
    blocks = [node.did(Commit)[0].block for node in network.nodes]
    assert len(set(blocks)) == 1
    assert blocks[0].header.proposer == 2
    assert blocks[0].header.attempt == 1
    assert [signed.update.client for signed in blocks[0].body.updates] == [0, 1, 2, 3]
    assert all(node.state.chain.height == 1 and node.state.phase is Phase.COLLECTING for node in network.nodes)
    network.play_round(winner=1)
    assert all(node.state.chain.height == 2 for node in network.nodes)


def test_a_node_that_starts_trains_measures_and_waits(network):
    node = network.nodes[0]
    assert [type(effect) for effect in node.effects if not isinstance(effect, (SetTimer, Send))] == [Train, Measure]
    assert {effect.timer for effect in node.did(SetTimer)} == {Timer.DEADLINE, Timer.RESEND}


def test_a_step_changes_nothing_it_was_given(network):
    network.collect()
    node = network.nodes[0]
    before, known = node.state, {name: getattr(node.state, name) for name in ("votes", "updates", "candidates")}
    copies = {name: dict(value) for name, value in known.items()}
    first = network.mine(node)
    again = network.node(0)
    again.state = before
    assert network.mine(again) == first
    assert {name: dict(value) for name, value in known.items()} == copies


def test_everything_is_kept_before_it_is_said(network):
    network.play_round()
    for node in network.nodes:
        kept = set()
        for effect in node.effects:
            match effect:
                case Store(KeptStatement(statement=statement)):
                    kept.add(statement)
                case Send(None, message):
                    match message.content:
                        case Gossip(updates=updates, reports=reports, votes=votes):
                            said = [*updates, *reports, *votes]
                            own = [one for one in said if node.number in (_author(one),)]
                            assert kept.issuperset(own)
                        case Proposal(block):
                            assert block in kept


def _author(signed):
    match signed:
        case SignedUpdate():
            return signed.update.client
        case _ if hasattr(signed, "report"):
            return signed.report.client
        case _:
            return signed.vote.voter


# What is refused


def refusals(node, message):
    """Reasons; and nothing else happened."""
    before = node.state
    effects = node.hear(message)
    assert effects
    assert all(isinstance(effect, Refused) for effect in effects)
    for name in ("updates", "reports", "votes", "candidates", "blobs", "attempt", "phase", "lock"):
        assert getattr(node.state, name) == getattr(before, name)
    return " ".join(effect.reason for effect in effects)


def test_messages_of_other_chains_and_strangers_are_refused(network):
    node, other = network.nodes[:2]
    message = other.message(Gossip(1))
    assert "chain" in refusals(node, msgspec.structs.replace(message, chain=b"x" * 32))
    assert "member" in refusals(node, replace_sender(message, 9))
    assert "member" in refusals(node, replace_sender(message, 0))


def test_a_forged_update_is_refused(network):
    node, other = network.nodes[:2]
    update = ModelUpdate(2, node.state.chain.genesis.members[2].limits.samples, len(network.initial), b"m" * 32, 0)
    forged = SignedUpdate(update, signer(1).sign(Meaning.UPDATE, node.state.chain.place, update))
    assert "update-signature" in refusals(node, other.message(Gossip(1, updates=(forged,))))


def test_a_forged_vote_is_refused(network):
    node = network.nodes[0]
    forged = vote(node, Kind.PREVOTE, 1, b"b" * 32, number=2)
    forged = msgspec.structs.replace(forged, vote=msgspec.structs.replace(forged.vote, voter=3))
    assert "vote-signature" in refusals(node, network.nodes[1].message(Gossip(1, votes=(forged,))))


def test_blobs_that_are_not_wanted_or_of_another_size_are_refused_and_who_was_late_is_not_blamed(network):
    node, other = network.nodes[:2]
    [refused] = node.receive_blob(model_bytes(1, 2, 3, 4))
    assert refused.sender is None
    assert "not wanted" in refused.reason
    [refused] = node.receive_blob(b"x" * 1000, other.number)
    assert refused.sender == other.number
    assert "bytes given" in refused.reason


def test_a_model_that_is_not_finite_never_counts_and_is_never_asked_for_again(network):
    node, other = network.nodes[:2]
    nan = bytearray(model_bytes(1, 2, 3, 4))
    nan[-4:] = b"\x00\x00\xc0\x7f"
    data = bytes(nan)
    effects = other.give(TrainingFinished(1, other.state.chain.tip, data))
    announced = node.hear(effects[-1].message)
    assert FetchBlob(digest(data), other.number) in announced
    assert any("finite" in effect.reason for effect in node.receive_blob(data) if isinstance(effect, Refused))
    assert 1 not in node.state.updates
    assert not node.hear(effects[-1].message)
    for effect in network.measure(other):  # its report comes after its update was dropped
        if isinstance(effect, Send):
            node.hear(effect.message)
    assert 1 in node.state.reports
    assert 1 not in node.state.heard_ns


def test_a_block_whose_model_differs_in_one_bit_is_rejected_by_every_node(network):
    """[Li24, Section III-A, step 4], literally."""
    network.collect()
    state = network.nodes[0].state
    model = bytearray(aggregate_updates(state.chain, state.mined.body.updates, state.blobs, network.cache))
    model[-1] ^= 1
    block = make_block(network.nodes[3], change={"model": digest(bytes(model))})
    for node in network.nodes[:3]:
        reasons = [effect.reason for effect in node.hear(network.nodes[3].message(Proposal(block)))]
        assert len(reasons) == 1
        assert "model-aggregate" in reasons[0]
        assert not node.votes(Kind.PREVOTE)


def test_a_block_spoilt_on_its_way_does_not_spoil_the_block(network):
    network.collect()
    block = make_block(network.nodes[3])
    node, relay = network.nodes[0], network.nodes[1]
    spoilt = msgspec.structs.replace(block, body=msgspec.structs.replace(block.body, is_empty=True))
    assert "body-root" in refusals(node, relay.message(Proposal(spoilt)))
    unsigned = msgspec.structs.replace(block, signature=b"s" * 64)
    assert "block-signature" in refusals(node, relay.message(Proposal(unsigned)))
    node.hear(network.nodes[3].message(Proposal(block)))
    assert [one.block for one in node.votes(Kind.PREVOTE)] == [block.digest]


# Who may be voted for


def test_a_block_without_a_scheduled_update_waits_for_the_deadline(network):
    for node in network.nodes[:3]:
        network.deliver(node, network.train(node), to=network.nodes[:2])
        network.deliver(node, network.measure(node), to=network.nodes[:2])
    network.deliver(network.nodes[3], network.measure(network.nodes[3]))
    proposer, voter = network.nodes[:2]
    assert proposer.state.phase is Phase.COLLECTING
    network.fire(proposer, Timer.DEADLINE)
    assert proposer.state.phase is Phase.MINING
    proposal = next(effect for effect in network.mine(proposer) if isinstance(effect, Send)).message
    assert isinstance(proposal.content, Proposal)
    voter.hear(proposal)
    assert not voter.votes(Kind.PREVOTE)
    assert not [one for one in voter.did(SetTimer) if one.timer is Timer.ATTEMPT]  # nobody is driven through attempts
    network.fire(voter, Timer.DEADLINE)
    assert [one.attempt for one in voter.did(SetTimer) if one.timer is Timer.ATTEMPT] == [1]
    assert voter.votes(Kind.PREVOTE)[0].attempt == 1
    assert [one.block for one in voter.votes(Kind.PREVOTE)] == [proposal.content.block.digest]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_first_block_that_leaves_out_an_update_held_in_time_is_not_voted_for(network, missing):
    network.collect()
    node = network.nodes[0]
    body = node.state.mined.body
    kept = tuple(one for one in body.updates if one.update.client != missing)
    block = make_partial(network, kept, body.reports, 1)
    node.give(TimerFired(Timer.DEADLINE, 1, 1))
    node.hear(network.nodes[1].message(Proposal(block)))
    assert node.state.candidates[block.digest].is_valid
    assert not node.votes(Kind.PREVOTE)


def test_a_first_block_that_leaves_out_a_scheduled_update_is_not_voted_for_later_either(network):
    network.collect()
    node = network.nodes[0]
    body = node.state.mined.body
    block = make_partial(network, body.updates[:-1], body.reports, 1)
    node.give(TimerFired(Timer.DEADLINE, 1, 1))
    node.hear(network.nodes[1].message(Proposal(block)))
    network.fire(node, Timer.ATTEMPT)
    assert not node.votes(Kind.PREVOTE)
    assert node.did(Mine)[-1].header.attempt == 2


def test_a_first_block_that_leaves_out_a_report_held_in_time_is_not_voted_for(network):
    network.collect()
    node = network.nodes[0]
    body = node.state.mined.body
    block = make_partial(network, body.updates, body.reports[:-1], 1)
    node.hear(network.nodes[1].message(Proposal(block)))
    assert node.state.candidates[block.digest].is_valid
    assert not node.votes(Kind.PREVOTE)


def test_a_later_block_may_leave_out_what_came_too_late(network):
    network.collect()
    node = network.nodes[0]
    body = node.state.mined.body
    block = make_partial(network, body.updates, body.reports[:-1], 2)
    node.hear(network.nodes[1].message(Proposal(block)))
    assert not node.votes(Kind.PREVOTE)
    network.fire(node, Timer.ATTEMPT)
    assert [(one.attempt, one.block) for one in node.votes(Kind.PREVOTE)] == [(2, block.digest)]


def test_each_attempt_may_leave_out_one_late_member_more(network):
    network.collect()
    node = network.nodes[0]
    body = node.state.mined.body
    block = make_partial(network, body.updates, body.reports[:-2], 2)
    node.hear(network.nodes[1].message(Proposal(block)))
    network.fire(node, Timer.ATTEMPT)
    assert node.state.attempt == 2
    assert not node.votes(Kind.PREVOTE)
    network.fire(node, Timer.ATTEMPT)
    assert [(one.attempt, one.block) for one in node.votes(Kind.PREVOTE)] == [(3, block.digest)]


def make_partial(network, updates, reports, attempt):
    """A valid block by member 1 from these statements alone."""
    from bdfl.ledger.rules import make_body

    node = network.nodes[1]
    body, _ = make_body(
        node.state.chain,
        certificate=tuple(node.state.precommits.values()),
        updates=updates,
        reports=reports,
        entries=(),
        blobs=network.blobs,
        cache=network.cache,
    )
    change = {name: getattr(body, name) for name in body.__struct_fields__}
    return make_block(node, attempt=attempt, change=change)


# Votes, locks and attempts


def prepared(quorum=QuorumRule.MAJORITY, num_members=4):
    """A network where all mine, and two blocks of the first attempt, by members 1 and 2."""
    network = ManualNetwork(num_members, quorum)
    network.start()
    network.collect()
    blocks = [make_block(network.nodes[1]), make_block(network.nodes[2])]
    return network, network.nodes[0], blocks


def show(node, *blocks):
    for block in blocks:
        node.hear(replace_sender(node.message(Proposal(block)), block.header.proposer))


def pass_attempt(network, node):
    """The attempt's time is over, and two others have come as far: with this one, a quorum. No leader is heard."""
    for number in (2, 3):
        say_votes(node, vote(node, Kind.PRECOMMIT, node.state.attempt, b"?" * 32, number=number))
    network.fire(node, Timer.ATTEMPT)
    if node.state.leader_until_ns is not None:
        network.fire(node, Timer.LEADER)


def test_the_first_votable_block_gets_the_only_prevote_of_an_attempt():
    _, node, (first, second) = prepared()
    show(node, second, first)
    assert [one.block for one in node.votes(Kind.PREVOTE)] == [second.digest]
    assert node.did(StopMining)


def test_in_a_later_attempt_the_lowest_hash_gets_it():
    network, node, (first, second) = prepared()
    show(node, first, second)
    pass_attempt(network, node)
    law = network.genesis.law
    lowest = min((first, second), key=lambda block: network.cache.work_hash(law.work, block.header, block.nonce))
    assert [one.block for one in node.votes(Kind.PREVOTE)] == [first.digest, lowest.digest]


def test_a_whole_block_of_a_later_attempt_costs_less_work_and_is_voted_for_only_there():
    network, node, _ = prepared()
    later = make_block(network.nodes[1], attempt=2)
    show(node, later)
    assert later.header.difficulty < node.state.mined.header.difficulty
    assert later.digest in node.state.candidates
    assert not node.votes(Kind.PREVOTE)
    node.give(TimerFired(Timer.DEADLINE, 1, 1))
    assert not node.votes(Kind.PREVOTE)
    network.fire(node, Timer.ATTEMPT)
    assert [(one.attempt, one.block) for one in node.votes(Kind.PREVOTE)] == [(2, later.digest)]


# Waits that voters sign


def collect_at(network, now_ns):
    """As `ManualNetwork.collect`, at that time."""
    for node in network.nodes:
        height = node.state.chain.height + 1
        model = model_bytes(height, node.number, 1.0, -1.0)
        network.blobs[digest(model)] = model
        network.deliver(node, node.give(TrainingFinished(height, node.state.chain.tip, model), now_ns), now_ns=now_ns)
        conditions = conditions_of(network.rounds[height], node.number)
        network.deliver(node, node.give(Measured(height + 1, conditions, None), now_ns), now_ns=now_ns)


def test_a_precommit_says_how_many_milliseconds_were_mined_until_the_first_prevote(network):
    collect_at(network, 2_000_000_000)
    node, block = network.nodes[0], make_block(network.nodes[1])
    proposal = replace_sender(node.message(Proposal(block)), 1)
    node.give_at(proposal, 2_123_999_999)
    node.give_at(
        replace_sender(
            node.message(
                Gossip(1, votes=tuple(vote(node, Kind.PREVOTE, 1, block.digest, number=number) for number in (1, 2)))
            ),
            1,
        ),
        2_500_000_000,  # later: the block was known before
    )
    assert [one.mining_ms for one in node.votes(Kind.PREVOTE)] == [0]
    assert [one.mining_ms for one in node.votes(Kind.PRECOMMIT)] == [123]


def test_what_was_mined_is_measured_once_a_height(network):
    collect_at(network, 2_000_000_000)
    node, block = network.nodes[0], make_block(network.nodes[1])
    node.give_at(replace_sender(node.message(Proposal(block)), 1), 2_010_000_000)
    prevotes = [vote(node, Kind.PREVOTE, 2, block.digest, number=number) for number in (1, 2, 3)]
    node.give_at(replace_sender(node.message(Gossip(1, votes=tuple(prevotes))), 1), 3_000_000_000)
    assert [(one.attempt, one.mining_ms) for one in node.votes(Kind.PRECOMMIT)] == [(2, 10)]
    network.deliver(network.nodes[1], network.mine(network.nodes[1], 2_020_000_000), now_ns=2_020_000_000)
    assert network.nodes[2].state.chain.height == 1
    assert (network.nodes[2].state.mining_since_ns, network.nodes[2].state.mining_ms) == (0, 0)


def test_a_block_of_another_day_is_not_voted_for_until_the_tolerance_has_doubled_often_enough():
    network, node, (block, _) = prepared()
    node.utc_ms = network.genesis.time_ms + 24 * 3600 * 1000
    node.give(Started())
    show(node, block)
    while not node.votes(Kind.PREVOTE):
        pass_attempt(network, node)
    [vote_cast] = node.votes(Kind.PREVOTE)
    assert (vote_cast.attempt, vote_cast.block) == (12, block.digest)  # 60 s * 2^11 is more than a day


def test_a_locked_block_is_voted_for_whatever_its_time():
    network, node, (block, _) = prepared()
    node.utc_ms = network.genesis.time_ms + 24 * 3600 * 1000
    node.give(Started())
    show(node, block)
    assert not node.votes(Kind.PREVOTE)
    say_votes(node, *(vote(node, Kind.PREVOTE, 1, block.digest, number=number) for number in (1, 2, 3)))
    assert [cast.block for cast in node.votes(Kind.PRECOMMIT)] == [block.digest]


def test_a_quorum_of_prevotes_locks_and_gets_the_precommit():
    _, node, (first, second) = prepared()
    show(node, first, second)
    say_votes(node, vote(node, Kind.PREVOTE, 1, second.digest, number=2))
    say_votes(node, vote(node, Kind.PREVOTE, 1, second.digest, number=3))
    assert node.state.lock is None
    say_votes(node, vote(node, Kind.PREVOTE, 1, second.digest, number=1))
    assert node.state.lock.block == second.digest
    assert [one.block for one in node.votes(Kind.PRECOMMIT)] == [second.digest]


def test_a_vote_is_counted_once_however_often_it_is_said():
    _, node, (first, _) = prepared()
    show(node, first)
    for _ in range(5):
        say_votes(node, vote(node, Kind.PREVOTE, 1, first.digest, number=2))
    assert node.state.lock is None


def test_a_locked_node_prevotes_its_lock_whatever_else_it_sees():
    network, node, (first, second) = prepared()
    show(node, first)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    show(node, second)
    for attempt in (2, 3, 4):
        pass_attempt(network, node)
        assert node.votes(Kind.PREVOTE)[-1].attempt == attempt
        assert node.votes(Kind.PREVOTE)[-1].block == first.digest
    assert len(node.votes(Kind.PRECOMMIT)) == 1


def test_a_later_quorum_moves_the_lock_even_when_its_attempt_is_over_and_then_without_a_precommit():
    network, node, (first, second) = prepared()
    show(node, first, second)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    pass_attempt(network, node)
    pass_attempt(network, node)
    assert node.state.attempt == 3
    say_votes(node, *[vote(node, Kind.PREVOTE, 2, second.digest, number=number) for number in (1, 2, 3)])
    assert (node.state.lock.attempt, node.state.lock.block) == (2, second.digest)
    assert [one.block for one in node.votes(Kind.PRECOMMIT)] == [first.digest]


def test_an_earlier_quorum_does_not_move_the_lock():
    network, node, (first, second) = prepared()
    show(node, first, second)
    pass_attempt(network, node)
    lowest = node.votes(Kind.PREVOTE)[-1].block
    other = first.digest if lowest == second.digest else second.digest
    say_votes(node, *[vote(node, Kind.PREVOTE, 2, lowest, number=number) for number in (1, 2)])
    assert node.state.lock.attempt == 2
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, other, number=number) for number in (1, 2, 3)])
    assert (node.state.lock.attempt, node.state.lock.block) == (2, lowest)


def test_precommits_of_different_attempts_decide_nothing():
    _, node, (first, _) = prepared()
    show(node, first)
    for attempt, number in ((1, 1), (1, 2), (2, 3)):
        say_votes(node, vote(node, Kind.PRECOMMIT, attempt, first.digest, number=number))
    assert not node.did(Commit)
    say_votes(node, vote(node, Kind.PRECOMMIT, 1, first.digest, number=3))
    assert node.did(Commit)[0].block == first


def test_a_decided_block_that_is_not_here_is_asked_for_and_then_committed():
    _, node, (first, _) = prepared()
    say_votes(node, *[vote(node, Kind.PRECOMMIT, 1, first.digest, number=number) for number in (1, 2, 3)])
    assert BlockWanted(first.digest) in node.sent(BlockWanted)
    assert not node.did(Commit)
    show(node, first)
    assert node.did(Commit)[0].block == first


def play_without_vote_of_last(network):
    """A round after which the last node's precommit has not reached node 0; its message with it."""
    network.start()
    network.collect()
    *early, late = network.nodes
    winner = network.nodes[0]
    network.deliver(winner, network.mine(winner), to=early)
    block, certificate = network.decided[1]
    assert len(certificate) == 3
    signed = vote_at(late, winner.state.chain.tip_place, 1, block.digest)
    return winner, late, signed


def vote_at(node, place, attempt, block, number=None):
    number = node.number if number is None else number
    content = Vote(Kind.PRECOMMIT, attempt, block, number, (), (), 0)
    return SignedVote(content, signer(number).sign(Meaning.VOTE, place, content))


def test_a_precommit_that_comes_after_the_decision_is_in_the_certificate_that_the_next_block_carries(network):
    node, late, signed = play_without_vote_of_last(network)
    node.hear(replace_sender(node.message(Gossip(1, votes=(signed,)), height=1), late.number))
    for other in network.nodes[:3]:
        network.deliver(other, network.train(other), to=network.nodes[:3])
        network.deliver(other, network.measure(other), to=network.nodes[:3])
    network.fire(node, Timer.DEADLINE)
    votes = node.state.mined.body.parent_certificate
    assert [one.vote.voter for one in votes] == [0, 1, 2, 3]
    assert votes[3] == signed


@pytest.mark.parametrize("wrong", ["attempt", "block", "signature", "sender", "height", "second"])
def test_no_other_late_precommit_counts(network, wrong):
    node, late, signed = play_without_vote_of_last(network)
    place, tip = node.state.chain.tip_place, node.state.chain.tip
    sender, height = late.number, 1
    match wrong:
        case "attempt":
            signed = vote_at(late, place, 2, tip)
        case "block":
            signed = vote_at(late, place, 1, bytes(32))
        case "signature":
            signed = vote_at(late, node.state.chain.place, 1, tip)
        case "sender":
            sender = 1
        case "height":
            height = 2
        case "second":
            signed = vote_at(late, place, 1, tip, number=1)
            sender = 1
    before = dict(node.state.precommits)
    node.hear(replace_sender(node.message(Gossip(1, votes=(signed,)), height=height), sender))
    assert dict(node.state.precommits) == before


@pytest.mark.parametrize(("quorum", "needed"), [(QuorumRule.MAJORITY, 1), (QuorumRule.BFT, 2)])
def test_enough_votes_of_a_later_attempt_take_a_node_there(quorum, needed):
    _, node, (first, _) = prepared(quorum)
    for count, number in enumerate((1, 2, 3), start=1):
        say_votes(node, vote(node, Kind.PREVOTE, 5, first.digest, number=number))
        assert node.state.attempt == (5 if count >= needed else 1)
    assert Store(KeptProgress(1, 5, ())) in node.effects


def test_attempts_last_longer_and_longer_once_a_block_is_known():
    network, node, (first, _) = prepared()
    assert not [effect for effect in node.did(SetTimer) if effect.timer is Timer.ATTEMPT]
    show(node, first)
    for _ in range(3):
        pass_attempt(network, node)
    delays = [effect.delay_ns for effect in node.did(SetTimer) if effect.timer is Timer.ATTEMPT]
    assert delays == [1_500_000_000, 2_000_000_000, 2_500_000_000, 3_000_000_000]


def test_who_voted_stays_in_its_attempt_until_a_quorum_has_come_as_far():
    network, node, (first, second) = prepared(QuorumRule.BFT)
    show(node, first)
    network.fire(node, Timer.ATTEMPT)
    say_votes(node, vote(node, Kind.PREVOTE, 1, second.digest, number=2))
    for _ in range(3):
        network.fire(node, Timer.ATTEMPT)
        assert node.state.attempt == 1
    say_votes(node, vote(node, Kind.PREVOTE, 1, first.digest, number=3))
    network.fire(node, Timer.ATTEMPT)
    assert node.state.attempt == 2


def test_timers_of_left_attempts_and_heights_do_nothing():
    _, node, (first, _) = prepared()
    show(node, first)
    state = node.state
    assert node.give(TimerFired(Timer.ATTEMPT, 1, 2)) == []
    assert node.give(TimerFired(Timer.DEADLINE, 2, 1)) == []
    assert node.state is state


def test_a_vote_far_ahead_replaces_the_one_before_so_nobody_fills_the_memory():
    _, node, (first, _) = prepared(QuorumRule.BFT)
    for attempt in range(100, 300):
        say_votes(node, vote(node, Kind.PREVOTE, attempt, first.digest, number=3))
    assert [key[0] for key in node.state.votes if key[2] == 3] == [299]


# Evidence


def test_two_votes_two_blocks_two_updates_and_false_work_become_evidence():
    network, node, (first, second) = prepared()
    rival = make_block(network.nodes[1], change={"entries": ()}, attempt=1)
    while rival.digest == first.digest:
        header = rival.header
        nonce = (int.from_bytes(rival.nonce, "big") + 1).to_bytes(8, "big")
        from bdfl.ledger.block import Seal, header_seal

        while not network.cache.is_worked(network.genesis.law.work, header_seal(header), nonce, header.difficulty):
            nonce = (int.from_bytes(nonce, "big") + 1).to_bytes(8, "big")
        signature = signer(1).sign(Meaning.BLOCK, header.place, Seal(header, nonce))
        rival = msgspec.structs.replace(rival, nonce=nonce, signature=signature)
    show(node, first, rival)
    assert isinstance(node.state.evidence[1], TwoBlocks)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, block.digest, number=2) for block in (first, second)])
    assert isinstance(node.state.evidence[2], TwoVotes)
    place, update = node.state.chain.place, node.state.updates[3].update
    other = msgspec.structs.replace(update, model=b"o" * 32)
    signed = SignedUpdate(other, signer(3).sign(Meaning.UPDATE, place, other))
    node.hear(network.nodes[3].message(Gossip(1, updates=(signed,))))
    assert isinstance(node.state.evidence[3], TwoUpdates)


def test_false_work_is_evidence_and_drops_its_proposer_for_the_height():
    from bdfl.ledger.block import Seal, header_seal

    network, node, (first, second) = prepared()
    header = second.header
    nonces = (number.to_bytes(8, "big") for number in range(1000))
    law = network.genesis.law
    nonce = next(
        one for one in nonces if not network.cache.is_worked(law.work, header_seal(header), one, header.difficulty)
    )
    signature = signer(2).sign(Meaning.BLOCK, header.place, Seal(header, nonce))
    show(node, msgspec.structs.replace(second, nonce=nonce, signature=signature), second)
    assert isinstance(node.state.evidence[2], FalseWork)
    assert not node.state.candidates
    show(node, first)
    assert first.digest in node.state.candidates


def test_evidence_goes_into_the_next_own_block_and_the_offender_is_never_scheduled_again(network):
    network.collect()
    node = network.nodes[0]
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, bytes([one]) * 32, number=3) for one in (1, 2)])
    assert 3 in node.state.evidence
    network.deliver(network.nodes[1], network.mine(network.nodes[1]))
    network.collect()
    assert [type(entry) for entry in node.state.mined.body.entries] == [TwoVotes]
    network.deliver(node, network.mine(node))
    assert all(one.state.chain.offenders == {3} for one in network.nodes)
    assert all(3 not in one.state.chain.schedule.selected for one in network.nodes)
    network.play_round()
    assert network.nodes[1].state.chain.height == 3


# Starting again and catching up


def recovered_of(network, node):
    """What the node's effects left in its store for the height it works on."""
    height = node.state.chain.height + 1
    kept = [effect.kept for effect in node.did(Store)]
    of_height = [one for one in kept if getattr(one, "height", height) == height]
    statements = [one.statement for one in of_height if isinstance(one, KeptStatement)]
    updates = [one for one in statements if isinstance(one, SignedUpdate)]
    reports = [one for one in statements if isinstance(one, SignedReport)]
    progress = [one for one in of_height if isinstance(one, KeptProgress)]
    return Recovered(
        certificate=tuple(node.state.precommits.values()),
        update=updates[-1] if updates else None,
        report=reports[-1] if reports else None,
        blocks=tuple(one for one in statements if isinstance(one, Block)),
        votes=tuple(one for one in statements if isinstance(one, SignedVote)),
        progress=progress[-1] if progress else None,
        blobs=network.blobs,
    )


def test_a_restarted_node_repeats_its_votes_and_casts_no_others():
    network, node, (first, second) = prepared()
    show(node, first)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    cast = [one for kind in Kind for one in node.votes(kind)]
    again = network.node(0, recovered_of(network, node), node.state.chain)
    again.give(Started())
    show(again, second)
    assert {one for kind in Kind for one in again.votes(kind)} == set(cast)
    assert again.state.lock.block == first.digest
    assert not again.did(Train)
    network.fire(again, Timer.ATTEMPT)
    assert again.votes(Kind.PREVOTE)[-1].block == first.digest


def test_a_restarted_node_does_not_go_back_to_an_attempt_it_left():
    network, node, (first, second) = prepared()
    show(node, first)
    say_votes(node, vote(node, Kind.PREVOTE, 7, second.digest, number=2))
    assert node.state.attempt == 7
    again = network.node(0, recovered_of(network, node), node.state.chain)
    assert again.state.attempt == 7


def test_a_recovered_lock_is_of_the_attempt_whose_prevotes_made_it():
    network, node, (first, second) = prepared()
    show(node, first, second)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    pass_attempt(network, node)
    pass_attempt(network, node)
    again = network.node(0, recovered_of(network, node), node.state.chain)
    assert again.state.attempt == 3
    assert again.state.lock == node.state.lock
    assert again.state.lock.attempt == 1
    again.give(Started())
    say_votes(again, *[vote(again, Kind.PREVOTE, 2, second.digest, number=number) for number in (1, 2, 3)])
    assert (again.state.lock.attempt, again.state.lock.block) == (2, second.digest)
    once_more = network.node(0, recovered_of(network, again), node.state.chain)
    assert once_more.state.lock == again.state.lock


def test_a_restarted_node_still_knows_who_came_as_far_as_its_lock():
    network, node, (first, _) = prepared()
    show(node, first)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    again = network.node(0, recovered_of(network, node), node.state.chain)
    again.give(Started())
    network.fire(again, Timer.ATTEMPT)
    assert again.state.attempt == 2


def test_a_restarted_node_signs_no_other_update_or_report(network):
    node = network.nodes[0]
    network.train(node)
    network.measure(node)
    again = network.node(0, recovered_of(network, node), node.state.chain)
    again.give(Started())
    assert not again.did(Train)
    assert not again.did(Measure)
    again.give(TrainingFinished(1, node.state.chain.tip, model_bytes(9.0, 9.0, 9.0, 9.0)))
    network.measure(again)
    [gossip] = again.sent(Gossip)
    assert gossip.updates == (node.state.updates[0],)
    assert gossip.reports == (node.state.reports[0],)


def test_a_restarted_proposer_gives_no_second_block(network):
    network.collect()
    node = network.nodes[0]
    network.mine(node)
    again = network.node(0, recovered_of(network, node), node.state.chain)
    again.give(Started())
    again.give(TimerFired(Timer.DEADLINE, 1, 1))
    assert not [effect for effect in again.did(Mine) if effect.header.attempt == 1]


def test_a_node_that_missed_blocks_fetches_them_one_by_one():
    network = ManualNetwork()
    network.start()
    late = network.nodes[3]
    awake = network.nodes[:3]
    for _ in range(3):
        for node in awake:
            network.deliver(node, network.train(node), to=awake)
            network.deliver(node, network.measure(node), to=awake)
        for node in awake:
            if node.state.phase is Phase.COLLECTING:
                node.give(TimerFired(Timer.DEADLINE, node.state.chain.height + 1, 1))
        network.deliver(awake[0], network.mine(awake[0]), to=awake)
    assert [node.state.chain.height for node in network.nodes] == [3, 3, 3, 0]
    network.deliver(late, network.fire(late, Timer.RESEND))
    assert late.state.chain.height == 3
    assert late.state.chain.tip == awake[0].state.chain.tip


def test_what_comes_early_is_kept_for_the_next_height(network):
    network.collect()
    proposer, late = network.nodes[0], network.nodes[3]
    network.deliver(proposer, network.mine(proposer), to=network.nodes[:3])
    assert late.state.chain.height == 0
    early = network.measure(network.nodes[1])
    late.hear(early[-1].message)
    assert late.state.early
    block, certificate = network.decided[1]
    late.hear(replace_sender(late.message(Decided(block, certificate)), 1))
    assert late.state.chain.height == 1
    assert 1 in late.state.reports
    assert DecidedWanted() in late.sent(DecidedWanted)


def test_a_decision_is_asked_for_until_its_block_is_here():
    """Not while only models are missing: over a slow line the answers of all would keep these from coming."""
    network = ManualNetwork()
    network.start()
    awake, late = network.nodes[:3], network.nodes[3]
    for node in awake:
        network.deliver(node, network.train(node), to=awake)
        network.deliver(node, network.measure(node), to=awake)
    for node in awake:
        node.give(TimerFired(Timer.DEADLINE, 1, 1))
    network.deliver(awake[0], network.mine(awake[0]), to=awake)
    block, certificate = network.decided[1]

    def hear_ahead_of(sender):
        before = len(late.sent(DecidedWanted))
        late.hear(replace_sender(late.message(Gossip(1, wants_answer=True), height=2), sender))
        return len(late.sent(DecidedWanted)) - before

    assert hear_ahead_of(1) == 1
    spoiled = msgspec.structs.replace(block, body=msgspec.structs.replace(block.body, is_empty=True))
    late.hear(replace_sender(late.message(Decided(spoiled, certificate), height=1), 2))
    assert late.state.decision is not None
    assert hear_ahead_of(1) == 1  # somebody spoiled the block on its way
    late.hear(replace_sender(late.message(Decided(block, certificate), height=1), 1))
    assert late.state.chain.height == 0
    assert hear_ahead_of(1) == 0
    assert hear_ahead_of(2) == 0


def test_a_decision_without_a_quorum_is_refused(network):
    network.collect()
    proposer, late = network.nodes[0], network.nodes[3]
    network.deliver(proposer, network.mine(proposer), to=network.nodes[:3])
    block, certificate = network.decided[1]
    for votes in (certificate[:2], (*certificate[:2], certificate[1]), ()):
        late.hear(replace_sender(late.message(Decided(block, votes)), 1))
        assert late.state.chain.height == 0
    assert any("certificate" in effect.reason for effect in late.did(Refused))


def test_after_the_last_height_a_node_only_answers():
    network = ManualNetwork(last_height=1)
    network.start()
    network.play_round()
    for node in network.nodes:
        assert node.state.phase is Phase.DONE
        assert node.give(TimerFired(Timer.RESEND, 2, 1)) == []
        assert not node.hear(replace_sender(node.message(Gossip(1, wants_answer=True)), (node.number + 1) % 4))


def test_a_diverged_training_is_said_so_that_nobody_waits(network):
    for node in network.nodes[:3]:
        network.deliver(node, network.train(node))
    for node in network.nodes:
        network.deliver(node, network.measure(node))
    last = network.nodes[3]
    network.deliver(last, last.give(TrainingFinished(1, last.state.chain.tip, None)))
    assert all(node.state.phase is Phase.MINING for node in network.nodes)
    network.deliver(last, network.mine(last))
    chain = last.state.chain
    assert chain.height == 1
    assert chain.misses[3] == 0
    assert chain.queue_nano[3] == chain.params.rate_nano[3]


def test_a_member_that_is_silent_delays_one_round_by_a_deadline_and_then_rests(network):
    awake = network.nodes[:3]
    for node in awake:
        network.deliver(node, network.train(node), to=awake)
        network.deliver(node, network.measure(node), to=awake)
    assert all(node.state.phase is Phase.COLLECTING for node in awake)
    for node in awake:
        node.give(TimerFired(Timer.DEADLINE, 1, 1))
    network.deliver(awake[0], network.mine(awake[0]), to=awake)
    chain = awake[1].state.chain
    assert chain.height == 1
    assert chain.rests_until[3] == 2
    assert 3 not in chain.schedule.selected
    for node in awake:
        network.deliver(node, network.train(node), to=awake)
        network.deliver(node, network.measure(node), to=awake)
    assert all(node.state.phase is Phase.MINING for node in awake)


# The network of moves


def test_a_move_that_is_not_in_the_table_is_a_mistake(network):
    node = network.nodes[0]
    draft = Draft(node.context, node.state, 0, 0)
    draft.phase = Phase.DONE
    with pytest.raises(IllegalMove, match="from done to voting"):
        draft.move(Phase.VOTING)


def test_every_phase_is_in_the_table_and_can_be_reached():
    assert set(MOVES) == set(Phase)
    reached = {Phase.COLLECTING} | {after for moves in MOVES.values() for after in moves}
    assert reached == set(Phase)


def test_the_diagram_in_the_documentation_is_the_one_the_code_draws():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{draw_diagram()}\n```" in page


def test_an_old_block_sent_again_bans_nobody_but_costs_its_sender(network):
    network.play_round(winner=1)
    decided, _ = network.decided[1]
    network.collect()
    node = network.nodes[0]
    effects = node.hear(network.nodes[2].message(Proposal(decided)))
    assert [one.sender for one in effects if isinstance(one, Refused)] == [2]
    assert not node.state.banned
    assert not node.state.refused
    block = make_block(network.nodes[1])
    node.hear(network.nodes[1].message(Proposal(block)))
    assert [one.block for one in node.votes(Kind.PREVOTE)][-1] == block.digest


def test_a_split_is_not_waited_out_for_a_member_whose_prevote_did_not_come_lately():
    network, node, blocks = prepared(QuorumRule.BFT)
    show(node, *blocks)
    say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[0].digest, number=1))
    say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[1].digest, number=2))
    assert node.state.attempt == 1  # member 3 could still decide it
    network.fire(node, Timer.ATTEMPT)
    assert node.state.absent_until == {3: 1 + 16}
    assert node.state.attempt == 2
    say_votes(node, vote(node, Kind.PREVOTE, 2, blocks[0].digest, number=1))
    say_votes(node, vote(node, Kind.PREVOTE, 2, blocks[1].digest, number=2))
    assert node.state.attempt == 3


@pytest.mark.parametrize("is_late", [False, True])
def test_a_split_is_not_waited_out_for_a_member_whose_prevote_came_late(is_late):
    network, node, blocks = prepared(QuorumRule.BFT)
    show(node, *blocks)
    say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[0].digest, number=1))
    say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[1].digest, number=2))
    in_vain = Gossip(1, votes=(vote(node, Kind.PREVOTE, 1, b"?" * 32, number=3),))
    quarter_ns = TIMING.attempt_ns * 3 // 2 // 4
    node.give_at(network.nodes[3].message(in_vain), quarter_ns if is_late else quarter_ns - 1)
    assert node.state.attempt == 2
    assert node.state.absent_until == ({3: 1 + 16} if is_late else {})
    say_votes(node, vote(node, Kind.PREVOTE, 2, blocks[0].digest, number=1))
    say_votes(node, vote(node, Kind.PREVOTE, 2, blocks[1].digest, number=2))
    assert node.state.attempt == (3 if is_late else 2)


def test_nobody_leaves_an_attempt_alone_however_many_were_absent():
    _, node, blocks = prepared(QuorumRule.BFT)
    node.state = replace(node.state, absent_until={2: 9, 3: 9})
    show(node, *blocks)
    assert node.votes(Kind.PREVOTE)
    assert node.state.attempt == 1


def test_a_quorum_for_a_block_found_wrong_moves_no_lock_and_hides_no_earlier_quorum():
    network, node, (first, _) = prepared()
    wrong = make_block(network.nodes[2], change={"model": network.genesis.model.initial}, attempt=2)
    show(node, first, wrong)
    assert wrong.digest in node.state.refused
    say_votes(node, *[vote(node, Kind.PREVOTE, 2, wrong.digest, number=number) for number in (1, 2, 3)])
    assert node.state.attempt == 2
    assert node.state.lock is None
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2, 3)])
    assert (node.state.lock.attempt, node.state.lock.block) == (1, first.digest)


def test_a_late_precommit_is_added_only_as_long_as_certificates_have_room(network, monkeypatch):
    node, late, signed = play_without_vote_of_last(network)
    message = replace_sender(node.message(Gossip(1, votes=(signed,)), height=1), late.number)
    monkeypatch.setattr("bdfl.protocol.consensus.MAX_CERTIFIED", 3)
    node.hear(message)
    assert len(node.state.precommits) == 3
    monkeypatch.setattr("bdfl.protocol.consensus.MAX_CERTIFIED", 4)
    node.hear(message)
    assert len(node.state.precommits) == 4


def test_who_did_not_prevote_lately_is_waited_for_again_after_sixteen_heights():
    _, node, blocks = prepared(QuorumRule.BFT)
    for until, attempt in ((0, 1), (1, 2)):  # at height 1
        node.state = replace(node.state, absent_until={3: until})
        show(node, *blocks)
        say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[0].digest, number=1))
        say_votes(node, vote(node, Kind.PREVOTE, 1, blocks[1].digest, number=2))
        node.give(TimerFired(Timer.REVIEW, 1, 1))
        assert node.state.attempt == attempt


def test_only_the_first_two_attempts_are_cut_short_by_a_split():
    _, node, blocks = prepared(QuorumRule.BFT)
    show(node, *blocks)
    for attempt, after in ((1, 2), (2, 3), (3, 3)):
        for number, block in ((1, blocks[0].digest), (2, blocks[1].digest), (3, b"?" * 32)):
            assert node.state.attempt == attempt
            say_votes(node, vote(node, Kind.PREVOTE, attempt, block, number=number))
        assert node.state.attempt == after


def test_a_member_without_data_takes_part_with_the_model_as_it_is_and_trains_nothing():
    network = ManualNetwork(samples=(300, 300, 0, 300))
    network.start()
    node = network.nodes[2]
    assert not node.did(Train)
    [said] = [content.updates for content in node.sent(Gossip) if content.updates and not content.wants_answer]
    update = said[0].update
    assert (update.client, update.samples, update.model) == (2, 0, node.state.chain.model)
    assert update.size == len(network.initial)
    for one in network.nodes:
        network.deliver(one, [effect for effect in one.effects if isinstance(effect, Send)])
        if one is not node:
            network.deliver(one, network.train(one))
        network.deliver(one, network.measure(one))
    assert all(one.state.phase is Phase.MINING for one in network.nodes)
    network.deliver(node, network.mine(node))
    block = network.decided[1][0]
    assert [signed.update.samples for signed in block.body.updates] == [300, 300, 0, 300]
    assert not block.body.is_empty


def test_what_is_no_news_leaves_a_state_that_is_the_same_but_for_whose_turn_it_is(network):
    node = network.nodes[0]
    before = node.state
    network.fire(node, Timer.RESEND)
    assert node.state.turn == before.turn + 1
    assert is_same(before, node.state)
    network.measure(node)
    assert not is_same(before, node.state)
    assert is_same(node.state, replace(node.state, reports=dict(node.state.reports)))  # equal, not the very same


def test_states_are_shared_between_copies_only_where_a_node_is_said_to_be_alone(network):
    node = network.nodes[0]
    assert not node.context.is_alone
    votes = node.state.votes
    node.hear(network.nodes[1].message(Gossip(1, votes=(vote(node, Kind.PREVOTE, 1, b"b" * 32, number=1),))))
    assert node.state.votes._entries is not votes._entries
    alone = dataclasses.replace(node.context, is_alone=True)
    state = begin(alone, node.state.chain)
    after, _ = step(alone, state, Started(), 0, 0)
    assert after.reports._entries is state.reports._entries


def test_a_node_that_decided_a_block_holds_of_the_next_height_what_one_does_that_starts_there():
    """Whatever the height before brought: attempts, locks, wrong blocks, wanted ones, deadlines."""
    network, node, (first, _) = prepared()
    wrong = make_block(network.nodes[3], change={"model": network.genesis.model.initial})
    show(node, wrong, first)
    node.give(TimerFired(Timer.DEADLINE, 1, 1), 7)
    say_votes(node, *[vote(node, Kind.PREVOTE, 1, first.digest, number=number) for number in (1, 2)])
    say_votes(node, vote(node, Kind.PREVOTE, 2, b"?" * 32, number=3))
    pass_attempt(network, node)
    dirty = node.state
    assert all((dirty.lock, dirty.refused, dirty.wanted_blocks, dirty.own_votes, dirty.attempt > 1))
    assert all((dirty.is_deadline_over, dirty.attempt_end_ns, dirty.heard_ns))
    node.hear(network.nodes[1].message(Gossip(1, votes=()), height=2))
    assert node.state.early
    precommits = [vote(node, Kind.PRECOMMIT, 2, first.digest, number=number) for number in (1, 2, 3)]
    node.effects.clear()
    say_votes(node, *precommits)
    assert node.state.chain.height == 1
    fresh = network.node(0, Recovered(certificate=tuple(precommits)), node.state.chain)
    fresh.give(Started())
    of_the_node = {"evidence", "held_since", "absent_until", "patience_ns", "clock_offsets_ms"}
    of_its_start = {"turn", "num_resends", "resend_at_ns"}  # when it says all it holds once more
    for name, value in vars(fresh.state).items():
        found = getattr(node.state, name)
        if name not in of_the_node | of_its_start:
            assert (set(found) if name == "in_time_reports" else found) == value, name
    timers = {one.timer: one.delay_ns for one in reversed(node.did(SetTimer)) if one.height == 2}
    assert timers == {one.timer: one.delay_ns for one in reversed(fresh.did(SetTimer))}
    assert node.did(Train)[-1] == fresh.did(Train)[-1]


def test_attempts_of_every_height_are_timed(network):
    for _ in range(2):
        network.play_round()
    timed = [one.height for one in network.nodes[1].did(SetTimer) if one.timer is Timer.ATTEMPT]
    assert timed == [1, 2]
