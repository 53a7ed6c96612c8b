"""The mining race: time and winner of a block, drawn at random instead of planned."""

import numpy as np

from bdfl.arrays import PerClient


def draw_finding(rng: np.random.Generator, difficulty: float, mining_hz: PerClient) -> tuple[float, int]:
    """Time until a block is found (s), and the client that finds it.

    [Li24, Section III-E] Exponential with mean alpha / sum F; client i wins with probability F_i / sum F.
    """
    total_hz = float(np.sum(mining_hz))
    mining_s = float(rng.exponential()) * difficulty / total_hz
    share = np.cumsum(mining_hz)
    winner = int(np.searchsorted(share, rng.random() * share[-1], side="right"))
    return mining_s, winner


def draw_lags(rng: np.random.Generator, difficulty: float, mining_hz: PerClient, winner: int) -> PerClient:
    """Delay (s) after the winner at which each client would have found a block, (clients,); infinity without mining.

    The search is memoryless: once the first block is found, the remaining searches last as long as new ones.
    """
    draws = rng.exponential(size=len(mining_hz))
    lags_s: PerClient = np.divide(
        difficulty * draws, mining_hz, out=np.full(len(mining_hz), np.inf), where=mining_hz > 0
    )
    lags_s[winner] = 0.0
    return lags_s
