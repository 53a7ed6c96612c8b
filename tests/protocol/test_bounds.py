"""Limits of what a node holds of a height, whatever is sent to it, and what lifts them: a quorum."""

import msgspec
import numpy as np
import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import SignedUpdate, TwoBlocks, TwoUpdates
from bdfl.ledger.rules import make_body
from bdfl.protocol.events import FetchBlob, Send, Timer
from bdfl.protocol.messages import BlockWanted, Decided, Gossip, Proposal
from bdfl.protocol.proposals import MAX_AHEAD
from bdfl.protocol.sync import MAX_EARLY
from bdfl.protocol.updates import MAX_BLOBS
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import (
    Kind,
    ManualNetwork,
    make_block,
    model_bytes,
    replace_sender,
    say_votes,
    signer,
    vote,
)

LIAR = 3


@pytest.fixture
def network():
    """Four members that all trained and mine; three votes decide."""
    network = ManualNetwork(num_members=4, quorum=QuorumRule.BFT)
    network.start()
    network.collect()
    return network


def asked(effects, kind):
    """What a node asks others for."""
    if kind is FetchBlob:
        return [effect.blob for effect in effects if isinstance(effect, FetchBlob)]
    contents = [effect.message.content for effect in effects if isinstance(effect, Send)]
    return [content.block for content in contents if isinstance(content, kind)]


def other_update(network, number):
    """Another update of the liar, of which nobody has the model yet."""
    state = network.nodes[LIAR].state
    model = model_bytes(100.0 + number, 0.0, 0.0, 0.0)
    network.blobs[digest(model)] = model
    update = msgspec.structs.replace(state.updates[LIAR].update, model=digest(model))
    return SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, state.chain.place, update))


def block_on(network, update, *, attempt=1, proposer=LIAR):
    """A valid block that rests on that update of the liar."""
    node = network.nodes[LIAR]
    mined, state = node.state.mined.body, node.state
    body, _ = make_body(
        state.chain,
        certificate=mined.parent_certificate,
        updates=tuple(update if one.update.client == LIAR else one for one in mined.updates),
        reports=mined.reports,
        entries=mined.entries,
        blobs={**state.blobs, **network.blobs},
        cache=network.cache,
    )
    changes = {name: getattr(body, name) for name in body.__struct_fields__}
    return make_block(node, attempt=attempt, proposer=proposer, change=changes)


def show(network, node, block):
    return node.hear(network.nodes[LIAR].message(Proposal(block)))


def hand_over(network, node, effects):
    """Gives the node every model it asks for."""
    for blob in asked(effects, FetchBlob):
        node.receive_blob(network.blobs[blob], LIAR)


def prevotes(node, block, *voters, attempt=1):
    return [say_votes(node, vote(node, Kind.PREVOTE, attempt, block.digest, number=voter)) for voter in voters][-1]


def test_so_many_messages_of_the_next_height_are_kept_from_each_sender(network):
    node = network.nodes[0]
    for sender in (1, 2):
        for attempt in range(1, 21):
            node.hear(replace_sender(node.message(Gossip(attempt), height=2), sender))
    kept = [message.sender for message in node.state.early]
    assert [kept.count(sender) for sender in (1, 2, 3)] == [MAX_EARLY, MAX_EARLY, 0]


def test_a_second_block_of_a_proposer_is_held_only_if_somebody_voted_for_it(network):
    node = network.nodes[0]
    first, second, third = (block_on(network, other_update(network, number)) for number in range(3))
    show(network, node, first)
    show(network, node, second)
    assert list(node.state.candidates) == [first.digest]
    assert isinstance(node.state.evidence[LIAR], TwoBlocks | TwoUpdates)
    assert asked(prevotes(node, third, 1), BlockWanted) == [third.digest]
    show(network, node, third)
    assert list(node.state.candidates) == [first.digest, third.digest]


def test_a_block_of_a_far_later_attempt_is_held_only_if_a_quorum_voted_for_it(network):
    node = network.nodes[0]
    near, far = (block_on(network, other_update(network, 0), attempt=1 + MAX_AHEAD + beyond) for beyond in (0, 1))
    show(network, node, near)
    show(network, node, far)
    assert list(node.state.candidates) == [near.digest]
    for voter in (1, 2):
        assert asked(prevotes(node, far, voter), BlockWanted) == [far.digest]
        show(network, node, far)
        assert list(node.state.candidates) == [near.digest]
        assert not node.state.wanted_blocks
    assert asked(prevotes(node, far, LIAR), BlockWanted) == [far.digest]
    show(network, node, far)
    assert list(node.state.candidates) == [near.digest, far.digest]


def test_only_the_first_prevote_of_a_member_in_an_attempt_makes_a_block_wanted(network):
    node = network.nodes[0]
    first, second, third = (block_on(network, other_update(network, number)) for number in range(3))
    assert asked(prevotes(node, first, LIAR), BlockWanted) == [first.digest]
    assert asked(prevotes(node, second, LIAR), BlockWanted) == []
    assert asked(say_votes(node, vote(node, Kind.PRECOMMIT, 1, third.digest, number=LIAR)), BlockWanted) == []
    assert asked(prevotes(node, second, LIAR, attempt=2), BlockWanted) == [second.digest]
    assert node.state.wanted_blocks == {first.digest, second.digest}


def test_a_quorum_of_precommits_makes_a_block_wanted(network):
    node = network.nodes[0]
    block = block_on(network, other_update(network, 0))
    said = [say_votes(node, vote(node, Kind.PRECOMMIT, 1, block.digest, number=voter)) for voter in (1, 2, 3)]
    assert [asked(effects, BlockWanted) for effects in said] == [[], [], [block.digest]]


def test_a_block_voted_for_far_ahead_is_wanted_when_its_attempt_is_near(network):
    node = network.nodes[0]
    block = block_on(network, other_update(network, 0))
    prevotes(node, block, 1, attempt=2 + MAX_AHEAD)
    assert not node.state.wanted_blocks
    said = say_votes(node, *(vote(node, Kind.PREVOTE, 2, digest(bytes([n])), number=n) for n in (1, 2)))
    assert node.state.attempt == 2
    assert block.digest in asked(said, BlockWanted)


def test_a_third_model_of_a_member_is_asked_for_only_if_a_quorum_voted_for_a_block_with_it(network):
    node = network.nodes[0]
    blocks = [block_on(network, other_update(network, number), attempt=1 + number) for number in range(3)]
    for block in blocks:
        hand_over(network, node, show(network, node, block))
    held = {blob for blob in node.state.blobs if blob in {update_of(block) for block in blocks}}
    assert held == {update_of(blocks[0])}  # beside the liar's first
    assert len(node.state.asked_blobs[LIAR]) == MAX_BLOBS
    assert [candidate.is_valid for candidate in node.state.candidates.values()] == [True, False, False]
    prevotes(node, blocks[1], 1, 2)
    effects = prevotes(node, blocks[1], LIAR)
    assert asked(effects, FetchBlob) == [update_of(blocks[1])]
    hand_over(network, node, effects)
    assert [candidate.is_valid for candidate in node.state.candidates.values()] == [True, True, False]
    assert node.state.lock.block == blocks[1].digest


def test_all_models_of_a_decided_block_are_asked_for(network):
    node = network.nodes[0]
    blocks = [block_on(network, other_update(network, number), attempt=1 + number) for number in range(3)]
    for block in blocks:
        hand_over(network, node, show(network, node, block))
    certificate = tuple(vote(node, Kind.PRECOMMIT, 3, blocks[2].digest, number=voter) for voter in (1, 2, 3))
    effects = node.hear(network.nodes[LIAR].message(Decided(blocks[2], certificate)))
    assert asked(effects, FetchBlob) == [update_of(blocks[2])]
    hand_over(network, node, effects)
    assert node.state.chain.height == 1


def test_a_member_whose_models_are_all_wrong_is_asked_for_two_of_them():
    network = ManualNetwork(num_members=4, quorum=QuorumRule.BFT)
    network.start()
    node, liar = network.nodes[0], network.nodes[LIAR]
    network.deliver(liar, network.train(liar), to=[])
    wanted = []
    for number in range(4):
        model = model_bytes(float(number), 0.0, 0.0, 0.0)[:-4] + np.array([np.nan], "<f4").tobytes()
        update = msgspec.structs.replace(liar.state.updates[LIAR].update, model=digest(model))
        signed = SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, node.state.chain.place, update))
        effects = node.hear(liar.message(Gossip(1, updates=(signed,))))
        wanted += asked(effects, FetchBlob)
        node.receive_blob(model, LIAR)
    assert len(wanted) == MAX_BLOBS
    assert not node.state.blobs


def test_who_gave_two_updates_is_left_out_from_the_second_attempt_on(network):
    """Else members that hold different ones could go on voting for blocks that the others do not ask the models of."""
    node = network.nodes[0]
    block = block_on(network, other_update(network, 0), proposer=2)
    hand_over(network, node, show(network, node, block))
    assert isinstance(node.state.evidence[LIAR], TwoUpdates)
    assert [one.block for one in node.votes(Kind.PREVOTE)] == [block.digest]  # the first attempt is as always
    network.fire(node, Timer.DEADLINE)
    say_votes(node, *(vote(node, Kind.PREVOTE, 2, digest(bytes([n])), number=n) for n in (1, 2)))
    assert node.state.attempt == 2
    assert len(node.votes(Kind.PREVOTE)) == 1
    assert {signed.update.client for signed in node.state.mined.body.updates} == {0, 1, 2}
    network.mine(node)
    assert node.votes(Kind.PREVOTE)[1].block != block.digest


def test_who_gave_two_updates_is_told_of_to_all_with_both(network):
    node, other = network.nodes[:2]
    second = other_update(network, 0)
    node.hear(network.nodes[LIAR].message(Gossip(1, updates=(second,))))
    said = next(effect.message for effect in network.fire(node, Timer.RESEND) if isinstance(effect, Send))
    assert {node.state.updates[LIAR], second} <= set(said.content.updates)
    other.hear(said)
    assert isinstance(other.state.evidence[LIAR], TwoUpdates)


def test_an_earlier_offence_does_not_hide_that_a_member_gave_two_updates(network):
    node = network.nodes[0]
    prevotes(node, block_on(network, other_update(network, 1)), LIAR)
    prevotes(node, block_on(network, other_update(network, 2)), LIAR)
    assert not isinstance(node.state.evidence[LIAR], TwoUpdates)
    node.hear(network.nodes[LIAR].message(Gossip(1, updates=(other_update(network, 0),))))
    assert isinstance(node.state.evidence[LIAR], TwoUpdates)


def update_of(block):
    return next(signed.update.model for signed in block.body.updates if signed.update.client == LIAR)


def test_of_what_a_member_voted_in_one_attempt_eight_blocks_are_counted_of_each_kind(network):
    node = network.nodes[0]
    for kind in (Kind.PREVOTE, Kind.PRECOMMIT):
        for number in range(12):
            say_votes(node, vote(node, kind, 1, digest(bytes([number])), number=LIAR))
    held = [key for key in node.state.votes if key[2] == LIAR]
    assert [sum(key[1] is kind for key in held) for kind in (Kind.PREVOTE, Kind.PRECOMMIT)] == [8, 8]


def test_votes_up_to_sixteen_attempts_ahead_are_all_counted_and_of_those_beyond_the_latest_of_each_kind(network):
    node, block = network.nodes[0], digest(b"far")
    said = [(Kind.PREVOTE, attempt) for attempt in (16, 17, 30, 18, 40, 39)] + [(Kind.PRECOMMIT, 20)]
    for kind, attempt in said:
        say_votes(node, vote(node, kind, attempt, block, number=LIAR))
    say_votes(node, vote(node, Kind.PREVOTE, 25, block, number=2))  # somebody else's replaces none of them
    assert node.state.attempt == 25  # with two of them, more than may lie, that far
    held = sorted(key[:2] for key in node.state.votes if key[2] == LIAR)
    assert held == sorted([(16, Kind.PREVOTE), (17, Kind.PREVOTE), (40, Kind.PREVOTE), (20, Kind.PRECOMMIT)])


def test_of_the_blocks_somebody_says_to_hold_four_for_each_member_are_asked_for(network):
    node = network.nodes[0]
    digests = tuple(digest(bytes([number])) for number in range(100))
    effects = node.hear(replace_sender(node.message(Gossip(1, blocks=digests)), 1))
    assert asked(effects, BlockWanted) == list(digests[: 4 * 4])
    assert not node.state.wanted_blocks  # nobody signed for it


def test_a_block_that_rests_on_a_model_found_wrong_is_dropped(network):
    node = network.nodes[0]
    model = model_bytes(1.0, 0.0, 0.0, 0.0)[:-4] + np.array([np.nan], "<f4").tobytes()
    update = msgspec.structs.replace(network.nodes[LIAR].state.updates[LIAR].update, model=digest(model))
    signed = SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, node.state.chain.place, update))
    mined = node.state.mined.body
    updates = tuple(signed if one.update.client == LIAR else one for one in mined.updates)
    block = make_block(network.nodes[LIAR], change={"updates": updates, "model": digest(b"whatever")})
    assert asked(show(network, node, block), FetchBlob) == [digest(model)]
    node.receive_blob(model, LIAR)
    assert digest(model) in node.state.refused
    other = make_block(network.nodes[1], attempt=2)
    show(network, node, other)
    assert block.digest not in node.state.candidates
    assert block.digest in node.state.refused
    assert other.digest in node.state.candidates
