"""A chain in a few numbers: its rules, its blocks and its members."""

import math
from collections import Counter
from dataclasses import dataclass

from bdfl.audit.block_summary import BlockSummary, show_utc, summarise_block
from bdfl.audit.reading import roll_of
from bdfl.ledger.block import Privacy, chain_id
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import quorum_size
from bdfl.ledger.units import NANO
from bdfl.scenario.privacy import ATTO, MICRO


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
    voted: int  # blocks with its precommit in the certificate, or in what the next block carries of it
    queue: float  # after the last block


@dataclass(frozen=True)
class ChainSummary:
    """A chain from genesis to tip."""

    chain: str
    name: str
    founded: str  # when, in UTC
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
    privacy: str | None  # how everybody trains privately; none: not
    tip: str
    model: str
    blocks: tuple[BlockSummary, ...]
    members: tuple[MemberSummary, ...]


def summarise_chain(chain: Store) -> ChainSummary:
    """What stands in a chain, without asking whether it keeps the rules."""
    genesis = chain.genesis
    blocks = tuple(summarise_block(block, chain.certificate(block.header.height)) for block in chain.blocks())
    roll = roll_of(chain)
    precommits = [set(chain.certificate(height)) for height in range(1, chain.height + 1)]
    for block in chain.blocks(2):
        precommits[block.header.height - 2].update(block.body.parent_certificate)
    voted = Counter(voter for votes in precommits for voter in {signed.vote.voter for signed in votes})
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
        founded=show_utc(genesis.time_ms),
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
        privacy=None if genesis.privacy is None else describe_privacy(genesis.privacy),
        tip=blocks[-1].digest if blocks else chain_id(genesis).hex(),
        model=blocks[-1].model if blocks else genesis.model.initial.hex(),
        blocks=blocks,
        members=members,
    )


def describe_privacy(privacy: Privacy) -> str:
    """How members of a chain train privately, in a line."""
    noise, norm, delta = privacy.noise_micro / MICRO, privacy.clip_micro / MICRO, privacy.delta_atto / ATTO
    return f"noise {noise:g}, clipped to {norm:g}, delta {delta:g} ({privacy.accountant.value})"
