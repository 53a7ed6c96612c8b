"""A chain in a few numbers: its rules, its blocks and its members."""

import math
from dataclasses import dataclass

from bdfl.audit.reading import roll_of
from bdfl.ledger.block import Admission, Block, chain_id
from bdfl.ledger.charter import quorum_size
from bdfl.ledger.evidence import offender_of
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import BINDS_AFTER, find_change, find_evidence
from bdfl.ledger.units import NANO


@dataclass(frozen=True)
class BlockSummary:
    """A block in one line."""

    height: int
    digest: str
    proposer: int
    attempt: int
    trained: tuple[int, ...]  # whose updates count
    declined: tuple[int, ...]  # who trained and had nothing to give
    missing: tuple[int, ...]  # who was scheduled and not heard of
    num_reports: int
    num_votes: int  # of its certificate
    is_empty: bool  # the model stayed
    offenders: tuple[int, ...]  # against whom it holds evidence
    change: str  # of membership, in words; empty: none
    delay_s: float  # of the round by the cost model
    mean_queue: float  # after the round
    reason: str  # why nobody was scheduled; empty where somebody was
    model: str


@dataclass(frozen=True)
class MemberSummary:
    """A member's part in a chain."""

    member: int
    public_key: str
    samples: int
    since: int  # first height as a member
    until: int | None  # last one; none: no end is agreed on
    trained: int  # blocks with an update of its that counts
    missing: int  # rounds that it was scheduled in and not heard of
    proposed: int  # blocks
    voted: int  # certificates it is in
    queue: float  # after the last block


@dataclass(frozen=True)
class ChainSummary:
    """A chain from genesis to tip."""

    chain: str
    name: str
    height: int
    checkpoint: int  # last block whose updates were pruned; 0: none
    num_active: int  # members at the next height
    quorum: int  # of these
    quorum_rule: str
    work: str
    difficulty: int  # of the first block
    scheduler: str
    aggregation: str
    min_updates: int
    model_bytes: int
    num_parameters: int
    tip: str
    model: str
    blocks: tuple[BlockSummary, ...]
    members: tuple[MemberSummary, ...]


def summarise_chain(chain: Store) -> ChainSummary:
    """What stands in a chain, without asking whether it keeps the rules."""
    genesis = chain.genesis
    blocks = tuple(summarise_block(chain, block) for block in chain.blocks())
    roll = roll_of(chain)
    voted = [0] * len(roll.members)
    for height in range(1, chain.height + 1):
        for signed in chain.certificate(height):
            if signed.vote.voter < len(voted):
                voted[signed.vote.voter] += 1
    queue_nano = chain.block(chain.height).body.queue_nano if chain.height else ()
    members = tuple(
        MemberSummary(
            member=number,
            public_key=member.public_key.hex(),
            samples=member.limits.samples,
            since=roll.first_heights[number],
            until=roll.last_heights[number],
            trained=sum(number in block.trained for block in blocks),
            missing=sum(number in block.missing for block in blocks),
            proposed=sum(number == block.proposer for block in blocks),
            voted=voted[number],
            queue=queue_nano[number] / NANO if number < len(queue_nano) else 0.0,
        )
        for number, member in enumerate(roll.members)
    )
    law = genesis.law
    height = chain.height + 1
    num_active = sum(one.since <= height and (one.until is None or one.until >= height) for one in members)
    return ChainSummary(
        chain=chain_id(genesis).hex(),
        name=genesis.name,
        height=chain.height,
        checkpoint=chain.checkpoint,
        num_active=num_active,
        quorum=quorum_size(law.quorum, num_active),
        quorum_rule=law.quorum.value,
        work=law.work.value,
        difficulty=law.difficulty,
        scheduler=genesis.scheduler.name,
        aggregation=law.aggregation,
        min_updates=law.min_updates,
        model_bytes=genesis.model.size,
        num_parameters=sum(math.prod(tensor.shape) for tensor in genesis.model.tensors),
        tip=blocks[-1].digest if blocks else chain_id(genesis).hex(),
        model=blocks[-1].model if blocks else genesis.model.initial.hex(),
        blocks=blocks,
        members=members,
    )


def describe_change(block: Block) -> str:
    """The change of membership in a block, in words; empty: none."""
    found = find_change(block.body.entries)
    if found is None:
        return ""
    height = block.header.height + BINDS_AFTER
    if isinstance(found.change, Admission):
        return f"member {found.change.number} joins from height {height} on"
    return f"member {found.change.number} is removed from height {height} on"


def summarise_block(chain: Store, block: Block) -> BlockSummary:
    """A block in one line."""
    body = block.body
    heard = {signed.update.client for signed in body.updates}
    queue = body.queue_nano
    return BlockSummary(
        height=block.header.height,
        digest=block.digest.hex(),
        proposer=block.header.proposer,
        attempt=block.header.attempt,
        trained=tuple(signed.update.client for signed in body.updates if not signed.update.is_declined),
        declined=tuple(signed.update.client for signed in body.updates if signed.update.is_declined),
        missing=tuple(client for client in body.schedule.selected if client not in heard),
        num_reports=len(body.reports),
        num_votes=len(chain.certificate(block.header.height)),
        is_empty=body.is_empty,
        offenders=tuple(map(offender_of, find_evidence(body.entries))),
        change=describe_change(block),
        delay_s=body.modelled.delay_ns / NANO,
        mean_queue=sum(queue) / NANO / len(queue) if queue else 0.0,
        reason=body.schedule.reason,
        model=body.model.hex(),
    )
