"""Evidence convicts exactly those who signed what no honest member signs."""

import dataclasses

import pytest

from bdfl.encoding import decode, encode
from bdfl.identity import Meaning
from bdfl.ledger.block import MAX_BLOCK_SIZE, Block, FalseWork, Kind, ModelUpdate, TwoBlocks, TwoUpdates, TwoVotes
from bdfl.ledger.chain import apply_block
from bdfl.ledger.errors import BadEvidence
from bdfl.ledger.member_set import offender_of
from bdfl.ledger.rules import validate_evidence, validate_proposal
from tests.ledger.small_federation import found_federation, replace, small_scenario

SMALL = found_federation(small_scenario(4, "all"))
STATE, CERTIFICATE = SMALL.grow(SMALL.start(), 1)
BODY = SMALL.body(STATE, CERTIFICATE)
OTHER_BODY = SMALL.body(STATE, CERTIFICATE, updates=SMALL.updates(STATE, without=[3]))
A, B = bytes([1]) * 32, bytes([2]) * 32
ELSEWHERE = dataclasses.replace(STATE, tip=bytes(32))
OFFENDER = 2


def vote(block=A, voter=OFFENDER, state=STATE, **changes):
    return SMALL.vote(state, block, voter, **changes)


def update(value, client=OFFENDER, state=STATE, signer=None):
    model = ModelUpdate(client, 300, SMALL.genesis.model.size, bytes([value]) * 32, 0)
    return SMALL.sign_update(state, model, signer)


def header(body=BODY, proposer=OFFENDER, attempt=1, *, is_mined=True, signer=None, **changes):
    made = replace(SMALL.block(STATE, body, proposer, attempt).header, **changes)
    return SMALL.seal(made, body, proposer if signer is None else signer, is_mined=is_mined).signed_header


PROOFS = {
    "two prevotes": TwoVotes(
        STATE.place, vote(A, kind=Kind.PREVOTE, mining_ms=0), vote(B, kind=Kind.PREVOTE, mining_ms=0)
    ),
    "two precommits": TwoVotes(STATE.place, vote(A), vote(B)),
    "two votes long ago": TwoVotes(SMALL.start().place, vote(A, state=SMALL.start()), vote(B, state=SMALL.start())),
    "two blocks": TwoBlocks(header(BODY), header(OTHER_BODY)),
    "two blocks on different parents": TwoBlocks(header(BODY), header(BODY, parent=bytes(32))),
    "two updates": TwoUpdates(STATE.place, update(1), update(2)),
    "an update and none": TwoUpdates(STATE.place, update(1), SMALL.declined(STATE, OFFENDER)),
    "false work": FalseWork(header(is_mined=False)),
}


@pytest.mark.parametrize("offence", PROOFS)
def test_an_offence_is_proven_by_what_its_author_signed(offence):
    assert validate_evidence(STATE, PROOFS[offence], SMALL.cache) == OFFENDER
    assert offender_of(PROOFS[offence]) == OFFENDER


@pytest.mark.parametrize("offence", PROOFS)
def test_a_block_with_evidence_convicts(offence):
    block = SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE, entries=[PROOFS[offence]]))
    block = decode(encode(block), Block, MAX_BLOCK_SIZE)
    validate_proposal(STATE, block, SMALL.cache)
    assert apply_block(STATE, block, SMALL.cache).offenders == {OFFENDER}


NO_PROOFS = {
    "the same vote twice": (TwoVotes(STATE.place, vote(A), vote(A)), "evidence-blocks"),
    "one vote for a block, with more held later": (
        TwoVotes(STATE.place, vote(A), vote(A, updates=(0, 1, 2))),
        "evidence-blocks",
    ),
    "votes of two attempts": (TwoVotes(STATE.place, vote(A), vote(B, attempt=2)), "evidence-attempt"),
    "a prevote and a precommit": (
        TwoVotes(STATE.place, vote(A, kind=Kind.PREVOTE, mining_ms=0), vote(B)),
        "evidence-kind",
    ),
    "votes of two members": (TwoVotes(STATE.place, vote(A), vote(B, voter=1)), "evidence-voter"),
    "a forged vote": (
        TwoVotes(STATE.place, vote(A), replace(vote(B, voter=1), vote=vote(B).vote)),
        "evidence-signature",
    ),
    "votes of two places": (TwoVotes(STATE.place, vote(A), vote(B, state=ELSEWHERE)), "evidence-signature"),
    "votes of another chain": (
        TwoVotes(replace(STATE.place, chain=bytes(32)), vote(A), vote(B)),
        "evidence-chain",
    ),
    "votes of a stranger": (
        TwoVotes(
            STATE.place, replace(vote(A), vote=replace(vote(A).vote, voter=4)), replace(vote(B), vote=vote(B).vote)
        ),
        "evidence-member",
    ),
    "the same block twice": (TwoBlocks(header(), header()), "evidence-blocks"),
    "blocks of two attempts": (TwoBlocks(header(), header(attempt=2)), "evidence-attempt"),
    "blocks of two heights": (TwoBlocks(header(), header(height=9)), "evidence-height"),
    "blocks of two members": (TwoBlocks(header(), header(proposer=1)), "evidence-proposer"),
    "a forged block": (TwoBlocks(header(), header(OTHER_BODY, signer=1)), "evidence-signature"),
    "a block of another chain": (TwoBlocks(header(), header(chain=bytes(32))), "evidence-chain"),
    "the same update twice": (TwoUpdates(STATE.place, update(1), update(1)), "evidence-updates"),
    "updates of two members": (TwoUpdates(STATE.place, update(1), update(2, client=1)), "evidence-client"),
    "a forged update": (TwoUpdates(STATE.place, update(1), update(2, signer=1)), "evidence-signature"),
    "updates of two rounds": (TwoUpdates(STATE.place, update(1), update(2, state=ELSEWHERE)), "evidence-signature"),
    "true work": (FalseWork(header()), "evidence-work"),
    "false work forged": (FalseWork(header(is_mined=False, signer=1)), "evidence-signature"),
    "false work elsewhere": (FalseWork(header(is_mined=False, chain=bytes(32))), "evidence-chain"),
}


@pytest.mark.parametrize("what", NO_PROOFS)
def test_what_an_honest_member_signs_or_a_liar_forges_proves_nothing(what):
    evidence, rule = NO_PROOFS[what]
    with pytest.raises(BadEvidence) as refusal:
        validate_evidence(STATE, evidence, SMALL.cache)
    assert refusal.value.rule == rule


def test_a_signature_as_something_else_proves_nothing():
    two = PROOFS["two precommits"]
    as_block = SMALL.signers[OFFENDER].sign(Meaning.BLOCK, STATE.place, two.second.vote)
    with pytest.raises(BadEvidence, match="evidence-signature"):
        validate_evidence(STATE, replace(two, second=replace(two.second, signature=as_block)), SMALL.cache)


def test_an_offender_is_convicted_once():
    state = dataclasses.replace(STATE, offenders=frozenset([OFFENDER]))
    for proof in PROOFS.values():
        with pytest.raises(BadEvidence, match="evidence-known"):
            validate_evidence(state, proof, SMALL.cache)
    body = SMALL.body(STATE, CERTIFICATE, entries=list(PROOFS.values()))
    assert body.entries == (PROOFS["two prevotes"],)
