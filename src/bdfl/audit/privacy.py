"""What members say that their updates have told of their data, against what the accountant makes of it."""

from dataclasses import dataclass
from enum import StrEnum

from bdfl.audit.reading import NotOnChain, iter_blocks
from bdfl.learning.accounting import Mechanism, spent_micro, validate_opacus
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import read_roll
from bdfl.ledger.spending import mechanism_on
from bdfl.scenario.privacy import ATTO, MICRO

_ROUNDING_MICRO = 1  # what another machine's floats may differ by


class Judgement(StrEnum):
    """Whether what a member stated is what it spent."""

    RIGHT = "right"
    TOO_LOW = "too low"
    TOO_HIGH = "too high"
    SILENT = "no update"


@dataclass(frozen=True)
class Spending:
    """A member's privacy after the last block."""

    client: int
    samples: int
    rate: float  # probability with which a step takes a sample
    rounds: int  # that it was to train in, heard of or not
    steps: int  # noisy steps in them
    updates: int  # of it that are in blocks
    stated: float  # epsilon, by its last update; 0 before its first
    recomputed: float  # epsilon up to and with the round of its last update
    spent: float  # epsilon of all rounds, also those that it was not heard of in since
    judgement: Judgement
    block: int | None  # the first whose update is not right


@dataclass(frozen=True)
class PrivacyAudit:
    """A private chain, member by member."""

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
    """A member on the way along the chain."""

    mechanism: Mechanism
    rounds: int = 0
    updates: int = 0
    stated_micro: int = 0
    recomputed_micro: int = 0
    judgement: Judgement = Judgement.SILENT
    block: int | None = None

    def take(self, height: int, update: ModelUpdate) -> None:
        """The update of a round that is counted already; the first that is wrong decides."""
        self.updates += 1
        self.recomputed_micro = spent_micro(self.mechanism, self.rounds)
        judgement = self._judge(update)
        self.stated_micro = max(self.stated_micro, update.epsilon_micro)
        if self.block is None:
            self.judgement = judgement
            self.block = None if judgement is Judgement.RIGHT else height

    def _judge(self, update: ModelUpdate) -> Judgement:
        due_micro = max(self.recomputed_micro, self.stated_micro)  # a sum never falls, an estimate may
        if update.is_declined and update.epsilon_micro == self.stated_micro:
            return Judgement.RIGHT  # nothing was let out
        if update.epsilon_micro < due_micro - _ROUNDING_MICRO:
            return Judgement.TOO_LOW
        return Judgement.TOO_HIGH if update.epsilon_micro > due_micro + _ROUNDING_MICRO else Judgement.RIGHT


def audit_privacy(chain: Store, last: int | None = None) -> PrivacyAudit:
    """Every member's stated and recomputed epsilon after the block `last` (the tip unless given).

    Raises `NotOnChain` where training is not private.
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
