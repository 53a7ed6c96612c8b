"""What members say counts in its own place and as what it was signed, and nowhere else."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from bdfl.identity import Meaning
from bdfl.ledger.block import Kind
from bdfl.ledger.errors import BadCertificate, BadSignature, BadVote
from bdfl.ledger.statements import validate_certificate, validate_report, validate_update, validate_vote
from tests.ledger.broken_blocks import CERTIFICATE, GOOD, SMALL, STATE
from tests.ledger.small_federation import replace


def test_no_statement_counts_in_another_place():
    other, _ = SMALL.grow(STATE, 1, CERTIFICATE)
    for place in (dataclasses.replace(STATE, tip=bytes(32)), other):
        update = SMALL.sign_update(place, GOOD.body.updates[0].update)
        report = SMALL.sign_report(place, GOOD.body.reports[0].report)
        vote = SMALL.vote(place, GOOD.digest, 1)
        for validate, signed in ((validate_update, update), (validate_report, report), (validate_vote, vote)):
            with pytest.raises(BadSignature):
                validate(STATE, signed, SMALL.cache)


def test_no_signature_counts_as_something_else():
    vote = CERTIFICATE[0].vote
    for meaning in set(Meaning) - {Meaning.VOTE}:
        signature = SMALL.signers[0].sign(meaning, STATE.place, vote)
        with pytest.raises(BadSignature):
            validate_vote(STATE, replace(CERTIFICATE[0], vote=vote, signature=signature), SMALL.cache)


def test_a_prevote_says_nothing_of_mining():
    validate_vote(STATE, SMALL.vote(STATE, GOOD.digest, 1, kind=Kind.PREVOTE, mining_ms=0), SMALL.cache)
    with pytest.raises(BadVote, match="vote-mining-time"):
        validate_vote(STATE, SMALL.vote(STATE, GOOD.digest, 1, kind=Kind.PREVOTE), SMALL.cache)


@given(voters=st.sets(st.integers(0, 3)))
def test_a_certificate_needs_a_quorum_of_different_members(voters):
    certificate = tuple(SMALL.vote(STATE, GOOD.digest, voter) for voter in sorted(voters))
    if len(voters) >= STATE.quorum:
        validate_certificate(STATE, GOOD.digest, certificate, SMALL.cache)
    else:
        with pytest.raises(BadCertificate, match="certificate-quorum"):
            validate_certificate(STATE, GOOD.digest, certificate, SMALL.cache)
