"""Baseline schedulers of the paper: the selection differs, the frequencies do not.

Frequencies are the initial ones as far as budgets and caps allow. `random`, `round-robin` and `channel-best` select as
many clients as `drc` would in the same round of its own run; its queues are kept in the baseline's memory. `greedy`,
`choosing` and `oort` build on the same start, number and frequencies.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.environment.draws import Purpose, stream
from bdfl.errors import InvalidProblem
from bdfl.scheduling.drc import Start, decide_from, start_round
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.scheduling.queues import next_queue

Clients = Annotated[int, Meta(ge=0)]  # number of clients that train, at least m; 0: as many as the paired `drc`


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineMemory:
    """Memory of a baseline: the queues of the paired `drc` run, and the start of the next cycle."""

    reference_queue: PerClient
    cursor: int = 0


_Memory = TypeVar("_Memory", bound=BaselineMemory)


def random_scheduler(problem: RoundProblem) -> Decision:
    """Decision with candidates drawn uniformly; the draw depends on seed and round alone."""
    start, count, memory = pair_round(problem, recall_baseline(problem))
    ticket = stream(problem.seed, Purpose.SCHEDULER, problem.round).random(problem.num_clients)
    return decide_initial(problem, start, take_least(start, ticket, count), memory)


def round_robin(problem: RoundProblem) -> Decision:
    """Decision with the next candidates in cyclic order of index, continued from the last round."""
    start, count, memory = pair_round(problem, recall_baseline(problem))
    first = int(np.searchsorted(start.candidates, memory.cursor))
    chosen = np.roll(start.candidates, -first)[:count]
    if len(chosen) > 0:
        memory = replace(memory, cursor=(int(chosen[-1]) + 1) % problem.num_clients)
    return decide_initial(problem, start, chosen, memory)


def channel_best(problem: RoundProblem) -> Decision:
    """Decision with the candidates of highest channel gain; ties are broken by index."""
    start, count, memory = pair_round(problem, recall_baseline(problem))
    return decide_initial(problem, start, take_least(start, -problem.gain, count), memory)


def all_clients(problem: RoundProblem) -> Decision:
    """Decision with every candidate."""
    start = start_round(problem)
    return decide_initial(problem, start, start.candidates, None)


def take_least(start: Start, score: PerClient, count: int) -> NDArray[np.intp]:
    """Return the `count` candidates with the least `score` (clients,), in its order; ties are broken by index."""
    return start.candidates[np.argsort(score[start.candidates], kind="stable")[:count]]


def pair_round(problem: RoundProblem, memory: _Memory, clients: int = 0) -> tuple[Start, int, _Memory]:
    """Return the round's start, the number of clients that train (zero if infeasible), and the next memory.

    The number is that of the paired `drc`; or `clients`, if above 0, limited to at least m and at most all candidates.
    """
    start = start_round(problem)
    reference = decide_from(replace(problem, queue=memory.reference_queue), start)
    count = int(np.count_nonzero(reference.selected))
    if clients and reference.is_feasible:
        count = min(max(clients, problem.min_clients), len(start.candidates))
    queue = next_queue(memory.reference_queue, problem.participation_rate, reference.selected)
    return start, count, replace(memory, reference_queue=queue)


def recall(problem: RoundProblem, kind: type[_Memory], fresh: Callable[[], _Memory]) -> _Memory:
    """Return the scheduler's memory of this run, or `fresh` memory; raise `InvalidProblem` if it is another's."""
    memory = problem.memory
    if memory is None:
        return fresh()
    if not isinstance(memory, kind):
        raise InvalidProblem(f"memory: {type(memory).__name__} given, a baseline's own or None expected")
    if memory.reference_queue.shape != problem.queue.shape:
        raise InvalidProblem(f"memory: of {len(memory.reference_queue)} clients, the problem has {problem.num_clients}")
    return memory


def recall_baseline(problem: RoundProblem) -> BaselineMemory:
    """Return the memory of this run; at its start the paired `drc` has the run's own queues."""
    return recall(problem, BaselineMemory, lambda: BaselineMemory(reference_queue=problem.queue))


def initial_cpu(problem: RoundProblem, start: Start) -> PerClient:
    """Training frequencies (Hz) of baselines: the initial ones as far as budget and cap allow; zero for others."""
    return np.minimum(start.cpu_hz, problem.initial_cpu_hz)


def decide_initial(
    problem: RoundProblem, start: Start, chosen: NDArray[np.intp], memory: BaselineMemory | None
) -> Decision:
    """Decision in which the `chosen` candidates train at their initial frequencies, as far as these can be paid."""
    if start.reason is not None:
        return infeasible_decision(problem, start.reason, memory)
    selected = np.zeros(problem.num_clients, dtype=np.bool_)
    selected[chosen] = True
    return Decision(
        selected=selected,
        cpu_hz=np.where(selected, initial_cpu(problem, start), 0.0),
        mining_hz=start.mining_hz,
        power_w=np.where(selected, problem.power_w, 0.0),
        iterations=1,
        memory=memory,
    )
