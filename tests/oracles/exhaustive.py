"""What the best decision of a round costs, found by brute force straight from the cost equations.

Shares no code with the solvers: every training set is tried, the exchange time is searched by golden section, the
total mining frequency by fixed-point iteration and, where powers are free, every client's power on a grid that is then
refined. Nothing here uses a slope, a price or a bound.
"""

from dataclasses import dataclass

import numpy as np

GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
TIME_STEPS = 46  # golden sections of the exchange time, which leave 2e-10 of the interval: caps make kinks
POWER_STEPS = 44
POWER_GRID = 13  # logarithmic
LEAST_POWER = 1e-6  # of the highest


@dataclass(frozen=True)
class Optimum:
    """The best of all sets: its objective, round delay (s) and members; an infinite objective if no set is possible."""

    objective: float
    delay_s: float
    members: np.ndarray

    @property
    def is_feasible(self):
        return np.isfinite(self.objective)


@dataclass(frozen=True)
class Costs:
    """All that the cost equations need, of shape (rows, clients) or for some pairs of row and client, (pairs,)."""

    bandwidth_hz: np.ndarray
    noise_w_per_hz: np.ndarray
    work_cycles: np.ndarray
    cycles: np.ndarray
    capacitance: np.ndarray
    energy_budget_j: np.ndarray
    gain: np.ndarray
    power_w: np.ndarray
    power_max_w: np.ndarray
    model_bits: np.ndarray
    cpu_max_hz: np.ndarray
    mining_max_hz: np.ndarray

    def take(self, index):
        return Costs(*(getattr(self, name)[index] for name in COLUMNS))


COLUMNS = list(Costs.__dataclass_fields__)


def costs_of(problem):
    """The reachable clients' costs, (1, clients) each."""
    everybody = np.ones(problem.num_clients)
    return Costs(*((getattr(problem, name) * everybody)[None, problem.reachable] for name in COLUMNS))


def upload_seconds(costs, power_w):
    rate = costs.bandwidth_hz * np.log2(1.0 + power_w * costs.gain / (costs.bandwidth_hz * costs.noise_w_per_hz))
    with np.errstate(divide="ignore"):
        return costs.model_bits / rate


def needed_energy(costs, exchange_s, power_w, upload_s):
    """Joules to train and upload by `exchange_s` at these powers; huge, and falling with the power, if too soon."""
    spare_s = exchange_s - upload_s
    with np.errstate(divide="ignore", invalid="ignore"):
        cpu_hz = np.where(costs.cycles > 0.0, costs.cycles / spare_s, 0.0)
        energy_j = power_w * upload_s + 0.5 * costs.capacitance * costs.cycles * cpu_hz**2
    possible = (spare_s >= 0.0) & (cpu_hz <= costs.cpu_max_hz * (1.0 + 1e-13)) & np.isfinite(energy_j)
    return np.where(possible, energy_j, 1e30 / (1.0 + power_w))


def least_energy(costs, with_power):
    """The joules to train and upload as a function of the exchange time (s).

    At the given power, or at the best one on a grid, refined. The energy is convex in the upload time, so it has one
    minimum over the powers.
    """
    if not with_power:
        upload_s = upload_seconds(costs, costs.power_w)
        return lambda exchange_s: needed_energy(costs, exchange_s, costs.power_w, upload_s)
    grid = np.linspace(np.log(LEAST_POWER), 0.0, POWER_GRID)
    grid_power_w = [costs.power_max_w * np.exp(share) for share in grid]
    grid_upload_s = [upload_seconds(costs, power_w) for power_w in grid_power_w]

    def energy(exchange_s):
        def at(share):
            power_w = costs.power_max_w * np.exp(share)
            return needed_energy(costs, exchange_s, power_w, upload_seconds(costs, power_w))

        powers = zip(grid_power_w, grid_upload_s, strict=True)
        tried = [needed_energy(costs, exchange_s, power_w, upload_s) for power_w, upload_s in powers]
        best = np.argmin(tried, axis=0)
        low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, POWER_GRID - 1)]
        return np.minimum(golden_section(at, low, high, POWER_STEPS)[1], tried[-1])

    return energy


def golden_section(function, low, high, steps):
    """Where unimodal functions, one per element, are least, and how much that is."""
    first, second = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_first, at_second = function(first), function(second)
    for _ in range(steps):
        left = at_first <= at_second
        low, high = np.where(left, low, first), np.where(left, second, high)
        point = np.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = function(point)
        first, second = np.where(left, point, second), np.where(left, first, point)
        at_first, at_second = np.where(left, value, at_second), np.where(left, at_first, value)
    left = at_first <= at_second
    return np.where(left, first, second), np.where(left, at_first, at_second)


def least_exchange(costs, with_power):
    """Earliest time (s) by which each client can be done within its limits, (1, clients); infinity if never."""
    if not with_power:
        upload_s = upload_seconds(costs, costs.power_w)
        with np.errstate(divide="ignore", invalid="ignore"):
            left_j = costs.energy_budget_j - costs.power_w * upload_s
            paid_s = np.sqrt(0.5 * costs.capacitance * costs.cycles**3 / left_j)
            training_s = np.where(costs.cycles > 0.0, np.maximum(paid_s, costs.cycles / costs.cpu_max_hz), 0.0)
        return np.where(np.isfinite(upload_s) & (left_j > 0.0), upload_s + training_s, np.inf)
    energy = least_energy(costs, with_power)
    low, high = np.full(costs.gain.shape, 1e-9), np.full(costs.gain.shape, 1e9)
    able = energy(high) <= costs.energy_budget_j
    for _ in range(60):  # which leave 4e-17 of the time
        middle = np.sqrt(low * high)
        enough = energy(middle) <= costs.energy_budget_j
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(able, high, np.inf)


def mining_frequency(costs, left_j):
    """The most that all clients together can mine at (Hz), (rows, 1), with these joules left for it.

    The largest s with s = sum min(cap, (2 s r / (chi A))^(1/3)), from above: without caps a formula, and with them an
    iteration that shrinks every error in log s at least threefold, led on as if by the same factor for ever. That goes
    less far than the solution, since the sum is concave in s.
    """
    roots = np.cbrt(2.0 * np.maximum(left_j, 0.0) / (costs.capacitance * costs.work_cycles))
    total_hz = roots.sum(axis=1, keepdims=True) ** 1.5
    if np.all(np.isinf(costs.mining_max_hz)):
        return total_hz
    for _ in range(30):
        once_hz = np.minimum(costs.mining_max_hz, np.cbrt(total_hz) * roots).sum(axis=1, keepdims=True)
        twice_hz = np.minimum(costs.mining_max_hz, np.cbrt(once_hz) * roots).sum(axis=1, keepdims=True)
        first, second = total_hz - once_hz, once_hz - twice_hz
        if np.all(np.abs(first) <= 1e-15 * total_hz):
            break
        leads_on = (second > 0.0) & (2.0 * second < first)
        with np.errstate(divide="ignore", invalid="ignore"):
            total_hz = twice_hz - np.where(leads_on, second**2 / (first - second), 0.0)
    return twice_hz


def least_delays(costs, members, least_s, with_power=False):
    """Least round delay (s), (rows,), and the exchange time (s) it needs, of each set in `members` (rows, clients).

    Searched in the cube root of the time since the slowest member could be done: there the delay may fall that steeply.
    """
    energy = least_energy(costs.take(members), with_power)

    def delay_at(exchange_s):
        left_j = costs.energy_budget_j.copy()
        left_j[members] -= energy(np.broadcast_to(exchange_s, members.shape)[members])
        with np.errstate(divide="ignore"):
            return exchange_s + costs.work_cycles[:, :1] / mining_frequency(costs, left_j)

    start_s = np.where(members, least_s, 0.0).max(axis=1, keepdims=True)
    width = np.cbrt(delay_at(2.0 * start_s) - start_s)  # a later exchange cannot end before that
    share, found_s = golden_section(
        lambda share: delay_at(start_s + (share * width) ** 3), np.zeros_like(width), np.ones_like(width), TIME_STEPS
    )
    at_once_s = delay_at(start_s)
    at_s = np.where(at_once_s <= found_s, start_s, start_s + (share * width) ** 3)
    return np.minimum(found_s, at_once_s)[:, 0], at_s[:, 0]


def all_sets(num_clients):
    """All subsets, (2^clients, clients)."""
    return (np.arange(2**num_clients)[:, None] >> np.arange(num_clients)) % 2 == 1


def exhaustive_search(problems, with_power=False):
    """The optimum of each of `problems`, which must have the same number of reachable clients."""
    each = [costs_of(problem) for problem in problems]
    costs = Costs(*(np.concatenate([getattr(one, name) for one in each]) for name in COLUMNS))
    least_s = least_exchange(costs, with_power)
    sets = all_sets(least_s.shape[1])
    num_needed = np.array([max(problem.min_clients, 1) for problem in problems])
    possible = sets.sum(axis=1) >= num_needed[:, None]
    possible &= ~(np.isinf(least_s).astype(int) @ sets.T.astype(int)).astype(bool)
    possible &= np.any((costs.energy_budget_j > 0.0) & (costs.mining_max_hz > 0.0), axis=1)[:, None]
    owner, number_of_set = np.nonzero(possible)
    members = sets[number_of_set]
    delay_s, _ = least_delays(costs.take(owner), members, least_s[owner], with_power)
    answers = []
    for number, problem in enumerate(problems):
        mine = np.flatnonzero(owner == number)
        if not len(mine):
            answers.append(Optimum(np.inf, np.inf, np.zeros(problem.num_clients, dtype=bool)))
            continue
        rounds_s = delay_s[mine] + problem.overhead_s
        objective = problem.tradeoff * rounds_s - members[mine] @ problem.queue[problem.reachable]
        best = int(np.argmin(objective))
        chosen = np.zeros(problem.num_clients, dtype=bool)
        chosen[problem.reachable] = members[mine[best]]
        answers.append(Optimum(float(objective[best]), float(rounds_s[best]), chosen))
    return answers
