"""Proven optimality gap of a training set: a sweep over all exchange times.

For any prices (mu, theta) and every set S with exchange time tau,

    J >= V tau + [min over w of V A w^3 + mu (w^-2 - offered(w))] + sum_i min(0, mu l_i(tau) - Z_i - theta) + m theta.

Over a cell a <= tau <= b the sum is bounded from below in three groups. Clients taken at a: by their joint tangents at
a and at b (l_i is convex). Clients that join inside: by their term at b, from the time on at which they can be done and
their tangent at b is below zero. All others: by zero. The cell's bound is then the minimum of a two-piece linear
function with steps. Cells grow geometrically away from the incumbent, since they need less precision there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdfl.scheduling.allocation import CHUNK, Market, Supply, make_supply
from bdfl.scheduling.convex import NOTHING, PRECISION
from bdfl.scheduling.set_search import (
    Choice,
    Point,
    Prices,
    Terms,
    earliest_exchange,
    idle_terms,
    improve,
    level_of,
    point_at,
    relaxed_objective,
    settle_prices,
)
from bdfl.types import PerClient, PerClientMask

_FIRST_WIDTH = 1e-3  # of the exchange time
_LEAST_WIDTH = 1e-9
_GROW, _SHRINK = 2.5, 0.3
_PART_EVALUATIONS = 200  # for one interval of levels
_MISSES = 3
_HELPED = 0.8  # halving an interval of levels helps if less than this part of the shortfall remains
_SLACK = 0.1  # a cell need not be more precise than this part of the gap that remains anyway


@dataclass(frozen=True, eq=False)
class Cell:
    """Exchange times from `start_s` to `end_s` with losses by `terms`, the prices that bound them, and the bound."""

    terms: Terms
    start_s: float
    end_s: float
    prices: Prices
    bound: float


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proven lower bound on the objective of all sets, and the cells in which it is below the target."""

    bound: float
    target: float
    open_cells: tuple[Cell, ...]
    evaluations: int
    best: Choice  # the best set found during the sweep
    best_value: float  # lowest relaxed objective seen, with its exchange time and root price
    best_time_s: float
    best_price: float


def certify(
    market: Market,
    supply: Supply,
    best: Choice,
    price: float,
    tolerance: float,
    max_evaluations: int,
    previous: Certificate | None = None,
    precision: float = PRECISION,
) -> Certificate:
    """Prove a lower bound on the objective of every set, within `tolerance` of `best` wherever prices suffice.

    A valley of the relaxed objective below the target is searched for a better set. After one was found, only the open
    cells of `previous` need another sweep: the others are above the new target. If caps bind, a client's offer depends
    on the mining level. Levels are then cut into intervals; the one with the worst bound is halved until none is below
    the target or the evaluations are used up.
    """
    if market.caps is None:
        terms = idle_terms(market, supply.least_level)
        sides = {1: terms, -1: terms}

        def look(exchange_s: float, price: float, best: Choice) -> Choice:
            return improve(market, supply, exchange_s, price, best, precision)

        if previous is None:
            return _sweep(market, supply, sides, best, price, tolerance, max_evaluations, look)
        first = min(cell.start_s for cell in previous.open_cells)
        last = max(cell.end_s for cell in previous.open_cells)
        sweep = _sweep(market, supply, sides, best, price, tolerance, max_evaluations, look, first, last)
        return replace(sweep, bound=min(sweep.bound, previous.target), target=min(sweep.target, previous.target))
    target = best.objective - tolerance
    level = max(level_of(market, best), supply.least_level)
    spendable = best.objective + float(market.queue.sum()) - market.tradeoff * earliest_exchange(market)
    highest = max(float(np.cbrt(spendable / supply.scale)) * (1.0 + 1e-12), level)
    trained, _ = market.curves.roots(np.array([best.exchange_s]))
    usual = np.where(best.members, trained, market.idle)
    usual_supply = make_supply(usual, market.caps, supply.scale)
    evaluations = 0

    def sweep_levels(least: float, most: float, whole: _Part | None = None) -> _Part:
        nonlocal evaluations
        terms, extra = _usual_terms(market, best.members, usual, least, most)
        part = usual_supply.within(least, most, extra)
        sweep = _sweep(market, part, terms, best, price, tolerance, _PART_EVALUATIONS)
        evaluations += sweep.evaluations
        if whole is None:
            return _Part(least, most, sweep)
        if sweep.bound < whole.sweep.bound:  # out of evaluations: the proof for the whole interval still holds
            sweep = whole.sweep
        helped = target - sweep.bound < _HELPED * (target - whole.sweep.bound)
        return _Part(least, most, sweep, 0 if helped else whole.misses + 1)

    parts = [sweep_levels(supply.least_level, level), sweep_levels(level, highest)]
    settled: list[_Part] = []  # above the target, or halving no longer helps: the rest is the integrality gap
    while parts and evaluations < max_evaluations:
        part = parts.pop(min(range(len(parts)), key=lambda number: parts[number].sweep.bound))
        middle = 0.5 * (part.least_level + part.most_level)
        narrow = not part.least_level * (1.0 + 1e-12) < middle < part.most_level
        if part.sweep.bound >= target or part.misses >= _MISSES or narrow:
            settled.append(part)
        else:
            parts.append(sweep_levels(part.least_level, middle, part))
            parts.append(sweep_levels(middle, part.most_level, part))
    sweeps = [part.sweep for part in (*parts, *settled)]
    return replace(
        min(sweeps, key=lambda sweep: sweep.best_value),
        bound=min(sweep.bound for sweep in sweeps),
        open_cells=tuple(cell for sweep in sweeps for cell in sweep.open_cells),
        evaluations=evaluations,
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """An interval of mining levels, its certificate, and the number of consecutive halvings without effect."""

    least_level: float
    most_level: float
    sweep: Certificate
    misses: int = 0


def _usual_terms(
    market: Market, members: PerClientMask, usual: PerClient, least: float, most: float
) -> tuple[dict[int, Terms], float]:
    """Terms for times later (+1) and earlier (-1) than the incumbent's, and their addition to the supply.

    Losses are relative to each client's role in the incumbent, so the width of the level interval costs precision only
    for clients that change roles. For members, being idle is worth at most its value at the highest level. Training
    longer gains most at the highest level; training shorter costs least at the lowest.
    """
    assert market.caps is not None
    idle = np.minimum(market.caps * least, market.idle)
    gain = np.where(members, np.minimum(market.caps * most, market.idle) - np.minimum(market.caps * most, usual), 0.0)
    terms = {}
    for direction, level in ((1, most), (-1, least)):
        limit = np.where(members, market.caps * level, idle)
        terms[direction] = Terms(np.where(members, np.minimum(limit, usual) + gain, idle), limit)
    return terms, float(gain.sum())


def _sweep(
    market: Market,
    supply: Supply,
    terms: dict[int, Terms],
    best: Choice,
    price: float,
    tolerance: float,
    max_evaluations: int,
    look: Callable[[float, float, Choice], Choice] | None = None,
    first_s: float = 0.0,
    last_s: float = np.inf,
) -> Certificate:
    """Certificate for the levels of `supply` and times from `first_s` to `last_s`: cells outwards from that of `best`.

    The sweep goes to later times until even infinite time cannot help, then to earlier times until fewer than m clients
    could be done. When the evaluations are used up, one last cell bounds the rest: coarse, but proven. `look` searches
    for a better set from an exchange time and a root price. It is called at the bottom of every valley below the target
    that is deeper than those before.
    """
    target, deepest = best.objective - tolerance, np.inf
    final_loss = final_losses(market, terms[1])
    earliest_s = max(earliest_exchange(market), first_s)
    start_s = min(max(best.exchange_s, earliest_s), last_s)
    start = point_at(market, terms[1], start_s)
    start_prices = settle_prices(market, supply, start.loss, price)
    start_value = relaxed_objective(market, supply, start, start_prices)
    lowest = (start_value, start.exchange_s, start_prices.root)
    cells: list[Cell] = []
    evaluations = 1
    for direction in (1, -1):
        point, prices = start, start_prices
        if direction < 0 and terms[-1] is not terms[1]:
            point = point_at(market, terms[-1], start_s)
        width = _FIRST_WIDTH * point.exchange_s
        while True:
            exhausted = evaluations >= max_evaluations
            left = last_s - point.exchange_s if direction > 0 else point.exchange_s - earliest_s
            if left <= 0.0:
                break
            if direction > 0:
                # From here on no client can lose less than with infinite time.
                rest = relaxed_objective(market, supply, Point(point.exchange_s, final_loss, final_loss), prices)
                if rest >= target or exhausted:
                    cells.append(Cell(terms[direction], point.exchange_s, last_s, prices, rest))
                    break
            if exhausted or left <= 1.2 * width:
                width = left
            other_s = min(max(point.exchange_s + direction * width, earliest_s), last_s)
            other = point_at(market, terms[direction], other_s)
            evaluations += 1
            early, late = (point, other) if direction > 0 else (other, point)
            bound, *at_ends = bound_cell(market, supply, prices, early, late)
            lowest = min(lowest, (at_ends[0 if direction > 0 else 1], point.exchange_s, prices.root))
            # A cell should reach the target, or nearly the best bound its prices give at its ends.
            ends = min(at_ends)
            goal = target if ends >= target else ends - _SLACK * (best.objective - ends)
            if bound < goal and not exhausted and width > _LEAST_WIDTH * point.exchange_s:
                width *= _SHRINK
                continue
            cells.append(Cell(terms[direction], early.exchange_s, late.exchange_s, prices, bound))
            here, there = at_ends if direction > 0 else reversed(at_ends)
            bottom = min((here, point.exchange_s), (there, other_s)) if width >= left else (here, point.exchange_s)
            if look is not None and bottom[0] < min(target, deepest) and bottom[0] <= there:
                best = look(bottom[1], prices.root, best)
                target, deepest = best.objective - tolerance, bottom[0]
            point, prices = other, settle_prices(market, supply, other.loss, prices.root)
            width *= _GROW
    bound = min((cell.bound for cell in cells), default=start_value)
    still_open = tuple(cell for cell in cells if cell.bound < target)
    return Certificate(bound, target, still_open, evaluations, best, *lowest)


def bound_cell(market: Market, supply: Supply, prices: Prices, start: Point, end: Point) -> tuple[float, float, float]:
    """Proven lower bound on the objective of all sets with exchange times from `start` to `end`, and at both ends."""
    width = end.exchange_s - start.exchange_s
    price = prices.root
    old = np.zeros(4)
    joiners: list[Joiners] = []
    for first in range(0, market.num_clients, CHUNK):
        part = slice(first, first + CHUNK)
        wanted = market.queue[part] + prices.head
        at_end = price * end.loss[part] - wanted
        taken = np.flatnonzero(at_end < 0.0)  # no other client is taken in this cell
        at_end = at_end[taken]
        at_start = price * start.loss[part][taken] - wanted[taken]
        start_slope, end_slope = price * start.slope[part][taken], price * end.slope[part][taken]
        is_old = at_start <= 0.0
        old += np.where(is_old, np.stack([at_start, at_end, start_slope, end_slope]), 0.0).sum(axis=1)
        new = np.flatnonzero(~is_old)
        # Not before they can be done, and not before their tangent at the end falls below zero.
        ready = market.curves.least_s[part][taken[new]] - start.exchange_s
        turned = width - at_end[new] / np.minimum(end_slope[new], -NOTHING)
        joiners.append((np.minimum(np.maximum(np.maximum(ready, turned), 0.0), width), at_end[new]))
    old_start, old_end, old_start_slope, old_end_slope = old.tolist()
    crossing = 0.0
    turn = old_start_slope - old_end_slope
    if turn < 0.0:
        crossing = min(max((old_end - old_end_slope * width - old_start) / turn, 0.0), width)
    # V tau, the higher of two tangents, a step down at every joining client: lowest at a step, an end or the crossing.
    steps = np.concatenate([np.array([0.0, crossing, width]), *(when for when, _ in joiners)])
    order = np.argsort(steps, kind="stable")
    joined = np.cumsum(np.concatenate([np.zeros(3), *(gain for _, gain in joiners)])[order])
    steps = steps[order]
    tangents = np.maximum(old_start + old_start_slope * steps, old_end + old_end_slope * (steps - width))
    lowest = float(np.min(tangents + joined + market.tradeoff * (start.exchange_s + steps)))
    rest = supply.worth(price) + market.min_clients * prices.head
    early = market.tradeoff * start.exchange_s + old_start + rest
    late = market.tradeoff * end.exchange_s + old_end + float(joined[-1]) + rest
    return lowest + rest, early, late


# Offsets in a cell at which clients may join, and their terms.
Joiners = tuple[NDArray[np.float64], NDArray[np.float64]]


def final_losses(market: Market, terms: Terms) -> PerClient:
    """Losses with infinite time, (clients,)."""
    final = market.curves.final_roots()
    return terms.offer - (final if terms.limit is None else np.minimum(final, terms.limit))


def doubtful_clients(
    market: Market, cells: tuple[Cell, ...], objective: float
) -> tuple[PerClientMask, NDArray[np.intp], PerClient]:
    """Clients in every better set, indices of undecided clients, and the margin of each client (J; small is doubtful).

    A client is decided if changing its role would raise the bound of every open cell above `objective`.
    """
    may_be_in = np.zeros(market.num_clients, dtype=np.bool_)
    may_be_out = np.zeros(market.num_clients, dtype=np.bool_)
    doubt = np.full(market.num_clients, np.inf)
    for cell in cells:
        wanted = market.queue + cell.prices.head
        most = point_at(market, cell.terms, cell.start_s).loss
        least = (
            point_at(market, cell.terms, cell.end_s).loss
            if np.isfinite(cell.end_s)
            else final_losses(market, cell.terms)
        )
        lowest, highest = cell.prices.root * least - wanted, cell.prices.root * most - wanted
        may_be_in |= cell.bound + np.maximum(lowest, 0.0) <= objective
        may_be_out |= cell.bound + np.maximum(-highest, 0.0) <= objective
        doubt = np.minimum(doubt, np.maximum(np.maximum(lowest, -highest), 0.0))
    may_be_in &= np.isfinite(market.curves.least_s)
    return may_be_in & ~may_be_out, np.flatnonzero(may_be_in & may_be_out), doubt
