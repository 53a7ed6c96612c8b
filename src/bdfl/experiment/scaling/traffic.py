"""Traffic received by a member in a round without faults: messages and bytes, from the protocol's encodings.

Numbers have the largest size possible in a federation of that size: an upper estimate.
"""

from dataclasses import dataclass

from bdfl.encoding import DIGEST_SIZE, SIGNATURE_SIZE, encode
from bdfl.ledger.block import (
    NONCE_SIZE,
    Block,
    Body,
    Conditions,
    Header,
    Kind,
    Modelled,
    ModelUpdate,
    Receipt,
    Report,
    Schedule,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Vote,
)
from bdfl.ledger.roll import quorum_size
from bdfl.protocol.agreeing import MAX_CERTIFIED
from bdfl.protocol.messages import Blob, Content, Hearsay, Message, Proposal
from bdfl.scenario.ledger import QuorumRule

_DIGEST = b"\xff" * DIGEST_SIZE
_SIGNATURE = b"\xff" * SIGNATURE_SIZE
_ROUND = 2**15 - 1
_LARGE = 2**40  # nanoseconds, picojoules, hertz, attounits: numbers of nine bytes
_MS = 2**15 - 1


@dataclass(frozen=True)
class Heard:
    """Traffic received by one member in a round, by kind."""

    report_bytes: int
    update_bytes: int  # announcements, and the models themselves
    block_bytes: int
    vote_bytes: int
    num_messages: int
    num_signatures: int  # to be verified

    @property
    def num_bytes(self) -> int:
        return self.report_bytes + self.update_bytes + self.block_bytes + self.vote_bytes


def heard_in_round(
    members: int, selected: int, model_bytes: int, *, voters: int | None = None, rule: QuorumRule = QuorumRule.BFT
) -> Heard:
    """Traffic received by a member that neither trains nor votes: all reports, updates, one block, and both votes.

    `voters` is the size of a committee; None: all members vote.
    """
    voting = members if voters is None else voters
    report, update, vote = _report(members), _update(members, model_bytes), _vote(members, selected)
    block = _block(members, selected, model_bytes, _num_certified(voting, rule))
    return Heard(
        report_bytes=(members - 1) * _size(Hearsay(1, reports=(report,))),
        update_bytes=selected * (_size(Hearsay(1, updates=(update,))) + _size(Blob(b"")) + model_bytes),
        block_bytes=_size(Proposal(block)),
        vote_bytes=2 * voting * _size(Hearsay(1, votes=(vote,))),
        num_messages=members - 1 + 2 * selected + 1 + 2 * voting,
        num_signatures=members - 1 + selected + 1 + 2 * voting,  # those inside the block were verified before
    )


def block_size(members: int, selected: int, *, voters: int | None = None, rule: QuorumRule = QuorumRule.BFT) -> int:
    """Bytes of a block: mostly the parent's certificate, since every vote lists the reports its voter held."""
    voting = members if voters is None else voters
    return len(encode(_block(members, selected, 1, _num_certified(voting, rule))))


def _num_certified(voting: int, rule: QuorumRule) -> int:
    """Votes in a certificate: all of them, or a quorum if they are too many for a block."""
    return max(quorum_size(rule, voting), min(voting, MAX_CERTIFIED))


def _size(content: Content) -> int:
    return len(encode(Message(_DIGEST, 0, _ROUND, content)))


def _report(members: int) -> SignedReport:
    receipt = Receipt(_ROUND, _LARGE, _LARGE, _LARGE, _LARGE)
    return SignedReport(Report(members - 1, _ROUND, Conditions(_LARGE, _LARGE, True), receipt), _SIGNATURE)


def _update(members: int, model_bytes: int) -> SignedUpdate:
    return SignedUpdate(ModelUpdate(members - 1, 2**15, model_bytes, _DIGEST, 0), _SIGNATURE)


def _vote(members: int, selected: int) -> SignedVote:
    trained = tuple(range(0, members, max(members // max(selected, 1), 1)))[:selected]
    vote = Vote(Kind.PRECOMMIT, 1, _DIGEST, members - 1, trained, tuple(range(members)), _MS)
    return SignedVote(vote, _SIGNATURE)


def _block(members: int, selected: int, model_bytes: int, certified: int) -> Block:
    each, trained = (_LARGE,) * members, tuple(range(selected))
    schedule = Schedule(_ROUND, trained, each[:selected], (2**17,) * selected, each, _LARGE, "")
    body = Body(
        parent_certificate=(_vote(members, selected),) * certified,
        schedule=schedule,
        is_empty=False,
        model=_DIGEST,
        queue_nano=each,
        modelled=Modelled(_LARGE, _LARGE, _LARGE, each),
        reports=(_report(members),) * members,
        next_schedule=schedule,
        entries=(),
        updates=(_update(members, model_bytes),) * selected,
    )
    header = Header(1, _DIGEST, _ROUND, 1, _DIGEST, members - 1, _DIGEST, _LARGE, _LARGE)
    return Block(header, b"\xff" * NONCE_SIZE, _SIGNATURE, body)
