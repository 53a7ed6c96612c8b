"""Entries: changes of membership and evidence are passed on, put into blocks, and kept out of none for long."""

import dataclasses

import pytest
from msgspec.structs import replace

from bdfl.identity import Meaning
from bdfl.ledger.block import Admission, Member, MembershipChange, Removal, SignedUpdate, SignedVote, TwoVotes
from bdfl.ledger.member_set import find_change
from bdfl.ledger.statements import make_change
from bdfl.protocol.entries import HELD_HEIGHTS
from bdfl.protocol.events import (
    ChangeOffered,
    Commit,
    Measure,
    Mine,
    Refused,
    Send,
    ServeDecided,
    Started,
    Timer,
)
from bdfl.protocol.messages import MAX_CHANGES, DecidedWanted, Gossip, Proposal
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, Phase, Recovered
from bdfl.scenario import QuorumRule
from tests.protocol.manual_network import (
    TIMING,
    Kind,
    ManualNetwork,
    Store,
    make_block,
    replace_sender,
    say_votes,
    signer,
    vote,
)


def started(num_members=4, newcomers=0, **options):
    """A network with empty chairs for those who may join, already taken."""
    network = ManualNetwork(num_members, **options)
    network.nodes += [network.node(num_members + number) for number in range(newcomers)]
    network.start()
    return network


def signed(network, change, *, expires=50, by=None):
    numbers = range(len(network.genesis.members)) if by is None else by
    chain = network.nodes[0].state.chain.chain
    return make_change(chain, change, expires, {number: signer(number) for number in numbers})


def joins(network, number, *, key=None, **options):
    founder = network.genesis.members[0]
    public_key = signer(number if key is None else key).public_key
    return signed(network, Admission(number, Member(public_key, founder.limits, founder.conditions)), **options)


def leaves(network, number, **options):
    return signed(network, Removal(number), **options)


def offer(network, change, node=0):
    effects = network.nodes[node].give(ChangeOffered(change))
    network.deliver(network.nodes[node], effects)
    return effects


def active(node):
    return node.state.chain.active


def play(network, num_rounds, winner=0):
    for _ in range(num_rounds):
        network.play_round(winner)


def catch_up(network, node):
    """Asks for all it missed."""
    network.deliver(node, network.fire(node, Timer.RESEND))


# Passing on


def test_an_offered_change_is_told_to_all_and_is_in_the_next_block():
    network = started()
    change = joins(network, 4)
    effects = offer(network, change)
    assert [effect.message.content.changes for effect in effects if isinstance(effect, Send)] == [(change,)]
    assert all(node.state.changes == (change,) for node in network.nodes)
    network.play_round(winner=2)
    block, _ = network.decided[1]
    assert find_change(block.body.entries) == change
    assert all(node.state.changes == () for node in network.nodes)
    assert active(network.nodes[0]) == {0, 1, 2, 3}
    network.play_round()
    assert active(network.nodes[0]) == {0, 1, 2, 3, 4}


def test_a_change_does_not_wait_though_nobody_trains():
    network = started()
    for node in network.nodes:
        network.deliver(node, network.train(node))
    for node in network.nodes:
        network.deliver(node, network.fire(node, Timer.DEADLINE))  # nobody reported
    network.deliver(network.nodes[0], network.mine(network.nodes[0]))
    assert network.nodes[0].state.phase is Phase.COLLECTING
    offer(network, joins(network, 4))
    network.deliver(network.nodes[0], network.mine(network.nodes[0]))
    assert [node.state.chain.height for node in network.nodes] == [2] * 4
    assert network.nodes[0].state.chain.num_idle == 0


def test_what_is_held_is_said_again():
    network = started()
    change = leaves(network, 3)
    network.nodes[0].give(ChangeOffered(change))
    effects = network.fire(network.nodes[0], Timer.RESEND)
    said = [effect.message.content for effect in effects if isinstance(effect, Send)]
    assert any(isinstance(content, Gossip) and content.changes == (change,) for content in said)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda network: leaves(network, 3, by=(0, 1)), "change-quorum"),
        (lambda network: leaves(network, 3, expires=0), "change-expired"),
        (lambda network: joins(network, 4, key=1), "change-settled"),
        (lambda network: joins(network, 2), "change-settled"),
        (lambda network: MembershipChange(Removal(3), 50, leaves(network, 2).assents), "change-signature"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_and_not_passed_on(make, rule):
    network = started()
    node = network.nodes[0]
    effects = node.give(ChangeOffered(make(network)))
    assert [type(effect) for effect in effects] == [Refused]
    assert rule in effects[0].reason
    assert node.state.changes == ()
    heard = node.hear(replace_sender(node.message(Gossip(1, changes=(make(network),))), 1))
    assert rule in heard[0].reason
    assert node.state.changes == ()


def test_a_change_that_is_known_is_not_passed_on_again():
    network = started()
    change = leaves(network, 3)
    offer(network, change)
    assert offer(network, change) == []
    fewer = leaves(network, 3, by=(0, 1, 2))  # the same, signed by others
    assert offer(network, fewer) == []
    assert network.nodes[0].state.changes == (change,)


def test_no_more_changes_are_held_than_a_message_can_carry():
    network = started()
    for expires in range(10, 10 + MAX_CHANGES):
        assert offer(network, leaves(network, 3, expires=expires)) != []
    effects = offer(network, leaves(network, 3, expires=99))
    assert isinstance(effects[0], Refused)
    assert len(network.nodes[1].state.changes) == MAX_CHANGES


def test_a_change_that_expires_is_forgotten():
    network = started()
    waits = joins(network, 5, expires=2)  # nobody has number 4
    lasts = joins(network, 5, expires=9)
    offer(network, waits)
    offer(network, lasts)
    play(network, 2)
    assert all(node.state.changes == (lasts,) for node in network.nodes)


def test_changes_are_made_in_the_order_in_which_they_can_be():
    network = started()
    second, first = joins(network, 5), joins(network, 4)
    offer(network, second)
    offer(network, first)
    play(network, 2)
    changes = [find_change(network.decided[height][0].body.entries) for height in (1, 2)]
    assert changes == [first, second]


def test_a_block_without_the_change_is_as_good_as_one_with_it():
    network = started()
    node, proposer = network.nodes[0], network.nodes[1]
    network.collect()
    node.give(ChangeOffered(leaves(network, 3)))  # the proposer has not heard of it
    block = make_block(proposer)
    node.hear(replace_sender(node.message(Proposal(block)), 1))
    assert [vote.block for vote in node.votes(Kind.PREVOTE)] == [block.digest]


# Who leaves


def test_who_is_removed_ends_after_its_last_height_and_says_why():
    network = started(5)
    offer(network, leaves(network, 4))
    network.play_round()
    leaver = network.nodes[4]
    assert leaver.state.phase is Phase.COLLECTING  # block 2 is still its own
    assert Measure(3) not in leaver.effects  # but not round 3
    network.play_round(winner=4)
    assert network.decided[2][0].header.proposer == 4
    assert leaver.votes(Kind.PRECOMMIT)[-1].block == network.decided[2][0].digest
    assert leaver.state.phase is Phase.DONE
    assert leaver.state.end == "member 4 was removed: block 2 was its last"
    assert leaver.state.chain.height == 2
    others = network.nodes[:4]
    network.nodes = others
    play(network, 2)
    assert all(node.state.chain.height == 4 for node in others)
    assert active(others[0]) == {0, 1, 2, 3}
    assert others[0].state.end == ""


def test_who_is_removed_does_not_come_back_by_a_restart():
    network = started(5)
    offer(network, leaves(network, 4))
    play(network, 2)
    chain, certificate = network.nodes[4].state.chain, network.decided[2][1]
    again = network.node(4, Recovered(certificate=certificate), chain)
    assert again.state.phase is Phase.DONE
    assert "removed" in again.state.end
    assert again.give(Started()) == []


def test_a_removed_member_is_answered_until_it_knows_and_not_listened_to():
    network = started(5)
    offer(network, leaves(network, 4))
    play(network, 3)
    node = network.nodes[0]
    late = node.hear(replace_sender(node.message(Gossip(1, wants_answer=True), height=2), 4))
    assert late == [ServeDecided(4, 2)]
    assert node.hear(replace_sender(node.message(DecidedWanted(), height=1), 4)) == [ServeDecided(4, 1)]
    for height in (3, 4, 5):
        refused = node.hear(replace_sender(node.message(DecidedWanted(), height=height), 4))
        assert [type(effect) for effect in refused] == [Refused]


def test_the_dead_can_be_removed_so_that_others_may_fail():
    """Of seven two are dead: under bft, five of seven must vote. Without them three of five do not suffice, four do."""
    network = started(7, quorum=QuorumRule.BFT)
    dead = network.nodes[5:]
    network.nodes = network.nodes[:5]
    assert network.nodes[0].state.chain.quorum == 5
    for number in (5, 6):
        offer(network, leaves(network, number, by=range(5)))
    for _ in range(3):
        for node in network.nodes:
            network.deliver(node, network.train(node))
            network.deliver(node, network.measure(node))
        for node in network.nodes:
            network.deliver(node, network.fire(node, Timer.DEADLINE))
        network.deliver(network.nodes[0], network.mine(network.nodes[0]))
    assert network.nodes[0].state.chain.height == 3
    assert active(network.nodes[0]) == {0, 1, 2, 3, 4}
    assert network.nodes[0].state.chain.quorum == 4
    assert all(node.state.chain.height == 0 for node in dead)


# Who joins


def test_who_joins_follows_from_the_beginning_and_votes_from_its_height_on():
    network = started(4, newcomers=1, quorum=QuorumRule.BFT)
    newcomer = network.nodes[4]
    offer(network, joins(network, 4))
    play(network, 1)
    assert newcomer.state.chain.height == 0  # nobody gave it a model so far
    catch_up(network, newcomer)
    play(network, 1)
    assert newcomer.state.chain.height == 2  # its membership binds from height 3 on
    assert not newcomer.did(Mine)
    assert [
        effect for effect in newcomer.did(Store) if isinstance(getattr(effect.kept, "statement", None), SignedVote)
    ] == []
    assert newcomer.did(Measure) == [Measure(4)]
    assert newcomer.state.chain.quorum == 4
    network.play_round()  # it votes and reports
    block, certificate = network.decided[3]
    assert 4 in {report.report.client for report in block.body.reports}
    assert len(newcomer.votes(Kind.PRECOMMIT)) == 1
    assert len(certificate) >= 4
    network.play_round(winner=4)  # it trains and mines
    block, _ = network.decided[4]
    assert block.header.proposer == 4
    assert 4 in {update.update.client for update in block.body.updates}


def test_nobody_listens_to_who_is_not_admitted_and_all_answer_once_it_is():
    network = started(4, newcomers=1)
    stranger = network.nodes.pop()
    asked = stranger.message(Gossip(1, wants_answer=True))
    assert isinstance(network.nodes[0].hear(asked)[0], Refused)
    play(network, 1)
    assert isinstance(network.nodes[0].hear(asked)[0], Refused)
    offer(network, joins(network, 4))
    play(network, 1)
    assert network.nodes[0].hear(asked) == [ServeDecided(4, 1)]


def test_who_joins_catches_up_with_everything_it_missed():
    network = started(4, newcomers=1)
    newcomer = network.nodes.pop()
    play(network, 3)
    offer(network, joins(network, 4))
    play(network, 1)
    network.nodes.append(newcomer)
    assert newcomer.state.chain.height == 0
    catch_up(network, newcomer)
    assert newcomer.state.chain.height == 4
    assert newcomer.state.chain.coming_params.active == {0, 1, 2, 3, 4}
    play(network, 2)
    assert len(newcomer.did(Commit)) == 6
    assert newcomer.votes(Kind.PREVOTE) != []


def test_who_has_another_key_than_the_admitted_one_follows_and_keeps_silent():
    network = started(4)
    context = Context(4, signer(99), TIMING, network.cache, None)
    network.nodes.append(type(network.nodes[0])(context, begin(context, network.nodes[0].state.chain), []))
    network.nodes[4].give(Started())
    offer(network, joins(network, 4))
    play(network, 1)
    impostor = network.nodes[4]
    catch_up(network, impostor)
    play(network, 1)
    network.collect()
    assert network.nodes[0].state.phase is Phase.COLLECTING  # a newcomer's first report is waited for, once
    for node in network.nodes:
        network.deliver(node, network.fire(node, Timer.DEADLINE))
    network.deliver(network.nodes[0], network.mine(network.nodes[0]))
    play(network, 1)
    assert impostor.state.chain.height == 4
    assert impostor.votes(Kind.PREVOTE) == []
    assert not impostor.did(Mine)
    assert not impostor.did(Measure)


def test_a_member_can_be_replaced():
    network = started(4, newcomers=1)
    offer(network, joins(network, 4))
    offer(network, leaves(network, 0))
    play(network, 1, winner=1)
    catch_up(network, network.nodes[4])
    play(network, 2, winner=1)
    assert network.nodes[0].state.end == "member 0 was removed: block 3 was its last"
    network.nodes[0].effects.clear()
    for node in network.nodes[1:]:
        network.deliver(node, network.train(node), to=network.nodes[1:])
        network.deliver(node, network.measure(node), to=network.nodes[1:])
    network.deliver(network.nodes[4], network.mine(network.nodes[4]), to=network.nodes[1:])
    assert network.decided[4][0].header.proposer == 4
    assert active(network.nodes[1]) == {1, 2, 3, 4}


# Nothing is kept off the chain


def collect_beside_censor(network):
    """All collect and mine, member 3 as if it had heard of no entries."""
    censor = network.nodes[3]
    censor.state = dataclasses.replace(censor.state, evidence={}, changes=(), held_since={})
    network.collect()


def hold(network, num_rounds, **entries):
    """All but member 3 hold entries while blocks without them are decided, as if member 3 had won so often."""
    for node in network.nodes[:3]:
        node.hear(replace_sender(node.message(Gossip(1, **entries)), 3))
    for _ in range(num_rounds):
        collect_beside_censor(network)
        block = make_block(network.nodes[3])
        network.deliver(network.nodes[3], [Send(None, network.nodes[3].message(Proposal(block)))])


@pytest.mark.parametrize("kind", ["change", "evidence"])
def test_a_first_block_without_an_entry_held_for_two_heights_is_not_voted_for(kind):
    network = started()
    entry = removal_of(network, 3) if kind == "change" else two_votes(network.nodes[0], 3)
    hold(network, HELD_HEIGHTS, **{"changes" if kind == "change" else "evidence": (entry,)})
    assert {node.state.chain.height for node in network.nodes} == {HELD_HEIGHTS}  # patient at first
    collect_beside_censor(network)
    censored, voter = make_block(network.nodes[3]), network.nodes[0]
    voter.hear(network.nodes[3].message(Proposal(censored)))
    assert voter.state.candidates[censored.digest].is_valid
    assert not [one for one in voter.votes(Kind.PREVOTE) if one.block == censored.digest]
    whole = make_block(network.nodes[1])
    assert entry in whole.body.entries
    voter.hear(network.nodes[1].message(Proposal(whole)))
    assert [one for one in voter.votes(Kind.PREVOTE) if one.block == whole.digest]


def test_an_offender_that_offends_at_every_height_gains_no_time():
    network = started()
    for _ in range(HELD_HEIGHTS + 1):
        collect_beside_censor(network)
        for node in network.nodes[:3]:
            give_other_update(node, 3)
        block = make_block(network.nodes[3])
        network.deliver(network.nodes[3], [Send(None, network.nodes[3].message(Proposal(block)))])
    assert {node.state.chain.height for node in network.nodes} == {HELD_HEIGHTS}


def give_other_update(node, member):
    """Give a node another update than it holds of a member."""
    update = replace(node.state.updates[member].update, model=bytes(32))
    other = SignedUpdate(update, signer(member).sign(Meaning.UPDATE, node.state.chain.place, update))
    node.hear(replace_sender(node.message(Gossip(1, updates=(other,))), member))


@pytest.mark.parametrize("kind", ["change", "evidence"])
def test_an_entry_that_a_block_omitted_is_broadcast_again_when_the_next_height_begins(kind):
    """The first broadcast is lost, as to members that are ahead; quick rounds end before a re-broadcast is due."""
    network = started()
    entry = removal_of(network, 3) if kind == "change" else two_votes(network.nodes[0], 3)
    gossip = Gossip(1, **{"changes" if kind == "change" else "evidence": (entry,)})
    network.nodes[0].hear(replace_sender(network.nodes[0].message(gossip), 1))
    network.play_round(winner=1)
    assert find_entries(network, 1) == ()
    network.play_round(winner=1)
    assert find_entries(network, 2) == (entry,)


def test_an_entry_that_is_not_possible_yet_is_not_broadcast_at_every_height():
    network = started()
    offer(network, joins(network, 5))  # nobody has number 4
    for node in network.nodes:
        node.effects.clear()
    play(network, 2)
    assert not [content for node in network.nodes for content in node.sent(Gossip) if content.changes]


def find_entries(network, height):
    return network.decided[height][0].body.entries


def test_in_a_later_attempt_an_entry_may_be_missing_twice_as_long():
    network = started()
    hold(network, HELD_HEIGHTS, changes=(removal_of(network, 3),))
    collect_beside_censor(network)
    censored, voter = make_block(network.nodes[3]), network.nodes[0]
    voter.hear(network.nodes[3].message(Proposal(censored)))
    network.fire(voter, Timer.ATTEMPT)
    assert [one.attempt for one in voter.votes(Kind.PREVOTE) if one.block == censored.digest] == [2]


def removal_of(network, number):
    return leaves(network, number, by=[one for one in range(4) if one != number])


def two_votes(node, offender):
    """Evidence that a member voted for two blocks in the first attempt of this node's height."""
    place = node.state.chain.place
    return TwoVotes(place, *(vote(node, Kind.PREVOTE, 1, bytes([one]) * 32, number=offender) for one in (1, 2)))


def test_evidence_is_passed_on_once_and_taken_by_who_can_prove_it():
    network = started()
    first, second = network.nodes[:2]
    evidence = two_votes(first, 3)
    say_votes(first, evidence.first, evidence.second)
    said = [content.evidence for content in first.sent(Gossip) if content.evidence]
    assert said == [(evidence,)]
    effects = second.hear(first.message(Gossip(1, evidence=(evidence,))))
    assert second.state.evidence == {3: evidence}
    assert [one.message.content.evidence for one in effects if isinstance(one, Send)] == [(evidence,)]
    assert not second.hear(first.message(Gossip(1, evidence=(evidence,))))


def test_evidence_that_proves_nothing_is_refused():
    network = started()
    node = network.nodes[0]
    honest = vote(node, Kind.PREVOTE, 1, bytes(32), number=3)
    forged = replace(honest, vote=replace(honest.vote, block=bytes([1]) * 32))
    nothing = TwoVotes(node.state.chain.place, honest, forged)
    effects = node.hear(network.nodes[1].message(Gossip(1, evidence=(nothing,))))
    assert [one.sender for one in effects if isinstance(one, Refused)] == [1]
    assert not node.state.evidence
