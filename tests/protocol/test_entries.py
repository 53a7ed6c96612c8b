"""Entries: changes of membership and evidence are passed on, put into blocks, and kept out of none for long."""

import pytest
from msgspec.structs import replace

from bdfl.ledger.block import Admission, Member, MembershipChange, Removal, TwoVotes
from bdfl.ledger.member_set import find_change
from bdfl.ledger.statements import make_change
from bdfl.protocol.entries import HELD_HEIGHTS
from bdfl.protocol.events import (
    ChangeOffered,
    Commit,
    KeptVote,
    Measure,
    Mine,
    Refused,
    Send,
    ServeDecided,
    Started,
    Timer,
)
from bdfl.protocol.messages import MAX_CHANGES, DecidedWanted, Hearsay, Proposal
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, Phase, Recovered
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import (
    TIMING,
    Kind,
    Store,
    Table,
    make_block,
    replace_sender,
    say_votes,
    signer,
    vote,
)


def started(num_members=4, newcomers=0, **options):
    """A table with empty chairs for those who may join, already taken."""
    table = Table(num_members, **options)
    table.seats += [table.seat(num_members + number) for number in range(newcomers)]
    table.start()
    return table


def signed(table, change, *, expires=50, by=None):
    numbers = range(len(table.genesis.members)) if by is None else by
    chain = table.seats[0].state.chain.chain
    return make_change(chain, change, expires, {number: signer(number) for number in numbers})


def joins(table, number, *, key=None, **options):
    founder = table.genesis.members[0]
    public_key = signer(number if key is None else key).public_key
    return signed(table, Admission(number, Member(public_key, founder.limits, founder.conditions)), **options)


def leaves(table, number, **options):
    return signed(table, Removal(number), **options)


def offer(table, change, seat=0):
    effects = table.seats[seat].give(ChangeOffered(change))
    table.deliver(table.seats[seat], effects)
    return effects


def active(seat):
    return seat.state.chain.active


def play(table, num_rounds, winner=0):
    for _ in range(num_rounds):
        table.play_round(winner)


def catch_up(table, seat):
    """Asks for all it missed."""
    table.deliver(seat, table.fire(seat, Timer.RESEND))


# Passing on


def test_an_offered_change_is_told_to_all_and_is_in_the_next_block():
    table = started()
    change = joins(table, 4)
    effects = offer(table, change)
    assert [effect.message.content.changes for effect in effects if isinstance(effect, Send)] == [(change,)]
    assert all(seat.state.changes == (change,) for seat in table.seats)
    table.play_round(winner=2)
    block, _ = table.decided[1]
    assert find_change(block.body.entries) == change
    assert all(seat.state.changes == () for seat in table.seats)
    assert active(table.seats[0]) == {0, 1, 2, 3}
    table.play_round()
    assert active(table.seats[0]) == {0, 1, 2, 3, 4}


def test_a_change_does_not_wait_though_nobody_trains():
    table = started()
    for seat in table.seats:
        table.deliver(seat, table.train(seat))
    for seat in table.seats:
        table.deliver(seat, table.fire(seat, Timer.DEADLINE))  # nobody reported
    table.deliver(table.seats[0], table.mine(table.seats[0]))
    assert table.seats[0].state.phase is Phase.COLLECTING
    offer(table, joins(table, 4))
    table.deliver(table.seats[0], table.mine(table.seats[0]))
    assert [seat.state.chain.height for seat in table.seats] == [2] * 4
    assert table.seats[0].state.chain.num_idle == 0


def test_what_is_held_is_said_again():
    table = started()
    change = leaves(table, 3)
    table.seats[0].give(ChangeOffered(change))
    effects = table.fire(table.seats[0], Timer.RESEND)
    said = [effect.message.content for effect in effects if isinstance(effect, Send)]
    assert any(isinstance(content, Hearsay) and content.changes == (change,) for content in said)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda table: leaves(table, 3, by=(0, 1)), "change-quorum"),
        (lambda table: leaves(table, 3, expires=0), "change-expired"),
        (lambda table: joins(table, 4, key=1), "change-settled"),
        (lambda table: joins(table, 2), "change-settled"),
        (lambda table: MembershipChange(Removal(3), 50, leaves(table, 2).assents), "change-signature"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_and_not_passed_on(make, rule):
    table = started()
    seat = table.seats[0]
    effects = seat.give(ChangeOffered(make(table)))
    assert [type(effect) for effect in effects] == [Refused]
    assert rule in effects[0].reason
    assert seat.state.changes == ()
    heard = seat.hear(replace_sender(seat.message(Hearsay(1, changes=(make(table),))), 1))
    assert rule in heard[0].reason
    assert seat.state.changes == ()


def test_a_change_that_is_known_is_not_passed_on_again():
    table = started()
    change = leaves(table, 3)
    offer(table, change)
    assert offer(table, change) == []
    fewer = leaves(table, 3, by=(0, 1, 2))  # the same, signed by others
    assert offer(table, fewer) == []
    assert table.seats[0].state.changes == (change,)


def test_no_more_changes_are_held_than_a_message_can_carry():
    table = started()
    for expires in range(10, 10 + MAX_CHANGES):
        assert offer(table, leaves(table, 3, expires=expires)) != []
    effects = offer(table, leaves(table, 3, expires=99))
    assert isinstance(effects[0], Refused)
    assert len(table.seats[1].state.changes) == MAX_CHANGES


def test_a_change_that_expires_is_forgotten():
    table = started()
    waits = joins(table, 5, expires=2)  # nobody has number 4
    lasts = joins(table, 5, expires=9)
    offer(table, waits)
    offer(table, lasts)
    play(table, 2)
    assert all(seat.state.changes == (lasts,) for seat in table.seats)


def test_changes_are_made_in_the_order_in_which_they_can_be():
    table = started()
    second, first = joins(table, 5), joins(table, 4)
    offer(table, second)
    offer(table, first)
    play(table, 2)
    changes = [find_change(table.decided[height][0].body.entries) for height in (1, 2)]
    assert changes == [first, second]


def test_a_block_without_the_change_is_as_good_as_one_with_it():
    table = started()
    seat, proposer = table.seats[0], table.seats[1]
    table.collect()
    seat.give(ChangeOffered(leaves(table, 3)))  # the proposer has not heard of it
    block = make_block(proposer)
    seat.hear(replace_sender(seat.message(Proposal(block)), 1))
    assert [vote.block for vote in seat.votes(Kind.PREVOTE)] == [block.digest]


# Who leaves


def test_who_is_removed_ends_after_its_last_height_and_says_why():
    table = started(5)
    offer(table, leaves(table, 4))
    table.play_round()
    leaver = table.seats[4]
    assert leaver.state.phase is Phase.COLLECTING  # block 2 is still its own
    assert Measure(3) not in leaver.effects  # but not round 3
    table.play_round(winner=4)
    assert table.decided[2][0].header.proposer == 4
    assert leaver.votes(Kind.PRECOMMIT)[-1].block == table.decided[2][0].digest
    assert leaver.state.phase is Phase.DONE
    assert leaver.state.end == "member 4 was removed: block 2 was its last"
    assert leaver.state.chain.height == 2
    others = table.seats[:4]
    table.seats = others
    play(table, 2)
    assert all(seat.state.chain.height == 4 for seat in others)
    assert active(others[0]) == {0, 1, 2, 3}
    assert others[0].state.end == ""


def test_who_is_removed_does_not_come_back_by_a_restart():
    table = started(5)
    offer(table, leaves(table, 4))
    play(table, 2)
    chain, certificate = table.seats[4].state.chain, table.decided[2][1]
    again = table.seat(4, Recovered(certificate=certificate), chain)
    assert again.state.phase is Phase.DONE
    assert "removed" in again.state.end
    assert again.give(Started()) == []


def test_a_removed_member_is_answered_until_it_knows_and_not_listened_to():
    table = started(5)
    offer(table, leaves(table, 4))
    play(table, 3)
    seat = table.seats[0]
    late = seat.hear(replace_sender(seat.message(Hearsay(1, wants_answer=True), height=2), 4))
    assert late == [ServeDecided(4, 2)]
    assert seat.hear(replace_sender(seat.message(DecidedWanted(), height=1), 4)) == [ServeDecided(4, 1)]
    for height in (3, 4, 5):
        refused = seat.hear(replace_sender(seat.message(DecidedWanted(), height=height), 4))
        assert [type(effect) for effect in refused] == [Refused]


def test_the_dead_can_be_removed_so_that_others_may_fail():
    """Of seven two are dead: under bft, five of seven must vote. Without them three of five do not suffice, four do."""
    table = started(7, quorum=QuorumRule.BFT)
    dead = table.seats[5:]
    table.seats = table.seats[:5]
    assert table.seats[0].state.chain.quorum == 5
    for number in (5, 6):
        offer(table, leaves(table, number, by=range(5)))
    for _ in range(3):
        for seat in table.seats:
            table.deliver(seat, table.train(seat))
            table.deliver(seat, table.measure(seat))
        for seat in table.seats:
            table.deliver(seat, table.fire(seat, Timer.DEADLINE))
        table.deliver(table.seats[0], table.mine(table.seats[0]))
    assert table.seats[0].state.chain.height == 3
    assert active(table.seats[0]) == {0, 1, 2, 3, 4}
    assert table.seats[0].state.chain.quorum == 4
    assert all(seat.state.chain.height == 0 for seat in dead)


# Who joins


def test_who_joins_follows_from_the_beginning_and_votes_from_its_height_on():
    table = started(4, newcomers=1, quorum=QuorumRule.BFT)
    newcomer = table.seats[4]
    offer(table, joins(table, 4))
    play(table, 1)
    assert newcomer.state.chain.height == 0  # nobody gave it a model so far
    catch_up(table, newcomer)
    play(table, 1)
    assert newcomer.state.chain.height == 2  # its membership binds from height 3 on
    assert not newcomer.did(Mine)
    assert [effect for effect in newcomer.did(Store) if isinstance(effect.kept, KeptVote)] == []
    assert newcomer.did(Measure) == [Measure(4)]
    assert newcomer.state.chain.quorum == 4
    table.play_round()  # it votes and reports
    block, certificate = table.decided[3]
    assert 4 in {report.report.client for report in block.body.reports}
    assert len(newcomer.votes(Kind.PRECOMMIT)) == 1
    assert len(certificate) >= 4
    table.play_round(winner=4)  # it trains and mines
    block, _ = table.decided[4]
    assert block.header.proposer == 4
    assert 4 in {update.update.client for update in block.body.updates}


def test_nobody_listens_to_who_is_not_admitted_and_all_answer_once_it_is():
    table = started(4, newcomers=1)
    stranger = table.seats.pop()
    asked = stranger.message(Hearsay(1, wants_answer=True))
    assert isinstance(table.seats[0].hear(asked)[0], Refused)
    play(table, 1)
    assert isinstance(table.seats[0].hear(asked)[0], Refused)
    offer(table, joins(table, 4))
    play(table, 1)
    assert table.seats[0].hear(asked) == [ServeDecided(4, 1)]


def test_who_joins_catches_up_with_everything_it_missed():
    table = started(4, newcomers=1)
    newcomer = table.seats.pop()
    play(table, 3)
    offer(table, joins(table, 4))
    play(table, 1)
    table.seats.append(newcomer)
    assert newcomer.state.chain.height == 0
    catch_up(table, newcomer)
    assert newcomer.state.chain.height == 4
    assert newcomer.state.chain.coming_charter.active == {0, 1, 2, 3, 4}
    play(table, 2)
    assert len(newcomer.did(Commit)) == 6
    assert newcomer.votes(Kind.PREVOTE) != []


def test_who_has_another_key_than_the_admitted_one_follows_and_keeps_silent():
    table = started(4)
    context = Context(4, signer(99), TIMING, table.toolbox, None)
    table.seats.append(type(table.seats[0])(context, begin(context, table.seats[0].state.chain), []))
    table.seats[4].give(Started())
    offer(table, joins(table, 4))
    play(table, 1)
    impostor = table.seats[4]
    catch_up(table, impostor)
    play(table, 1)
    table.collect()
    assert table.seats[0].state.phase is Phase.COLLECTING  # a newcomer's first report is waited for, once
    for seat in table.seats:
        table.deliver(seat, table.fire(seat, Timer.DEADLINE))
    table.deliver(table.seats[0], table.mine(table.seats[0]))
    play(table, 1)
    assert impostor.state.chain.height == 4
    assert impostor.votes(Kind.PREVOTE) == []
    assert not impostor.did(Mine)
    assert not impostor.did(Measure)


def test_a_member_can_be_replaced():
    table = started(4, newcomers=1)
    offer(table, joins(table, 4))
    offer(table, leaves(table, 0))
    play(table, 1, winner=1)
    catch_up(table, table.seats[4])
    play(table, 2, winner=1)
    assert table.seats[0].state.end == "member 0 was removed: block 3 was its last"
    table.seats[0].effects.clear()
    for seat in table.seats[1:]:
        table.deliver(seat, table.train(seat), to=table.seats[1:])
        table.deliver(seat, table.measure(seat), to=table.seats[1:])
    table.deliver(table.seats[4], table.mine(table.seats[4]), to=table.seats[1:])
    assert table.decided[4][0].header.proposer == 4
    assert active(table.seats[1]) == {1, 2, 3, 4}


# Nothing is kept off the chain


def block_without_entries(seat):
    return make_block(seat, change={"entries": ()})


def hold(table, num_rounds, **entries):
    """All but member 3 hold entries while blocks without them are decided, as if member 3 had won so often."""
    for seat in table.seats[:3]:
        seat.hear(replace_sender(seat.message(Hearsay(1, **entries)), 3))
    for _ in range(num_rounds):
        table.collect()
        block = block_without_entries(table.seats[3])
        table.deliver(table.seats[3], [Send(None, table.seats[3].message(Proposal(block)))])


@pytest.mark.parametrize("kind", ["change", "evidence"])
def test_a_first_block_without_an_entry_held_for_two_heights_is_not_voted_for(kind):
    table = started()
    entry = removal_of(table, 3) if kind == "change" else two_votes(table.seats[0], 3)
    hold(table, HELD_HEIGHTS, **{"changes" if kind == "change" else "evidence": (entry,)})
    assert {seat.state.chain.height for seat in table.seats} == {HELD_HEIGHTS}  # patient at first
    table.collect()
    censored, voter = block_without_entries(table.seats[3]), table.seats[0]
    voter.hear(table.seats[3].message(Proposal(censored)))
    assert voter.state.candidates[censored.digest].is_valid
    assert not [one for one in voter.votes(Kind.PREVOTE) if one.block == censored.digest]
    whole = make_block(table.seats[1])
    assert entry in whole.body.entries
    voter.hear(table.seats[1].message(Proposal(whole)))
    assert [one for one in voter.votes(Kind.PREVOTE) if one.block == whole.digest]


def test_in_a_later_attempt_an_entry_may_be_missing_twice_as_long():
    table = started()
    hold(table, HELD_HEIGHTS, changes=(removal_of(table, 3),))
    table.collect()
    censored, voter = block_without_entries(table.seats[3]), table.seats[0]
    voter.hear(table.seats[3].message(Proposal(censored)))
    table.fire(voter, Timer.ATTEMPT)
    assert [one.attempt for one in voter.votes(Kind.PREVOTE) if one.block == censored.digest] == [2]


def removal_of(table, number):
    return leaves(table, number, by=[one for one in range(4) if one != number])


def two_votes(seat, offender):
    """Evidence that a member voted for two blocks in the first attempt of this seat's height."""
    place = seat.state.chain.place
    return TwoVotes(place, *(vote(seat, Kind.PREVOTE, 1, bytes([one]) * 32, number=offender) for one in (1, 2)))


def test_evidence_is_passed_on_once_and_taken_by_who_can_prove_it():
    table = started()
    first, second = table.seats[:2]
    evidence = two_votes(first, 3)
    say_votes(first, evidence.first, evidence.second)
    said = [content.evidence for content in first.sent(Hearsay) if content.evidence]
    assert said == [(evidence,)]
    effects = second.hear(first.message(Hearsay(1, evidence=(evidence,))))
    assert second.state.evidence == {3: evidence}
    assert [one.message.content.evidence for one in effects if isinstance(one, Send)] == [(evidence,)]
    assert not second.hear(first.message(Hearsay(1, evidence=(evidence,))))


def test_evidence_that_proves_nothing_is_refused():
    table = started()
    seat = table.seats[0]
    honest = vote(seat, Kind.PREVOTE, 1, bytes(32), number=3)
    forged = replace(honest, vote=replace(honest.vote, block=bytes([1]) * 32))
    nothing = TwoVotes(seat.state.chain.place, honest, forged)
    effects = seat.hear(table.seats[1].message(Hearsay(1, evidence=(nothing,))))
    assert [one.sender for one in effects if isinstance(one, Refused)] == [1]
    assert not seat.state.evidence
