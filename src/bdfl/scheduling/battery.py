"""Scheduler `battery` for clients whose energy is limited over a run, and the dual bound of such runs.

With prices lambda_i (s per participation) and y_i (s per joule) a round is one of `exact` with V = 1:

    min d - sum_{i in S} lambda_i + sum_i y_i e_i.

Mean energy is limited, so the dual of a run has one y_i per client as it has one lambda_i. The scheduler learns both by
shadow queues, which play the same rounds by themselves, without batteries: missed participation raises lambda_i, energy
beyond the income raises y_i, as a virtual queue Y_i <- max(Y_i + e_i - E_i, 0) does. The means of the shadow prices are
those of the real round. They are steered by the participation still owed and by the energy still needed, and what a
battery holds limits the real round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bdfl.errors import InvalidProblem
from bdfl.scheduling.bound import DualBound
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import earliest_exchange, exact
from bdfl.scheduling.problem import Battery, Decision, RoundProblem, Scheduler
from bdfl.scheduling.steady import steady
from bdfl.types import PerClient

# Shadow queues. Prices are relative to the first round's delay, shared among all clients, and to incomes.
_HEAD_STEP = 0.092
_ENERGY_STEP = 0.048  # for the mean excess of all clients
_OWN_STEP = 0.024  # for a client's difference from it
_FIRST_ENERGY = 0.09
_LEAST_ENERGY = 1e-4
_SETTLING_ROUNDS = 10  # first ones, whose prices count less
_SHADOW_LIMIT = 4.0  # most energy of a shadow round, in incomes
_FIRST_COST = (2.0, 0.3)  # energy of a client that trains and of an idle one, in incomes
# Steering.
_WINDOW = 100  # rounds in which a deficit is made up if the end of the run is unknown
_STIFFNESS = 1.5  # of the price of participation against the odds of the rate owed
_BALANCE = 1.5  # of the price of energy against need over supply: energy falls with its power -2/3
_RESERVE = 4.0  # usual charge, in incomes; at most half of the capacity
_PULL = 0.05  # of the charge towards it
_TAPER = 40.0  # last rounds, in which the reserve is used up
_LEAST_SUPPLY = 1e-2  # of energy, in incomes
_LEAST_RATE = 1e-3  # and greatest: one less this
_TARGET_GAP, _MAX_EVALUATIONS = 1e-4, 40  # of a round of many clients
_LEAST_HEAD, _MOST_HEAD = 0.016, 1e5  # prices of participation
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of participation (s) and of energy (s/J), (clients,) each."""

    head_s: PerClient
    energy_s: PerClient


@dataclass(frozen=True, eq=False)
class _Memory:
    shadow: Prices
    total: Prices  # weighted sum of all shadow prices
    weight: float
    scale_s: float  # delay of the first round, per client
    income_j: PerClient  # mean so far
    cost: tuple[float, float]  # mean energy of a client that trains and of an idle one, in incomes
    debt: PerClient  # participations owed so far, at first the queues; negative: ahead
    played: int


def battery(problem: RoundProblem) -> Decision:
    """Decision of least delay if participation and energy are paid for at learned prices; two `exact` rounds each.

    It is `steady` if every round has its own budget. No bound is proven.
    """
    if problem.battery is None:
        return steady(problem)
    memory = problem.memory if isinstance(problem.memory, _Memory) else _first_memory(problem, problem.battery)
    if isinstance(memory, Decision):
        return memory
    memory = _learn(problem, problem.battery, memory)
    real = ask(problem, _steer(problem, problem.battery, memory))
    debt = memory.debt + problem.participation_rate - real.selected
    return replace(real, bound=-np.inf, memory=replace(memory, debt=debt, played=memory.played + 1))


_quick_exact: Scheduler = partial(exact, target_gap=_TARGET_GAP, max_evaluations=_MAX_EVALUATIONS)


def ask(
    problem: RoundProblem, prices: Prices, limit_j: PerClient | None = None, solver: Scheduler = _quick_exact
) -> Decision:
    """Decision of least delay (s) plus energy cost less rewards for participation, within other limits if given."""
    return solver(
        replace(
            problem,
            queue=prices.head_s,
            tradeoff=1.0,
            energy_price=prices.energy_s,
            energy_budget_j=problem.energy_budget_j if limit_j is None else limit_j,
            battery=None,
            memory=None,
        )
    )


def _first_memory(problem: RoundProblem, held: Battery) -> _Memory | Decision:
    """Memory before the first round, from the least delay of it; or the decision that it is infeasible."""
    nothing = np.zeros(problem.num_clients)
    least = ask(problem, Prices(nothing, nothing))
    if not least.is_feasible:
        return least
    scale_s = evaluate(problem, least).delay_s / problem.num_clients
    energy_s = _FIRST_ENERGY * scale_s / _usual(held.income_j)
    return _Memory(
        Prices(nothing, energy_s), Prices(nothing, nothing), 0.0, scale_s, nothing, _FIRST_COST, problem.queue, 0
    )


def _usual(income_j: PerClient) -> PerClient:
    """Income (J) as a unit of energy: that of the others for clients without one."""
    usual: PerClient = np.where(income_j > 0.0, income_j, max(float(np.mean(income_j)), _TINY))
    return usual


def _learn(problem: RoundProblem, held: Battery, memory: _Memory) -> _Memory:
    """Play the round at the shadow prices, and move them."""
    scale_s = memory.scale_s
    income_j = memory.income_j + (held.income_j - memory.income_j) / (memory.played + 1)
    alone = ask(problem, memory.shadow, np.maximum(problem.energy_budget_j, _SHADOW_LIMIT * income_j))
    if not alone.is_feasible:
        return replace(memory, income_j=income_j)
    missed = problem.participation_rate - alone.selected
    head_s = np.maximum(memory.shadow.head_s + _HEAD_STEP * scale_s * missed, 0.0)
    usual_j = _usual(income_j)
    spent_j = evaluate(problem, alone).energy_j
    excess = (spent_j - income_j) / usual_j
    common = float(np.mean(excess))
    move = _ENERGY_STEP * common + _OWN_STEP * (excess - common)
    energy_s = np.maximum(memory.shadow.energy_s + scale_s * move / usual_j, _LEAST_ENERGY * scale_s / usual_j)
    weight = min(1.0, (memory.played + 1) / _SETTLING_ROUNDS)
    total = Prices(memory.total.head_s + weight * head_s, memory.total.energy_s + weight * energy_s)
    return replace(
        memory,
        shadow=Prices(head_s, energy_s),
        total=total,
        weight=memory.weight + weight,
        income_j=income_j,
        cost=_update_cost(memory.cost, spent_j / usual_j, alone, memory.played),
    )


def _update_cost(cost: tuple[float, float], spent: PerClient, decision: Decision, played: int) -> tuple[float, float]:
    trained, idle = spent[decision.selected], spent[~decision.selected]
    share = 1.0 / (played + 2)
    return tuple(  # type: ignore[return-value]  # two of them
        before + share * (float(now.mean()) - before) if len(now) else before
        for before, now in zip(cost, (trained, idle), strict=True)
    )


def _steer(problem: RoundProblem, held: Battery, memory: _Memory) -> Prices:
    """Prices of the real round: the means, raised for clients that are owed participation or short of energy."""
    rate, scale_s, weight = problem.participation_rate, memory.scale_s, max(memory.weight, _TINY)
    left = problem.rounds - problem.round + 1 if problem.round <= problem.rounds else _WINDOW
    owed = rate * left + memory.debt
    odds_ratio = _odds(owed / left) / _odds(rate)
    head_s = np.maximum(memory.total.head_s / weight, _LEAST_HEAD * scale_s) * odds_ratio**_STIFFNESS
    head_s = np.minimum(np.where(owed <= 0.0, 0.0, head_s), _MOST_HEAD * scale_s)
    trains = np.clip(owed, 0.0, left)
    need = trains * memory.cost[0] + (left - trains) * memory.cost[1]
    usual_j = _usual(memory.income_j)
    charge, reserve = held.charge_j / usual_j, np.minimum(_RESERVE, 0.5 * held.capacity_j / usual_j)
    scarcity = need / np.maximum(charge + left - 1.0, _LEAST_SUPPLY)
    pull = _PULL * min(1.0, left / _TAPER) * (reserve - charge)
    energy_s = memory.total.energy_s / weight * scarcity**_BALANCE * np.exp(np.clip(pull, -_WINDOW, _WINDOW))
    return Prices(head_s, energy_s)


def _odds(rate: PerClient) -> PerClient:
    inside = np.clip(rate, _LEAST_RATE, 1.0 - _LEAST_RATE)
    return inside / (1.0 - inside)


# The dual bound of a run with batteries.

_PASS_STEPS = (0.16, 0.048, 0.012)  # of the multipliers, relative as above; one pass over the rounds each
_PASS_ENERGY_STEP = 0.3  # of those of energy, relative to these


def battery_bound(
    fitted: Sequence[RoundProblem], played: Sequence[RoundProblem], rate: PerClient, *, solver: Scheduler = exact
) -> DualBound:
    """Lower bound on the average delay (s) over the `played` rounds that take place, of any schedule on batteries.

    Each problem has the batteries as they would be if nothing had ever been spent: no schedule has more energy. It may
    not lose rounds that could take place. Rates are lowered to the share of rounds in which a client can train. Weak
    duality holds for any multipliers; these are from the `fitted` rounds, by stochastic ascent.
    """
    rate = np.minimum(rate, np.mean([np.isfinite(earliest_exchange(problem)) for problem in played], axis=0))
    prices = _fit_prices(fitted, rate, solver)
    decisions = [ask(problem, prices, solver=solver) for problem in played]
    num_feasible = sum(decision.is_feasible for decision in decisions)
    worth_s = float(np.sum(prices.energy_s * _received(played))) / max(num_feasible, 1)
    values = [decision.bound - worth_s if decision.is_feasible else 0.0 for decision in decisions]
    return DualBound(prices.head_s, rate, np.array(values))


def _fit_prices(problems: Sequence[RoundProblem], rate: PerClient, solver: Scheduler) -> Prices:
    """Near-optimal prices: passes of shorter and shorter steps, each with the mean of its second half."""
    nothing, num_rounds = np.zeros(len(rate)), len(problems)
    least = next(
        (found for found in (ask(one, Prices(nothing, nothing)) for one in problems) if found.is_feasible), None
    )
    income_j = _received(problems) / num_rounds
    usual_j = _usual(income_j)
    if least is None:
        return Prices(nothing, nothing)
    scale_s = least.bound / len(rate)
    prices = Prices(nothing, _FIRST_ENERGY * scale_s / usual_j)
    for step in _PASS_STEPS:
        total, count = Prices(nothing, nothing), 0
        for number, problem in enumerate(problems):
            decision = ask(problem, prices, solver=solver)
            if not decision.is_feasible:
                continue
            excess_j = evaluate(problem, decision).energy_j - income_j
            prices = Prices(
                np.maximum(prices.head_s + step * scale_s * (rate - decision.selected), 0.0),
                np.maximum(prices.energy_s + _PASS_ENERGY_STEP * step * scale_s * excess_j / usual_j**2, 0.0),
            )
            if number >= num_rounds // 2:
                total = Prices(total.head_s + prices.head_s, total.energy_s + prices.energy_s)
                count += 1
        if count:
            prices = Prices(total.head_s / count, total.energy_s / count)
    return prices


def _received(problems: Sequence[RoundProblem]) -> PerClient:
    """Energy (J) of each client's battery after all these rounds if nothing is ever spent or lost, (clients,)."""
    first = problems[0].battery
    batteries = [problem.battery for problem in problems]
    if first is None or None in batteries:
        raise InvalidProblem("battery: none given, a bound over a run needs that of every round")
    return first.charge_j + sum(held.income_j for held in batteries[1:] if held is not None)
