"""Mining side of a round's market: the total offer of all clients, and the price of a unit.

The level is w = s^(-1/3) for the total mining frequency s. Mining takes A w^3, a client with mining root a and
frequency cap c offers min(w c, a), and the total offer must reach w^-2. All functions here are convex in w.
"""

from dataclasses import dataclass, replace

import numpy as np

from bdfl.arrays import PerClient

_NEWTON_STEPS = 60
_BISECTIONS = 80
_LEAST_SUPPLY = 1e-9  # part of the total; keeps levels finite if clients would withhold everything


@dataclass(frozen=True, eq=False)
class Supply:
    """Offers of all clients as a function of the level, for levels in [least_level, most_level]."""

    scale: float  # V A
    total: float  # sum of all mining roots
    ratio: PerClient  # a_i / c_i of the clients with caps that may bind, ascending
    roots_below: PerClient  # sum of the roots of all clients whose caps do not bind, by place in `ratio`
    caps_above: PerClient  # sum of the caps that bind
    least_level: float = 0.0
    most_level: float = np.inf

    def within(self, least_level: float, most_level: float, extra: float = 0.0) -> "Supply":
        """Return the supply with `extra` offered at any level, for levels in this interval only."""
        return replace(
            self,
            total=self.total + extra,
            roots_below=self.roots_below + extra,
            least_level=least_level,
            most_level=most_level,
        )

    def offered(self, level: float) -> tuple[float, float]:
        """Total offer at this level, and its slope in the level."""
        if not len(self.ratio):
            return self.total, 0.0
        place = int(self.ratio.searchsorted(level, side="right"))
        growth = float(self.caps_above[place])
        return float(self.roots_below[place]) + level * growth, growth

    def level(self, demand: float) -> float:
        """Level (Hz^(-1/3)) at which the offer less `demand` just suffices: w^-2 = offered(w) - demand.

        Newton's method from below on a concave increasing function; limits are not applied.
        """
        least = _LEAST_SUPPLY * self.total
        level = max(self.total - demand, least) ** -0.5
        for _ in range(_NEWTON_STEPS):
            offered, growth = self.offered(level)
            step = (level**-2 - max(offered - demand, least)) / (2.0 * level**-3 + growth)
            level += max(step, 0.0)
            if step <= 1e-12 * level:
                break
        return float(level)

    def price(self, demand: float) -> float:
        """Price of a unit of root if clients withhold `demand`: the slope of V A w^3 in the demand, without limits."""
        level = self.level(demand)
        return 3.0 * self.scale * level**2 / (2.0 * level**-3 + self.offered(level)[1])

    def worth(self, price: float) -> float:
        """Minimum of V A w^3 + price (w^-2 - offered(w)) over the limits, never more than rounding above it."""
        turn = (2.0 * price / (3.0 * self.scale)) ** 0.2  # the minimum without caps; with them it is later
        low = min(max(turn, self.least_level), self.most_level)
        if not len(self.ratio) or self._slope(low, price) >= 0.0:
            return self._value(low, price)
        high = min(self.most_level, 2.0 * low)
        while self._slope(high, price) < 0.0:
            if high >= self.most_level:
                return self._value(high, price)
            low, high = high, min(self.most_level, 2.0 * high)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._slope(middle, price) < 0.0 else (low, middle)
            if high - low <= 4e-16 * high:
                break
        return float(self._value(low, price) + self._slope(low, price) * (high - low))  # convex: above this tangent

    def _value(self, level: float, price: float) -> float:
        return self.scale * level**3 + price * (level**-2 - self.offered(level)[0])

    def _slope(self, level: float, price: float) -> float:
        return 3.0 * self.scale * level**2 - price * (2.0 * level**-3 + self.offered(level)[1])


def make_supply(roots: PerClient, caps: PerClient | None, scale: float) -> Supply:
    """Return the supply of clients with these mining roots and mining caps (Hz; None: no cap can bind)."""
    total = float(roots.sum())
    if caps is None:
        return Supply(scale, total, np.empty(0), np.array([total]), np.zeros(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(roots > 0.0, roots / caps, 0.0)
    capped = np.flatnonzero(ratio > 0.0)
    order = capped[np.argsort(ratio[capped], kind="stable")]
    uncapped_roots = total - float(roots[order].sum())
    below = uncapped_roots + np.concatenate([[0.0], np.cumsum(roots[order])])
    above = np.concatenate([np.cumsum(caps[order][::-1])[::-1], [0.0]])
    return Supply(scale, total, ratio[order], below, above)
