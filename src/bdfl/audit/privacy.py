"""Epsilon as stated by the members against epsilon as recomputed by the privacy accountant."""

from dataclasses import dataclass
from enum import StrEnum

from bdfl.audit.reading import NotOnChain, iter_blocks
from bdfl.learning.accounting import Mechanism, spent_micro, validate_opacus
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import read_roll
from bdfl.ledger.spending import mechanism_on
from bdfl.scenario.privacy import ATTO, MICRO

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
    members = read_roll(chain.genesis, iter_blocks(chain, 1, last)).members
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
        members=tuple(_spending(client, account) for client, account in enumerate(accounts)),
    )


def _spending(client: int, account: _Account) -> Spending:
    mechanism = account.mechanism
    return Spending(
        client=client,
        samples=mechanism.samples,
        rate=mechanism.rate,
        rounds=account.rounds,
        steps=account.rounds * mechanism.steps,
        updates=account.updates,
        stated=account.stated_micro / MICRO,
        recomputed=account.recomputed_micro / MICRO,
        spent=spent_micro(mechanism, account.rounds) / MICRO,
        judgement=account.judgement,
        block=account.block,
    )
