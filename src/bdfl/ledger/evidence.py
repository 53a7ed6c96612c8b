"""Evidence of misbehaviour: signed by the offender alone, and never made by an honest member.

It counts against present and past members.
"""

from bdfl.encoding import Record, encode
from bdfl.identity import Meaning, Place, statement_digest
from bdfl.ledger.block import (
    Evidence,
    FalseWork,
    Seal,
    SignedHeader,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
    block_digest,
    header_seal,
)
from bdfl.ledger.charter import Charter
from bdfl.ledger.errors import BadEvidence, require_equal
from bdfl.ledger.roll import offender_of
from bdfl.ledger.toolbox import Toolbox


def prove_offence(charter: Charter, evidence: Evidence, toolbox: Toolbox) -> int:
    """The member that the evidence convicts; raises `BadEvidence` if it proves nothing."""
    offender = offender_of(evidence)
    if not 0 <= offender < charter.num_members:
        raise BadEvidence("evidence-member", f"a member, 0 to {charter.num_members - 1}", offender)
    match evidence:
        case TwoVotes():
            _prove_two_votes(charter, evidence, toolbox)
        case TwoBlocks():
            _prove_two_blocks(charter, evidence, toolbox)
        case TwoUpdates():
            _prove_two_updates(charter, evidence, toolbox)
        case FalseWork():
            _prove_false_work(charter, evidence, toolbox)
    return offender


def _prove_two_votes(charter: Charter, evidence: TwoVotes, toolbox: Toolbox) -> None:
    """Prove votes of one kind in one attempt at one place, for different blocks."""
    first, second = evidence.first.vote, evidence.second.vote
    _require_same("voter", first.voter, second.voter)
    _require_same("kind", first.kind, second.kind)
    _require_same("attempt", first.attempt, second.attempt)
    _require_different("blocks", first.block, second.block)
    for signed in (evidence.first, evidence.second):
        _require_signed(charter, first.voter, Meaning.VOTE, evidence.place, signed.vote, signed.signature, toolbox)


def _prove_two_blocks(charter: Charter, evidence: TwoBlocks, toolbox: Toolbox) -> None:
    """Prove two different blocks of one attempt at one height."""
    first, second = evidence.first.header, evidence.second.header
    _require_same("proposer", first.proposer, second.proposer)
    _require_same("height", first.height, second.height)
    _require_same("attempt", first.attempt, second.attempt)
    _require_different("blocks", block_digest(first, evidence.first.nonce), block_digest(second, evidence.second.nonce))
    for signed in (evidence.first, evidence.second):
        _require_block_signed(charter, signed, toolbox)


def _prove_two_updates(charter: Charter, evidence: TwoUpdates, toolbox: Toolbox) -> None:
    """Prove two different updates of one round."""
    first, second = evidence.first.update, evidence.second.update
    _require_same("client", first.client, second.client)
    _require_different("updates", first, second)
    for signed in (evidence.first, evidence.second):
        _require_signed(charter, first.client, Meaning.UPDATE, evidence.place, signed.update, signed.signature, toolbox)


def _prove_false_work(charter: Charter, evidence: FalseWork, toolbox: Toolbox) -> None:
    """Prove a block whose hash is above the target that it states itself."""
    block = evidence.block
    _require_block_signed(charter, block, toolbox)
    if toolbox.is_worked(charter.genesis.law.work, header_seal(block.header), block.nonce, block.header.difficulty):
        raise BadEvidence("evidence-work", "a hash above the block's target", "one that is low enough")


def _require_same(name: str, first: object, second: object) -> None:
    if first != second:
        raise BadEvidence(f"evidence-{name}", f"the same {name} in both", f"{first} and {second}")


def _require_different(name: str, first: object, second: object) -> None:
    if first == second:
        raise BadEvidence(f"evidence-{name}", "two different ones", "the same one twice")


def _require_block_signed(charter: Charter, signed: SignedHeader, toolbox: Toolbox) -> None:
    header = signed.header
    seal = Seal(header, signed.nonce)
    _require_signed(charter, header.proposer, Meaning.BLOCK, header.place, seal, signed.signature, toolbox)


def _require_signed(
    charter: Charter,
    number: int,
    meaning: Meaning,
    place: Place,
    content: Record,
    signature: bytes,
    toolbox: Toolbox,
) -> None:
    require_equal(BadEvidence, "evidence-chain", charter.chain, place.chain)
    public_key = charter.members[number].public_key
    if not toolbox.is_signed(public_key, signature, statement_digest(meaning, place, encode(content))):
        raise BadEvidence("evidence-signature", f"signed by member {number}", "another signature")
