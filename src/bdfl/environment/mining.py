"""The race for a block: when it is found and by whom, drawn instead of planned."""

import numpy as np

from bdfl.arrays import PerClient


def draw_finding(rng: np.random.Generator, difficulty: float, mining_hz: PerClient) -> tuple[float, int]:
    """How long it takes until somebody finds a block (s), and who does.

    [Li24, Section III-E] Exponential with mean alpha / sum F; client i wins with probability F_i / sum F.
    """
    total_hz = float(np.sum(mining_hz))
    mining_s = float(rng.exponential()) * difficulty / total_hz
    share = np.cumsum(mining_hz)
    winner = int(np.searchsorted(share, rng.random() * share[-1], side="right"))
    return mining_s, winner


def draw_lags(rng: np.random.Generator, difficulty: float, mining_hz: PerClient, winner: int) -> PerClient:
    """How much later than the winner each would have found a block (s), (clients,); infinity where nobody mines.

    Searching has no memory: when the first block is found, the others' searches take as long again as new ones.
    """
    draws = rng.exponential(size=len(mining_hz))
    lags_s: PerClient = np.divide(
        difficulty * draws, mining_hz, out=np.full(len(mining_hz), np.inf), where=mining_hz > 0
    )
    lags_s[winner] = 0.0
    return lags_s
