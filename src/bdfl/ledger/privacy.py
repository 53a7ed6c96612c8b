"""Epsilon spent by the members of a private chain, computed by the accountant that its genesis names.

This is not part of the validity rules, since the accountant needs Opacus.
"""

from bdfl.learning.privacy_accounting import Mechanism, spent_micro
from bdfl.learning.sgd import num_private_steps
from bdfl.ledger.block import Privacy
from bdfl.ledger.chain import ChainState


def mechanism_on(privacy: Privacy, samples: int) -> Mechanism:
    """The privacy mechanism of a member with `samples` samples on this chain."""
    return Mechanism(
        noise_micro=privacy.noise_micro,
        batch=privacy.batch,
        samples=samples,
        steps=num_private_steps(privacy.unit, privacy.steps, privacy.batch, samples),
        delta_atto=privacy.delta_atto,
        accountant=privacy.accountant,
    )


def spent_after(chain: ChainState, client: int) -> int:
    """Epsilon of a client after training the next round, in 1e-6; 0 where training is not private.

    Every round that it was scheduled in counts, in a block or not: its model may have been sent.
    """
    privacy = chain.genesis.privacy
    if privacy is None:
        return 0
    samples = chain.charter.members[client].limits.samples
    return spent_micro(mechanism_on(privacy, samples), chain.rounds_scheduled[client] + 1)
