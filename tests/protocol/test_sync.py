"""Catching up where updates are pruned: what a node takes on the word of certificates, and what it never does."""

import msgspec
import pytest

from bdfl.ledger.block import Kind
from bdfl.protocol.events import (
    Commit,
    FetchBlob,
    KeptReport,
    KeptUpdate,
    KeptVote,
    Measure,
    Refused,
    Send,
    ServeDecided,
    SetTimer,
    Started,
    Store,
    Timer,
    Train,
)
from bdfl.protocol.messages import Decided, DecidedWanted, Hearsay, Proposal
from bdfl.protocol.state import Followed, Recovered
from tests.protocol.manual_network import Table, make_block, model_bytes, replace, replace_sender, vote
from tests.protocol.test_entries import leaves, offer

KEEP = 3
NUM_BLOCKS = 8


def played(num_blocks=NUM_BLOCKS, num_members=4, change=None):
    table = Table(num_members)
    table.start()
    if change is not None:
        offer(table, change(table))
    for _ in range(num_blocks):
        table.play_round()
    return table


def away(table, number=3, keep_blocks=KEEP):
    """A node at the beginning of the chain that the others have gone on with."""
    seat = table.seat(number, keep_blocks=keep_blocks)
    seat.give(Started())
    return seat


def tell(table, seat, height, decided=None, sender=0):
    """Hands the node a decided block, as somebody tells it."""
    decided = Decided(*table.decided[height]) if decided is None else decided
    return seat.hear(replace_sender(seat.message(decided, height), sender))


def follow(table, seat, last, first=1):
    for height in range(first, last + 1):
        tell(table, seat, height)


def hand_over(table, seat, blob, sender=0):
    return seat.receive_blob(table.blobs[blob], sender)


def keep_models(table):
    """Keeps the global models where blobs are served from."""
    for seat in table.seats:
        for effect in seat.effects:
            kept = getattr(effect, "kept", None)
            if hasattr(kept, "data"):
                table.blobs[kept.digest] = kept.data


def height_of(seat):
    return seat.state.chain.height


def trusted(seat):
    return [found.block.header.height for found in seat.did(Commit) if found.is_trusted]


# What is taken on trust


def test_only_what_lies_as_deep_as_updates_are_kept_below_a_certified_block_is_taken_on_trust():
    table = played()
    seat = away(table)
    follow(table, seat, KEEP)
    assert height_of(seat) == 0  # whoever says that the updates are gone
    follow(table, seat, NUM_BLOCKS, first=KEEP + 1)
    assert trusted(seat) == list(range(1, NUM_BLOCKS - KEEP + 1))
    assert height_of(seat) == NUM_BLOCKS - KEEP
    assert [found.chain.height for found in seat.state.ahead] == list(range(NUM_BLOCKS - KEEP + 1, NUM_BLOCKS + 1))


def test_nothing_is_taken_on_trust_where_everything_is_kept():
    table = played()
    seat = away(table, keep_blocks=0)
    follow(table, seat, NUM_BLOCKS)
    assert (height_of(seat), seat.state.ahead) == (0, ())


def test_with_the_model_of_the_last_one_on_trust_the_rest_is_recomputed():
    table = played()
    keep_models(table)
    seat = away(table)
    follow(table, seat, NUM_BLOCKS)
    seat.hear(replace_sender(seat.message(Hearsay(1), NUM_BLOCKS + 1), 1))
    wanted = seat.fetched()[-1]
    assert wanted == seat.state.chain.model == table.decided[NUM_BLOCKS - KEEP][0].body.model
    hand_over(table, seat, wanted)
    assert not seat.state.lacks_model
    while seat.state.wanted_blobs:
        hand_over(table, seat, next(iter(seat.state.wanted_blobs)))
    assert height_of(seat) == NUM_BLOCKS
    assert len(trusted(seat)) == NUM_BLOCKS - KEEP
    assert seat.did(Train)[-1].height == NUM_BLOCKS + 1


def test_no_model_is_asked_for_on_the_way():
    table = played()
    seat = away(table, keep_blocks=1)
    follow(table, seat, NUM_BLOCKS)
    first = {signed.update.model for signed in table.decided[1][0].body.updates}
    assert set(seat.fetched()) <= first
    table.fire(seat, Timer.RESEND)
    asked = set(seat.fetched()) - first
    assert asked == {table.decided[NUM_BLOCKS - 1][0].body.model}


def test_each_block_is_asked_of_whoever_told_the_one_before():
    table = played()
    seat = away(table)
    effects = tell(table, seat, 1, sender=2)
    asked = [effect for effect in effects if isinstance(effect, Send) and effect.message.content == DecidedWanted()]
    assert [(effect.to, effect.message.height) for effect in asked] == [(2, 2)]
    ahead = replace_sender(seat.message(Hearsay(1), 5), 1)
    again = [seat.hear(ahead), seat.hear(ahead), seat.hear(replace_sender(seat.message(Hearsay(1, True), 5), 1))]
    assert [[(effect.to, effect.message.height) for effect in effects] for effects in again] == [[(1, 2)], [], [(1, 2)]]


def test_with_everything_else_the_block_after_those_followed_is_asked_for_again():
    table = played()
    seat = away(table)
    follow(table, seat, 2)
    effects = table.fire(seat, Timer.RESEND)
    asked = [one for one in effects if isinstance(one, Send) and one.message.content == DecidedWanted()]
    assert [one.message.height for one in asked] == [3]
    assert asked[0].to != seat.number


# What it never is


def test_a_node_without_its_model_follows_and_says_nothing_of_its_own():
    table = played()
    seat = away(table)
    follow(table, seat, NUM_BLOCKS)
    seat.effects[:] = seat.did(SetTimer)
    height = height_of(seat)
    block, certificate = table.decided[height + 1]
    seat.hear(replace_sender(seat.message(Proposal(block)), 1))
    seat.hear(replace_sender(seat.message(Hearsay(1, votes=certificate)), 1))
    for blob in seat.state.wanted_blobs.keys() - {seat.state.chain.model}:
        hand_over(table, seat, blob)
    for timer in (Timer.DEADLINE, Timer.RESEND):
        table.fire(seat, timer)
    assert height_of(seat) == height
    assert not any(isinstance(effect.kept, (KeptVote, KeptUpdate, KeptReport)) for effect in seat.did(Store))
    assert seat.did(Train) == seat.did(Measure) == []


def test_a_restart_without_the_model_asks_for_it_first():
    table = played()
    keep_models(table)
    chain = away(table)
    follow(table, chain, NUM_BLOCKS)
    seat = table.seat(3, Recovered(lacks_model=True), chain.state.chain, keep_blocks=KEEP)
    seat.give(Started())
    assert seat.fetched() == [seat.state.chain.model]
    assert seat.did(Train) == seat.did(Measure) == []
    hand_over(table, seat, seat.state.chain.model)
    assert len(seat.did(Train)) == len(seat.did(Measure)) == 1


def test_who_starts_asks_the_member_after_it_first_and_then_each_other_in_turn():
    table = played()
    chain = away(table)
    follow(table, chain, NUM_BLOCKS)
    seat = table.seat(2, Recovered(lacks_model=True), chain.state.chain, keep_blocks=KEEP)
    asked = [seat.give(Started()), *(table.fire(seat, Timer.RESEND) for _ in range(4))]
    wanted = [[one.holder for one in effects if isinstance(one, FetchBlob)] for effects in asked]
    assert wanted == [[3], [0], [1], [3], [3]]  # its own turn is the next one's


def test_another_model_than_the_one_certified_is_not_taken():
    table = played()
    seat = away(table)
    follow(table, seat, NUM_BLOCKS)
    table.fire(seat, Timer.RESEND)
    seat.receive_blob(model_bytes(6.0, 6.0, 6.0, 6.0))
    assert seat.state.lacks_model


def forge(table, height, kind):
    block, certificate = table.decided[height]
    seat = table.seats[0]
    return {
        "too few votes": Decided(block, certificate[:1]),
        "no votes": Decided(block, ()),
        "prevotes": Decided(block, tuple(vote(seat, Kind.PREVOTE, 1, block.digest, number=one) for one in range(4))),
        "votes for another block": Decided(block, table.decided[height + 1][1]),
        "votes of another height": Decided(
            block, tuple(vote(seat, Kind.PRECOMMIT, 1, block.digest, number=one) for one in range(4))
        ),
        "another body": Decided(msgspec.structs.replace(block, body=table.decided[height + 1][0].body), certificate),
        "another block": Decided(*table.decided[height + 1]),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "too few votes",
        "no votes",
        "prevotes",
        "votes for another block",
        "votes of another height",
        "another body",
        "another block",
    ],
)
def test_no_forged_certificate_is_followed(kind):
    table = played()
    seat = away(table)
    follow(table, seat, KEEP)
    before = seat.state.ahead
    effects = tell(table, seat, KEEP + 1, forge(table, KEEP + 1, kind))
    assert [type(effect) for effect in effects] == [Refused]
    assert (seat.state.ahead, height_of(seat)) == (before, 0)


def test_a_certificate_counts_by_the_members_of_its_own_height():
    """Who was removed cannot certify a later block, and the quorum is that of those who are left."""
    table = played(6, num_members=5, change=lambda table: leaves(table, 4))
    seat = away(table)
    follow(table, seat, 3)
    block, certificate = table.decided[4]
    assert 4 not in {signed.vote.voter for signed in certificate}
    former = vote(table.seats[0], Kind.PRECOMMIT, 1, block.digest, number=4)
    effects = tell(table, seat, 4, Decided(block, (*certificate[:1], former, *certificate[1:0])))
    assert [type(effect) for effect in effects] == [Refused]
    mixed = Decided(block, (*certificate, former))
    assert [type(effect) for effect in tell(table, seat, 4, mixed)] == [Refused]
    tell(table, seat, 4)
    assert trusted(seat) == [1]


def test_a_checkpoint_far_ahead_or_behind_is_nothing_to_go_by():
    table = played()
    seat = away(table)
    for height in (NUM_BLOCKS, 2):
        assert tell(table, seat, height) == []
    follow(table, seat, NUM_BLOCKS)
    before = seat.state
    assert tell(table, seat, 1) == tell(table, seat, NUM_BLOCKS - KEEP) == []
    assert (seat.state.ahead, seat.state.chain) == (before.ahead, before.chain)


def test_what_was_found_wrong_is_never_taken_on_trust():
    """A quorum of liars certified a wrong model whose updates are here: no later certificate changes that."""
    table = Table(4)
    table.start()
    table.collect()
    wrong = make_block(table.seats[0], change={"model": table.genesis.model.initial})
    precommits = tuple(vote(table.seats[0], Kind.PRECOMMIT, 1, wrong.digest, number=one) for one in range(3))
    seat = away(table, keep_blocks=1)
    tell(table, seat, 1, Decided(wrong, precommits))
    for blob in list(seat.state.wanted_blobs):
        hand_over(table, seat, blob)
    assert wrong.digest in seat.state.refused
    head = seat.state.ahead[-1]
    later = Followed(head.block, head.certificate, head.teller, replace(head.chain, height=2))
    seat.state = replace(seat.state, ahead=(head, later))
    seat.give(Started())
    assert height_of(seat) == 0


def test_a_node_commits_the_block_that_it_checked_whatever_was_followed_before():
    """Liars certified a wrong block; a second quorum is for the right one: the chain goes on from that."""
    table = Table(4)
    table.start()
    table.collect()
    wrong = make_block(table.seats[0], change={"model": table.genesis.model.initial})
    precommits = tuple(vote(table.seats[0], Kind.PRECOMMIT, 1, wrong.digest, number=one) for one in range(3))
    table.deliver(table.seats[1], table.mine(table.seats[1]))
    right, _ = table.decided[1]
    seat = away(table, keep_blocks=2)
    tell(table, seat, 1, Decided(wrong, precommits))
    for blob in list(seat.state.wanted_blobs):
        hand_over(table, seat, blob)
    assert wrong.digest in seat.state.refused
    assert [found.block for found in seat.state.ahead] == [wrong]
    tell(table, seat, 1)
    for blob in list(seat.state.wanted_blobs):
        hand_over(table, seat, blob)
    assert (height_of(seat), seat.state.chain.tip) == (1, right.digest)
    assert seat.state.chain.model == right.body.model
    assert seat.state.ahead == ()


# Those who were removed


def test_who_was_removed_is_told_so_many_blocks_more_as_certify_its_last():
    table = played(6, num_members=5, change=lambda table: leaves(table, 4))
    seat = table.seat(1, keep_blocks=2)
    follow(table, seat, 6)
    last = seat.state.chain.last_height(4)
    for height in range(1, last + 3):
        asked = seat.hear(replace_sender(seat.message(DecidedWanted(), height), 4))
        assert asked == ([ServeDecided(4, height)] if height <= height_of(seat) else [])
    for content, height in ((DecidedWanted(), last + 3), (Hearsay(1), last + 1)):
        refused = seat.hear(replace_sender(seat.message(content, height), 4))
        assert [type(effect) for effect in refused] == [Refused]
