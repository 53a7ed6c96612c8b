"""Summaries of a chain, and of the privacy its members have spent."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from bdfl.audit.lineage import BlockSummary, NotOnChain, iter_blocks, show_utc, summarise_block
from bdfl.learning.privacy_accounting import Mechanism, spent_micro, validate_opacus
from bdfl.ledger.block import Block, ModelUpdate, Privacy, chain_id
from bdfl.ledger.chain import mechanism_on
from bdfl.ledger.costs import NANO
from bdfl.ledger.member_set import quorum_size, read_member_set
from bdfl.ledger.store import Store
from bdfl.scenario.schema_learning import ATTO, MICRO

# A chain in a few numbers: its rules, its blocks and its members.

CERTIFICATES_NOTE = (
    "A certificate has the votes that were at hand when a block became final, and the next block those that its"
    " proposer had. A vote that came later is in neither: absence from certificates is not absence."
)


@dataclass(frozen=True)
class MemberSummary:
    """A member's part in a chain."""

    member: int
    public_key: str
    samples: int
    rate: float  # share of rounds that it is to take part in
    since: int  # first height as a member
    until: int | None  # last height as a member; none: no removal is agreed on
    scheduled: int  # rounds
    trained: int  # blocks with its update that counts
    declined: int  # rounds in which it trained and declined to give an update
    missing: int  # rounds in which it was scheduled and sent no update
    reports: int
    proposed: int  # blocks
    in_certificates: int  # blocks with its precommit in the certificate or the next block; see `CERTIFICATES_NOTE`
    epsilon: float  # as its last update states; 0: none
    queue: float  # after the last block


@dataclass(frozen=True)
class ChainSummary:
    """A chain from genesis to tip."""

    chain: str
    name: str
    founded: str  # time in UTC
    height: int
    checkpoint: int  # last block whose updates were pruned; 0: none
    trusted: tuple[int, ...]  # blocks whose model was never aggregated by the node that stored them
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
    privacy: str | None  # settings of private training; none: not private
    tip: str
    model: str
    blocks: tuple[BlockSummary, ...]
    members: tuple[MemberSummary, ...]


def summarise_chain(chain: Store) -> ChainSummary:
    """Summarise a chain without verifying it."""
    genesis = chain.genesis
    blocks = tuple(summarise_block(block, chain.certificate(block.header.height)) for block in chain.blocks())
    members = summarise_members(chain, chain.height)
    law = genesis.law
    height = chain.height + 1
    num_active = sum(one.since <= height and (one.until is None or one.until >= height) for one in members)
    return ChainSummary(
        chain=chain_id(genesis).hex(),
        name=genesis.name,
        founded=show_utc(genesis.time_ms),
        height=chain.height,
        checkpoint=chain.checkpoint,
        trusted=tuple(chain.trusted),
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


def summarise_members(
    chain: Store, last: int, on_block: Callable[[Block], None] | None = None
) -> tuple[MemberSummary, ...]:
    """Return every member's part in the blocks 1 to `last`, read one at a time; call `on_block` with each."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    epsilon_micro: Counter[int] = Counter()
    queue_nano: tuple[int, ...] = ()

    def counted() -> Iterator[Block]:
        nonlocal queue_nano
        voters: set[int] = set()  # in the certificate of the block before
        for block in iter_blocks(chain, 1, last):
            certificate = chain.certificate(block.header.height)
            found = summarise_block(block, certificate)
            counts["trained"].update(found.trained)
            counts["declined"].update(found.declined)
            counts["missing"].update(found.missing)
            counts["scheduled"].update(block.body.schedule.selected)
            counts["reports"].update(signed.report.client for signed in block.body.reports)
            counts["proposed"][found.proposer] += 1
            counts["in_certificates"].update(voters | {signed.vote.voter for signed in block.body.parent_certificate})
            voters = {signed.vote.voter for signed in certificate}
            for signed in block.body.updates:
                epsilon_micro[signed.update.client] = signed.update.epsilon_micro
            queue_nano = block.body.queue_nano
            if on_block is not None:
                on_block(block)
            yield block
        counts["in_certificates"].update(voters)

    member_set = read_member_set(chain.genesis, counted())
    return tuple(
        MemberSummary(
            member=number,
            public_key=member.public_key.hex(),
            samples=member.limits.samples,
            rate=member.limits.rate_nano / NANO,
            since=member_set.first_heights[number],
            until=member_set.last_heights[number],
            scheduled=counts["scheduled"][number],
            trained=counts["trained"][number],
            declined=counts["declined"][number],
            missing=counts["missing"][number],
            reports=counts["reports"][number],
            proposed=counts["proposed"][number],
            in_certificates=counts["in_certificates"][number],
            epsilon=epsilon_micro[number] / MICRO,
            queue=queue_nano[number] / NANO if number < len(queue_nano) else 0.0,
        )
        for number, member in enumerate(member_set.members)
    )


def describe_privacy(privacy: Privacy) -> str:
    """Describe the settings of private training in a line."""
    noise, norm, delta = privacy.noise_micro / MICRO, privacy.clip_micro / MICRO, privacy.delta_atto / ATTO
    return f"noise {noise:g}, clipped to {norm:g}, delta {delta:g} ({privacy.accountant.value})"


# Epsilon as stated by the members against epsilon as recomputed by the privacy accountant.

_ROUNDING_MICRO = 1  # tolerance for floating point on another machine


class Judgement(StrEnum):
    """Comparison of a member's stated epsilon with the recomputed one."""

    RIGHT = "right"
    TOO_LOW = "too low"
    TOO_HIGH = "too high"
    SILENT = "no update"


@dataclass(frozen=True)
class Spending:
    """A member's privacy after the last block."""

    client: int
    samples: int
    rate: float  # probability that a step takes a sample
    rounds: int  # that it was scheduled in, with or without an update
    steps: int  # noisy steps in them
    updates: int  # of this member in blocks
    stated: float  # epsilon, by its last update; 0 before its first
    recomputed: float  # epsilon up to and including the round of its last update
    spent: float  # epsilon of all scheduled rounds, also those after its last update
    judgement: Judgement
    block: int | None  # the first with a wrong statement


@dataclass(frozen=True)
class PrivacyAudit:
    """Epsilons of a private chain, member by member."""

    noise_multiplier: float
    max_grad_norm: float
    delta: float
    accountant: str
    height: int
    members: tuple[Spending, ...]

    @property
    def is_right(self) -> bool:
        return all(one.judgement in (Judgement.RIGHT, Judgement.SILENT) for one in self.members)

    @property
    def highest(self) -> float:
        """The largest epsilon that any member has spent."""
        return max((one.spent for one in self.members), default=0.0)


@dataclass
class _Account:
    """Running account of a member while the chain is read."""

    mechanism: Mechanism
    rounds: int = 0
    updates: int = 0
    stated_micro: int = 0
    recomputed_micro: int = 0
    judgement: Judgement = Judgement.SILENT
    block: int | None = None

    def take(self, height: int, update: ModelUpdate) -> None:
        """Check the update of a round that is already counted; the first wrong one sets the judgement."""
        self.updates += 1
        self.recomputed_micro = spent_micro(self.mechanism, self.rounds)
        judgement = self._judge(update)
        self.stated_micro = max(self.stated_micro, update.epsilon_micro)
        if self.block is None:
            self.judgement = judgement
            self.block = None if judgement is Judgement.RIGHT else height

    def _judge(self, update: ModelUpdate) -> Judgement:
        due_micro = max(self.recomputed_micro, self.stated_micro)  # the stated sum never falls, an estimate may
        if update.is_declined and update.epsilon_micro == self.stated_micro:
            return Judgement.RIGHT  # no update was released
        if update.epsilon_micro < due_micro - _ROUNDING_MICRO:
            return Judgement.TOO_LOW
        return Judgement.TOO_HIGH if update.epsilon_micro > due_micro + _ROUNDING_MICRO else Judgement.RIGHT


def audit_privacy(chain: Store, last: int | None = None) -> PrivacyAudit:
    """Return every member's stated and recomputed epsilon after the block `last` (default: the tip).

    Raises `NotOnChain` if training is not private.
    """
    privacy = chain.genesis.privacy
    if privacy is None:
        raise NotOnChain("privacy: this chain has none, a chain of a scenario with [privacy] expected")
    validate_opacus()
    last = chain.height if last is None else last
    members = read_member_set(chain.genesis, iter_blocks(chain, 1, last)).members
    accounts = [_Account(mechanism_on(privacy, member.limits.samples)) for member in members]
    for block in iter_blocks(chain, 1, last):
        for client in block.body.schedule.selected:
            accounts[client].rounds += 1
        for signed in block.body.updates:
            if signed.update.samples:
                accounts[signed.update.client].take(block.header.height, signed.update)
    return PrivacyAudit(
        noise_multiplier=privacy.noise_micro / MICRO,
        max_grad_norm=privacy.clip_micro / MICRO,
        delta=privacy.delta_atto / ATTO,
        accountant=privacy.accountant.value,
        height=last,
        members=tuple(
            Spending(
                client=client,
                samples=account.mechanism.samples,
                rate=account.mechanism.rate,
                rounds=account.rounds,
                steps=account.rounds * account.mechanism.steps,
                updates=account.updates,
                stated=account.stated_micro / MICRO,
                recomputed=account.recomputed_micro / MICRO,
                spent=spent_micro(account.mechanism, account.rounds) / MICRO,
                judgement=account.judgement,
                block=account.block,
            )
            for client, account in enumerate(accounts)
        ),
    )
