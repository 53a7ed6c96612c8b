"""Training sets of many clients if energy has a price, with a proven gap.

All terms are in seconds: the objective over V. For an exchange time tau and a worth nu of a mining root, a client gains

    idle:      min over x <= a_i of                           q_i x^3 - nu x
    training:  min over x <= b_i(tau) of  q_i (a_i^3 - b_i^3) + q_i x^3 - nu x

and l_i(tau) is the difference. It is convex and decreasing in tau. For every set S, any nu >= 0 and theta >= 0,

    J / V >= tau + min over w of (A w^3 + nu w^-2) + sum of idle + sum_i min(0, l_i(tau) - Z_i / V - theta) + m theta,

since a feasible decision has w^-2 <= sum x_i and |S| >= m. Cells of exchange times are bounded as in `certificate`: by
joint tangents for clients taken at the start, and the value at the end for those that join. If caps c_i bind, x <=
c_i w couples clients to the level: cells then have an interval of levels too, with the minimum over w inside it, and
x <= c_i w at its upper end. The cell with the lowest bound is split. Undecided clients are not enumerated, so the gap
that whole clients leave stays: it shrinks with their number.
"""

import heapq
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdfl.scheduling.allocation import Market, sets_delay, solve_level, solve_priced_sets, split_mining
from bdfl.scheduling.convex import PRECISION, STEEPEST
from bdfl.scheduling.mining_curves import Times
from bdfl.scheduling.set_search import Choice, earliest_exchange
from bdfl.types import PerClient, PerClientMask

_SCAN_POINTS = 24
_FIRST_CELLS = 16
_IMPROVEMENTS = 20
_ATTEMPTS = 3  # sets that are certified one after the other
_FLIPS = 12  # clients that may change their role
_PREFIXES = 48  # numbers of clients tried at one exchange time
_WORTH_TOLERANCE = 1e-5  # relative; bounds hold at any worth of a root
_STRIDE = 1.05  # of the search for a worth; each is the square of the last
_STRIDES = 9
_WORTHS = (1e-60, 1e60)  # least and greatest
_GROWTH = 1.5

Levels = tuple[float, float]  # least and greatest
ANY_LEVEL = (0.0, np.inf)


@dataclass(frozen=True, eq=False)
class Quote:
    """Losses of all clients by training (s) and their slopes at one exchange time and worth of a mining root.

    STEEPEST if a client cannot be done by then.
    """

    exchange_s: float
    worth: float
    fixed_s: float  # the bound without exchange time and losses
    supply: PerClient  # roots spent by idle clients
    withheld: PerClient  # how many fewer by a client that trains
    loss_s: PerClient  # l_i - Z_i / V
    slope: PerClient

    def takers(self, min_clients: int) -> tuple[PerClientMask, float]:
        """Return the clients that training pays for, or the m cheapest, and the bonus per head (s) they need."""
        taken = self.loss_s < 0.0
        if np.count_nonzero(taken) >= min_clients:
            return taken, 0.0
        cheapest = np.argpartition(self.loss_s, min_clients - 1)[:min_clients]
        taken = np.zeros(len(self.loss_s), dtype=np.bool_)
        taken[cheapest] = True
        return taken, max(float(np.max(self.loss_s[cheapest])), 0.0)


@dataclass(frozen=True, eq=False)
class Cell:
    """An interval of exchange times (s) and one of levels, with the quote that bounds them."""

    times_s: tuple[float, float]
    levels: Levels
    settled: Quote

    def halves(self, with_levels: bool) -> list[tuple[tuple[float, float], Levels]]:
        """Return the halves of the interval that is longer, relative to where it is."""
        (start_s, end_s), (least, most) = self.times_s, self.levels
        if with_levels and 3.0 * most / least > end_s / start_s + 2.0:  # delays are cubic in the level
            middle = 0.5 * (least + most)
            return [(self.times_s, (least, middle)), (self.times_s, (middle, most))]
        middle = 0.5 * (start_s + end_s)
        return [((start_s, middle), self.levels), ((middle, end_s), self.levels)]


def choose_priced(market: Market, target_gap: float, max_evaluations: int) -> tuple[Choice, int]:
    """Return the best training set found, with a proven bound, and the number of passes over all clients."""
    start, passes = _scan(market)
    best = _improve(market, start, None)
    for _ in range(_ATTEMPTS):
        bound_s, deepest, used = _certify(market, best, target_gap, max_evaluations)
        passes += used
        better = _improve(market, deepest, best)
        if better is best:
            break
        best = better
    return replace(best, bound=min(market.tradeoff * bound_s, best.objective)), passes


def quote(
    market: Market,
    exchange_s: float,
    worth: float,
    levels: Levels = ANY_LEVEL,
    roots: tuple[Times, Times] | None = None,
) -> Quote:
    """Losses at this exchange time and worth of a root, for levels in this interval.

    `roots` are those of clients that train, with their slopes, if not those of the exchange time.
    """
    assert market.cube_price is not None
    trained, rises = market.curves.roots(np.array([exchange_s])) if roots is None else roots
    ready = trained >= 0.0
    price, trained = market.cube_price, np.where(ready, trained, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        wanted = np.sqrt(worth / (3.0 * price))  # infinity where energy is free
    is_open = market.caps is None or np.isinf(levels[1])
    most = np.full_like(trained, np.inf) if is_open else np.asarray(market.caps) * levels[1]
    idle_root = np.minimum(np.minimum(market.idle, most), wanted)
    root = np.minimum(np.minimum(trained, most), wanted)
    idle_s = price * idle_root**3 - worth * idle_root
    loss_s = price * (market.idle**3 - trained**3 + root**3) - worth * root - idle_s
    saved = 3.0 * price * trained**2
    level = _level_at(market, worth, levels)
    return Quote(
        exchange_s=exchange_s,
        worth=worth,
        fixed_s=market.work_cycles * level**3 + worth * level**-2 + float(idle_s.sum()),
        supply=idle_root,
        withheld=idle_root - root,
        loss_s=np.where(ready, loss_s - market.queue / market.tradeoff, STEEPEST),
        slope=np.where(ready, -rises * np.where(most < trained, saved, np.maximum(saved, worth)), 0.0),
    )


def _level_at(market: Market, worth: float, levels: Levels) -> float:
    """Level in this interval at which A w^3 + nu w^-2 is least."""
    turn: float = (2.0 * worth / (3.0 * market.work_cycles)) ** 0.2
    return min(max(turn, levels[0]), levels[1])


def settle_quote(market: Market, exchange_s: float, levels: Levels = ANY_LEVEL, near: float | None = None) -> Quote:
    """Quote at the worth of a root that supply and demand agree on, or nearly: clients are whole.

    The dearer a root, the more is offered: few train then, and idle clients mine more.
    """

    def excess(worth: float) -> tuple[float, Quote]:
        found = quote(market, exchange_s, worth, levels)
        taken, _ = found.takers(market.min_clients)
        offered = float(found.supply.sum() - found.withheld[taken].sum())
        return offered - _level_at(market, worth, levels) ** -2, found

    here = float(split_mining(market, market.idle).worth) if near is None else near
    over, found = excess(here)
    stride = 1.0 / _STRIDE if over > 0.0 else _STRIDE
    for _ in range(_STRIDES):
        there = min(max(here * stride, _WORTHS[0]), _WORTHS[1])
        beyond, found = excess(there)
        if (beyond > 0.0) != (over > 0.0):
            break
        here, stride = there, stride**2
    else:
        return found  # they agree at no level of the interval
    low, high = min(here, there), max(here, there)
    while high > low * (1.0 + _WORTH_TOLERANCE):
        middle = float(np.sqrt(low * high))
        over, found = excess(middle)
        low, high = (low, middle) if over > 0.0 else (middle, high)
    return found


def relaxed_cost(market: Market, found: Quote) -> float:
    """Lower bound (s) on J / V of every set at this exchange time."""
    _, head_s = found.takers(market.min_clients)
    reduced = np.minimum(found.loss_s - head_s, 0.0)
    return found.exchange_s + found.fixed_s + float(reduced.sum()) + market.min_clients * head_s


def _scan(market: Market) -> tuple[Quote, int]:
    """Quote of the lowest relaxed cost on a grid of exchange times, extended while the cost falls."""
    least = market.curves.least_s[np.isfinite(market.curves.least_s)]
    low, high = earliest_exchange(market), 1.5 * float(least.max())
    grid = [float(time) for time in np.geomspace(low, high, _SCAN_POINTS)]
    found = [settle_quote(market, time) for time in grid]
    costs = [relaxed_cost(market, one) for one in found]
    while costs[-1] <= min(costs):
        found.append(settle_quote(market, _GROWTH * found[-1].exchange_s))
        costs.append(relaxed_cost(market, found[-1]))
    return found[int(np.argmin(costs))], len(costs)


def _improve(market: Market, start: Quote, best: Choice | None) -> Choice:
    """Return the best set found by following quotes from one exchange time to the next; `best` if none is better.

    Before it gives up it lets each of the most doubtful clients change its role.
    """
    found, members = start, _fill(market, start)[None]
    for _ in range(_IMPROVEMENTS):
        enclosure = solve_priced_sets(market, members)
        objectives = market.tradeoff * enclosure.value - members @ market.queue
        row = int(np.argmin(objectives))
        if best is None or objectives[row] < best.objective:
            best = Choice(members[row], float(enclosure.at[row]), float(objectives[row]), -np.inf)
            at_s = max(best.exchange_s, earliest_exchange(market))
            roots, _ = market.curves.roots(np.array([at_s]))
            level = float(split_mining(market, np.where(best.members, roots, market.idle)).level)
            found = settle_quote(market, at_s, (0.0, level), found.worth)
            members = _fill(market, found)[None]
        elif len(members) == 1:
            members = _flip(market, found, best.members)
        else:
            break
    assert best is not None
    return best


def _flip(market: Market, found: Quote, members: PerClientMask) -> NDArray[np.bool_]:
    """Return the sets (rows, clients) in which one of the most doubtful clients has changed its role."""
    can_train = np.flatnonzero(np.isfinite(market.curves.least_s))
    doubtful = can_train[np.argsort(np.abs(found.loss_s[can_train]), kind="stable")[:_FLIPS]]
    flipped = np.repeat(members[None], len(doubtful), axis=0)
    flipped[np.arange(len(doubtful)), doubtful] ^= True
    enough: NDArray[np.bool_] = flipped.sum(axis=1) >= market.min_clients
    return flipped[enough] if enough.any() else members[None]


def _fill(market: Market, found: Quote) -> PerClientMask:
    """Return the best of some training sets at this exchange time: the first of the order of losses, m or more."""
    order = np.argsort(found.loss_s, kind="stable")
    num_ready = int(np.count_nonzero(found.loss_s < STEEPEST / 2))
    taken, _ = found.takers(market.min_clients)
    near = int(np.count_nonzero(taken)) + np.arange(-_PREFIXES // 4, _PREFIXES // 4)
    counts = np.unique(np.concatenate([near, np.linspace(market.min_clients, num_ready, _PREFIXES // 2).astype(int)]))
    counts = counts[(counts >= market.min_clients) & (counts <= num_ready)]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    members = rank < counts[:, None]
    cost_s, _ = sets_delay(market, members, np.full((len(counts), 1), found.exchange_s))
    objective = market.tradeoff * cost_s[:, 0] - (members @ market.queue)
    return np.asarray(members[int(np.argmin(objective))])


def _certify(market: Market, best: Choice, target_gap: float, max_evaluations: int) -> tuple[float, Quote, int]:
    """Return a proven bound (s) on J / V, a quote in the cell with the lowest bound, and the passes used."""
    best_s = best.objective / market.tradeoff
    paid_s = best_s + float(market.queue[best.members].sum()) / market.tradeoff
    target_s = best_s - max(target_gap, PRECISION) * max(abs(best_s), paid_s)
    earliest_s = earliest_exchange(market)
    levels = ANY_LEVEL
    if market.caps is not None:
        spendable_s = max(best_s + float(market.queue.sum()) / market.tradeoff - earliest_s, 0.0)
        levels = float(solve_level(market.idle, market.caps)), float(np.cbrt(spendable_s / market.work_cycles))
        levels = levels[0] * (1.0 - 1e-12), max(levels) * (1.0 + 1e-12)
    cells: list[tuple[float, int, Cell]] = []  # a heap: bound, number, cell
    passes = 0

    def add(times_s: tuple[float, float], levels: Levels, near: float | None) -> Quote:
        nonlocal passes
        settled = settle_quote(market, 0.5 * sum(times_s), levels, near)
        passes += 1
        cell = Cell(times_s, levels, settled)
        heapq.heappush(cells, (_bound_cell(market, cell), passes, cell))
        return settled

    time_s, growth = earliest_s, (max(best.exchange_s / earliest_s, 1.0 + 1e-3)) ** (2.0 / _FIRST_CELLS)
    settled = add((time_s, time_s * growth), levels, None)
    while True:
        time_s *= growth
        tail_s = _bound_tail(market, time_s, settled, levels)
        if tail_s >= target_s or passes >= max_evaluations:
            break
        growth = max(growth, 1.0 + 0.1 * (time_s > best.exchange_s))
        settled = add((time_s, time_s * growth), levels, settled.worth)
    while cells[0][0] < target_s and passes < max_evaluations:
        _, _, cell = heapq.heappop(cells)
        for times_s, levels in cell.halves(market.caps is not None):
            add(times_s, levels, cell.settled.worth)
    return min(tail_s, cells[0][0]), cells[0][-1].settled, passes


def _bound_cell(market: Market, cell: Cell) -> float:
    """Lower bound (s) on J / V of all sets, exchange times and levels of a cell, at its quote's worth of a root."""
    start_s, end_s = cell.times_s
    first, last = (quote(market, time, cell.settled.worth, cell.levels) for time in cell.times_s)
    _, head_s = cell.settled.takers(market.min_clients)
    old = first.loss_s <= head_s
    joining = np.minimum(last.loss_s[~old] - head_s, 0.0).sum()
    count = np.count_nonzero(old)
    width = end_s - start_s
    falling = first.loss_s[old].sum() - count * head_s, 1.0 + first.slope[old].sum()
    rising = last.loss_s[old].sum() - count * head_s + width, 1.0 + last.slope[old].sum()
    # The higher of two lines: lowest at an end or where they cross.
    turn = falling[1] - rising[1]
    crossing = (rising[0] - rising[1] * width - falling[0]) / turn if turn < 0.0 else 0.0
    offsets = np.array([0.0, min(max(crossing, 0.0), width), width])
    lines = np.maximum(falling[0] + falling[1] * offsets, rising[0] + rising[1] * (offsets - width))
    return float(start_s + lines.min() + joining + first.fixed_s + market.min_clients * head_s)


def _bound_tail(market: Market, start_s: float, settled: Quote, levels: Levels) -> float:
    """Lower bound (s) on J / V of all sets at exchange times from `start_s` on: losses as with unlimited time."""
    final = market.curves.final_roots()
    return relaxed_cost(market, quote(market, start_s, settled.worth, levels, (final, np.zeros_like(final))))
