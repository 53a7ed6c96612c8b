"""Baselines: random, round-robin, channel-best, all, and schedulers of the literature.

They differ in the selection alone. Frequencies are the initial ones as far as budgets and caps allow, or, with
`frequencies="best"`, those of least delay for the same selection. All but `all` select as many clients as `drc` would
in the same round of its own run; its queues are kept in the baseline's memory.

Greedy: `fastest-k`, `energy-greedy` and `age-of-update` may also have a number of `clients`. The cost of mining is
independent of the selection. So for its number of clients `fastest-k` has the least delay and `energy-greedy` the least
energy of any set at the initial frequencies.

Power-of-choice: Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning", AISTATS
2022 (first as "Client selection in federated learning: convergence analysis and power-of-choice selection strategies",
2020).

Oort: Lai, Zhu, Madhyastha and Chowdhury, "Oort: efficient federated learning via guided participant selection", OSDI
2021, Algorithm 1. Utility, system penalty, exploration and pacer are as published. Durations are known from the cost
model instead of observed. Left out: blocklisting clients picked often (participation is ensured by the queues) and
noise on utilities.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.compute import training_energy
from bdfl.environment.draws import Purpose, stream
from bdfl.errors import InvalidProblem
from bdfl.scheduling.drc import Start, decide_at, decide_from, drc, exchange_time, start_round
from bdfl.scheduling.exact import best_frequencies
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision, share_at_most
from bdfl.scheduling.queues import next_queue
from bdfl.types import PerClient

Clients = Annotated[int, Meta(ge=0)]  # number of clients that train, at least m; 0: as many as the paired `drc`
Frequencies = Literal["initial", "best"]  # of the selected clients' training and of everybody's mining

_FIRST_PERCENTILE = 30.0  # of the candidates' times: initial preferred duration T of oort


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineMemory:
    """Memory of a baseline: the queues of the paired `drc` run, and what some of them know of earlier rounds.

    It records selections, not updates received: on a chain every validator must derive the same ages from the blocks
    alone, and clients that do not deliver are suspended anyway.
    """

    reference_queue: PerClient
    last_round: PerClient  # in which each client was last selected; 0: never
    cursor: int = 0  # of round-robin: start of the next cycle
    percentile: float = _FIRST_PERCENTILE  # of oort's pacer
    collected: tuple[float, ...] = ()  # statistical utility that oort collected in each of the last rounds


def random_scheduler(problem: RoundProblem, *, frequencies: Frequencies = "initial") -> Decision:
    """Decision with candidates drawn uniformly; the draw depends on seed and round alone."""
    start, count, memory = pair_round(problem)
    ticket = stream(problem.seed, Purpose.SCHEDULER, problem.round).random(problem.num_clients)
    return decide_for(problem, start, take_least(start, ticket, count), memory, frequencies)


def round_robin(problem: RoundProblem, *, frequencies: Frequencies = "initial") -> Decision:
    """Decision with the next candidates in cyclic order of index, continued from the last round."""
    start, count, memory = pair_round(problem)
    first = int(np.searchsorted(start.candidates, memory.cursor))
    chosen = np.roll(start.candidates, -first)[:count]
    if len(chosen) > 0:
        memory = replace(memory, cursor=(int(chosen[-1]) + 1) % problem.num_clients)
    return decide_for(problem, start, chosen, memory, frequencies)


def channel_best(problem: RoundProblem, *, frequencies: Frequencies = "initial") -> Decision:
    """Decision with the candidates of highest channel gain; ties are broken by index."""
    start, count, memory = pair_round(problem)
    return decide_for(problem, start, take_least(start, -problem.gain, count), memory, frequencies)


def all_clients(problem: RoundProblem, *, frequencies: Frequencies = "initial") -> Decision:
    """Decision with every candidate."""
    start = start_round(problem)
    return decide_for(problem, start, start.candidates, None, frequencies)


def take_least(start: Start, score: PerClient, count: int) -> NDArray[np.intp]:
    """Return the `count` candidates with the least `score` (clients,), in its order; ties are broken by index."""
    return start.candidates[np.argsort(score[start.candidates], kind="stable")[:count]]


def pair_round(problem: RoundProblem, clients: int = 0) -> tuple[Start, int, BaselineMemory]:
    """Return the round's start, the number of clients that train (zero if infeasible), and the next memory.

    The number is that of the paired `drc`; or `clients`, if above 0, limited to at least m and at most all candidates.
    """
    memory = _recall(problem)
    paired = replace(problem, queue=memory.reference_queue)
    if problem.access_point is None:
        start = start_round(problem)
        reference = decide_from(paired, start)
    else:
        reference = drc(paired)
        start = start_round(share_at_most(problem, max(clients, int(np.count_nonzero(reference.selected)))))
        start = start if reference.is_feasible else replace(start, reason=reference.reason)
    count = min(int(np.count_nonzero(reference.selected)), len(start.candidates)) if start.reason is None else 0
    if clients and start.reason is None:
        count = min(max(clients, problem.min_clients), len(start.candidates))
    queue = next_queue(memory.reference_queue, problem.participation_rate, reference.selected)
    return start, count, replace(memory, reference_queue=queue)


def _recall(problem: RoundProblem) -> BaselineMemory:
    """Memory of this run; at its start the paired `drc` has the run's own queues, and no client has been selected."""
    memory = problem.memory
    if memory is None:
        return BaselineMemory(reference_queue=problem.queue, last_round=np.zeros(problem.num_clients))
    if not isinstance(memory, BaselineMemory):
        raise InvalidProblem(f"memory: {type(memory).__name__} given, a baseline's own or None expected")
    if memory.reference_queue.shape != problem.queue.shape:
        raise InvalidProblem(f"memory: of {len(memory.reference_queue)} clients, the problem has {problem.num_clients}")
    return memory


def initial_cpu(problem: RoundProblem, start: Start) -> PerClient:
    """Training frequencies (Hz) of baselines: the initial ones as far as budget and cap allow; zero for others."""
    return np.minimum(start.cpu_hz, problem.initial_cpu_hz)


def decide_for(
    problem: RoundProblem,
    start: Start,
    chosen: NDArray[np.intp],
    memory: BaselineMemory | None,
    frequencies: Frequencies,
) -> Decision:
    """Decision in which the `chosen` candidates train, at these frequencies.

    Candidates can pay for the initial frequencies, so the best ones exist too, and their delay is no longer.
    """
    if start.reason is not None:
        return infeasible_decision(problem, start.reason, memory)
    selected = np.zeros(problem.num_clients, dtype=np.bool_)
    selected[chosen] = True
    if memory is not None:
        memory = replace(memory, last_round=np.where(selected, float(problem.round), memory.last_round))
    if frequencies == "best":
        return replace(best_frequencies(replace(problem, energy_price=None), selected), iterations=1, memory=memory)
    return decide_at(problem, selected, initial_cpu(problem, start), start.mining_hz, iterations=1, memory=memory)


def update_age(problem: RoundProblem, memory: BaselineMemory) -> PerClient:
    """Rounds since each client was last selected, (clients,): t in round t for a client never selected."""
    return problem.round - memory.last_round


def fastest_k(problem: RoundProblem, *, clients: Clients = 0, frequencies: Frequencies = "initial") -> Decision:
    """Decision with the candidates that have trained and uploaded first; ties are broken by index.

    The greedy choice of Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources in
    mobile edge" (FedCS), IEEE ICC 2019, with a number of clients instead of a deadline: here uploads do not queue.
    """
    start, count, memory = pair_round(problem, clients)
    time_s = exchange_time(problem, start, initial_cpu(problem, start))
    return decide_for(problem, start, take_least(start, time_s, count), memory, frequencies)


def energy_greedy(problem: RoundProblem, *, clients: Clients = 0, frequencies: Frequencies = "initial") -> Decision:
    """Decision with the candidates that spend least on training and uploading (J); ties are broken by index.

    Energy as the criterion of selection as in Zeng, Du, Huang and Leung, "Energy-efficient radio resource allocation
    for federated edge learning", IEEE ICC Workshops 2020; bandwidth is not shared here, so a greedy choice suffices.
    """
    start, count, memory = pair_round(problem, clients)
    energy_j = start.upload_j + training_energy(problem.capacitance, problem.cycles, initial_cpu(problem, start))
    return decide_for(problem, start, take_least(start, energy_j, count), memory, frequencies)


def age_of_update(problem: RoundProblem, *, clients: Clients = 0, frequencies: Frequencies = "initial") -> Decision:
    """Decision with the candidates whose last update is oldest; ties are broken by speed, then by index.

    After Yang, Arafa, Quek and Poor, "Age-based scheduling policy for federated learning in mobile edge networks", IEEE
    ICASSP 2020, who weigh age and channel: here age decides, and the channel (with the processor) breaks ties.
    """
    start, count, memory = pair_round(problem, clients)
    who = start.candidates
    time_s = exchange_time(problem, start, initial_cpu(problem, start))
    chosen = who[np.lexsort((time_s[who], -update_age(problem, memory)[who]))[:count]]
    return decide_for(problem, start, chosen, memory, frequencies)


_CANDIDATES_EACH = 2  # default of d / m


def power_of_choice(
    problem: RoundProblem,
    *,
    candidates: Annotated[int, Meta(ge=0)] = 0,
    clients: Clients = 0,
    frequencies: Frequencies = "initial",
) -> Decision:
    """Decision with the highest losses among `candidates` (d; 0: twice as many as train) drawn by data size.

    The variant rpow-d, which needs no extra messages: a client's loss is that of its last training, and clients that
    have not trained yet come first. If losses are unknown (in delay-only runs, and on chains, whose updates carry
    none), the age of the last update replaces them: the older it is, the further the model has moved from the client's
    data. The selection is then by age, without any claim about losses. Ties are broken by index.
    """
    start, count, memory = pair_round(problem, clients)
    size = max(candidates or _CANDIDATES_EACH * count, count)
    drawn = np.sort(draw_order(problem, start.candidates, data_sizes(problem))[:size])
    chosen = drawn[np.argsort(-_urgency(problem, memory)[drawn], kind="stable")[:count]]
    return decide_for(problem, start, chosen, memory, frequencies)


def _urgency(problem: RoundProblem, memory: BaselineMemory) -> PerClient:
    """Selection score, (clients,): the last known loss, infinite before the first; the age if losses are unknown."""
    if problem.last_loss is None:
        return update_age(problem, memory)
    return np.where(np.isnan(problem.last_loss), np.inf, problem.last_loss)


def data_sizes(problem: RoundProblem) -> PerClient:
    """Data set size |D_i|, (clients,); all equal if unknown."""
    return np.ones(problem.num_clients) if problem.samples is None else problem.samples


def draw_order(problem: RoundProblem, who: NDArray[np.intp], weight: PerClient) -> NDArray[np.intp]:
    """Return the clients `who` in random order, each next one drawn in proportion to `weight` (clients,).

    Efraimidis and Spirakis (2006): exponential waiting times at the rate of each weight. Client i's draw depends on
    seed, round and i alone; clients without weight come last, by index.
    """
    waits = stream(problem.seed, Purpose.SCHEDULER, problem.round).standard_exponential(problem.num_clients)
    wait = np.divide(waits, weight, out=np.full(problem.num_clients, np.inf), where=weight > 0)
    return who[np.argsort(wait[who], kind="stable")]


Share = Annotated[float, Meta(ge=0.0, le=1.0)]

_LEAST_EXPLORATION = 0.2
_EXPLORATION_DECAY = 0.98  # per round
_PERCENTILE_STEP = 5.0
_CUTOFF = 0.95  # of the last admitted utility: clients above this are drawn from as well
_OUTLIER = 0.95  # quantile at which utilities are clipped
_CONFIDENCE = 0.1  # weight of the age of a utility


def oort(
    problem: RoundProblem,
    *,
    alpha: Annotated[float, Meta(ge=0.0)] = 2.0,
    exploration: Share = 0.9,
    window: Annotated[int, Meta(ge=1)] = 20,
    clients: Clients = 0,
    frequencies: Frequencies = "initial",
) -> Decision:
    """Decision with clients drawn in proportion to their utility, and a share `exploration` of untried ones.

    Utility is |D_i| times the loss of the last training, scaled to at most 1, plus sqrt(0.1 ln t / last round), times
    (T / t_i)^`alpha` for those slower than T. If losses are unknown (in delay-only runs and on chains, whose updates
    carry none), all losses count as equal: data size and age remain of the statistical utility. Exploration falls by 2
    % a round, to 0.2 at least; untried clients are drawn in proportion to their speed. Every `window` rounds the pacer
    allows more time if less utility was collected than in the window before.
    """
    start, count, memory = pair_round(problem, clients)
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
    chosen = np.sort(np.concatenate([explored, exploited]))
    if start.reason is None:
        memory = replace(memory, collected=(*memory.collected, float(statistical[chosen].sum())))
    return decide_for(problem, start, chosen, memory, frequencies)


def _pace(memory: BaselineMemory, window: int) -> BaselineMemory:
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
    memory: BaselineMemory,
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
