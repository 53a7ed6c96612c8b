"""Selection of the training set: exhaustive if that is cheap, by prices otherwise.

For an exchange time tau, selecting client i costs the mining side l_i(tau) = a_i - b_i(tau) of its mining root (a_i
idle, b_i trained; convex and decreasing in tau). Mining is modelled as a market: a price mu per unit of root, and a
bonus theta per head if fewer than m clients would be taken otherwise. At given prices clients decide independently:
client i is taken iff mu l_i(tau) < Z_i + theta. `certificate` turns the same prices into a proven bound.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bdfl.scheduling.allocation import CHUNK, Market, Supply, solve_set, solve_sets
from bdfl.scheduling.convex import PRECISION, STEEPEST, Enclosure, RowNumbers, Rows
from bdfl.types import PerClient, PerClientMask

MAX_ENUMERATED = 12  # clients whose subsets are all tried

_SAMPLE = 4096  # clients that represent a larger set in the first search
_SCAN_POINTS = 10
_SCAN_ROUNDS = 2
_IMPROVEMENTS = 10
_COARSE = 1e-5  # precision of a set's exchange time that detects most improvements
_SETTLED = 1e-3  # relative: a price consistent with the demand of its takers
_ALIKE = 1e-9  # relative: clients at the price
_PRICE_STEPS = 40
_PRICE_TOLERANCE = 1e-6  # relative; bounds hold at any price, with an error quadratic in the price's
_LARGE_PRICE_STEPS = 8
_LARGE = 20_000  # clients above which every pass over them is costly


@dataclass(frozen=True, eq=False)
class Choice:
    """A training set with its best exchange time and objective."""

    members: PerClientMask
    exchange_s: float
    objective: float
    bound: float  # proven lower bound on the objective of all sets compared


@lru_cache(maxsize=64)
def _subsets(num: int, at_least: int) -> NDArray[np.bool_]:
    """All subsets of `num` elements with `at_least` that many members, (subsets, num)."""
    everything = ((np.arange(2**num)[:, None] >> np.arange(num)) & 1).astype(np.bool_)
    table: NDArray[np.bool_] = everything[everything.sum(axis=1) >= at_least]
    table.setflags(write=False)
    return table


def enumerate_sets(
    market: Market,
    base: PerClientMask,
    free: NDArray[np.intp],
    suits: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] | None = None,
) -> Choice | None:
    """Return the best of all sets that consist of `base` and any `free` clients; None if none has enough members.

    Only combinations (sets, free) that `suits`, if given, says True of.
    """
    missing = max(market.min_clients - int(np.count_nonzero(base)), 0)
    combinations = _subsets(len(free), missing)
    if suits is not None:
        combinations = combinations[suits(combinations)]
    if not len(combinations):
        return None
    members = np.empty((len(combinations), market.num_clients), dtype=np.bool_)
    members[:] = base
    members[:, free] = combinations
    queues = np.where(members, market.queue, 0.0).sum(axis=1)
    best = np.inf

    def is_hopeless(value: Rows, bound: Rows, rows: RowNumbers) -> NDArray[np.bool_]:
        nonlocal best
        best = min(best, float(np.min(market.tradeoff * value - queues[rows])))
        hopeless: NDArray[np.bool_] = market.tradeoff * bound - queues[rows] > best
        return hopeless

    listed: PerClientMask = np.logical_or.reduce(members, axis=0)
    keeps_all = market.caps is not None or market.cube_price is not None
    enclosure = solve_sets(market.without_idle(listed), members if keeps_all else members[:, listed], is_hopeless)
    objectives = market.tradeoff * enclosure.value - queues
    winner = int(np.argmin(objectives))
    return Choice(
        members=members[winner],
        exchange_s=float(enclosure.at[winner]),
        objective=float(objectives[winner]),
        bound=float(np.min(market.tradeoff * enclosure.bound - queues)),
    )


def solve_all_sets(market: Market) -> tuple[NDArray[np.bool_], Enclosure]:
    """All sets of at least m clients that can train, (sets, clients), and the least round delay (s) of each."""
    able = np.isfinite(market.curves.least_s)
    chosen = _subsets(int(np.count_nonzero(able)), market.min_clients)
    members = np.zeros((len(chosen), market.num_clients), dtype=np.bool_)
    members[:, able] = chosen
    return members, solve_sets(market.without_idle(able), chosen if market.caps is None else members)


@dataclass(frozen=True, eq=False)
class Point:
    """Losses of all clients at one exchange time, with slopes; STEEPEST if a client cannot be done by then."""

    exchange_s: float
    loss: PerClient
    slope: PerClient


@dataclass(frozen=True)
class Prices:
    """Market prices: `root` per unit of mining root, `head` per client if fewer than m would be taken otherwise."""

    root: float
    head: float


@dataclass(frozen=True, eq=False)
class Terms:
    """Definition of the losses: l_i(tau) = offer_i - min(b_i(tau), limit_i)."""

    offer: PerClient
    limit: PerClient | None = None  # None: no cap can bind


def idle_terms(market: Market, level: float) -> Terms:
    """Losses relative to being idle, at one mining level: exact there, too low at higher levels."""
    if market.caps is None:
        return Terms(market.idle)
    offer = np.minimum(market.caps * level, market.idle)
    return Terms(offer, offer)


def point_at(market: Market, terms: Terms, exchange_s: float) -> Point:
    """Losses and their slopes at one exchange time."""
    num = market.num_clients
    loss, slope = np.empty(num), np.empty(num)
    time = np.array([exchange_s])
    for start in range(0, num, CHUNK):
        part = slice(start, min(start + CHUNK, num))
        curves = market.curves if num <= CHUNK else market.curves.take(part)
        roots, rises = curves.roots(time)
        np.negative(rises, out=slope[part])
        if terms.limit is not None:
            capped = roots >= terms.limit[part]
            roots = np.where(capped, terms.limit[part], roots)
            slope[part][capped] = 0.0
        np.subtract(terms.offer[part], roots, out=loss[part])
    return Point(exchange_s, loss, slope)


def takers(market: Market, loss: PerClient, price: float, weight: float = 1.0) -> tuple[PerClientMask, float]:
    """Return the clients taken at this price, and the head bonus needed for m of them."""
    reduced = price * loss - market.queue
    taken = reduced < 0.0
    needed = int(np.ceil(market.min_clients / weight))
    if np.count_nonzero(taken) >= needed:
        return taken, 0.0
    cheapest = np.argpartition(reduced, needed - 1)[:needed]  # exactly as many, even among equals
    taken = np.zeros(len(loss), dtype=np.bool_)
    taken[cheapest] = True
    return taken, max(float(np.max(reduced[cheapest])), 0.0)


def settle_prices(market: Market, supply: Supply, loss: PerClient, start: float, weight: float = 1.0) -> Prices:
    """Find prices consistent with demand, or straddling it as closely as whole clients allow.

    The demand falls with the price, so the search keeps a bracket. `weight` is the number of clients each one
    represents.
    """
    low, high, price = 0.0, np.inf, start
    for _ in range(_PRICE_STEPS if len(loss) <= _LARGE else _LARGE_PRICE_STEPS):
        taken, _bonus = takers(market, loss, price, weight)
        answer = supply.price(weight * float(loss[taken].sum()))
        if answer > price:
            low = price
        else:
            high = price
        if abs(answer - price) <= _PRICE_TOLERANCE * price or high <= low * (1.0 + _PRICE_TOLERANCE):
            break
        price = answer if low < answer < high else 0.5 * (low + high)
    return Prices(price, takers(market, loss, price, weight)[1])


def relaxed_objective(market: Market, supply: Supply, point: Point, prices: Prices, weight: float = 1.0) -> float:
    """Lower bound on the objective of every set at this exchange time, by the given prices."""
    reduced = np.minimum(prices.root * point.loss - (market.queue + prices.head), 0.0)
    return (
        market.tradeoff * point.exchange_s
        + supply.worth(prices.root)
        + weight * float(reduced.sum())
        + market.min_clients * prices.head
    )


def earliest_exchange(market: Market) -> float:
    """Earliest time (s) by which m clients can be done."""
    return float(np.partition(market.curves.least_s, market.min_clients - 1)[market.min_clients - 1])


def scan_exchange(market: Market, supply: Supply) -> tuple[float, float]:
    """Promising exchange time (s) and root price: the lowest relaxed objective on a grid that is refined.

    Many clients are scanned by a sample of them; nothing is proven here.
    """
    weight = 1.0
    if market.num_clients > 2 * _SAMPLE:
        step = market.num_clients // _SAMPLE
        weight = float(step)
        index = slice(0, None, step)
        market = replace(
            market,
            curves=market.curves.take(index),
            idle=market.idle[index],
            caps=None if market.caps is None else market.caps[index],
            queue=market.queue[index],
        )
    least = market.curves.least_s[np.isfinite(market.curves.least_s)]
    needed = min(int(np.ceil(market.min_clients / weight)), len(least))
    low, high = float(np.partition(least, needed - 1)[needed - 1]), 1.5 * float(least.max())
    terms = idle_terms(market, supply.least_level)
    price = supply.price(0.0)
    best_time, best_price, best_value = high, price, np.inf
    for _ in range(_SCAN_ROUNDS):
        grid = np.geomspace(low, high, _SCAN_POINTS)
        for time in grid:
            point = point_at(market, terms, float(time))
            prices = settle_prices(market, supply, point.loss, price, weight)
            price = prices.root
            value = relaxed_objective(market, supply, point, prices, weight)
            if value < best_value:
                best_time, best_price, best_value = float(time), price, value
        ratio = (high / low) ** (1.0 / (_SCAN_POINTS - 1))
        low, high = max(low, best_time / ratio), min(high, best_time * ratio)
    return best_time, best_price


def level_of(market: Market, choice: Choice) -> float:
    """Mining level w of a choice: mining takes A w^3."""
    delay_s = (choice.objective + float(market.queue[choice.members].sum())) / market.tradeoff
    return float(np.cbrt(max(delay_s - choice.exchange_s, 0.0) / market.work_cycles))


def fill_set(market: Market, supply: Supply, loss: PerClient, price: float) -> PerClientMask:
    """Return a training set for these losses: all takers, or as many of those up to the price as it pays for.

    The latter matters if many clients are equal: at any price either all of them are takers or none.
    """
    taken, _bonus = takers(market, loss, price)
    demand = float(loss[taken].sum())
    if abs(supply.price(demand) - price) <= _SETTLED * price:
        return taken
    reduced = price * loss - market.queue
    order = np.argsort(reduced, kind="stable")
    order = order[: max(int(np.count_nonzero(reduced <= _ALIKE * market.queue)), market.min_clients)]
    demands = np.cumsum(loss[order])
    affordable = bisect_right(range(len(order)), price, key=lambda place: supply.price(float(demands[place])))
    worths = [(supply.scale * supply.level(demand) ** 3 - float(market.queue[taken].sum()), taken)]
    for count in {max(affordable, market.min_clients), max(min(affordable + 1, len(order)), market.min_clients)}:
        members = np.zeros(len(loss), dtype=np.bool_)
        members[order[:count]] = True
        worth = supply.scale * supply.level(float(demands[count - 1])) ** 3 - float(market.queue[members].sum())
        worths.append((worth, members))
    return min(worths, key=lambda entry: entry[0])[1]


def improve(
    market: Market, supply: Supply, exchange_s: float, price: float, best: Choice | None, precision: float = PRECISION
) -> Choice:
    """Return the best set found by following prices from one exchange time to the next; `best` if none is better."""
    level = supply.least_level if best is None else max(level_of(market, best), supply.least_level)
    before, coarse = best, max(precision, _COARSE)
    for _ in range(_IMPROVEMENTS):
        point = point_at(market, idle_terms(market, level), max(exchange_s, earliest_exchange(market)))
        prices = settle_prices(market, supply, point.loss, price)
        members = fill_set(market, supply, point.loss, prices.root) & (point.loss < STEEPEST / 2)
        choice = _solve_choice(market, members, point.exchange_s, coarse)
        if best is not None and choice.objective >= best.objective > choice.bound:
            choice = _solve_choice(market, members, choice.exchange_s, precision)
        if best is not None and choice.objective >= best.objective:
            break
        best, exchange_s, price = choice, choice.exchange_s, prices.root
        level = max(level_of(market, best), supply.least_level)
    assert best is not None  # the first set has m members, since m clients can be done by its time
    if best is before or precision >= coarse:
        return best
    return _solve_choice(market, best.members, best.exchange_s, precision)


def _solve_choice(market: Market, members: PerClientMask, near_s: float, precision: float) -> Choice:
    """Return the set `members` with its best exchange time, searched near `near_s`; bounded for this set alone."""
    enclosure = solve_set(market, members, near_s, precision)
    queues = float(market.queue[members].sum())
    return Choice(
        members,
        float(enclosure.at[0]),
        market.tradeoff * float(enclosure.value[0]) - queues,
        market.tradeoff * float(enclosure.bound[0]) - queues,
    )
