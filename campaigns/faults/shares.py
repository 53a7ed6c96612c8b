"""Shares of blocks: who hashes how much of a round, and which share chance does not explain."""

from scipy.stats import binom

from bdfl.ledger.block import Schedule

CHANCE = 1e-6  # that a share is found too large though it is not


def hashing_hz(schedule: Schedule, member: int) -> int:
    """What a member hashes in a round; all hash alike where nobody is scheduled to mine."""
    return schedule.mining_hz[member] if any(schedule.mining_hz) else 1


def hashing_share(schedule: Schedule, member: int) -> float:
    """A member's part of all the hashing in a round."""
    everybody = range(len(schedule.mining_hz))
    return hashing_hz(schedule, member) / sum(hashing_hz(schedule, one) for one in everybody)


def is_too_large(num_won: int, num_blocks: int, expected: float) -> bool:
    """Tells if chance does not explain so many blocks.

    A binomial tail with the mean share is never smaller than the tail of different shares with that mean (Hoeffding
    1956), so this errs on the member's side.
    """
    if num_blocks == 0 or num_won <= expected + 1:
        return False
    return bool(binom.sf(num_won - 1, num_blocks, min(1.0, expected / num_blocks)) < CHANCE)
