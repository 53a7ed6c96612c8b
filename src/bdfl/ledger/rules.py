"""The law of the chain: rules of validity, rules for voters, and making a block.

`validate_proposal` and `validate_model` together define validity, one function per rule. Validity is a function of the
chain and the bytes alone. `judge_schedule` and `is_timely` add the voter's own judgement.
"""

from collections.abc import Mapping, Sequence

from bdfl.identity import Meaning
from bdfl.ledger.block import (
    FORMAT,
    MAX_TIME_MS,
    TIME_TOLERANCE_MS,
    Block,
    Body,
    Certificate,
    Entry,
    Evidence,
    Header,
    MembershipChange,
    ModelUpdate,
    Seal,
    SignedReport,
    SignedUpdate,
    body_root,
    header_seal,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import (
    ChainState,
    modelled_costs,
    plan_after,
    prospect_after,
    required_difficulty,
    settle_round,
)
from bdfl.ledger.errors import (
    BadChange,
    BadEvidence,
    BadLink,
    BadProposer,
    BadReport,
    BadSchedule,
    BadTime,
    BadUpdate,
    BadWork,
    MissingBlob,
    WrongModel,
    WrongQueues,
    WrongReceipts,
    require_equal,
)
from bdfl.ledger.member_set import find_change, find_evidence, offender_of
from bdfl.ledger.schedule import assess, judge_plan, validate_schedule
from bdfl.ledger.statements import (
    is_ascending,
    prove_offence,
    require_member,
    require_signed,
    validate_change,
    validate_report,
    validate_tip_certificate,
    validate_update,
)

_MAX_DOUBLINGS = 40  # a minute doubled that often exceeds the calendar


def validate_proposal(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """Raise `InvalidBlock` unless the block keeps every rule that can be checked without models; cheap rules first."""
    validate_format(block)
    validate_link(state, block)
    validate_time(state, block)
    validate_proposer(state, block)
    validate_block_signature(state, block, cache)
    validate_body_root(block)
    validate_difficulty(state, block)
    validate_work(state, block, cache)
    validate_parent_certificate(state, block, cache)
    validate_played_schedule(state, block)
    validate_updates(state, block, cache)
    validate_emptiness(state, block)
    validate_reports(state, block, cache)
    validate_entries(state, block, cache)
    validate_queues(state, block)
    validate_receipts(state, block, cache)
    validate_next_schedule(state, block, cache)


def validate_model(state: ChainState, block: Block, blobs: Mapping[bytes, bytes], cache: VerificationCache) -> bytes:
    """The bytes of the block's global model, recomputed; empty for an empty block, which keeps the model.

    Raises `WrongModel` if the block names another digest, `InvalidUpdate` if an update's bytes are no model, and
    `MissingBlob` if they are not among `blobs`, or those of the parent's model where a server's optimizer goes on from
    it. [Li24, Section III-A] step 4: the aggregate agrees in every bit.
    """
    if block.body.is_empty:
        return b""
    data = aggregate_updates(state, block.body.updates, blobs, cache)
    require_equal(WrongModel, "model-aggregate", cache.digest(data), block.body.model)
    return data


def judge_schedule(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """Raise `NotVotable` if the next schedule of a valid block is worse than the voter's own for the same reports."""
    body = block.body
    settled = settle_round(state, body.updates, body.reports, body.entries)
    own = plan_after(state, settled, cache).schedule
    params = state.coming_params
    delay_ns = assess(params, prospect_after(state, settled), own, cache).modelled.delay_ns
    judge_plan(params, own, body.next_schedule, delay_ns, block.header.attempt)


def is_timely(state: ChainState, block: Block, since_ms: int, now_ms: int, attempt: int) -> bool:
    """Return whether a block's time lies in the voter's work on the height, within a tolerance.

    `since_ms` and `now_ms` are the voter's wall clock at the start of the height and now, so that a block of an earlier
    attempt, or one that took long to mine, stays votable. The tolerance doubles with each of the voter's attempts:
    wrong clocks slow a network down, but never halt it. The least valid time is never too late.
    """
    offset_ms = min_offset_ms(block.header.time_ms, since_ms, max(now_ms, state.least_time_ms))
    return abs(offset_ms) <= TIME_TOLERANCE_MS << min(attempt - 1, _MAX_DOUBLINGS)


def min_offset_ms(time_ms: int, since_ms: int, now_ms: int) -> int:
    """Least offset (ms) of a clock to that of a block's proposer, positive if ahead; 0: they may agree.

    The block was made while the clock ran from `since_ms` to `now_ms`; it may have been set back meanwhile.
    """
    return max(0, min(since_ms, now_ms) - time_ms) or min(0, now_ms - time_ms)


# The header


def validate_format(block: Block) -> None:
    """The block has the format of these rules."""
    require_equal(BadLink, "format", FORMAT, block.header.format)


def validate_link(state: ChainState, block: Block) -> None:
    """The block follows the tip."""
    header = block.header
    require_equal(BadLink, "chain", state.chain, header.chain)
    require_equal(BadLink, "height", state.height + 1, header.height)
    require_equal(BadLink, "parent", state.tip, header.parent)


def validate_time(state: ChainState, block: Block) -> None:
    """The block is later than the median time past, and within the calendar."""
    if not state.least_time_ms <= block.header.time_ms <= MAX_TIME_MS:
        raise BadTime("time", f"at least {state.least_time_ms} ms, within the year 9999", block.header.time_ms)


def validate_proposer(state: ChainState, block: Block) -> None:
    """The proposer is a member."""
    require_member(BadProposer, "proposer", state.params, block.header.proposer)


def validate_block_signature(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """The proposer signed the header with its nonce."""
    header = block.header
    seal = Seal(header, block.nonce)
    require_signed(
        state.params, "block-signature", header.proposer, Meaning.BLOCK, header.place, seal, block.signature, cache
    )


def validate_body_root(block: Block) -> None:
    """The body is the one that the header names."""
    require_equal(BadLink, "body-root", body_root(block.body), block.header.body)


def validate_difficulty(state: ChainState, block: Block) -> None:
    """The difficulty is the one that the chain requires in this attempt."""
    header = block.header
    required = required_difficulty(state, header.attempt, block.body.parent_certificate)
    require_equal(BadWork, "difficulty", required, header.difficulty)


def validate_work(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """The nonce is a proof of work."""
    header = block.header
    if not cache.is_worked(state.genesis.law.work, header_seal(header), block.nonce, header.difficulty):
        raise BadWork("work", f"a hash below 2^256 / {header.difficulty}", "one above it")


# The body


def validate_parent_certificate(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """The block carries the votes that made its parent final."""
    validate_tip_certificate(state, block.body.parent_certificate, cache)


def validate_played_schedule(state: ChainState, block: Block) -> None:
    """The round was played under the schedule that the parent holds."""
    require_equal(BadSchedule, "played-schedule", state.schedule, block.body.schedule)


def validate_updates(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """Every update is a scheduled member's for this round, at most one per member, in client order."""
    clients = [signed.update.client for signed in block.body.updates]
    if not is_ascending(clients):
        raise BadUpdate("update-order", "different clients in ascending order", clients)
    for signed in block.body.updates:
        validate_update(state, signed, cache)


def validate_emptiness(state: ChainState, block: Block) -> None:
    """The block is empty if and only if too few updates can be aggregated, and then keeps the model."""
    body = block.body
    require_equal(WrongModel, "empty", is_too_few(state, body.updates), body.is_empty)
    if body.is_empty:
        require_equal(WrongModel, "empty-model", state.model, body.model)


def validate_reports(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """Every report is a member's for the next round, at most one per member, in client order."""
    clients = [signed.report.client for signed in block.body.reports]
    if not is_ascending(clients):
        raise BadReport("report-order", "different clients in ascending order", clients)
    for signed in block.body.reports:
        validate_report(state, signed, cache)


def validate_entries(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """Entries are evidence against different new offenders, in member order, then at most one membership change."""
    entries = block.body.entries
    change = find_change(entries)
    evidence = find_evidence(entries)
    if len(evidence) + (change is not None) < len(entries):
        raise BadChange("change-place", "at most one change of membership, after all evidence", "another one")
    offenders = [offender_of(entry) for entry in evidence]
    if not is_ascending(offenders):
        raise BadEvidence("evidence-order", "different offenders in ascending order", offenders)
    for entry in evidence:
        validate_evidence(state, entry, cache)
    if change is not None:
        validate_change(state, change, cache)


def validate_evidence(state: ChainState, evidence: Evidence, cache: VerificationCache) -> int:
    """The member that the evidence convicts; raises `BadEvidence` if it proves nothing, or nothing new."""
    offender = offender_of(evidence)
    if offender in state.offenders:
        raise BadEvidence("evidence-known", "an offender that is not known yet", offender)
    return prove_offence(state.params, evidence, cache)


def validate_queues(state: ChainState, block: Block) -> None:
    """The virtual queues are those after this round."""
    body = block.body
    settled = settle_round(state, body.updates, body.reports, body.entries)
    require_equal(WrongQueues, "queues", settled.queue_nano, body.queue_nano)


def validate_receipts(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """The modelled receipts are the cost model's for this round's schedule."""
    require_equal(WrongReceipts, "modelled-receipts", modelled_costs(state, cache), block.body.modelled)


def validate_next_schedule(state: ChainState, block: Block, cache: VerificationCache) -> None:
    """The next schedule keeps C1 to C3 and states its objective, given the block's reports."""
    body = block.body
    settled = settle_round(state, body.updates, body.reports, body.entries)
    validate_schedule(state.coming_params, prospect_after(state, settled), body.next_schedule, cache)


# Aggregated updates


def aggregated_updates(updates: Sequence[SignedUpdate]) -> list[ModelUpdate]:
    """The updates that enter the global model: not declined, and trained on at least one sample."""
    return [signed.update for signed in updates if signed.update.is_aggregated]


def is_too_few(state: ChainState, updates: Sequence[SignedUpdate]) -> bool:
    """Return whether these updates are too few for the aggregation rule."""
    return len(aggregated_updates(updates)) < state.genesis.law.min_updates


def aggregate_updates(
    state: ChainState, updates: Sequence[SignedUpdate], blobs: Mapping[bytes, bytes], cache: VerificationCache
) -> bytes:
    """The bytes of the global model that the chain's rule, and the server's optimizer if any, make of these updates.

    Raises `MissingBlob`, also for the parent's model where there is an optimizer.
    """
    params = state.params
    aggregate = cache.aggregate(params.aggregation, state.layout, aggregated_updates(updates), blobs)
    if params.server is None:
        return aggregate
    if state.model not in blobs:
        raise MissingBlob(state.model)
    return cache.take_step(params.server, state.layout, blobs[state.model], aggregate)


def required_blobs(state: ChainState, block: Block) -> list[bytes]:
    """Digests of the updates whose bytes `validate_model` needs, each once."""
    return list(dict.fromkeys(update.model for update in block.body.aggregated))


# Making a block


def make_body(
    state: ChainState,
    *,
    certificate: Certificate,
    updates: Sequence[SignedUpdate],
    reports: Sequence[SignedReport],
    entries: Sequence[Entry],
    blobs: Mapping[bytes, bytes],
    cache: VerificationCache,
) -> tuple[Body, bytes]:
    """The body of the next block from valid statements in any order, and the bytes of its model, empty if it is.

    `certificate` holds the votes for the tip, `blobs` the bytes of all updates to aggregate, and those of the parent's
    model where there is a server's optimizer.
    """
    updates = sorted(updates, key=lambda signed: signed.update.client)
    reports = sorted(reports, key=lambda signed: signed.report.client)
    entries = _order_entries(state, entries)
    settled = settle_round(state, updates, reports, entries)
    is_empty = is_too_few(state, updates)
    model = b"" if is_empty else aggregate_updates(state, updates, blobs, cache)
    body = Body(
        parent_certificate=tuple(certificate),
        schedule=state.schedule,
        is_empty=is_empty,
        model=state.model if is_empty else cache.digest(model),
        queue_nano=settled.queue_nano,
        modelled=modelled_costs(state, cache),
        reports=tuple(reports),
        next_schedule=plan_after(state, settled, cache).schedule,
        entries=tuple(entries),
        updates=tuple(updates),
    )
    return body, model


def _order_entries(state: ChainState, entries: Sequence[Entry]) -> list[Entry]:
    """The first proof against each new offender, by offender, and the first change."""
    first_proofs = {offender_of(entry): entry for entry in reversed(find_evidence(entries))}
    evidence = [first_proofs[offender] for offender in sorted(first_proofs.keys() - state.offenders)]
    changes = [entry for entry in entries if isinstance(entry, MembershipChange)]
    return [*evidence, *changes[:1]]


def make_header(state: ChainState, attempt: int, proposer: int, body: Body, now_ms: int) -> Header:
    """The header of the next block, to be mined; `now_ms` is the proposer's wall clock."""
    return Header(
        format=FORMAT,
        chain=state.chain,
        height=state.height + 1,
        attempt=attempt,
        parent=state.tip,
        proposer=proposer,
        body=body_root(body),
        difficulty=required_difficulty(state, attempt, body.parent_certificate),
        time_ms=max(now_ms, state.least_time_ms),
    )
