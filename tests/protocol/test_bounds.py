"""Limits of what a node holds of a height, whatever is sent to it, and what lifts them: a quorum."""

import msgspec
import numpy as np
import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import SignedUpdate, TwoBlocks, TwoUpdates
from bdfl.ledger.rules import make_body
from bdfl.protocol.events import FetchBlob, Send, Timer
from bdfl.protocol.messages import BlockWanted, Decided, Hearsay, Proposal
from bdfl.protocol.proposals import MAX_AHEAD
from bdfl.protocol.sync import MAX_EARLY
from bdfl.protocol.updates import MAX_BLOBS
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import Kind, Table, make_block, model_bytes, replace_sender, say_votes, signer, vote

LIAR = 3


@pytest.fixture
def table():
    """Four members that all trained and mine; three votes decide."""
    table = Table(num_members=4, quorum=QuorumRule.BFT)
    table.start()
    table.collect()
    return table


def asked(effects, kind):
    """What a seat asks others for."""
    if kind is FetchBlob:
        return [effect.blob for effect in effects if isinstance(effect, FetchBlob)]
    contents = [effect.message.content for effect in effects if isinstance(effect, Send)]
    return [content.block for content in contents if isinstance(content, kind)]


def other_update(table, number):
    """Another update of the liar, of which nobody has the model yet."""
    state = table.seats[LIAR].state
    model = model_bytes(100.0 + number, 0.0, 0.0, 0.0)
    table.blobs[digest(model)] = model
    update = msgspec.structs.replace(state.updates[LIAR].update, model=digest(model))
    return SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, state.chain.place, update))


def block_on(table, update, *, attempt=1, proposer=LIAR):
    """A valid block that rests on that update of the liar."""
    seat = table.seats[LIAR]
    mined, state = seat.state.mined.body, seat.state
    body, _ = make_body(
        state.chain,
        certificate=mined.parent_certificate,
        updates=tuple(update if one.update.client == LIAR else one for one in mined.updates),
        reports=mined.reports,
        entries=mined.entries,
        blobs={**state.blobs, **table.blobs},
        toolbox=table.toolbox,
    )
    changes = {name: getattr(body, name) for name in body.__struct_fields__}
    return make_block(seat, attempt=attempt, proposer=proposer, change=changes)


def show(table, seat, block):
    return seat.hear(table.seats[LIAR].message(Proposal(block)))


def hand_over(table, seat, effects):
    """Gives the seat every model it asks for."""
    for blob in asked(effects, FetchBlob):
        seat.receive_blob(table.blobs[blob], LIAR)


def prevotes(seat, block, *voters, attempt=1):
    return [say_votes(seat, vote(seat, Kind.PREVOTE, attempt, block.digest, number=voter)) for voter in voters][-1]


def test_so_many_messages_of_the_next_height_are_kept_from_each_sender(table):
    seat = table.seats[0]
    for sender in (1, 2):
        for attempt in range(1, 21):
            seat.hear(replace_sender(seat.message(Hearsay(attempt), height=2), sender))
    kept = [message.sender for message in seat.state.early]
    assert [kept.count(sender) for sender in (1, 2, 3)] == [MAX_EARLY, MAX_EARLY, 0]


def test_a_second_block_of_a_proposer_is_held_only_if_somebody_voted_for_it(table):
    seat = table.seats[0]
    first, second, third = (block_on(table, other_update(table, number)) for number in range(3))
    show(table, seat, first)
    show(table, seat, second)
    assert list(seat.state.candidates) == [first.digest]
    assert isinstance(seat.state.evidence[LIAR], TwoBlocks | TwoUpdates)
    assert asked(prevotes(seat, third, 1), BlockWanted) == [third.digest]
    show(table, seat, third)
    assert list(seat.state.candidates) == [first.digest, third.digest]


def test_a_block_of_a_far_later_attempt_is_held_only_if_a_quorum_voted_for_it(table):
    seat = table.seats[0]
    near, far = (block_on(table, other_update(table, 0), attempt=1 + MAX_AHEAD + beyond) for beyond in (0, 1))
    show(table, seat, near)
    show(table, seat, far)
    assert list(seat.state.candidates) == [near.digest]
    for voter in (1, 2):
        assert asked(prevotes(seat, far, voter), BlockWanted) == [far.digest]
        show(table, seat, far)
        assert list(seat.state.candidates) == [near.digest]
        assert not seat.state.wanted_blocks
    assert asked(prevotes(seat, far, LIAR), BlockWanted) == [far.digest]
    show(table, seat, far)
    assert list(seat.state.candidates) == [near.digest, far.digest]


def test_only_the_first_prevote_of_a_member_in_an_attempt_makes_a_block_wanted(table):
    seat = table.seats[0]
    first, second, third = (block_on(table, other_update(table, number)) for number in range(3))
    assert asked(prevotes(seat, first, LIAR), BlockWanted) == [first.digest]
    assert asked(prevotes(seat, second, LIAR), BlockWanted) == []
    assert asked(say_votes(seat, vote(seat, Kind.PRECOMMIT, 1, third.digest, number=LIAR)), BlockWanted) == []
    assert asked(prevotes(seat, second, LIAR, attempt=2), BlockWanted) == [second.digest]
    assert seat.state.wanted_blocks == {first.digest, second.digest}


def test_a_quorum_of_precommits_makes_a_block_wanted(table):
    seat = table.seats[0]
    block = block_on(table, other_update(table, 0))
    said = [say_votes(seat, vote(seat, Kind.PRECOMMIT, 1, block.digest, number=voter)) for voter in (1, 2, 3)]
    assert [asked(effects, BlockWanted) for effects in said] == [[], [], [block.digest]]


def test_a_block_voted_for_far_ahead_is_wanted_when_its_attempt_is_near(table):
    seat = table.seats[0]
    block = block_on(table, other_update(table, 0))
    prevotes(seat, block, 1, attempt=2 + MAX_AHEAD)
    assert not seat.state.wanted_blocks
    said = say_votes(seat, *(vote(seat, Kind.PREVOTE, 2, digest(bytes([n])), number=n) for n in (1, 2)))
    assert seat.state.attempt == 2
    assert block.digest in asked(said, BlockWanted)


def test_a_third_model_of_a_member_is_asked_for_only_if_a_quorum_voted_for_a_block_with_it(table):
    seat = table.seats[0]
    blocks = [block_on(table, other_update(table, number), attempt=1 + number) for number in range(3)]
    for block in blocks:
        hand_over(table, seat, show(table, seat, block))
    held = {blob for blob in seat.state.blobs if blob in {update_of(block) for block in blocks}}
    assert held == {update_of(blocks[0])}  # beside the liar's first
    assert len(seat.state.asked_blobs[LIAR]) == MAX_BLOBS
    assert [candidate.is_valid for candidate in seat.state.candidates.values()] == [True, False, False]
    prevotes(seat, blocks[1], 1, 2)
    effects = prevotes(seat, blocks[1], LIAR)
    assert asked(effects, FetchBlob) == [update_of(blocks[1])]
    hand_over(table, seat, effects)
    assert [candidate.is_valid for candidate in seat.state.candidates.values()] == [True, True, False]
    assert seat.state.lock.block == blocks[1].digest


def test_all_models_of_a_decided_block_are_asked_for(table):
    seat = table.seats[0]
    blocks = [block_on(table, other_update(table, number), attempt=1 + number) for number in range(3)]
    for block in blocks:
        hand_over(table, seat, show(table, seat, block))
    certificate = tuple(vote(seat, Kind.PRECOMMIT, 3, blocks[2].digest, number=voter) for voter in (1, 2, 3))
    effects = seat.hear(table.seats[LIAR].message(Decided(blocks[2], certificate)))
    assert asked(effects, FetchBlob) == [update_of(blocks[2])]
    hand_over(table, seat, effects)
    assert seat.state.chain.height == 1


def test_a_member_whose_models_are_all_wrong_is_asked_for_two_of_them():
    table = Table(num_members=4, quorum=QuorumRule.BFT)
    table.start()
    seat, liar = table.seats[0], table.seats[LIAR]
    table.deliver(liar, table.train(liar), to=[])
    wanted = []
    for number in range(4):
        model = model_bytes(float(number), 0.0, 0.0, 0.0)[:-4] + np.array([np.nan], "<f4").tobytes()
        update = msgspec.structs.replace(liar.state.updates[LIAR].update, model=digest(model))
        signed = SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, seat.state.chain.place, update))
        effects = seat.hear(liar.message(Hearsay(1, updates=(signed,))))
        wanted += asked(effects, FetchBlob)
        seat.receive_blob(model, LIAR)
    assert len(wanted) == MAX_BLOBS
    assert not seat.state.blobs


def test_who_gave_two_updates_is_left_out_from_the_second_attempt_on(table):
    """Else members that hold different ones could go on voting for blocks that the others do not ask the models of."""
    seat = table.seats[0]
    block = block_on(table, other_update(table, 0), proposer=2)
    hand_over(table, seat, show(table, seat, block))
    assert isinstance(seat.state.evidence[LIAR], TwoUpdates)
    assert [one.block for one in seat.votes(Kind.PREVOTE)] == [block.digest]  # the first attempt is as always
    table.fire(seat, Timer.DEADLINE)
    say_votes(seat, *(vote(seat, Kind.PREVOTE, 2, digest(bytes([n])), number=n) for n in (1, 2)))
    assert seat.state.attempt == 2
    assert len(seat.votes(Kind.PREVOTE)) == 1
    assert {signed.update.client for signed in seat.state.mined.body.updates} == {0, 1, 2}
    table.mine(seat)
    assert seat.votes(Kind.PREVOTE)[1].block != block.digest


def test_who_gave_two_updates_is_told_of_to_all_with_both(table):
    seat, other = table.seats[:2]
    second = other_update(table, 0)
    seat.hear(table.seats[LIAR].message(Hearsay(1, updates=(second,))))
    said = next(effect.message for effect in table.fire(seat, Timer.RESEND) if isinstance(effect, Send))
    assert {seat.state.updates[LIAR], second} <= set(said.content.updates)
    other.hear(said)
    assert isinstance(other.state.evidence[LIAR], TwoUpdates)


def test_an_earlier_offence_does_not_hide_that_a_member_gave_two_updates(table):
    seat = table.seats[0]
    prevotes(seat, block_on(table, other_update(table, 1)), LIAR)
    prevotes(seat, block_on(table, other_update(table, 2)), LIAR)
    assert not isinstance(seat.state.evidence[LIAR], TwoUpdates)
    seat.hear(table.seats[LIAR].message(Hearsay(1, updates=(other_update(table, 0),))))
    assert isinstance(seat.state.evidence[LIAR], TwoUpdates)


def update_of(block):
    return next(signed.update.model for signed in block.body.updates if signed.update.client == LIAR)


def test_of_what_a_member_voted_in_one_attempt_eight_blocks_are_counted_of_each_kind(table):
    seat = table.seats[0]
    for kind in (Kind.PREVOTE, Kind.PRECOMMIT):
        for number in range(12):
            say_votes(seat, vote(seat, kind, 1, digest(bytes([number])), number=LIAR))
    held = [key for key in seat.state.votes if key[2] == LIAR]
    assert [sum(key[1] is kind for key in held) for kind in (Kind.PREVOTE, Kind.PRECOMMIT)] == [8, 8]


def test_votes_up_to_sixteen_attempts_ahead_are_all_counted_and_of_those_beyond_the_latest_of_each_kind(table):
    seat, block = table.seats[0], digest(b"far")
    said = [(Kind.PREVOTE, attempt) for attempt in (16, 17, 30, 18, 40, 39)] + [(Kind.PRECOMMIT, 20)]
    for kind, attempt in said:
        say_votes(seat, vote(seat, kind, attempt, block, number=LIAR))
    say_votes(seat, vote(seat, Kind.PREVOTE, 25, block, number=2))  # somebody else's replaces none of them
    assert seat.state.attempt == 25  # with two of them, more than may lie, that far
    held = sorted(key[:2] for key in seat.state.votes if key[2] == LIAR)
    assert held == sorted([(16, Kind.PREVOTE), (17, Kind.PREVOTE), (40, Kind.PREVOTE), (20, Kind.PRECOMMIT)])


def test_of_the_blocks_somebody_says_to_hold_four_for_each_member_are_asked_for(table):
    seat = table.seats[0]
    digests = tuple(digest(bytes([number])) for number in range(100))
    effects = seat.hear(replace_sender(seat.message(Hearsay(1, blocks=digests)), 1))
    assert asked(effects, BlockWanted) == list(digests[: 4 * 4])
    assert not seat.state.wanted_blocks  # nobody signed for it


def test_a_block_that_rests_on_a_model_found_wrong_is_dropped(table):
    seat = table.seats[0]
    model = model_bytes(1.0, 0.0, 0.0, 0.0)[:-4] + np.array([np.nan], "<f4").tobytes()
    update = msgspec.structs.replace(table.seats[LIAR].state.updates[LIAR].update, model=digest(model))
    signed = SignedUpdate(update, signer(LIAR).sign(Meaning.UPDATE, seat.state.chain.place, update))
    mined = seat.state.mined.body
    updates = tuple(signed if one.update.client == LIAR else one for one in mined.updates)
    block = make_block(table.seats[LIAR], change={"updates": updates, "model": digest(b"whatever")})
    assert asked(show(table, seat, block), FetchBlob) == [digest(model)]
    seat.receive_blob(model, LIAR)
    assert digest(model) in seat.state.refused
    other = make_block(table.seats[1], attempt=2)
    show(table, seat, other)
    assert block.digest not in seat.state.candidates
    assert block.digest in seat.state.refused
    assert other.digest in seat.state.candidates
