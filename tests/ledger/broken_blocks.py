"""Blocks that are right but for one thing, and the rule that must refuse each."""

from collections.abc import Callable

from bdfl.identity import Meaning
from bdfl.ledger.block import MAX_BUDGET_PJ, MAX_TIME_MS, Block, Certificate, Kind, SignedUpdate, SignedVote, TwoVotes
from bdfl.ledger.errors import (
    BadCertificate,
    BadEvidence,
    BadLink,
    BadReport,
    BadSchedule,
    BadSignature,
    BadTime,
    BadUpdate,
    BadVote,
    BadWork,
    InvalidBlock,
    WrongModel,
    WrongQueues,
    WrongReceipts,
)
from tests.ledger.small_federation import found_federation, replace

SMALL = found_federation()
STATE, CERTIFICATE = SMALL.grow(SMALL.start(), 2)
GOOD = SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE), proposer=1)
SELECTED = STATE.schedule.selected
IDLE = next(client for client in range(SMALL.num_members) if client not in SELECTED)
EARLIER, _ = SMALL.grow(SMALL.start(), 1)


def remade(**body: object) -> Block:
    return SMALL.remade(GOOD, **body)


def reheaded(**header: object) -> Block:
    return SMALL.seal(replace(GOOD.header, **header), GOOD.body, GOOD.header.proposer)


def with_updates(updates: list[SignedUpdate]) -> Block:
    """A block that is right in all but these updates: queues and schedule follow from them."""
    blobs = dict(SMALL.blobs(STATE))
    body = SMALL.body(STATE, CERTIFICATE, updates=updates, blobs=blobs)
    return SMALL.block(STATE, body, proposer=1)


def with_update(client: int, **changes: object) -> Block:
    """A block in which one update says something else, signed by its client."""
    updates = list(GOOD.body.updates)
    index = SELECTED.index(client)
    updates[index] = SMALL.sign_update(STATE, replace(updates[index].update, **changes))
    return remade(updates=tuple(updates))


def with_report(**changes: object) -> Block:
    """A block in which the report of client 0 says something else, but of its conditions."""
    reports = list(GOOD.body.reports)
    reports[0] = SMALL.sign_report(STATE, replace(reports[0].report, **changes))
    return remade(reports=tuple(reports))


def with_certificate(certificate: Certificate) -> Block:
    return remade(parent_certificate=certificate)


def with_next_schedule(**changes: object) -> Block:
    return remade(next_schedule=replace(GOOD.body.next_schedule, **changes))


def at_tip(**changes: object) -> Certificate:
    """The certificate of the tip with votes that say something else, each signed by its voter for the tip's place."""
    return tuple(sign_tip_vote(signed.vote.voter, **changes) for signed in CERTIFICATE)


def sign_tip_vote(voter: int, signer: int | None = None, **changes: object) -> SignedVote:
    vote = replace(CERTIFICATE[0].vote, voter=voter, **changes)
    key = SMALL.signers[voter if signer is None else signer]
    return replace(CERTIFICATE[0], vote=vote, signature=key.sign(Meaning.VOTE, STATE.tip_place, vote))


def two_votes(voter: int) -> TwoVotes:
    return TwoVotes(STATE.place, SMALL.vote(STATE, bytes([1]) * 32, voter), SMALL.vote(STATE, bytes([2]) * 32, voter))


def with_entries(*entries: TwoVotes) -> Block:
    body = SMALL.body(STATE, CERTIFICATE, entries=entries)
    return SMALL.remade(SMALL.block(STATE, body, proposer=1), entries=tuple(entries))


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


NEXT = GOOD.body.next_schedule
OTHER_SCHEDULE = replace(STATE.schedule, objective_nano=STATE.schedule.objective_nano + 1)
SOMEBODY = SELECTED[0]
DAY_MS = 24 * 3600 * 1000

# What is wrong with the block: the rule that must refuse it, and how.
BREAKAGES: dict[str, tuple[Callable[[], Block], str, type[InvalidBlock], str]] = {
    "another format": (lambda: reheaded(format=1), "validate_format", BadLink, "format"),
    "another chain": (lambda: reheaded(chain=bytes(32)), "validate_link", BadLink, "chain"),
    "a height further": (lambda: reheaded(height=STATE.height + 2), "validate_link", BadLink, "height"),
    "another parent": (lambda: reheaded(parent=bytes(32)), "validate_link", BadLink, "parent"),
    "no later than the median time past": (
        lambda: reheaded(time_ms=STATE.least_time_ms - 1),
        "validate_time",
        BadTime,
        "time",
    ),
    "a day before the genesis": (
        lambda: reheaded(time_ms=SMALL.genesis.time_ms - DAY_MS),
        "validate_time",
        BadTime,
        "time",
    ),
    "later than calendars go": (lambda: reheaded(time_ms=MAX_TIME_MS + 1), "validate_time", BadTime, "time"),
    "signed by another member": (
        lambda: SMALL.seal(GOOD.header, GOOD.body, 2),
        "validate_block_signature",
        BadSignature,
        "block-signature",
    ),
    "a bit of the signature flipped": (
        lambda: replace(GOOD, signature=flip(GOOD.signature, 5)),
        "validate_block_signature",
        BadSignature,
        "block-signature",
    ),
    "another body": (lambda: reheaded(body=bytes(32)), "validate_body_root", BadLink, "body-root"),
    "less work than asked for": (lambda: reheaded(difficulty=29), "validate_difficulty", BadWork, "difficulty"),
    "more work than asked for": (lambda: reheaded(difficulty=31), "validate_difficulty", BadWork, "difficulty"),
    "the difficulty of another attempt": (
        lambda: reheaded(attempt=2),
        "validate_difficulty",
        BadWork,
        "difficulty",
    ),
    "not mined": (
        lambda: SMALL.seal(GOOD.header, GOOD.body, 1, is_mined=False),
        "validate_work",
        BadWork,
        "work",
    ),
    "no certificate": (
        lambda: with_certificate(()),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-quorum",
    ),
    "a vote too few": (
        lambda: with_certificate(CERTIFICATE[:-1]),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-quorum",
    ),
    "a vote counted twice": (
        lambda: with_certificate((CERTIFICATE[0], *CERTIFICATE[:-1])),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-order",
    ),
    "votes in another order": (
        lambda: with_certificate(CERTIFICATE[::-1]),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-order",
    ),
    "prevotes": (
        lambda: with_certificate(at_tip(kind=Kind.PREVOTE, mining_ms=0)),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-kind",
    ),
    "votes for another block": (
        lambda: with_certificate(at_tip(block=bytes(32))),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-block",
    ),
    "votes of two attempts": (
        lambda: with_certificate((*CERTIFICATE[:-1], sign_tip_vote(CERTIFICATE[-1].vote.voter, attempt=2))),
        "validate_parent_certificate",
        BadCertificate,
        "certificate-attempt",
    ),
    "a vote in another's name": (
        lambda: with_certificate((*CERTIFICATE[:-1], sign_tip_vote(CERTIFICATE[-1].vote.voter, signer=3))),
        "validate_parent_certificate",
        BadSignature,
        "vote-signature",
    ),
    "a vote by a stranger": (
        lambda: with_certificate((*CERTIFICATE[:-1], sign_tip_vote(4, signer=3))),
        "validate_parent_certificate",
        BadVote,
        "vote-member",
    ),
    "a vote that lists members twice": (
        lambda: with_certificate(at_tip(updates=(1, 1))),
        "validate_parent_certificate",
        BadVote,
        "vote-holdings",
    ),
    "a vote that lists strangers": (
        lambda: with_certificate(at_tip(reports=(1, 4))),
        "validate_parent_certificate",
        BadVote,
        "vote-holdings",
    ),
    "another schedule played": (
        lambda: remade(schedule=OTHER_SCHEDULE),
        "validate_played_schedule",
        BadSchedule,
        "played-schedule",
    ),
    "an update by an idle member": (
        lambda: with_updates([*SMALL.updates(STATE), SMALL.update(STATE, IDLE)]),
        "validate_updates",
        BadUpdate,
        "update-scheduled",
    ),
    "updates in another order": (
        lambda: remade(updates=GOOD.body.updates[::-1]),
        "validate_updates",
        BadUpdate,
        "update-order",
    ),
    "an update twice": (
        lambda: remade(updates=(GOOD.body.updates[0], *GOOD.body.updates)),
        "validate_updates",
        BadUpdate,
        "update-order",
    ),
    "more samples than the client has": (
        lambda: with_update(SOMEBODY, samples=301),
        "validate_updates",
        BadUpdate,
        "update-samples",
    ),
    "an update of another size": (
        lambda: with_update(SOMEBODY, size=3),
        "validate_updates",
        BadUpdate,
        "update-size",
    ),
    "an update named by half a digest": (
        lambda: with_update(SOMEBODY, model=bytes(16)),
        "validate_updates",
        BadUpdate,
        "update-digest",
    ),
    "an update in another's name": (
        lambda: remade(
            updates=(SMALL.sign_update(STATE, GOOD.body.updates[0].update, signer=IDLE), *GOOD.body.updates[1:])
        ),
        "validate_updates",
        BadSignature,
        "update-signature",
    ),
    "an update of the round before": (
        lambda: remade(
            updates=(
                SMALL.sign_update(EARLIER, GOOD.body.updates[0].update),
                *GOOD.body.updates[1:],
            )
        ),
        "validate_updates",
        BadSignature,
        "update-signature",
    ),
    "empty without need": (
        lambda: remade(is_empty=True, model=STATE.model),
        "validate_emptiness",
        WrongModel,
        "empty",
    ),
    "full without updates": (
        lambda: SMALL.remade(SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE, updates=[])), is_empty=False),
        "validate_emptiness",
        WrongModel,
        "empty",
    ),
    "an empty block with another model": (
        lambda: SMALL.remade(SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE, updates=[])), model=bytes(32)),
        "validate_emptiness",
        WrongModel,
        "empty-model",
    ),
    "reports in another order": (
        lambda: remade(reports=GOOD.body.reports[::-1]),
        "validate_reports",
        BadReport,
        "report-order",
    ),
    "a report twice": (
        lambda: remade(reports=(GOOD.body.reports[0], *GOOD.body.reports)),
        "validate_reports",
        BadReport,
        "report-order",
    ),
    "a report for the round after": (
        lambda: with_report(round=STATE.height + 3),
        "validate_reports",
        BadReport,
        "report-round",
    ),
    "a receipt of another round": (
        lambda: with_report(receipt=replace(GOOD.body.reports[0].report.receipt, round=STATE.height + 1)),
        "validate_reports",
        BadReport,
        "receipt-round",
    ),
    "a receipt that cannot be counted": (
        lambda: with_report(receipt=replace(GOOD.body.reports[0].report.receipt, energy_pj=2**63)),
        "validate_reports",
        BadReport,
        "report-range",
    ),
    "a budget that would make all costs too large": (
        lambda: with_report(
            conditions=replace(GOOD.body.reports[0].report.conditions, energy_budget_pj=MAX_BUDGET_PJ + 1)
        ),
        "validate_reports",
        BadReport,
        "report-range",
    ),
    "a report in another's name": (
        lambda: remade(
            reports=(SMALL.sign_report(STATE, GOOD.body.reports[0].report, signer=1), *GOOD.body.reports[1:])
        ),
        "validate_reports",
        BadSignature,
        "report-signature",
    ),
    "offenders in another order": (
        lambda: with_entries(two_votes(IDLE), two_votes(IDLE)),
        "validate_entries",
        BadEvidence,
        "evidence-order",
    ),
    "evidence that proves nothing": (
        lambda: with_entries(TwoVotes(STATE.place, two_votes(IDLE).first, two_votes(IDLE).first)),
        "validate_entries",
        BadEvidence,
        "evidence-blocks",
    ),
    "a queue that is one too long": (
        lambda: remade(queue_nano=(GOOD.body.queue_nano[0] + 1, *GOOD.body.queue_nano[1:])),
        "validate_queues",
        WrongQueues,
        "queues",
    ),
    "a queue too many": (
        lambda: remade(queue_nano=(*GOOD.body.queue_nano, 0)),
        "validate_queues",
        WrongQueues,
        "queues",
    ),
    "a delay that is a nanosecond off": (
        lambda: remade(modelled=replace(GOOD.body.modelled, delay_ns=GOOD.body.modelled.delay_ns - 1)),
        "validate_receipts",
        WrongReceipts,
        "modelled-receipts",
    ),
    "a schedule for another round": (
        lambda: with_next_schedule(round=NEXT.round + 1),
        "validate_next_schedule",
        BadSchedule,
        "schedule-round",
    ),
    "a schedule that misstates its objective": (
        lambda: with_next_schedule(objective_nano=NEXT.objective_nano - 1),
        "validate_next_schedule",
        BadSchedule,
        "schedule-objective",
    ),
    "a schedule that overdraws a budget": (
        lambda: with_next_schedule(cpu_hz=tuple(2 * hz for hz in NEXT.cpu_hz)),
        "validate_next_schedule",
        BadSchedule,
        "schedule-C3",
    ),
    "a schedule with too few clients": (
        lambda: with_next_schedule(selected=NEXT.selected[:1], cpu_hz=NEXT.cpu_hz[:1], power_uw=NEXT.power_uw[:1]),
        "validate_next_schedule",
        BadSchedule,
        "schedule-C2",
    ),
    "a schedule with more power than a client has": (
        lambda: with_next_schedule(power_uw=(NEXT.power_uw[0] + 1, *NEXT.power_uw[1:])),
        "validate_next_schedule",
        BadSchedule,
        "schedule-cap",
    ),
    "a schedule in which nobody mines": (
        lambda: with_next_schedule(mining_hz=(0,) * SMALL.num_members),
        "validate_next_schedule",
        BadSchedule,
        "schedule-form",
    ),
    "a schedule that lacks a frequency": (
        lambda: with_next_schedule(cpu_hz=NEXT.cpu_hz[:-1]),
        "validate_next_schedule",
        BadSchedule,
        "schedule-form",
    ),
    "a schedule with clients in another order": (
        lambda: with_next_schedule(selected=NEXT.selected[::-1]),
        "validate_next_schedule",
        BadSchedule,
        "schedule-form",
    ),
    "a schedule with a stranger": (
        lambda: with_next_schedule(selected=(*NEXT.selected[:-1], 4)),
        "validate_next_schedule",
        BadSchedule,
        "schedule-form",
    ),
    "a schedule that is idle for a reason, but mines": (
        lambda: with_next_schedule(reason="tired", selected=(), cpu_hz=(), power_uw=(), objective_nano=0),
        "validate_next_schedule",
        BadSchedule,
        "schedule-form",
    ),
    "a schedule with a member that did not report": (
        lambda: SMALL.remade(
            SMALL.block(STATE, SMALL.body(STATE, CERTIFICATE, reports=SMALL.reports(STATE, without=NEXT.selected[:1]))),
            next_schedule=NEXT,
        ),
        "validate_next_schedule",
        BadSchedule,
        "schedule-C1",
    ),
}
