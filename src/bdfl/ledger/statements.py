"""Validation of signed statements for the next block: updates, reports, votes, evidence, membership changes.

A statement counts if its author is a member at its height. Evidence of misbehaviour is signed by the offender alone,
never made by an honest member, and counts against present and past members.

A change of membership needs a quorum of assents, must not have expired, and must be possible on the chain. An assent
counts if its signer is a member at the height of the block that carries the change and no proven offender: an offender
gets no say about members, and could withhold its assent anyway. The quorum stays that of all members. A change cannot
be replayed: an admission takes the next number and a new key, a removal a present member's number.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from bdfl.encoding import DIGEST_SIZE, INT_LIMIT, Record, encode
from bdfl.identity import Meaning, Place, Signer, statement_digest
from bdfl.ledger.block import (
    MAX_BUDGET_PJ,
    Admission,
    Assent,
    Certificate,
    Change,
    Evidence,
    FalseWork,
    Kind,
    MembershipChange,
    ModelUpdate,
    Report,
    Seal,
    SignedHeader,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
    Vote,
    block_digest,
    header_seal,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, params_after
from bdfl.ledger.chain_params import ChainParams
from bdfl.ledger.errors import (
    BadCertificate,
    BadChange,
    BadEvidence,
    BadReport,
    BadSignature,
    BadUpdate,
    BadVote,
    InvalidBlock,
    InvalidUpdate,
    require_equal,
)
from bdfl.ledger.member_set import offender_of


def validate_update(state: ChainState, signed: SignedUpdate, cache: VerificationCache) -> None:
    """Raise unless this is an update of the next round by a member that is scheduled to train in it."""
    update = signed.update
    require_member(BadUpdate, "update-member", state.params, update.client)
    if update.client not in state.scheduled:
        raise BadUpdate("update-scheduled", f"one of clients {state.schedule.selected}", update.client)
    if update.client in state.offenders:
        raise BadUpdate("update-offender", "a member without a proven offence", update.client)
    samples = state.params.members[update.client].limits.samples
    require_equal(BadUpdate, "update-samples", samples, update.samples)
    _validate_update_form(state, update)
    _validate_epsilon(state, update)
    require_signed(
        state.params, "update-signature", update.client, Meaning.UPDATE, state.place, update, signed.signature, cache
    )


def _validate_update_form(state: ChainState, update: ModelUpdate) -> None:
    if update.is_declined:
        require_equal(BadUpdate, "update-size", 0, update.size)
        return
    require_equal(BadUpdate, "update-digest", f"{DIGEST_SIZE} bytes", f"{len(update.model)} bytes")
    require_equal(BadUpdate, "update-size", state.genesis.model.size, update.size)
    if update.samples == 0:  # without data there is nothing to learn
        require_equal(BadUpdate, "update-without-data", state.model, update.model)


def _validate_epsilon(state: ChainState, update: ModelUpdate) -> None:
    """Epsilon never decreases; `audit.summary` checks its value with the accountant."""
    if state.genesis.privacy is None or update.samples == 0:
        require_equal(BadUpdate, "update-epsilon", 0, update.epsilon_micro)
        return
    least = max(state.epsilon_micro[update.client], 0 if update.is_declined else 1)
    if not least <= update.epsilon_micro <= INT_LIMIT:
        raise BadUpdate("update-epsilon", f"at least {least} millionths, as before", update.epsilon_micro)


def validate_update_blob(state: ChainState, update: ModelUpdate, data: bytes, cache: VerificationCache) -> None:
    """Raise `InvalidUpdate` unless these are the bytes of the update: a model of this chain with finite weights."""
    require_equal(InvalidUpdate, "blob-size", update.size, len(data))
    cache.decode_model(update.model, data, state.layout)


def validate_report(state: ChainState, signed: SignedReport, cache: VerificationCache) -> None:
    """Raise unless this is a member's report for the round after the next block."""
    report = signed.report
    require_member(BadReport, "report-member", state.params, report.client)
    require_equal(BadReport, "report-round", state.height + 2, report.round)
    if report.receipt is not None:
        require_equal(BadReport, "receipt-round", state.height, report.receipt.round)
    _validate_ranges(report)
    require_signed(
        state.params, "report-signature", report.client, Meaning.REPORT, state.place, report, signed.signature, cache
    )


def _validate_ranges(report: Report) -> None:
    """Check the ranges also of reports made here, which no decoder has checked."""
    conditions, receipt = report.conditions, report.receipt
    counts = [conditions.gain_atto, conditions.energy_budget_pj]
    if receipt is not None:
        counts += [receipt.energy_pj, receipt.training_ns, receipt.upload_ns, receipt.mining_ns]
    if not 0 <= min(counts) <= max(counts) <= INT_LIMIT:
        raise BadReport("report-range", f"counts from 0 to {INT_LIMIT}", counts)
    if conditions.energy_budget_pj > MAX_BUDGET_PJ:
        raise BadReport("report-range", f"an energy budget of at most {MAX_BUDGET_PJ} pJ", conditions.energy_budget_pj)


def validate_vote(state: ChainState, signed: SignedVote, cache: VerificationCache) -> None:
    """Raise unless this is a member's vote for a block at the next height, on the tip."""
    _validate_vote_at(state.params, state.place, signed, cache)


def validate_tip_vote(state: ChainState, signed: SignedVote, cache: VerificationCache) -> None:
    """Raise unless this is a vote at the tip's height by a member of that height."""
    _validate_vote_at(state.tip_params, state.tip_place, signed, cache)


def _validate_vote_at(params: ChainParams, place: Place, signed: SignedVote, cache: VerificationCache) -> None:
    vote = signed.vote
    require_member(BadVote, "vote-member", params, vote.voter)
    _validate_vote_form(params, vote)
    require_signed(params, "vote-signature", vote.voter, Meaning.VOTE, place, vote, signed.signature, cache)


def _validate_vote_form(params: ChainParams, vote: Vote) -> None:
    for held in (vote.updates, vote.reports):
        if not is_ascending(held) or not params.active.issuperset(held):
            raise BadVote("vote-holdings", "member numbers in ascending order", held)
    if vote.kind is Kind.PREVOTE:
        require_equal(BadVote, "vote-mining-time", 0, vote.mining_ms)


def validate_certificate(
    state: ChainState, block_digest: bytes, certificate: Certificate, cache: VerificationCache
) -> None:
    """Raise unless these votes make that block final: precommits of a quorum in one attempt, in order of voters."""
    _validate_certificate_at(state.params, state.place, block_digest, certificate, cache)


def validate_tip_certificate(state: ChainState, certificate: Certificate, cache: VerificationCache) -> None:
    """Raise unless these votes, by members at the tip's height, made the tip final; the genesis has none."""
    if state.height == 0:
        require_equal(BadCertificate, "certificate-genesis", 0, len(certificate))
    else:
        _validate_certificate_at(state.tip_params, state.tip_place, state.tip, certificate, cache)


def _validate_certificate_at(
    params: ChainParams, place: Place, block_digest: bytes, certificate: Certificate, cache: VerificationCache
) -> None:
    votes = [signed.vote for signed in certificate]
    if len(votes) < params.quorum:
        raise BadCertificate("certificate-quorum", f"at least {params.quorum} votes", len(votes))
    if not is_ascending([vote.voter for vote in votes]):
        raise BadCertificate("certificate-order", "different voters in ascending order", [one.voter for one in votes])
    for vote in votes:
        require_equal(BadCertificate, "certificate-kind", Kind.PRECOMMIT, vote.kind)
        require_equal(BadCertificate, "certificate-block", block_digest, vote.block)
        require_equal(BadCertificate, "certificate-attempt", votes[0].attempt, vote.attempt)
    for signed in certificate:
        _validate_vote_at(params, place, signed, cache)


def is_ascending(numbers: Sequence[int]) -> bool:
    """Return whether the numbers are strictly ascending."""
    return all(former < latter for former, latter in pairwise(numbers))


def require_member(error: type[InvalidBlock], rule: str, params: ChainParams, number: int) -> None:
    """Raise `error` unless that is the number of a present member."""
    if number not in params.active:
        raise error(rule, f"one of the {len(params.active)} members, 0 to {max(params.active)}", number)


def require_signed(
    params: ChainParams,
    rule: str,
    number: int,
    meaning: Meaning,
    place: Place,
    content: Record,
    signature: bytes,
    cache: VerificationCache,
    *,
    error: type[InvalidBlock] = BadSignature,
) -> None:
    """Raise `error` unless that member signed the content with this meaning and place."""
    public_key = params.members[number].public_key
    if not cache.is_signed(public_key, signature, statement_digest(meaning, place, encode(content))):
        raise error(rule, f"signed by member {number} for height {place.height}", "another signature")


def prove_offence(params: ChainParams, evidence: Evidence, cache: VerificationCache) -> int:
    """The member that the evidence convicts; raises `BadEvidence` if it proves nothing."""
    offender = offender_of(evidence)
    if not 0 <= offender < params.num_members:
        raise BadEvidence("evidence-member", f"a member, 0 to {params.num_members - 1}", offender)
    match evidence:
        case TwoVotes():
            _prove_two_votes(params, evidence, cache)
        case TwoBlocks():
            _prove_two_blocks(params, evidence, cache)
        case TwoUpdates():
            _prove_two_updates(params, evidence, cache)
        case FalseWork():
            _prove_false_work(params, evidence, cache)
    return offender


def _prove_two_votes(params: ChainParams, evidence: TwoVotes, cache: VerificationCache) -> None:
    """Prove votes of one kind in one attempt at one place, for different blocks."""
    first, second = evidence.first.vote, evidence.second.vote
    _require_same("voter", first.voter, second.voter)
    _require_same("kind", first.kind, second.kind)
    _require_same("attempt", first.attempt, second.attempt)
    _require_different("blocks", first.block, second.block)
    for signed in (evidence.first, evidence.second):
        _require_signed(params, first.voter, Meaning.VOTE, evidence.place, signed.vote, signed.signature, cache)


def _prove_two_blocks(params: ChainParams, evidence: TwoBlocks, cache: VerificationCache) -> None:
    """Prove two different blocks of one attempt at one height."""
    first, second = evidence.first.header, evidence.second.header
    _require_same("proposer", first.proposer, second.proposer)
    _require_same("height", first.height, second.height)
    _require_same("attempt", first.attempt, second.attempt)
    _require_different("blocks", block_digest(first, evidence.first.nonce), block_digest(second, evidence.second.nonce))
    for signed in (evidence.first, evidence.second):
        _require_block_signed(params, signed, cache)


def _prove_two_updates(params: ChainParams, evidence: TwoUpdates, cache: VerificationCache) -> None:
    """Prove two different updates of one round."""
    first, second = evidence.first.update, evidence.second.update
    _require_same("client", first.client, second.client)
    _require_different("updates", first, second)
    for signed in (evidence.first, evidence.second):
        _require_signed(params, first.client, Meaning.UPDATE, evidence.place, signed.update, signed.signature, cache)


def _prove_false_work(params: ChainParams, evidence: FalseWork, cache: VerificationCache) -> None:
    """Prove a block whose hash is above the target that it states itself."""
    block = evidence.block
    _require_block_signed(params, block, cache)
    if cache.is_worked(params.genesis.law.work, header_seal(block.header), block.nonce, block.header.difficulty):
        raise BadEvidence("evidence-work", "a hash above the block's target", "one that is low enough")


def _require_same(name: str, first: object, second: object) -> None:
    if first != second:
        raise BadEvidence(f"evidence-{name}", f"the same {name} in both", f"{first} and {second}")


def _require_different(name: str, first: object, second: object) -> None:
    if first == second:
        raise BadEvidence(f"evidence-{name}", "two different ones", "the same one twice")


def _require_block_signed(params: ChainParams, signed: SignedHeader, cache: VerificationCache) -> None:
    header = signed.header
    seal = Seal(header, signed.nonce)
    _require_signed(params, header.proposer, Meaning.BLOCK, header.place, seal, signed.signature, cache)


def _require_signed(
    params: ChainParams,
    number: int,
    meaning: Meaning,
    place: Place,
    content: Record,
    signature: bytes,
    cache: VerificationCache,
) -> None:
    require_equal(BadEvidence, "evidence-chain", params.chain, place.chain)
    require_signed(params, "evidence-signature", number, meaning, place, content, signature, cache, error=BadEvidence)


def change_place(chain: bytes, expires: int) -> Place:
    """The signing context of an assent: the chain, and the last height whose block may carry the change."""
    return Place(chain, expires, bytes(DIGEST_SIZE))


def sign_change(chain: bytes, change: Change, expires: int, number: int, signer: Signer) -> Assent:
    """A member's assent to a change that is void after height `expires`."""
    return Assent(number, signer.sign(Meaning.MEMBERSHIP, change_place(chain, expires), change))


def make_change(chain: bytes, change: Change, expires: int, signers: Mapping[int, Signer]) -> MembershipChange:
    """A change with the assents of these members."""
    assents = (sign_change(chain, change, expires, number, signers[number]) for number in sorted(signers))
    return MembershipChange(change, expires, tuple(assents))


def validate_change(state: ChainState, found: MembershipChange, cache: VerificationCache) -> None:
    """Raise unless the next block may carry the change: assented, not expired, and possible after earlier ones."""
    validate_assents(state, found, cache)
    params_after(state, (found,), cache)


def validate_assents(state: ChainState, found: MembershipChange, cache: VerificationCache) -> None:
    """Raise unless a quorum of the next height's members assented to the change and it has not expired."""
    if found.expires <= state.height:
        raise BadChange("change-expired", f"a change for height {state.height + 1}", f"up to height {found.expires}")
    members, numbers = state.params.members, [assent.member for assent in found.assents]
    if not is_ascending(numbers) or (numbers and not 0 <= numbers[0] <= numbers[-1] < len(members)):
        raise BadChange("change-assents", "different members in ascending order", numbers)
    num_counted = sum(number in state.active and number not in state.offenders for number in numbers)
    if num_counted < state.quorum:
        raise BadChange("change-quorum", f"assents of at least {state.quorum} members, offenders aside", num_counted)
    statement = statement_digest(Meaning.MEMBERSHIP, change_place(state.chain, found.expires), encode(found.change))
    for assent in found.assents:
        if not cache.is_signed(members[assent.member].public_key, assent.signature, statement):
            expected = f"signed by member {assent.member} for up to height {found.expires}"
            raise BadSignature("change-signature", expected, "another signature")


def is_settled(state: ChainState, change: Change) -> bool:
    """Return whether a change is obsolete: it was made, or another change took its number or key."""
    member_set = state.coming_params.member_set
    if isinstance(change, Admission):
        is_known = any(member.public_key == change.member.public_key for member in member_set.members)
        return is_known or change.number < len(member_set.members)
    return change.number < len(member_set.members) and change.number not in member_set.active
