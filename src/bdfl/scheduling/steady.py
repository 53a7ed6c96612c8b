"""Scheduler `steady`: the round's optimum at the price of a participation, learned as the run goes, without a V.

The dual of P1 [Li24, Eq. 15] (see `bound`) says what one more participation of a client is worth, in seconds of delay.
At the right prices a round's optimum is also that of the run. They are not known beforehand, so every round solves the
dual of the rounds seen so far, at the rates that are still owed (Li and Ye, "Online linear programming: dual
convergence, new algorithms, and regret bounds", Operations Research 2022), in three respects differently:

- The minimum over sets is smoothed (a soft minimum), so that prices are a smooth function of all that was seen.
- Some rounds of an imagined client that costs the usual price, more or less, are added: few rounds say little.
- Clients are to be ahead of their rates in the middle of a run, which saves them from bad channels at its end.

Above a dozen clients sets are too many to remember; on shared spectrum too. There prices are the running mean of a
virtual queue that plays the same rounds by itself, steered by the odds of the rate that is still owed.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.errors import InvalidProblem
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import best_frequencies, exact, tabulate_sets
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.scheduling.set_search import MAX_ENUMERATED
from bdfl.types import PerClient, PerClientMask

# Times are relative to the usual delay: the least one of the first round.
_FIRST_PRICE = 0.01
_SOFTNESS = 0.006
_FORCED = 1000.0  # price of a participation that must not be missed
_DEAREST = 10.0  # usual prices that the last participation owed costs at most

_SETS = 48  # remembered of every round: those that were best at the price of the time
_ROUNDS = 128  # remembered
_FEWEST, _MOST = 0.02, 0.98  # rates that prices are fitted to
_IMAGINED = 60.0  # rounds at most; as many as were seen at first
_ALIKE = 0.6  # weight of the usual price of all clients in that of each
_RENEWAL = 0.2  # part of a round in the usual price of all clients
_OWN_RENEWAL = 0.1  # and in each client's

_LEAD = 1.5  # participations ahead in the middle of a run
_RISE = 33  # rounds in which the lead is built up
_FALL = 12  # rounds before the end in which it is used up
_FORGIVEN = 1.0  # participations that may be missed in the end where they are dear
_LAST = 0.5  # participations short of the rates that the end aims at: whole ones cannot meet them

_STEP = 0.0115  # of the virtual queue
_EARLY, _EARLY_WEIGHT = 5, 0.2  # rounds of the virtual queue that count less
_LEAST_PRICE = 0.002
_STIFFNESS = 1.5

_NEWTON_STEPS = 40
_LEAST_BEND = 1e-4
_LONGEST_STEP = 4.0  # usual prices
_PRECISION = 1e-10  # of participations
_TIE = 1e-6  # added to prices at most


@dataclass(frozen=True, eq=False, kw_only=True)
class SteadyMemory:
    """All that `steady` knows of earlier rounds; on a chain it follows from the blocks."""

    queue: PerClient  # before the last round
    selected: PerClientMask  # in the last round
    debt: PerClient  # participations owed before the last round; negative: ahead
    usual_s: float  # usual delay
    price_s: PerClient  # last fitted, or of the virtual queue
    common_s: float  # usual price of all clients
    own_s: PerClient  # usual price of each client, or the sum of the virtual queue's prices
    weight: float = 0.0  # of that sum
    num_rounds: int = 0
    delay_s: NDArray[np.float64]  # (rounds, sets) of the sets remembered; infinity: fewer sets
    members: NDArray[np.bool_]  # (rounds, sets, clients)


def steady(
    problem: RoundProblem,
    *,
    rounds: Annotated[int, Meta(ge=0)] | None = None,
    window: Annotated[int, Meta(ge=1)] = 20,
) -> Decision:
    """Decision that minimises the delay less the prices of the participations, at the given transmit powers.

    `rounds` is the length of the run, by default the problem's own; 0, or a run that goes on beyond: its end is unknown
    and whatever is owed is to be given within a `window` of rounds.
    """
    problem = replace(problem, energy_price=None)
    memory = _recall(problem)
    last = problem.rounds if rounds is None else rounds
    ends = problem.round <= last
    left = last - problem.round + 1 if ends else window
    owed = problem.participation_rate * left + memory.debt
    has_few_sets = problem.num_clients <= MAX_ENUMERATED and problem.access_point is None
    learn = _fit_prices if has_few_sets else _average_prices
    learned = learn(problem, memory, owed, left, ends)
    if isinstance(learned, str):
        idle = replace(memory, selected=np.zeros(problem.num_clients, dtype=np.bool_), queue=problem.queue)
        return infeasible_decision(problem, learned, idle)
    memory, price_s = learned
    price_s = np.where(owed > _PRECISION, price_s, 0.0) + _break_ties(memory)
    chosen = exact(_at(problem, price_s)).selected
    decision = best_frequencies(problem, chosen, precisely=True)
    return replace(
        decision,
        memory=replace(memory, queue=problem.queue, selected=decision.selected, num_rounds=memory.num_rounds + 1),
    )


def _break_ties(memory: SteadyMemory) -> PerClient:
    """Additions to the prices (s) that differ from set to set: among equal clients all machines choose the same.

    Sums of square roots are different for different sets.
    """
    num = len(memory.debt)
    return _TIE * memory.usual_s * np.sqrt(np.arange(num, 0, -1) / num)


def _at(problem: RoundProblem, price_s: PerClient) -> RoundProblem:
    return replace(problem, queue=price_s, tradeoff=1.0, memory=None)


def _recall(problem: RoundProblem) -> SteadyMemory:
    """Memory with the debt before this round; at the start of a run the queues are what is owed.

    Who delivered is seen from the queues. Those of clients that were away stood still, and so does their debt.
    """
    memory = problem.memory
    num = problem.num_clients
    if memory is None:
        nothing = np.zeros(num)
        return SteadyMemory(
            queue=problem.queue,
            selected=np.zeros(num, dtype=np.bool_),
            debt=np.array(problem.queue),
            usual_s=0.0,
            price_s=nothing,
            common_s=0.0,
            own_s=nothing,
            delay_s=np.zeros((0, _SETS)),
            members=np.zeros((0, _SETS, num), dtype=np.bool_),
        )
    if not isinstance(memory, SteadyMemory):
        raise InvalidProblem(f"memory: {type(memory).__name__} given, that of steady or None expected")
    if memory.queue.shape != problem.queue.shape:
        raise InvalidProblem(f"memory: of {len(memory.queue)} clients, the problem has {num}")
    rate, growth = problem.participation_rate, problem.queue - memory.queue
    delivered = memory.selected & (growth < 0.5 * rate)
    return replace(memory, debt=memory.debt + np.where(delivered, rate - 1.0, growth))


def _fit_prices(
    problem: RoundProblem, memory: SteadyMemory, owed: PerClient, left: int, ends: bool
) -> tuple[SteadyMemory, PerClient] | str:
    """Memory with this round's sets, and prices (s) at which the rounds seen would give what is owed."""
    members, delay_s = tabulate_sets(problem)
    if not len(delay_s):
        return exact(_at(problem, memory.price_s)).reason or "no set can train"
    usual_s = memory.usual_s or float(delay_s.min())
    if not memory.common_s:
        first = np.full(len(owed), _FIRST_PRICE * usual_s)
        memory = replace(memory, usual_s=usual_s, price_s=first, common_s=float(first[0]), own_s=first)
    memory = _remember(memory, members, delay_s)
    seen = len(memory.delay_s)
    rate = np.clip(problem.participation_rate, _FEWEST, _MOST)
    ahead = min(1.0, (left - 1) / _FALL) if ends else 1.0
    goal = _LEAD * ahead * min(1.0, memory.num_rounds / _RISE) - _LAST * (1.0 - ahead)
    usual_price_s = _ALIKE * memory.common_s + (1.0 - _ALIKE) * memory.own_s
    price_s = _solve_dual(
        memory,
        np.clip((owed + goal) / left, _FEWEST, _MOST),
        usual_price_s,
        rate,
        imagined=_IMAGINED * seen / (_IMAGINED + seen),
        softness_s=_SOFTNESS * usual_s,
    )
    mean_s = max(float(price_s.mean()), 1e-4 * usual_s)
    memory = replace(
        memory,
        price_s=price_s,
        common_s=memory.common_s + _RENEWAL * (mean_s - memory.common_s),
        own_s=memory.own_s + _OWN_RENEWAL * (price_s - memory.own_s),
    )
    if ends:
        price_s = np.where(owed <= _FORGIVEN, np.minimum(price_s, _DEAREST * memory.common_s), price_s)
        price_s = np.where(owed - _FORGIVEN > _MOST * (left - 1), _FORCED * usual_s, price_s)
    return memory, price_s


def _remember(memory: SteadyMemory, members: NDArray[np.bool_], delay_s: NDArray[np.float64]) -> SteadyMemory:
    """Add the sets of a round that are best at the last price; the oldest round is forgotten if there are too many."""
    best = np.argsort(delay_s - members @ (memory.price_s + _break_ties(memory)), kind="stable")[:_SETS]
    kept_s = np.full(_SETS, np.inf)
    kept_s[: len(best)] = delay_s[best]
    kept = np.zeros((_SETS, members.shape[1]), dtype=np.bool_)
    kept[: len(best)] = members[best]
    return replace(
        memory,
        delay_s=np.concatenate([memory.delay_s, kept_s[None]])[-_ROUNDS:],
        members=np.concatenate([memory.members, kept[None]])[-_ROUNDS:],
    )


def _solve_dual(
    memory: SteadyMemory,
    owed_rate: PerClient,
    usual_s: PerClient,
    rate: PerClient,
    *,
    imagined: float,
    softness_s: float,
) -> PerClient:
    """Prices (s) at the maximum of the smoothed dual of the rounds remembered: projected Newton, as prices are >= 0.

    In an imagined round a client takes part with a probability that rises with its price like a logistic function,
    around the usual one, at which it is its rate. The dual is concave and smooth: its maximum depends little on errors.
    """
    delay_s, sets = memory.delay_s, memory.members.astype(np.float64)
    num_rounds = len(delay_s) + imagined
    offset = np.log(rate / (1.0 - rate))

    def value(price_s: PerClient) -> tuple[float, NDArray[np.float64], PerClient]:
        """Value of the dual, weights of the sets (rounds, sets), and participation in an imagined round."""
        worth = (sets @ price_s - delay_s) / softness_s
        most = worth.max(axis=1)
        weights = np.exp(worth - most[:, None])
        total = weights.sum(axis=1)
        excess = (price_s - usual_s) / usual_s + offset
        smooth = float(np.sum(usual_s * np.logaddexp(0.0, excess)))
        dual = num_rounds * float(price_s @ owed_rate) - imagined * smooth
        return (
            dual - softness_s * float(np.sum(most + np.log(total))),
            weights / total[:, None],
            1.0 / (1.0 + np.exp(-excess)),
        )

    price_s = memory.price_s
    height, weights, taken = value(price_s)
    for _ in range(_NEWTON_STEPS):
        each = np.einsum("ts,tsc->tc", weights, sets)
        slope = num_rounds * owed_rate - imagined * taken - each.sum(axis=0)
        free = (price_s > 0.0) | (slope > 0.0)
        if np.max(np.abs(slope[free]), initial=0.0) <= _PRECISION * num_rounds:
            break
        # Round by round: one long product would depend on its number of threads.
        pairs = sets.transpose(0, 2, 1) @ (weights[:, :, None] * sets)
        bend = (pairs.sum(axis=0) - each.T @ each) / softness_s
        bend += np.diag(imagined * np.maximum(taken * (1.0 - taken), _LEAST_BEND) / usual_s)
        step = np.zeros_like(price_s)
        step[free] = np.linalg.solve(bend[np.ix_(free, free)], slope[free])
        longest = _LONGEST_STEP * float(usual_s.max())
        step *= longest / max(float(np.abs(step).max()), longest)
        for _halving in range(8):
            tried_s = np.maximum(price_s + step, 0.0)
            found = value(tried_s)
            if found[0] >= height + 1e-4 * float(slope @ (tried_s - price_s)):
                break
            step *= 0.4
        else:
            break
        price_s, (height, weights, taken) = tried_s, found
    return price_s


def _average_prices(
    problem: RoundProblem, memory: SteadyMemory, owed: PerClient, left: int, ends: bool
) -> tuple[SteadyMemory, PerClient] | str:
    """Memory with one more round of the virtual queue, and its mean price (s) at the odds of the rate owed."""
    shadow = exact(_at(problem, memory.price_s))
    if shadow.reason is not None:
        return shadow.reason
    usual_s = memory.usual_s or evaluate(problem, shadow).delay_s
    rate = problem.participation_rate
    price_s = np.maximum(memory.price_s + _STEP * usual_s * (rate - shadow.selected), 0.0)
    weight = 1.0 if memory.num_rounds >= _EARLY else _EARLY_WEIGHT
    memory = replace(
        memory,
        usual_s=usual_s,
        price_s=price_s,
        own_s=memory.own_s + weight * price_s,
        weight=memory.weight + weight,
    )
    mean_s = np.maximum(memory.own_s / memory.weight, _LEAST_PRICE * usual_s)
    ratio = _odds(owed / left) / _odds(rate)
    return memory, np.minimum(mean_s * ratio**_STIFFNESS, _FORCED * usual_s)


def _odds(share: PerClient) -> PerClient:
    inside = np.clip(share, 1e-3, 1.0 - 1e-3)
    return inside / (1.0 - inside)
