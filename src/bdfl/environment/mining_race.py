"""The mining race: time to the next block, and its winner."""

import numpy as np

from bdfl.environment import Purpose, stream
from bdfl.scenario import MiningMode, Scenario
from bdfl.types import PerClient

# The mining race: time and winner of a block, drawn at random instead of planned.


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


# Block-finding times of simulated members: planned or drawn, with a drawn winner.

_STEPPING_IN = 10.0  # times the mean mining time, after which members not scheduled to mine find a block
_IDLE_LAG_S = 1e-3  # mean lag of the others if no member is scheduled to mine


class MiningRaces:
    """Mining races of one round, one per attempt; draws depend on seed and round, as in a run without a network."""

    def __init__(self, scenario: Scenario, round: int, mining_hz: PerClient, planned_s: float) -> None:
        self._difficulty = scenario.mining.difficulty
        self._is_sampled = scenario.mining.mode is MiningMode.SAMPLED
        self._mining_hz = mining_hz
        self._planned_s = planned_s
        self._rng = stream(scenario.seed, Purpose.MINING, round)
        self._finding_s: list[list[float]] = []  # of each attempt

    def finding_s(self, attempt: int) -> list[float]:
        """Time (s) from the start of the attempt's search until each client finds a block, (clients,).

        The first is planned (`quantile`) or drawn (`sampled`), by client i with probability F_i / sum F; the lags of
        the others are drawn. If no client is scheduled to mine, all have the same chance and the first takes no time.
        """
        while len(self._finding_s) < attempt:
            self._finding_s.append(self._draw_attempt())
        return self._finding_s[attempt - 1]

    def _draw_attempt(self) -> list[float]:
        is_idle = not self._mining_hz.any()
        rate_hz = np.ones_like(self._mining_hz) if is_idle else self._mining_hz
        drawn_s, winner = draw_finding(self._rng, self._difficulty, rate_hz)
        lags_s = draw_lags(self._rng, self._difficulty, rate_hz, winner)
        if is_idle:
            return [float(lag_s) for lag_s in lags_s / self._difficulty * _IDLE_LAG_S]
        # Clients not scheduled to mine do so if no other finds a block: a round must not depend on a few.
        lags_s = np.where(np.isfinite(lags_s), lags_s, _STEPPING_IN * self._difficulty / np.sum(rate_hz))
        first_s = drawn_s if self._is_sampled else self._planned_s
        return [float(finding_s) for finding_s in first_s + lags_s]
