"""Fair shares of blocks: hashing rates, and a test of significance."""

from collections.abc import Collection

from scipy.stats import binom

from bdfl.ledger.block import Schedule

CHANCE = 1e-6  # of a false alarm


def hashing_hz(schedule: Schedule, member: int) -> int:
    """Return a member's hashing frequency in a round; all are equal where no member is scheduled to mine."""
    return schedule.mining_hz[member] if any(schedule.mining_hz) else 1


def hashing_share(schedule: Schedule, member: int) -> float:
    """Return a member's fraction of all hashing in a round."""
    everybody = range(len(schedule.mining_hz))
    return hashing_hz(schedule, member) / sum(hashing_hz(schedule, one) for one in everybody)


def share_beside(schedule: Schedule, member: int, selfish: Collection[int]) -> float:
    """Return a member's fraction of its own and the honest members' hashing: these win the blocks that others forgo."""
    own = hashing_hz(schedule, member)
    honest = [one for one in range(len(schedule.mining_hz)) if one not in selfish and one != member]
    return own / (own + sum(hashing_hz(schedule, one) for one in honest)) if own else 0.0


def is_too_large(num_won: int, num_blocks: int, expected: float) -> bool:
    """Return whether chance does not explain so many blocks.

    A binomial tail with the mean share is never smaller than the tail of different shares with that mean (Hoeffding
    1956), so this errs in the member's favour.
    """
    if num_blocks == 0 or num_won <= expected + 1:
        return False
    return bool(binom.sf(num_won - 1, num_blocks, min(1.0, expected / num_blocks)) < CHANCE)
