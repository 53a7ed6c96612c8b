"""What the members of a private chain have spent, asked of the accountant that its genesis names.

This is no part of the rules: a block is valid without it, and the accountant needs Opacus.
"""

from bdfl.learning.accounting import Mechanism, spent_micro
from bdfl.learning.batches import num_private_steps
from bdfl.ledger.block import Privacy
from bdfl.ledger.chain import ChainState


def mechanism_on(privacy: Privacy, samples: int) -> Mechanism:
    """How a member with so many samples trains on such a chain."""
    return Mechanism(
        noise_micro=privacy.noise_micro,
        batch=privacy.batch,
        samples=samples,
        steps=num_private_steps(privacy.unit, privacy.steps, privacy.batch, samples),
        delta_atto=privacy.delta_atto,
        accountant=privacy.accountant,
    )


def spent_after(chain: ChainState, client: int) -> int:
    """Epsilon of a client once it has trained the next round, in 1e-6; 0 where nothing is private.

    Every round that it was to train in counts, heard of or not: its model may have been on the way.
    """
    privacy = chain.genesis.privacy
    if privacy is None:
        return 0
    samples = chain.charter.members[client].limits.samples
    return spent_micro(mechanism_on(privacy, samples), chain.rounds_scheduled[client] + 1)
