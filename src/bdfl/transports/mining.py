"""Block-finding times of simulated members: planned or drawn, with a drawn winner."""

import numpy as np

from bdfl.arrays import PerClient
from bdfl.environment import Purpose, stream
from bdfl.environment.mining import draw_finding, draw_lags
from bdfl.scenario import MiningMode, Scenario

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
