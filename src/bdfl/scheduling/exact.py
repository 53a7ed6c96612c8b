"""Optimal schedulers `exact` and `exact-power`, with a proven bound on the remaining gap.

For a given training set the best frequencies are one convex search (`allocation`). Up to a dozen clients, all sets are
tried. Beyond, prices lead to a set, and a sweep over all exchange times proves its gap (`certificate`). Clients left
undecided are enumerated. Shared spectrum is a series of such rounds. If energy has a price, `energy_prices` proves a
gap instead, without that last step.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.compute import mining_scale, training_energy
from bdfl.radio import uplink_rate, upload_energy, upload_time
from bdfl.scheduling.allocation import Market, make_supply, sets_delay, solve_level, split_mining
from bdfl.scheduling.certificate import Certificate, certify, doubtful_clients
from bdfl.scheduling.convex import PRECISION
from bdfl.scheduling.drc import cpu_for_energy
from bdfl.scheduling.energy_prices import choose_priced
from bdfl.scheduling.mining_curves import Curves, fixed_power_curves, free_power_curves, idle_roots
from bdfl.scheduling.problem import (
    OPTIMAL_GAP,
    Decision,
    RoundProblem,
    infeasible_decision,
    keep_longest,
    limits_of_uploads,
    restrict_problem,
    share_among,
    share_at_most,
    share_spectrum,
)
from bdfl.scheduling.set_search import (
    MAX_ENUMERATED,
    Choice,
    enumerate_sets,
    improve,
    scan_exchange,
    solve_all_sets,
)
from bdfl.types import PerClient, PerClientMask

Gap = Annotated[float, Meta(ge=0.0)]
Evaluations = Annotated[int, Meta(ge=1)]
MAX_EVALUATIONS = 400

_DEFAULT_GAPS = ((2_000, OPTIMAL_GAP), (50_000, 1e-6), (200_000, 1e-3), (float("inf"), 1e-2))
_ROUNDING = 1e-12  # relative: allowance for rounding in a bound
_PRECISION_SHARE = 0.01  # part of the target gap that the precision of exchange times may use
_FLAT = 1e-4  # relative distance from the best exchange time at which the slope is told from zero
_ATTEMPTS = 6  # sets tried one after the other before the last is certified
_ENUMERATION_CELLS = 60_000  # limit on sets times clients of an enumeration
_THETAS = 12  # steps of a bisection of the price per head
_TOO_NARROW = "no set was found whose members can pay for their uploads at the bandwidth that is left to each"


def exact(
    problem: RoundProblem, *, target_gap: Gap | None = None, max_evaluations: Evaluations = MAX_EVALUATIONS
) -> Decision:
    """Optimal decision at the given transmit powers, with a proven lower bound on the objective of any decision.

    A search over all exchange times ends once the gap is at most `target_gap` (by default `default_gap`) or after
    `max_evaluations` passes over all clients; any remaining gap is proven too.
    """
    return _solve(problem, fixed_power_curves, target_gap, max_evaluations)


def exact_power(
    problem: RoundProblem, *, target_gap: Gap | None = None, max_evaluations: Evaluations = MAX_EVALUATIONS
) -> Decision:
    """Optimal decision if clients may also choose their transmit power, up to `power_max_w`; otherwise as `exact`."""
    return _solve(problem, free_power_curves, target_gap, max_evaluations)


def default_gap(num_clients: int) -> float:
    """Default relative gap: proven optimality for up to 2,000 clients, then a gap reachable in about a second."""
    return next(gap for most, gap in _DEFAULT_GAPS if num_clients <= most)


def best_frequencies(problem: RoundProblem, members: PerClientMask, *, precisely: bool = False) -> Decision:
    """Best decision in which exactly `members` train, at the given transmit powers; it proves no bound.

    The delay is flat at its minimum, so frequencies that reach it to 1e-11 may differ by 1e-5. With `precisely` they
    are those at which its slope is zero, the same on all machines to 1e-9.
    Infeasible if one of them cannot train within its limits, if they are fewer than m, or if no client can mine.
    """
    return _solve_members(problem, members, fixed_power_curves, precisely=precisely)[1]


def _solve_members(
    problem: RoundProblem,
    members: PerClientMask,
    curves_of: Callable[[RoundProblem], Curves],
    *,
    precisely: bool = False,
) -> tuple[float, Decision]:
    """Objective and decision of `best_frequencies`; infinity if it is infeasible."""
    problem = share_among(problem, members)
    opened = _open_market(problem, curves_of)
    if isinstance(opened, str):
        return np.inf, infeasible_decision(problem, opened)
    inner, market = opened
    wanted = members[problem.reachable]
    num_able = int(np.count_nonzero(wanted & np.isfinite(market.curves.least_s)))
    if num_able < np.count_nonzero(members):
        asked = int(np.count_nonzero(members))
        reason = f"{num_able} of the {asked} clients asked for can train within their limits"
        return np.inf, infeasible_decision(problem, reason)
    choice = enumerate_sets(market, wanted, np.zeros(0, dtype=np.intp))
    if choice is None:
        reason = f"{num_able} clients asked for, {problem.min_clients} needed"
        return np.inf, infeasible_decision(problem, reason)
    decided = _level_slope(market, choice) if precisely else choice
    return choice.objective, _decide(problem, inner, market, decided)


def _level_slope(market: Market, choice: Choice) -> Choice:
    """Return the choice with the exchange time at which the slope of its delay is zero, to the last digits."""
    from scipy.optimize import brentq  # slow to import, and rarely needed

    earliest_s = float(market.curves.least_s[choice.members].max())

    def slope(exchange_s: float) -> float:
        return float(sets_delay(market, choice.members[None], np.array([[exchange_s]]))[1][0, 0])

    width = _FLAT
    while True:
        low_s, high_s = max(choice.exchange_s * (1.0 - width), earliest_s), choice.exchange_s * (1.0 + width)
        if slope(low_s) < 0.0 < slope(high_s):
            return replace(choice, exchange_s=float(brentq(slope, low_s, high_s, xtol=1e-300, rtol=1e-15)))
        if low_s == earliest_s or width >= 1.0:
            return replace(choice, exchange_s=low_s if slope(low_s) >= 0.0 else choice.exchange_s)
        width *= 10.0


def tabulate_sets(problem: RoundProblem) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """All sets that may train, (sets, clients), and the least delay (s) of each; none in an infeasible round.

    For a dozen clients at most: there are 2^U sets.
    """
    opened = _open_market(problem, fixed_power_curves)
    if isinstance(opened, str):
        return np.zeros((0, problem.num_clients), dtype=np.bool_), np.zeros(0)
    _, market = opened
    members, enclosure = solve_all_sets(market)
    spread = np.zeros((len(members), problem.num_clients), dtype=np.bool_)
    spread[:, problem.reachable] = members
    return spread, enclosure.value + problem.overhead_s


def earliest_exchange(problem: RoundProblem) -> PerClient:
    """Earliest time (s) at which each client can have trained and uploaded, (clients,); infinity: not in this round.

    Where spectrum is shared, alone at its access point.
    """
    earliest_s = fixed_power_curves(share_at_most(problem, 1)).least_s
    return np.where(problem.reachable, earliest_s, np.inf)


def _solve(
    problem: RoundProblem, curves_of: Callable[[RoundProblem], Curves], target_gap: float | None, max_evaluations: int
) -> Decision:
    if problem.access_point is not None:
        able = problem.reachable & np.isfinite(curves_of(share_at_most(problem, 1)).least_s)
        if np.count_nonzero(able) <= MAX_ENUMERATED:
            return _enumerate_shared(problem, curves_of, able)
        return _search_shared(problem, curves_of, target_gap, max_evaluations)
    opened = _open_market(problem, curves_of)
    if isinstance(opened, str):
        return infeasible_decision(problem, opened)
    inner, market = opened
    aim = default_gap(market.num_clients) if target_gap is None else target_gap
    choice, evaluations = choose(market, aim, max_evaluations)
    bound = _bound_of(problem, market, choice)
    return replace(_decide(problem, inner, market, choice), bound=bound, iterations=evaluations)


def _bound_of(problem: RoundProblem, market: Market, choice: Choice) -> float:
    """Proven bound of a choice, less what rounding may have added, with the time that every round takes."""
    return choice.bound - _ROUNDING * _scale(market, choice) + problem.tradeoff * problem.overhead_s


# Shared spectrum: given the numbers of uploaders, a round is an ordinary one.


def _enumerate_shared(
    problem: RoundProblem, curves_of: Callable[[RoundProblem], Curves], able: PerClientMask
) -> Decision:
    """Optimal decision by all sets: those with the same numbers of uploaders at all access points at a time."""
    assert problem.access_point is not None
    served = np.bincount(problem.access_point, able).astype(np.int64)
    least, bound, reason = np.inf, np.inf, ""
    best: Decision | None = None
    for counts in map(np.array, product(*(range(1, max(num, 1) + 1) for num in served))):  # 1: one uploader or none
        if counts.sum() < problem.min_clients:
            continue
        ordinary = share_spectrum(problem, counts[problem.access_point])
        opened = _open_market(ordinary, curves_of)
        if isinstance(opened, str):
            reason = reason or opened
            continue
        inner, market = opened
        free = np.flatnonzero(np.isfinite(market.curves.least_s))
        suits = partial(_has_counts, problem.access_point[problem.reachable][free], counts)
        choice = enumerate_sets(market, np.zeros(market.num_clients, dtype=np.bool_), free, suits)
        if choice is None:
            continue
        bound = min(bound, _bound_of(problem, market, choice))
        if choice.objective < least:
            least, best = choice.objective, _decide(ordinary, inner, market, choice)
    if best is None:
        return infeasible_decision(problem, reason or _TOO_NARROW)
    return replace(best, bound=bound)


def _has_counts(
    access_point: NDArray[np.int64], counts: NDArray[np.int64], sets: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which of the sets (sets, clients) have `counts` members at the access points."""
    found = np.stack([sets[:, access_point == number].sum(axis=1) for number in range(len(counts))], axis=1)
    same: NDArray[np.bool_] = (np.maximum(found, 1) == counts).all(axis=1)
    return same


def _search_shared(
    problem: RoundProblem,
    curves_of: Callable[[RoundProblem], Curves],
    target_gap: float | None,
    max_evaluations: int,
) -> Decision:
    """Best of the sets that rounds with limited uploads propose, with a proven bound.

    With one access point, a set of n to N members has no more than a share of 1 / n each. Its objective is at least the
    bound of the round with that share, at least n members and queues shorter by theta >= 0, less theta N: theta is
    raised until no more than N take part. With several access points, every uploader has at most all of its own.
    """
    assert problem.access_point is not None
    is_single = len(np.unique(problem.access_point[problem.reachable])) == 1
    least_uploads = problem.min_clients if is_single else 1
    limits = sorted({max(limit, least_uploads) for limit in limits_of_uploads(problem)})
    least, bound, evaluations, reason = np.inf, np.inf, 0, ""
    best: Decision | None = None
    for limit, following in zip(limits, [*limits[1:], problem.num_clients + 1], strict=True):
        ordinary = share_at_most(problem, limit)
        if is_single:
            ordinary = replace(ordinary, min_clients=limit)
        opened = _open_market(ordinary, curves_of)
        if isinstance(opened, str):
            reason = reason or opened
            continue
        market = opened[1]
        aim = default_gap(market.num_clients) if target_gap is None else target_gap
        part_bound, low, high, theta = -np.inf, 0.0, float(market.queue.max()), 0.0
        for _ in range(_THETAS if is_single else 1):
            eased = replace(market, queue=np.maximum(market.queue - theta, 0.0))
            choice, spent = choose(eased, aim, max_evaluations)
            evaluations += spent
            part_bound = max(part_bound, _bound_of(problem, eased, choice) - theta * (following - 1))
            members = _spread(choice.members, problem.reachable)
            for proposed in (members, keep_longest(problem, members, limit)):
                objective, decision = _solve_members(problem, proposed, curves_of)
                if objective < least:
                    least, best = objective, decision
            fits = np.count_nonzero(members) < following
            low, high = (low, theta) if fits else (theta, high)
            if (fits and theta == 0.0) or high == 0.0:
                break
            theta = 0.5 * (low + high)
        if is_single or limit == 1:
            bound = min(bound, part_bound)
    if best is None:
        return infeasible_decision(problem, reason or _TOO_NARROW)
    return replace(best, bound=bound, iterations=evaluations)


def _open_market(
    problem: RoundProblem, curves_of: Callable[[RoundProblem], Curves]
) -> tuple[RoundProblem, Market] | str:
    """Return the reachable clients' problem and its market, or the reason why the round is infeasible."""
    reachable = problem.reachable
    inner = problem if reachable.all() else restrict_problem(problem, reachable)
    curves, idle = curves_of(inner), idle_roots(inner)
    num_able = int(np.count_nonzero(np.isfinite(curves.least_s)))
    if num_able < problem.min_clients:
        return (
            f"{num_able} of {problem.num_clients} clients can train within their limits, {problem.min_clients} needed"
        )
    if not np.any((idle > 0.0) & (inner.mining_max_hz > 0.0)):
        return "no client can pay for mining"
    # The mining level is never below that with all clients idle and uncapped: caps above that never bind.
    may_bind = inner.mining_max_hz * idle.sum() ** -0.5 < idle
    market = Market(
        curves=curves,
        idle=idle,
        caps=inner.mining_max_hz if may_bind.any() else None,
        queue=inner.queue,
        tradeoff=problem.tradeoff,
        work_cycles=problem.work_cycles,
        min_clients=problem.min_clients,
        cube_price=cube_price(inner),
    )
    return inner, market


def cube_price(problem: RoundProblem) -> PerClient | None:
    """Price q_i (s) of a cubed mining root: y_i chi_i A / (2 V); None if energy has no price."""
    if problem.energy_price is None or not problem.energy_price.any():
        return None
    price: PerClient = problem.energy_price / (
        problem.tradeoff * mining_scale(1.0, problem.capacitance, problem.work_cycles)
    )
    return price


def _decide(problem: RoundProblem, inner: RoundProblem, market: Market, choice: Choice) -> Decision:
    """Turn the set and exchange time of `choice` into frequencies and powers of all clients."""
    reachable = problem.reachable
    cpu_hz, power_w, left_j = _pay(inner, choice, *market.curves.settle(choice.exchange_s))
    roots = np.cbrt(mining_scale(left_j, inner.capacitance, inner.work_cycles))
    if market.cube_price is None:
        level = float(solve_level(roots[None], market.caps)[0])
    else:
        split = split_mining(market, roots)
        roots, level = split.roots, float(split.level)
    mining_hz = np.minimum(inner.mining_max_hz, roots / level)
    return Decision(
        selected=_spread(choice.members, reachable),
        cpu_hz=_spread(cpu_hz, reachable),
        mining_hz=_spread(mining_hz, reachable),
        power_w=_spread(power_w, reachable),
    )


def _pay(
    problem: RoundProblem, choice: Choice, cpu_hz: PerClient, power_w: PerClient
) -> tuple[PerClient, PerClient, PerClient]:
    """Frequencies (Hz) and powers (W) of the members, zero elsewhere, and the energy left of every budget (J).

    Recomputed from the cost equations: for very long uploads the remaining training time has lost its digits.
    """
    rate = uplink_rate(problem.bandwidth_hz, power_w, problem.gain, problem.noise_w_per_hz)
    upload_j = upload_energy(power_w, upload_time(problem.model_bits, rate))
    spare_j = np.maximum(problem.energy_budget_j - np.where(choice.members, upload_j, 0.0), 0.0)
    limit_hz = np.minimum(cpu_for_energy(spare_j, problem.capacitance, problem.cycles), problem.cpu_max_hz)
    wanted_hz = np.where((problem.cycles > 0.0) & (cpu_hz <= 0.0), limit_hz, cpu_hz)
    cpu_hz = np.where(choice.members, np.minimum(wanted_hz, limit_hz), 0.0)
    left_j = np.maximum(spare_j - training_energy(problem.capacitance, problem.cycles, cpu_hz), 0.0)
    return cpu_hz, np.where(choice.members, power_w, 0.0), left_j


def _spread(values: NDArray[Any], reachable: PerClientMask) -> NDArray[Any]:
    """Place `values` of the reachable clients among all, zero elsewhere."""
    if reachable.all():
        return values
    everybody = np.zeros(len(reachable), dtype=values.dtype)
    everybody[reachable] = values
    return everybody


def choose(market: Market, target_gap: float, max_evaluations: int) -> tuple[Choice, int]:
    """Return the best training set found, with a proven bound, and the number of passes over all clients."""
    able = np.flatnonzero(np.isfinite(market.curves.least_s))
    if len(able) <= MAX_ENUMERATED:
        choice = enumerate_sets(market, np.zeros(market.num_clients, dtype=np.bool_), able)
        assert choice is not None  # there are at least m able clients
        return choice, 0
    if market.cube_price is not None:
        return choose_priced(market, target_gap, max_evaluations)
    supply = make_supply(market.idle, market.caps, market.tradeoff * market.work_cycles)
    supply = supply.within(supply.level(0.0), np.inf)
    exchange_s, price = scan_exchange(market, supply)
    precision = max(PRECISION, _PRECISION_SHARE * target_gap)
    best = improve(market, supply, exchange_s, price, None, precision)
    evaluations = 0
    certificate: Certificate | None = None
    for attempt in range(_ATTEMPTS):
        # A full certificate is expensive if caps bind: halve levels only once the set has settled.
        is_last = market.caps is None or attempt == _ATTEMPTS - 1
        tolerance = 0.5 * target_gap * _scale(market, best)
        budget = max_evaluations if is_last else 0
        certificate = certify(market, supply, best, price, tolerance, budget, certificate, precision)
        evaluations += certificate.evaluations
        better = improve(market, supply, certificate.best_time_s, certificate.best_price, certificate.best, precision)
        settled, best = better is best, better
        if settled and not is_last and certificate.open_cells:
            certificate = certify(market, supply, best, price, tolerance, max_evaluations)
            evaluations += certificate.evaluations
        if settled or not certificate.open_cells:
            break
    assert certificate is not None
    bound = certificate.bound
    if certificate.open_cells:
        best, bound = _settle_doubts(market, certificate, best)
    return replace(best, bound=min(bound, best.objective)), evaluations


def _settle_doubts(market: Market, certificate: Certificate, best: Choice) -> tuple[Choice, float]:
    """Return a set at least as good as `best` by enumerating the undecided clients, and the proven bound.

    If too many clients are undecided, only the most doubtful are tried: the set may improve, the bound stays.
    """
    base, doubtful, doubt = doubtful_clients(market, certificate.open_cells, best.objective)
    affordable = min(MAX_ENUMERATED, int(np.log2(max(_ENUMERATION_CELLS / market.num_clients, 1.0))))
    complete = len(doubtful) <= affordable
    if not complete:
        tried = doubtful[np.argsort(doubt[doubtful], kind="stable")[:affordable]]
        base = best.members.copy()
        base[tried] = False
        doubtful = tried
    choice = enumerate_sets(market, base, doubtful)
    if choice is None:
        return best, certificate.bound
    winner = choice if choice.objective < best.objective else best
    return winner, min(choice.bound, certificate.target) if complete else certificate.bound


def _scale(market: Market, choice: Choice) -> float:
    """Reference of relative gaps: max(|J|, V delay)."""
    return max(abs(choice.objective), choice.objective + float(market.queue[choice.members].sum()))
