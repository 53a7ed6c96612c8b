"""Validity of single statements for the next block: updates, reports, votes and certificates.

A statement counts if its author is a member at its height.
"""

from collections.abc import Sequence
from itertools import pairwise

from bdfl.encoding import DIGEST_SIZE, INT_LIMIT, Record, encode
from bdfl.identity import Meaning, Place, statement_digest
from bdfl.ledger.block import (
    MAX_BUDGET_PJ,
    Certificate,
    Kind,
    ModelUpdate,
    Report,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Vote,
)
from bdfl.ledger.chain import ChainState
from bdfl.ledger.charter import Charter
from bdfl.ledger.errors import (
    BadCertificate,
    BadReport,
    BadSignature,
    BadUpdate,
    BadVote,
    InvalidBlock,
    InvalidUpdate,
    require_equal,
)
from bdfl.ledger.toolbox import Toolbox


def validate_update(state: ChainState, signed: SignedUpdate, toolbox: Toolbox) -> None:
    """Raise unless this is an update of the next round by a member that is scheduled to train in it."""
    update = signed.update
    require_member(BadUpdate, "update-member", state.charter, update.client)
    if update.client not in state.scheduled:
        raise BadUpdate("update-scheduled", f"one of clients {state.schedule.selected}", update.client)
    if update.client in state.offenders:
        raise BadUpdate("update-offender", "a member without a proven offence", update.client)
    samples = state.charter.members[update.client].limits.samples
    require_equal(BadUpdate, "update-samples", samples, update.samples)
    _validate_update_form(state, update)
    _validate_epsilon(state, update)
    require_signed(
        state.charter, "update-signature", update.client, Meaning.UPDATE, state.place, update, signed.signature, toolbox
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
    """Epsilon never decreases; `audit.privacy` checks its value with the accountant."""
    if state.genesis.privacy is None or update.samples == 0:
        require_equal(BadUpdate, "update-epsilon", 0, update.epsilon_micro)
        return
    least = max(state.epsilon_micro[update.client], 0 if update.is_declined else 1)
    if not least <= update.epsilon_micro <= INT_LIMIT:
        raise BadUpdate("update-epsilon", f"at least {least} millionths, as before", update.epsilon_micro)


def validate_update_blob(state: ChainState, update: ModelUpdate, data: bytes, toolbox: Toolbox) -> None:
    """Raise `InvalidUpdate` unless these are the bytes of the update: a model of this chain with finite weights."""
    require_equal(InvalidUpdate, "blob-size", update.size, len(data))
    toolbox.decode_model(update.model, data, state.layout)


def validate_report(state: ChainState, signed: SignedReport, toolbox: Toolbox) -> None:
    """Raise unless this is a member's report for the round after the next block."""
    report = signed.report
    require_member(BadReport, "report-member", state.charter, report.client)
    require_equal(BadReport, "report-round", state.height + 2, report.round)
    if report.receipt is not None:
        require_equal(BadReport, "receipt-round", state.height, report.receipt.round)
    _validate_ranges(report)
    require_signed(
        state.charter, "report-signature", report.client, Meaning.REPORT, state.place, report, signed.signature, toolbox
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


def validate_vote(state: ChainState, signed: SignedVote, toolbox: Toolbox) -> None:
    """Raise unless this is a member's vote for a block at the next height, on the tip."""
    _validate_vote_at(state.charter, state.place, signed, toolbox)


def validate_tip_vote(state: ChainState, signed: SignedVote, toolbox: Toolbox) -> None:
    """Raise unless this is a vote at the tip's height by a member of that height."""
    _validate_vote_at(state.tip_charter, state.tip_place, signed, toolbox)


def _validate_vote_at(charter: Charter, place: Place, signed: SignedVote, toolbox: Toolbox) -> None:
    vote = signed.vote
    require_member(BadVote, "vote-member", charter, vote.voter)
    _validate_vote_form(charter, vote)
    require_signed(charter, "vote-signature", vote.voter, Meaning.VOTE, place, vote, signed.signature, toolbox)


def _validate_vote_form(charter: Charter, vote: Vote) -> None:
    for held in (vote.updates, vote.reports):
        if not is_ascending(held) or not charter.active.issuperset(held):
            raise BadVote("vote-holdings", "member numbers in ascending order", held)
    if vote.kind is Kind.PREVOTE:
        require_equal(BadVote, "vote-mining-time", 0, vote.mining_ms)


def validate_certificate(state: ChainState, block_digest: bytes, certificate: Certificate, toolbox: Toolbox) -> None:
    """Raise unless these votes make that block final: precommits of a quorum in one attempt, in order of voters."""
    _validate_certificate_at(state.charter, state.place, block_digest, certificate, toolbox)


def validate_tip_certificate(state: ChainState, certificate: Certificate, toolbox: Toolbox) -> None:
    """Raise unless these votes, by members at the tip's height, made the tip final; the genesis has none."""
    if state.height == 0:
        require_equal(BadCertificate, "certificate-genesis", 0, len(certificate))
    else:
        _validate_certificate_at(state.tip_charter, state.tip_place, state.tip, certificate, toolbox)


def _validate_certificate_at(
    charter: Charter, place: Place, block_digest: bytes, certificate: Certificate, toolbox: Toolbox
) -> None:
    votes = [signed.vote for signed in certificate]
    if len(votes) < charter.quorum:
        raise BadCertificate("certificate-quorum", f"at least {charter.quorum} votes", len(votes))
    if not is_ascending([vote.voter for vote in votes]):
        raise BadCertificate("certificate-order", "different voters in ascending order", [one.voter for one in votes])
    for vote in votes:
        require_equal(BadCertificate, "certificate-kind", Kind.PRECOMMIT, vote.kind)
        require_equal(BadCertificate, "certificate-block", block_digest, vote.block)
        require_equal(BadCertificate, "certificate-attempt", votes[0].attempt, vote.attempt)
    for signed in certificate:
        _validate_vote_at(charter, place, signed, toolbox)


def is_ascending(numbers: Sequence[int]) -> bool:
    """Return whether the numbers are strictly ascending."""
    return all(former < latter for former, latter in pairwise(numbers))


def require_member(error: type[InvalidBlock], rule: str, charter: Charter, number: int) -> None:
    """Raise `error` unless that is the number of a present member."""
    if number not in charter.active:
        raise error(rule, f"one of the {len(charter.active)} members, 0 to {max(charter.active)}", number)


def require_signed(
    charter: Charter,
    rule: str,
    number: int,
    meaning: Meaning,
    place: Place,
    content: Record,
    signature: bytes,
    toolbox: Toolbox,
) -> None:
    """Raise `BadSignature` unless that member signed the content with this meaning and place."""
    public_key = charter.members[number].public_key
    if not toolbox.is_signed(public_key, signature, statement_digest(meaning, place, encode(content))):
        raise BadSignature(rule, f"signed by member {number} for height {place.height}", "another signature")
