"""A block in one line, from its own contents."""

from dataclasses import dataclass
from datetime import UTC, datetime

from bdfl.ledger.block import (
    Admission,
    Block,
    Certificate,
    Evidence,
    FalseWork,
    ModelUpdate,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
)
from bdfl.ledger.roll import BINDS_AFTER, find_change, find_evidence, offender_of
from bdfl.ledger.units import NANO


@dataclass(frozen=True)
class BlockSummary:
    """A block in one line."""

    height: int
    digest: str
    time: str  # in UTC, by its proposer's clock
    proposer: int
    attempt: int
    trained: tuple[int, ...]  # clients whose updates count
    declined: tuple[int, ...]  # clients that trained and declined to give an update
    missing: tuple[int, ...]  # scheduled clients without an update
    num_reports: int
    num_votes: int  # of its certificate
    is_empty: bool  # the model is unchanged
    offenders: tuple[int, ...]  # members that its evidence convicts
    change: str  # of membership, in words; empty: none
    delay_s: float  # of the round by the cost model
    mean_queue: float  # after the round
    reason: str  # why no client was scheduled; empty if one was
    model: str


def show_utc(time_ms: int) -> str:
    """Format milliseconds since 1970, as in 2026-01-01 00:00:05.250 UTC."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03} UTC"


def describe_change(block: Block) -> str:
    """Describe the change of membership in a block; empty if there is none."""
    found = find_change(block.body.entries)
    if found is None:
        return ""
    height = block.header.height + BINDS_AFTER
    if isinstance(found.change, Admission):
        return f"member {found.change.number} joins from height {height} on"
    return f"member {found.change.number} is removed from height {height} on"


def describe_offence(evidence: Evidence) -> str:
    """Describe the offence that evidence proves, in a sentence."""
    who = f"client {offender_of(evidence)}"
    match evidence:
        case TwoVotes():
            vote, other = evidence.first.vote, evidence.second.vote
            return (
                f"{who} cast two {vote.kind.value}s in attempt {vote.attempt} at height {evidence.place.height}: for"
                f" block {vote.block.hex()[:12]} and for block {other.block.hex()[:12]}"
            )
        case TwoBlocks():
            header = evidence.first.header
            return f"{who} proposed two different blocks in attempt {header.attempt} at height {header.height}"
        case TwoUpdates():
            return f"{who} sent two different updates for round {evidence.place.height}"
        case FalseWork():
            return f"{who} signed a block for height {evidence.block.header.height} whose proof of work is false"


def summarise_block(block: Block, certificate: Certificate) -> BlockSummary:
    """Summarise a block in one line."""
    body = block.body
    heard = {signed.update.client for signed in body.updates}
    queue = body.queue_nano
    return BlockSummary(
        height=block.header.height,
        digest=block.digest.hex(),
        time=show_utc(block.header.time_ms),
        proposer=block.header.proposer,
        attempt=block.header.attempt,
        trained=tuple(signed.update.client for signed in body.updates if not signed.update.is_declined),
        declined=tuple(signed.update.client for signed in body.updates if signed.update.is_declined),
        missing=tuple(client for client in body.schedule.selected if client not in heard),
        num_reports=len(body.reports),
        num_votes=len(certificate),
        is_empty=body.is_empty,
        offenders=tuple(map(offender_of, find_evidence(body.entries))),
        change=describe_change(block),
        delay_s=body.modelled.delay_ns / NANO,
        mean_queue=sum(queue) / NANO / len(queue) if queue else 0.0,
        reason=body.schedule.reason,
        model=body.model.hex(),
    )


def aggregated_updates(block: Block) -> list[ModelUpdate]:
    """Return the updates aggregated into the model of a block, in client order; none if the block is empty."""
    if block.body.is_empty:
        return []
    updates = (signed.update for signed in block.body.updates)
    return [update for update in updates if not update.is_declined and update.samples > 0]


def sample_weights(block: Block) -> dict[int, float]:
    """Return the weight of each client's update in the weighted mean of a block's updates."""
    samples = {update.client: update.samples for update in aggregated_updates(block)}
    return {client: count / sum(samples.values()) for client, count in samples.items()}
