"""Optimal frequencies for a given training set: one convex search over the exchange time, and the market of mining.

With mining roots b_i (see `mining_curves`) and w = s^(-1/3), the largest total mining frequency s solves w^-2 = sum_i
min(w cap_i, b_i), and mining takes A w^3. Without caps that is w = (sum b_i)^(-1/2). The round delay tau + A w(tau)^3
is convex in the exchange time tau, so tangents enclose its minimum.

On the market a client with mining root a and frequency cap c offers min(w c, a) at the level w, and the total offer
must reach w^-2. All functions of the level here are convex in it.

If energy has a price, a round minimises d + sum y_i e_i / V. Mining with root x_i then costs q_i x_i^3, with q_i = y_i
chi_i A / (2 V), and training costs q_i (a_i^3 - b_i^3). The roots x_i <= b_i are chosen too, and the problem stays
convex in (tau, x, w).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdfl.scheduling.convex import (
    NOTHING,
    PRECISION,
    STEEPEST,
    Curve,
    Enclosure,
    PlainFunction,
    RowNumbers,
    Rows,
    bracket_near,
    minimise_convex,
    narrow_brackets,
)
from bdfl.scheduling.mining_curves import Curves, FixedPowerCurves, Times
from bdfl.types import PerClient

Members = NDArray[np.bool_]  # (rows, clients)

_LEVEL_STEPS = 100
_GRID = np.linspace(0.0, 1.0, 8) ** 3
_GRID.setflags(write=False)
_FEW_CLIENTS = 12  # up to which plain Python floats beat arrays
CHUNK = 16_384  # clients processed at a time, to stay in the processor's cache


def solve_level(roots: NDArray[np.float64], caps: PerClient | None) -> Rows:
    """Level w = s^(-1/3) of the largest payable total mining frequency s, one per row of `roots` (rows, clients).

    The root of w^-2 = sum min(w cap, b). The difference of the two sides is concave and increasing in w, so Newton's
    method from the uncapped solution approaches the root from below. If no client can mine, the level is astronomically
    high.
    """
    total = roots.sum(axis=-1)
    level: Rows = 1.0 / np.sqrt(np.maximum(total, NOTHING))
    if caps is None:
        return level
    payable = (total > 0.0) & (np.where(roots > 0.0, caps, 0.0).sum(axis=-1) > 0.0)
    level = np.where(payable, level, 1.0)
    for _ in range(_LEVEL_STEPS):
        limit = caps * level[..., None]
        bound = limit < roots
        excess = np.where(bound, limit, roots).sum(axis=-1) - level**-2
        slope = np.where(bound, caps, 0.0).sum(axis=-1) + 2.0 * level**-3
        step = np.where(payable, -excess / slope, 0.0)
        level = level + np.maximum(step, 0.0)
        if np.all(step <= 4e-16 * level):
            break
    return np.where(payable, level, NOTHING**-0.5)


def level_slope(level: Rows, roots: NDArray[np.float64], root_slopes: NDArray[np.float64], caps: PerClient) -> Rows:
    """dw/dtau of `solve_level`, one per row, by the implicit function theorem; at most zero."""
    bound = caps * level[..., None] < roots
    gain = np.where(bound, 0.0, root_slopes).sum(axis=-1)
    slope: Rows = -gain / (np.where(bound, caps, 0.0).sum(axis=-1) + 2.0 * level**-3)
    return slope


@dataclass(frozen=True, eq=False)
class Market:
    """One round as the selection sees it: reachable clients only, reduced to mining roots."""

    curves: Curves
    idle: PerClient  # mining root of a client that only mines
    caps: PerClient | None  # mining frequency caps (Hz); None if no cap can bind
    queue: PerClient
    tradeoff: float
    work_cycles: float
    min_clients: int
    rest: float = 0.0  # mining roots of idle clients that are not listed; only without caps and prices
    cube_price: PerClient | None = None  # q_i (s) of a cubed root; None: energy has no price

    @property
    def num_clients(self) -> int:
        return len(self.idle)

    def without_idle(self, members: NDArray[np.bool_]) -> "Market":
        """Return the market with only `members` (clients,) listed, the others always idle.

        Unchanged if caps bind or energy has a price.
        """
        if self.caps is not None or self.cube_price is not None or members.all():
            return self
        index = np.flatnonzero(members)
        return replace(
            self,
            curves=self.curves.take(index),
            idle=self.idle[index],
            queue=self.queue[index],
            rest=self.rest + float(self.idle[~members].sum()),
        )


def sets_delay(market: Market, members: Members, exchange_s: Curve) -> tuple[Curve, Curve]:
    """Round delay (s) and its slope at (rows, points) exchange times, for the training sets `members` (rows, clients).

    No time may be earlier than the slowest member of its row needs. If energy has a price, its cost counts as delay.
    """
    if market.cube_price is not None:
        return _priced_delay(market, members, exchange_s)
    roots, slopes = market.curves.roots(exchange_s[..., None])  # (rows, points, clients)
    if market.caps is not None:
        return _capped_delay(market, members, exchange_s, roots, slopes)
    chosen = members[:, None, :]
    gained = np.where(chosen, roots - market.idle, 0.0).sum(axis=2)
    return _uncapped_delay(market, exchange_s, gained, np.where(chosen, slopes, 0.0).sum(axis=2))


def _uncapped_delay(market: Market, exchange_s: Curve, gained: Curve, rising: Curve) -> tuple[Curve, Curve]:
    """Delay and slope if training changes the sum of all mining roots by `gained`, which grows at rate `rising`."""
    total = np.maximum(market.rest + market.idle.sum() + gained, NOTHING)
    mining_s = market.work_cycles / (total * np.sqrt(total))
    return exchange_s + mining_s, np.maximum(1.0 - 1.5 * mining_s / total * rising, -STEEPEST)


def _capped_delay(
    market: Market, members: Members, exchange_s: Curve, roots: Times, slopes: Times
) -> tuple[Curve, Curve]:
    assert market.caps is not None
    chosen = members[:, None, :]
    roots = np.where(chosen, roots, market.idle)
    level = solve_level(roots, market.caps)
    rate = level_slope(level, roots, np.where(chosen, slopes, 0.0), market.caps)
    mining_s = market.work_cycles * level**3
    return exchange_s + mining_s, np.maximum(1.0 + 3.0 * (mining_s / level) * rate, -STEEPEST)


def solve_sets(
    market: Market,
    members: Members,
    is_hopeless: Callable[[Rows, Rows, RowNumbers], NDArray[np.bool_]] | None = None,
) -> Enclosure:
    """Least round delay (s) of each training set in `members` (rows, clients), with its exchange time.

    Every set must consist of clients that can train. The optimum lies between the slowest member's least time and the
    delay reached by allowing twice that. Sets with the same slowest member share one grid of times. Each search then
    continues in the interval in which its slope changes sign. If energy has a price, its cost counts as delay.
    """
    if market.cube_price is not None:
        return solve_priced_sets(market, members, is_hopeless)
    least = np.where(members, market.curves.least_s, 0.0)
    slowest, group = np.unique(np.argmax(least, axis=1), return_inverse=True)
    start = market.curves.least_s[slowest]  # (groups,)
    union = members.any(axis=0) & (market.curves.least_s <= start[:, None])
    latest, _ = sets_delay(market, union, 2.0 * start[:, None])
    grid = start[:, None] + (latest - start[:, None]) * _GRID  # (groups, points)
    roots, slopes = market.curves.roots(grid[..., None])  # (groups, points, clients)
    points = grid[group]
    if market.caps is not None:
        samples = _capped_delay(market, members, points, roots[group], slopes[group])
    else:  # every set on every grid at once; then its own grid is picked
        terms = np.stack([np.maximum(roots, 0.0) - market.idle, slopes])
        # A matrix product is fastest, but long sums would depend on its number of threads.
        weights = members.astype(np.float64)
        everywhere = (
            terms @ weights.T if len(members[0]) <= _FEW_CLIENTS else np.einsum("tgpc,rc->tgpr", terms, weights)
        )
        samples = _uncapped_delay(market, points, *everywhere[:, group, :, np.arange(len(members))].swapaxes(0, 1))
    brackets = narrow_brackets(start[group], np.stack([points, *samples]))
    return minimise_convex(
        lambda at, rows: sets_delay(market, members[rows], at),
        brackets,
        is_hopeless,
        _plain_delays(market, members),
    )


def solve_set(market: Market, members: NDArray[np.bool_], near_s: float, precision: float = PRECISION) -> Enclosure:
    """Least round delay (s) of one training set `members` (clients,), searched from an exchange time near the best.

    The twin of `solve_sets` for one set of any size, processed in chunks.
    """
    own = market.without_idle(members)
    chosen = members if own is market else np.ones(own.num_clients, dtype=np.bool_)
    evaluate = _piecewise_delay(own, chosen)
    brackets = bracket_near(evaluate, float(np.max(own.curves.least_s[chosen])), near_s)
    return minimise_convex(
        lambda at, _: sets_delay(own, chosen[None], at), brackets, None, lambda _: evaluate, precision
    )


def _plain_delays(market: Market, members: Members) -> Callable[[int], PlainFunction] | None:
    """Fast twin of `sets_delay` for small sets: by row, delay and slope for plain floats; None if not applicable."""
    curves = market.curves
    if market.caps is not None or market.num_clients > _FEW_CLIENTS or not isinstance(curves, FixedPowerCurves):
        return None

    def of_row(row: int) -> PlainFunction:
        idle = market.rest + float(market.idle[~members[row]].sum())
        trained = curves.plain_sum(np.flatnonzero(members[row]))

        def delay(exchange_s: float) -> tuple[float, float]:
            total, rising = trained(exchange_s)
            total = max(idle + total, NOTHING)
            mining_s = market.work_cycles * total**-1.5
            return exchange_s + mining_s, max(1.0 - 1.5 * mining_s / total * rising, -STEEPEST)

        return delay

    return of_row


def _piecewise_delay(market: Market, members: NDArray[np.bool_]) -> PlainFunction:
    """Twin of `sets_delay` for one large set: sums are taken chunk by chunk."""
    if market.caps is not None or market.num_clients <= CHUNK:

        def whole(exchange_s: float) -> tuple[float, float]:
            delay, slope = sets_delay(market, members[None], np.array([[exchange_s]]))
            return float(delay[0, 0]), float(slope[0, 0])

        return whole

    parts = [slice(start, start + CHUNK) for start in range(0, market.num_clients, CHUNK)]

    def piecewise(exchange_s: float) -> tuple[float, float]:
        gained = rising = 0.0
        for part in parts:
            roots, slopes = market.curves.take(part).roots(np.array([exchange_s]))
            gained += float((roots - market.idle[part])[members[part]].sum())
            rising += float(slopes[members[part]].sum())
        delay, slope = _uncapped_delay(market, np.array(exchange_s), np.array(gained), np.array(rising))
        return float(delay), float(slope)

    return piecewise


# Rounds in which energy has a price: every client chooses how much of its mining root it spends.

_PRICED_GRID = np.linspace(0.0, 1.0, 12) ** 3  # with dear energy the best exchange time may be early in its interval
_PRICED_GRID.setflags(write=False)
_MEETS = 1e-9  # relative: a cap at its limit


@dataclass(frozen=True, eq=False)
class MiningSplit:
    """Optimal mining within given limits: the roots spent (..., clients), the level, and the worth of a root (s)."""

    roots: NDArray[np.float64]
    level: NDArray[np.float64]
    worth: NDArray[np.float64]


def split_mining(market: Market, limits: NDArray[np.float64]) -> MiningSplit:
    """Minimise A w^3 + sum q_i x_i^3 over roots x_i up to `limits` (..., clients), with w the level that they reach.

    Without caps one more root is worth nu = 3/2 A w^5 to everybody, and x_i = min(limit_i, (nu / 3 q_i)^(1/2)) is
    linear in v = w^(5/2). The root of sum x_i = v^(-4/5) is approached from below by Newton's method, as in
    `solve_level`. If no limit binds, it is v = (sum_i (A / 2 q_i)^(1/2))^(-5/9), the closed form.
    """
    assert market.cube_price is not None
    with np.errstate(divide="ignore"):
        pace = np.sqrt(0.5 * market.work_cycles / market.cube_price)  # x_i / v; infinity where energy is free
    if market.caps is not None:
        return _split_capped(market, limits, market.caps, pace)
    step_root = np.maximum(np.maximum(limits.sum(axis=-1), NOTHING) ** -1.25, pace.sum() ** (-5 / 9))
    for _ in range(_LEVEL_STEPS):
        wanted = pace * step_root[..., None]
        free = wanted < limits
        excess = np.where(free, wanted, limits).sum(axis=-1) - step_root**-0.8
        step = -excess / (np.where(free, pace, 0.0).sum(axis=-1) + 0.8 * step_root**-1.8)
        step_root = step_root + np.maximum(step, 0.0)
        if np.all(step <= 4e-16 * step_root):
            break
    spent = np.minimum(pace * step_root[..., None], limits)
    level = np.maximum(spent.sum(axis=-1), NOTHING) ** -0.5
    return MiningSplit(spent, level, 1.5 * market.work_cycles * level**5)


def _split_capped(market: Market, limits: NDArray[np.float64], caps: PerClient, pace: PerClient) -> MiningSplit:
    """Split of mining with frequency caps, x_i <= w c_i: level by regula falsi, worth of a root by Newton's method.

    At a level w the worth nu solves 2 nu w^-3 + sum_i c_i max(nu - 3 q_i c_i^2 w^2, 0) = 3 A w^2, summed over clients
    whose limit is above w c_i. It rises with w, and so does the offer. Where w c_i passes a limit both jump: the level
    is then fixed, and the worth is that at which the offer just suffices.
    """
    assert market.cube_price is not None
    thrice = 3.0 * market.cube_price

    def offer(level: NDArray[np.float64]) -> MiningSplit:
        most = caps * level[..., None]
        capped = most < limits
        floor = thrice * np.where(capped, most, 0.0) ** 2
        worth = 1.5 * market.work_cycles * level**5  # from above, on a convex function
        for _ in range(_LEVEL_STEPS):
            over = capped & (worth[..., None] > floor)
            slope = 2.0 * level**-3 + np.where(over, caps, 0.0).sum(axis=-1)
            value = 2.0 * worth * level**-3 + np.where(over, caps * (worth[..., None] - floor), 0.0).sum(axis=-1)
            step = (value - 3.0 * market.work_cycles * level**2) / slope
            worth = worth - step
            if np.all(np.abs(step) <= 1e-15 * worth):
                break
        with np.errstate(divide="ignore", over="ignore"):
            wanted = np.sqrt(worth[..., None] / thrice)
        return MiningSplit(np.minimum(np.minimum(most, limits), wanted), level, worth)

    def excess(level: NDArray[np.float64]) -> NDArray[np.float64]:
        difference: NDArray[np.float64] = offer(level).roots.sum(axis=-1) - level**-2
        return difference

    low = solve_level(limits, caps)
    high, below = 2.0 * low, excess(low)
    for _ in range(_LEVEL_STEPS):
        above = excess(high)
        short = (above < 0.0) & (high < NOTHING**-0.5)  # beyond, nobody can mine
        if not short.any():
            break
        low, below = np.where(short, high, low), np.where(short, above, below)
        high = np.where(short, 2.0 * high, high)
    # Regula falsi (Illinois: a side that stays twice counts half), every second step halving.
    middle, was_short = high, np.zeros_like(high)
    for number in range(2 * _LEVEL_STEPS):
        fraction = np.full_like(below, 0.5)
        if number % 2 == 0:
            fraction = np.divide(-below, above - below, out=fraction, where=above > below)
        middle = low + np.clip(fraction, 0.0, 1.0) * (high - low)
        value = excess(middle)
        short = value < 0.0
        if np.all((np.abs(value) <= 4e-15 * middle**-2) | (high - low <= 4e-16 * high)):
            break
        below, above = (
            np.where(short, value, np.where(was_short < 0.0, 0.5 * below, below)),
            np.where(short, np.where(was_short > 0.0, 0.5 * above, above), value),
        )
        low, high = np.where(short, middle, low), np.where(short, high, middle)
        was_short = np.where(short, 1.0, -1.0)
    found = offer(middle)
    jumps = (np.abs(value) > 1e-12 * middle**-2) & (middle < 0.5 * NOTHING**-0.5)
    if not jumps.any():
        return found
    most = np.minimum(caps * middle[..., None], limits)
    step_root = np.full_like(middle, NOTHING)
    for _ in range(_LEVEL_STEPS):  # Newton's method from below, as without caps
        free = pace * step_root[..., None] < most
        missing = middle**-2 - np.where(free, pace * step_root[..., None], most).sum(axis=-1)
        slope = np.where(free, pace, 0.0).sum(axis=-1)
        step = np.divide(missing, slope, out=np.zeros_like(missing), where=slope > 0.0)
        step_root = step_root + np.maximum(step, 0.0)
        if np.all(step <= 4e-16 * step_root):
            break
    worth = np.clip(1.5 * market.work_cycles * step_root**2, offer(low).worth, offer(high).worth)
    roots = np.where(jumps[..., None], np.minimum(pace * step_root[..., None], most), found.roots)
    return MiningSplit(roots, middle, np.where(jumps, worth, found.worth))


def _cap_worth(market: Market, limits: NDArray[np.float64], split: MiningSplit) -> NDArray[np.float64] | float:
    """Part of a root's worth (s) that a client's limit does not have because of its cap, (..., clients).

    It is all of it if the cap is below the limit. Where both meet, the cap has what the equation of the level lacks.
    """
    if market.caps is None or market.cube_price is None:
        return 0.0
    level, worth = split.level[..., None], split.worth[..., None]
    most = market.caps * level
    meets = np.abs(most - limits) <= _MEETS * limits
    below = (most < limits) & ~meets
    thrice = 3.0 * market.cube_price
    capped = np.where(below, np.maximum(worth - thrice * np.where(below, most, 0.0) ** 2, 0.0), 0.0)
    taken = (np.where(below, market.caps, 0.0) * capped).sum(axis=-1, keepdims=True)
    missing = 3.0 * market.work_cycles * level**2 - 2.0 * worth * level**-3 - taken
    met = np.where(meets, market.caps, 0.0).sum(axis=-1, keepdims=True)
    share = np.maximum(np.divide(missing, met, out=np.zeros_like(missing), where=met > 0.0), 0.0)
    due = np.minimum(share, np.maximum(worth - thrice * limits**2, 0.0))
    return np.where(meets, due, np.where(below, worth, 0.0))


def _priced_delay(market: Market, members: Members, exchange_s: Curve) -> tuple[Curve, Curve]:
    """Round delay plus energy cost (s), and its slope, at (rows, points) exchange times: `sets_delay` with prices.

    By the envelope theorem the slope is 1 - sum over S of b_i' max(3 q_i b_i^2, nu): another root is spent on mining if
    that is worth more than the energy; not if the cap binds.
    """
    assert market.cube_price is not None
    roots, slopes = market.curves.roots(exchange_s[..., None])  # (rows, points, clients)
    chosen = members[:, None, :]
    limits = np.where(chosen, roots, market.idle)
    split = split_mining(market, limits)
    cost = (market.cube_price * (market.idle**3 - limits**3 + split.roots**3)).sum(axis=-1)
    saved = 3.0 * market.cube_price * limits**2
    worth = np.maximum(saved, split.worth[..., None] - _cap_worth(market, limits, split))
    rising = np.where(chosen, slopes * worth, 0.0).sum(axis=-1)
    return exchange_s + market.work_cycles * split.level**3 + cost, np.maximum(1.0 - rising, -STEEPEST)


def solve_priced_sets(
    market: Market,
    members: Members,
    is_hopeless: Callable[[Rows, Rows, RowNumbers], NDArray[np.bool_]] | None = None,
    precision: float = PRECISION,
) -> Enclosure:
    """Least delay plus energy cost (s) of each training set: the twin of `solve_sets` if energy has a price."""
    start = np.where(members, market.curves.least_s, 0.0).max(axis=1)
    latest, _ = sets_delay(market, members, 2.0 * start[:, None])
    points = start[:, None] + (latest - start[:, None]) * _PRICED_GRID
    samples = np.stack([points, *sets_delay(market, members, points)])
    return minimise_convex(
        lambda at, rows: sets_delay(market, members[rows], at),
        narrow_brackets(start, samples),
        is_hopeless,
        precision=precision,
    )


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
