"""Schedulers the paper compares with: whom they select differs, what they compute with does not.

Frequencies are the initial ones as far as budgets and caps allow. `random`, `round-robin` and `channel-best` select as
many clients as `drc` would in the same round of a run of its own: its queues travel along in the baseline's memory.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.environment.draws import Purpose, stream
from bdfl.errors import InvalidProblem
from bdfl.scheduling.drc import Start, decide_from, start_round
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.scheduling.queues import next_queue


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineMemory:
    """What a baseline remembers: the queues of the `drc` run it is paired with, and where the next cycle begins."""

    reference_queue: PerClient
    cursor: int = 0


def random_scheduler(problem: RoundProblem) -> Decision:
    """Decision with candidates drawn uniformly; the draw depends on seed and round alone."""
    start, count, memory = _paired_round(problem)
    ticket = stream(problem.seed, Purpose.SCHEDULER, problem.round).random(problem.num_clients)
    chosen = start.candidates[np.argsort(ticket[start.candidates], kind="stable")[:count]]
    return _decide(problem, start, chosen, memory)


def round_robin(problem: RoundProblem) -> Decision:
    """Decision with the next candidates in cyclic order of index, from where the last round ended."""
    start, count, memory = _paired_round(problem)
    first = int(np.searchsorted(start.candidates, memory.cursor))
    chosen = np.roll(start.candidates, -first)[:count]
    if len(chosen) > 0:
        memory = replace(memory, cursor=(int(chosen[-1]) + 1) % problem.num_clients)
    return _decide(problem, start, chosen, memory)


def channel_best(problem: RoundProblem) -> Decision:
    """Decision with the candidates of highest channel gain; equal gains go by index."""
    start, count, memory = _paired_round(problem)
    chosen = start.candidates[np.argsort(-problem.gain[start.candidates], kind="stable")[:count]]
    return _decide(problem, start, chosen, memory)


def all_clients(problem: RoundProblem) -> Decision:
    """Decision with every candidate."""
    start = start_round(problem)
    return _decide(problem, start, start.candidates, None)


def _paired_round(problem: RoundProblem) -> tuple[Start, int, BaselineMemory]:
    """The round's start, how many clients the paired `drc` selects (zero if infeasible), and the memory after it."""
    memory = _recall(problem)
    start = start_round(problem)
    reference = decide_from(replace(problem, queue=memory.reference_queue), start)
    queue = next_queue(memory.reference_queue, problem.participation_rate, reference.selected)
    return start, int(np.count_nonzero(reference.selected)), replace(memory, reference_queue=queue)


def _recall(problem: RoundProblem) -> BaselineMemory:
    if problem.memory is None:
        return BaselineMemory(reference_queue=problem.queue)
    if not isinstance(problem.memory, BaselineMemory):
        raise InvalidProblem(f"memory: {type(problem.memory).__name__} given, a baseline's own or None expected")
    if problem.memory.reference_queue.shape != problem.queue.shape:
        raise InvalidProblem(
            f"memory: of {len(problem.memory.reference_queue)} clients, the problem has {problem.num_clients}"
        )
    return problem.memory


def _decide(problem: RoundProblem, start: Start, chosen: NDArray[np.intp], memory: BaselineMemory | None) -> Decision:
    if start.reason is not None:
        return infeasible_decision(problem, start.reason, memory)
    selected = np.zeros(problem.num_clients, dtype=np.bool_)
    selected[chosen] = True
    return Decision(
        selected=selected,
        cpu_hz=np.where(selected, np.minimum(start.cpu_hz, problem.initial_cpu_hz), 0.0),
        mining_hz=start.mining_hz,
        power_w=np.where(selected, problem.power_w, 0.0),
        iterations=1,
        memory=memory,
    )
