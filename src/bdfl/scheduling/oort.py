"""Oort: select clients of high utility and speed, and explore clients never tried.

Lai, Zhu, Madhyastha and Chowdhury, "Oort: efficient federated learning via guided participant selection", OSDI 2021,
Algorithm 1. Utility, system penalty, exploration and pacer are as published. Durations are known from the cost model
instead of observed. Left out: blocklisting clients picked often (participation is ensured by the queues) and noise on
utilities.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.scheduling.baselines import Clients, decide_initial, initial_cpu, pair_round, recall
from bdfl.scheduling.choosing import data_sizes, draw_order
from bdfl.scheduling.drc import exchange_time
from bdfl.scheduling.history import History, remember
from bdfl.scheduling.problem import Decision, RoundProblem

Share = Annotated[float, Meta(ge=0.0, le=1.0)]

_LEAST_EXPLORATION = 0.2
_EXPLORATION_DECAY = 0.98  # per round
_FIRST_PERCENTILE = 30.0  # of the candidates' times: initial preferred duration T
_PERCENTILE_STEP = 5.0
_CUTOFF = 0.95  # of the last admitted utility: clients above this are drawn from as well
_OUTLIER = 0.95  # quantile at which utilities are clipped
_CONFIDENCE = 0.1  # weight of the age of a utility


@dataclass(frozen=True, eq=False, kw_only=True)
class OortMemory(History):
    """A history, the pacer's percentile, and the statistical utility collected in each of the last rounds."""

    percentile: float = _FIRST_PERCENTILE
    collected: tuple[float, ...] = ()


def oort(
    problem: RoundProblem,
    *,
    alpha: Annotated[float, Meta(ge=0.0)] = 2.0,
    exploration: Share = 0.9,
    window: Annotated[int, Meta(ge=1)] = 20,
    clients: Clients = 0,
) -> Decision:
    """Decision with clients drawn in proportion to their utility, and a share `exploration` of untried ones.

    Utility is |D_i| times the loss of the last training, scaled to at most 1, plus sqrt(0.1 ln t / last round), times
    (T / t_i)^`alpha` for those slower than T. If losses are unknown (in delay-only runs and on chains, whose updates
    carry none), all losses count as equal: data size and age remain of the statistical utility. Exploration falls by 2
    % a round, to 0.2 at least; untried clients are drawn in proportion to their speed. Every `window` rounds the pacer
    allows more time if less utility was collected than in the window before.
    """
    start, count, memory = pair_round(problem, _recall(problem), clients)
    memory = _pace(memory, window)
    who, time_s = start.candidates, exchange_time(problem, start, initial_cpu(problem, start))
    untried = who[memory.last_round[who] == 0]
    tried = who[memory.last_round[who] > 0]
    share = max(exploration * _EXPLORATION_DECAY ** (problem.round - 1), min(exploration, _LEAST_EXPLORATION))
    num_untried = min(max(round(share * count), count - len(tried)), len(untried))
    statistical = _statistical_utility(problem)
    explored = draw_order(problem, untried, 1.0 / time_s)[:num_untried]
    exploited = np.zeros(0, dtype=np.intp)
    if count > num_untried:
        preferred_s = float(np.percentile(time_s[who], memory.percentile))
        utility = _utility(problem, memory, statistical, tried, time_s, preferred_s, alpha)
        exploited = _exploit(problem, utility, tried, count - num_untried)
    decision = decide_initial(problem, start, np.concatenate([explored, exploited]), memory)
    if decision.is_feasible:
        gained = float(statistical[decision.selected].sum())
        memory = replace(memory, collected=(*memory.collected, gained))
    return remember(problem, decision, memory)


def _recall(problem: RoundProblem) -> OortMemory:
    nobody = np.zeros(problem.num_clients)
    return recall(problem, OortMemory, lambda: OortMemory(reference_queue=problem.queue, last_round=nobody))


def _pace(memory: OortMemory, window: int) -> OortMemory:
    """Apply the pacer once two windows are full: allow more time if the second collected less, and drop the first."""
    collected = memory.collected
    if len(collected) < 2 * window:
        return memory
    is_drying_up = sum(collected[:window]) > sum(collected[window:])
    percentile = min(memory.percentile + (_PERCENTILE_STEP if is_drying_up else 0.0), 100.0)
    return replace(memory, percentile=percentile, collected=collected[window:])


def _statistical_utility(problem: RoundProblem) -> PerClient:
    """Data size |D_i| times the last loss, (clients,); an unknown loss counts as the mean of the others, or 1."""
    if problem.last_loss is None:
        return data_sizes(problem)
    known = problem.last_loss[~np.isnan(problem.last_loss)]
    usual = float(known.mean()) if known.size else 1.0
    return data_sizes(problem) * np.where(np.isnan(problem.last_loss), usual, problem.last_loss)


def _utility(
    problem: RoundProblem,
    memory: OortMemory,
    statistical: PerClient,
    tried: NDArray[np.intp],
    time_s: PerClient,
    preferred_s: float,
    alpha: float,
) -> PerClient:
    """Utility of the `tried` clients, zero elsewhere, (clients,)."""
    utility: PerClient = np.zeros(problem.num_clients)
    of_tried = np.minimum(statistical[tried], np.quantile(statistical[tried], _OUTLIER))
    highest = float(of_tried.max())
    scaled = of_tried / highest if highest > 0 else of_tried
    doubt = np.sqrt(_CONFIDENCE * np.log(problem.round) / memory.last_round[tried])
    penalty = np.minimum(preferred_s / time_s[tried], 1.0) ** alpha
    utility[tried] = (scaled + doubt) * penalty
    return utility


def _exploit(problem: RoundProblem, utility: PerClient, tried: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Draw `count` of the tried clients by utility, among those close to the best `count`."""
    least = float(np.sort(utility[tried])[-count])
    close = tried[utility[tried] >= _CUTOFF * least]
    return draw_order(problem, close, utility)[:count]
