"""Members come and go by what a quorum of them signed: what binds when, and what is refused."""

import msgspec
import pytest

from bdfl.encoding import decode, encode
from bdfl.identity import Meaning
from bdfl.ledger.block import MAX_BLOCK_SIZE, Admission, Assent, Block, Law, MembershipChange, Removal, SignedVote
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import FAREWELL, apply_block
from bdfl.ledger.chain_params import amend_params
from bdfl.ledger.errors import (
    BadCertificate,
    BadChange,
    BadEvidence,
    BadProposer,
    BadReport,
    BadSignature,
    BadVote,
    InvalidBlock,
)
from bdfl.ledger.member_set import read_member_set
from bdfl.ledger.rules import judge_schedule, make_header, validate_model, validate_proposal
from bdfl.ledger.statements import is_settled, make_change, validate_certificate, validate_change, validate_vote
from bdfl.ledger.verify import verify_chain
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from tests.ledger.changing_chain import (
    EXPIRES,
    admission,
    judge,
    new_maker,
    newcomer,
    next_block,
    play,
    removal,
    signed,
    two_votes,
)
from tests.vectors import independent_verifier
from tests.vectors.make_vectors import describe_chain

replace = msgspec.structs.replace
SCHEDULERS = ("drc", "exact", "exact-power", "all", "random", "round-robin", "channel-best")


def refuse(maker, *entries):
    """The rule that refuses a block with these entries; somebody who has only read the format refuses it too."""
    block = with_entries(maker, *entries)
    with pytest.raises(InvalidBlock) as refusal:
        judge(maker, block)
    with pytest.raises(independent_verifier.Wrong, match=refusal.value.rule.removeprefix("change-")):
        verify_independently(maker, block)
    return refusal.value.rule


def verify_independently(maker, *blocks):
    """What the verifier of the golden vectors finds, with more blocks than the chain has."""
    given = describe_chain(maker)
    for block in blocks:
        votes = tuple(maker.sign_vote(voter, block.digest) for voter in sorted(maker.state.active))
        models = [update.update.model for update in block.body.updates]
        given["blocks"].append(encode(block).hex())
        given["certificates"].append(msgspec.msgpack.encode(votes).hex())
        blobs = {model: maker.store.get_blob(model) for model in models}
        blobs[block.body.model] = validate_model(maker.state, block, blobs, maker.cache)
        given["blobs"] |= {model.hex(): data.hex() for model, data in blobs.items()}
    return independent_verifier.verify(given)


def with_entries(maker, *entries):
    """The next block with exactly these entries, mined and signed."""
    body = replace(next_block(maker).body, entries=entries)
    return maker.seal(make_header(maker.state, 1, min(maker.state.active), body, 0), body)


# What binds when


def test_an_admission_binds_two_heights_after_its_block():
    maker = new_maker(4)
    play(maker)
    block = play(maker, admission(maker))  # block 2
    assert isinstance(block.body.entries[-1], MembershipChange)
    state = maker.state  # height 3 is next: the old set
    assert state.active == {0, 1, 2, 3}
    assert (state.num_members, state.quorum) == (4, 3)
    assert state.coming_params.active == {0, 1, 2, 3, 4}
    third = play(maker)
    assert len(third.body.modelled.energy_pj) == len(third.body.schedule.mining_hz) == 4
    assert len(third.body.queue_nano) == len(third.body.next_schedule.mining_hz) == 5
    assert third.body.queue_nano[4] == 0
    assert third.body.next_schedule.selected == (0, 1, 2, 3)  # nobody has reported for the newcomer
    state = maker.state  # height 4: the new set
    assert state.active == {0, 1, 2, 3, 4}
    assert (state.num_members, state.quorum) == (5, 4)
    fourth = play(maker, proposer=4)
    assert fourth.body.next_schedule.selected == (0, 1, 2, 3, 4)
    assert 4 in {report.report.client for report in fourth.body.reports}
    fifth = play(maker)
    assert 4 in {update.update.client for update in fifth.body.updates}
    assert verify_chain(maker.store).is_valid
    assert verify_independently(maker).now.active == maker.state.active


def test_a_removal_binds_two_heights_after_its_block_and_leaves_a_place():
    maker = new_maker(5)
    play(maker)
    play(maker, removal(maker, 1))  # block 2
    assert maker.state.active == {0, 1, 2, 3, 4}
    third = play(maker, proposer=1)  # its last height
    assert 1 in {update.update.client for update in third.body.updates}
    assert 1 in {report.report.client for report in third.body.reports}
    assert third.body.next_schedule.selected == (0, 2, 3, 4)
    assert third.body.next_schedule.mining_hz[1] == 0
    assert (maker.state.active, maker.state.quorum) == ({0, 2, 3, 4}, 3)
    frozen = maker.state.queue_nano[1]
    for _ in range(3):
        block = play(maker)
        assert block.body.queue_nano[1] == frozen
        assert len(block.body.queue_nano) == 5
    assert verify_chain(maker.store).is_valid
    assert verify_independently(maker).now.active == maker.state.active


def test_numbers_are_never_given_again():
    maker = new_maker(4)
    play(maker, removal(maker, 3))
    play(maker)
    play(maker)
    assert refuse(maker, admission(maker, 3)) == "change-number"
    play(maker, admission(maker, 4))
    play(maker)
    assert maker.state.active == {0, 1, 2, 4}
    assert [member.public_key for member in maker.state.members] == [
        example.public_key for example in maker.signers[:5]
    ]


def test_one_member_can_take_the_place_of_another():
    maker = new_maker(4)
    play(maker, admission(maker))
    play(maker, removal(maker, 0))  # block 2: binds from 4 on, the admission from 3 on
    assert maker.state.active == {0, 1, 2, 3, 4}
    play(maker)
    assert maker.state.active == {1, 2, 3, 4}
    for _ in range(3):
        play(maker)
    member_set = read_member_set(maker.store.genesis, maker.store.blocks())
    assert member_set.first_heights == (1, 1, 1, 1, 3)
    assert member_set.last_heights == (3, None, None, None, None)
    assert member_set.active == maker.state.active
    assert verify_chain(maker.store).is_valid
    assert verify_independently(maker).now.active == maker.state.active


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_goes_on_with_other_members(scheduler):
    maker = new_maker(4, scheduler=scheduler)
    play(maker)
    play(maker, admission(maker))
    play(maker, removal(maker, 0))
    for _ in range(5):
        block = next_block(maker)
        judge(maker, block)
        judge_schedule(maker.state, block, maker.cache)
        maker.commit(block)
    assert maker.state.active == {1, 2, 3, 4}
    assert 0 not in maker.state.schedule.selected
    assert verify_chain(maker.store).is_valid
    assert verify_independently(maker).now.active == maker.state.active


def test_the_same_chain_is_made_with_and_without_a_memory():
    maker = new_maker(4, scheduler="round-robin")
    play(maker, admission(maker))
    play(maker, removal(maker, 2))
    for _ in range(4):
        play(maker)
    forgetful = new_maker(4, scheduler="round-robin")
    forgetful.cache = VerificationCache(max_entries=0)
    state = forgetful.state
    for block in maker.store.blocks():
        validate_proposal(state, block, forgetful.cache)
        judge_schedule(state, block, forgetful.cache)
        state = apply_block(state, block, forgetful.cache)
    assert state.active == maker.state.active
    assert state.schedule == maker.state.schedule


def test_a_block_with_a_change_survives_its_encoding():
    maker = new_maker(4)
    for change in (admission(maker), removal(maker, 2)):
        block = next_block(maker, two_votes(maker, 1), change)
        assert decode(encode(block), Block, MAX_BLOCK_SIZE) == block


# Who counts at a height


def test_votes_count_by_the_members_of_their_height():
    maker = new_maker(4)
    play(maker, admission(maker))  # block 1: five members from height 3 on
    early = maker.sign_vote(4, b"b" * 32)
    with pytest.raises(BadVote, match="vote-member"):
        validate_vote(maker.state, early, maker.cache)
    block = next_block(maker)
    three = tuple(maker.sign_vote(voter, block.digest) for voter in (0, 1, 3))
    validate_certificate(maker.state, block.digest, three, maker.cache)
    maker.commit(block, voters=(0, 1, 3))
    third = next_block(maker)  # carries votes of the old set for its parent
    judge(maker, third)
    three = tuple(maker.sign_vote(voter, third.digest) for voter in (0, 1, 3))
    with pytest.raises(BadCertificate, match="certificate-quorum"):
        validate_certificate(maker.state, third.digest, three, maker.cache)
    maker.commit(third, voters=(0, 1, 3, 4))
    judge(maker, next_block(maker))


def test_a_removed_member_proposes_votes_and_reports_no_more():
    maker = new_maker(5)
    play(maker, removal(maker, 2))
    play(maker, proposer=2)
    with pytest.raises(BadProposer):
        judge(maker, next_block(maker, proposer=2))
    with pytest.raises(BadReport, match="report-member"):
        judge(maker, next_block(maker, reporters=(0, 1, 2)))
    with pytest.raises(BadVote, match="vote-member"):
        validate_vote(maker.state, maker.sign_vote(2, b"b" * 32), maker.cache)
    vote = maker.sign_vote(3, b"b" * 32).vote
    with pytest.raises(BadVote, match="vote-holdings"):
        validate_vote(maker.state, sign(maker, replace(vote, reports=(0, 2))), maker.cache)


def sign(maker, vote):
    return SignedVote(vote, maker.signers[vote.voter].sign(Meaning.VOTE, maker.state.place, vote))


def test_a_removed_members_old_votes_still_certify_the_last_block_it_voted_for():
    maker = new_maker(4)
    play(maker, removal(maker, 3))
    play(maker, voters=(1, 2, 3))  # its last height
    assert maker.state.active == {0, 1, 2}
    judge(maker, next_block(maker))  # carries its vote


def test_evidence_against_a_member_of_an_earlier_set_still_counts():
    maker = new_maker(5)
    guilt = two_votes(maker, 2)
    play(maker, removal(maker, 2))
    play(maker)
    play(maker, guilt)
    assert maker.state.offenders == {2}
    with pytest.raises(BadEvidence, match="evidence-known"):
        judge(maker, with_entries(maker, guilt))
    assert verify_chain(maker.store).is_valid
    assert verify_independently(maker).now.active == maker.state.active


def test_the_driver_is_told_whom_to_listen_to():
    maker = new_maker(4)
    keys = [signer.public_key for signer in maker.signers]
    assert maker.state.public_keys == tuple(keys[:4])
    play(maker, admission(maker))
    assert maker.state.public_keys == tuple(keys[:5])  # it may ask for what it missed
    assert maker.state.speakers == {0, 1, 2, 3, 4}
    play(maker, removal(maker, 1))
    assert maker.state.last_height(1) == 3
    assert not maker.state.is_over(1)
    play(maker)
    assert maker.state.is_over(1)
    assert maker.state.speakers == {0, 2, 3, 4}
    assert maker.state.public_keys[1] == keys[1]  # it may still ask why nobody listens to what it says
    for _ in range(FAREWELL - 1):
        play(maker)
    assert maker.state.public_keys[1] == keys[1]
    play(maker)
    assert maker.state.public_keys == (keys[0], None, *keys[2:5])


# What is refused


@pytest.mark.parametrize("rule", list(QuorumRule))
@pytest.mark.parametrize("num_members", [3, 4, 5, 6, 7])
def test_a_quorum_of_the_members_must_agree(rule, num_members):
    maker = new_maker(num_members, law=Law(rule, WorkKind.SHA256, 4, 0, "mean", 0, 1, 3600 * 10**9))
    enough = range(1, 1 + maker.state.quorum) if maker.state.quorum < num_members else range(num_members)
    too_few = list(enough)[:-1]
    for make in (admission, lambda maker, **options: removal(maker, 0, **options)):
        validate_change(maker.state, make(maker, by=enough), maker.cache)
        with pytest.raises(BadChange, match="change-quorum"):
            validate_change(maker.state, make(maker, by=too_few), maker.cache)


def test_what_an_offender_signed_does_not_count_from_then_on():
    maker = new_maker(4)
    change = admission(maker, by=(0, 1, 2))
    play(maker, two_votes(maker, 2), change)  # it did until its conviction is on the chain
    maker = new_maker(4)
    play(maker, two_votes(maker, 2))
    assert refuse(maker, change) == "change-quorum"
    play(maker, admission(maker, by=(0, 1, 2, 3)))  # nor does it spoil what the others signed


def test_an_offender_can_be_removed_without_its_consent():
    maker = new_maker(4)
    play(maker, two_votes(maker, 2))
    play(maker, removal(maker, 2, by=(0, 1, 3)))
    play(maker)
    assert maker.state.active == {0, 1, 3}
    assert maker.state.quorum == 3
    assert maker.state.offenders == {2}


def test_who_was_removed_has_no_say_any_more():
    maker = new_maker(5)
    change = admission(maker, by=(0, 1, 2, 3))
    play(maker, removal(maker, 0))
    play(maker)
    assert maker.state.quorum == 3
    validate_change(maker.state, change, maker.cache)  # 1, 2 and 3 are enough by now
    assert refuse(maker, admission(maker, by=(0, 1, 2))) == "change-quorum"


def test_a_change_is_void_after_the_height_it_was_signed_for():
    maker = new_maker(4)
    change = admission(maker, expires=2)
    play(maker)
    validate_change(maker.state, change, maker.cache)
    play(maker)
    assert refuse(maker, change) == "change-expired"
    later = MembershipChange(change.change, EXPIRES, change.assents)
    assert refuse(maker, later) == "change-signature"


def test_a_change_of_another_chain_or_with_other_words_was_not_signed():
    maker, other = new_maker(4), new_maker(4, scheduler="drc")
    assert refuse(maker, admission(other)) == "change-signature"
    change = removal(maker, 1)
    assert refuse(maker, replace(change, change=Removal(2))) == "change-signature"
    wrong = (Assent(0, change.assents[1].signature), *change.assents[1:])
    assert refuse(maker, replace(change, assents=wrong)) == "change-signature"


def test_assents_ascend_and_are_by_members():
    maker = new_maker(4)
    change = admission(maker)
    assert refuse(maker, replace(change, assents=change.assents[::-1])) == "change-assents"
    assert refuse(maker, replace(change, assents=(*change.assents, change.assents[-1]))) == "change-assents"
    stranger = make_change(maker.state.chain, change.change, EXPIRES, {4: maker.signers[4]})
    assert refuse(maker, replace(change, assents=(*change.assents, *stranger.assents))) == "change-assents"


def test_a_block_carries_one_change_after_all_evidence():
    maker = new_maker(5)
    first, second = admission(maker), removal(maker, 0)
    assert refuse(maker, first, second) == "change-place"
    assert refuse(maker, first, two_votes(maker, 1)) == "change-place"
    block = next_block(maker, second, two_votes(maker, 1), first)
    assert [type(entry).__name__ for entry in block.body.entries] == ["TwoVotes", "MembershipChange"]
    assert block.body.entries[1] == second
    judge(maker, block)


def test_a_change_cannot_be_made_twice():
    maker = new_maker(4)
    joins, leaves = admission(maker), removal(maker, 1)
    play(maker, joins)
    assert refuse(maker, joins) == "change-number"
    play(maker, leaves)
    assert refuse(maker, leaves) == "change-number"
    assert is_settled(maker.state, joins.change)
    assert is_settled(maker.state, leaves.change)


def test_a_key_is_one_members_for_ever():
    maker = new_maker(5)
    twin = signed(maker, Admission(5, newcomer(5, key=2)))
    assert refuse(maker, twin) == "change-public-keys"
    play(maker, removal(maker, 2))
    play(maker)
    assert refuse(maker, twin) == "change-public-keys"
    assert is_settled(maker.state, twin.change)


def test_an_admission_waits_for_its_number():
    maker = new_maker(4)
    second = admission(maker, 5)
    assert refuse(maker, second) == "change-number"
    assert not is_settled(maker.state, second.change)
    play(maker, admission(maker, 4))
    play(maker, second)  # at the next block already: it is applied to what binds then
    assert maker.state.coming_params.active == {0, 1, 2, 3, 4, 5}
    play(maker)
    assert maker.state.quorum == 5


@pytest.mark.parametrize("number", [4, 4095])
def test_only_members_can_be_removed(number):
    assert refuse(new_maker(4), removal(new_maker(4), number)) == "change-number"


@pytest.mark.parametrize(
    ("limits", "rule"),
    [({"samples": 2**29}, "change-samples"), ({"rate_nano": 10**9 + 1}, "change-rates")],
)
def test_a_newcomer_is_judged_like_a_founder(limits, rule):
    maker = new_maker(4)
    assert refuse(maker, signed(maker, Admission(4, newcomer(4, **limits)))) == rule


@pytest.mark.parametrize(
    ("aggregation", "faulty", "least"), [("mean", 0, 1), ("krum", 0, 3), ("median", 1, 3), ("krum", 1, 5)]
)
def test_nobody_is_removed_whom_a_round_needs(aggregation, faulty, least):
    maker = new_maker(
        least + 1, law=Law(QuorumRule.MAJORITY, WorkKind.SHA256, 4, 0, aggregation, faulty, least, 3600 * 10**9)
    )
    play(maker, removal(maker, 0))
    assert refuse(maker, removal(maker, 1)) == "change-too-few"
    play(maker, admission(maker))
    play(maker, removal(maker, 1))


def test_no_more_are_admitted_than_the_aggregation_can_work_out():
    maker = new_maker(19, law=Law(QuorumRule.MAJORITY, WorkKind.SHA256, 4, 0, "minimum-diameter", 9, 19, 3600 * 10**9))
    params = amend_params(maker.state.params, Admission(19, newcomer(19)), 3, maker.cache)
    with pytest.raises(BadChange, match="change-aggregation"):
        amend_params(params, Admission(20, newcomer(20)), 4, maker.cache)  # 293,930 groups of 12


def test_a_refused_change_leaves_the_state_as_it_was():
    maker = new_maker(4)
    before = maker.state.coming_params
    assert refuse(maker, admission(maker, by=(0, 1))) == "change-quorum"
    assert maker.state.coming_params is before
    with pytest.raises(BadSignature):
        validate_change(maker.state, replace(admission(maker), expires=EXPIRES - 1), maker.cache)
