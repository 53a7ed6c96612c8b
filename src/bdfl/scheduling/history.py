"""Memory of schedulers that use the age of updates: the round of each client's last selection."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bdfl.arrays import PerClient
from bdfl.scheduling.baselines import BaselineMemory, recall
from bdfl.scheduling.problem import Decision, RoundProblem


@dataclass(frozen=True, eq=False, kw_only=True)
class History(BaselineMemory):
    """A baseline's memory, and the round in which each client was last selected (0: never).

    It records selections, not updates received: on a chain every validator must derive the same ages from the blocks
    alone, and clients that do not deliver are suspended anyway.
    """

    last_round: PerClient


_History = TypeVar("_History", bound=History)


def recall_history(problem: RoundProblem) -> History:
    """Return the memory of this run; at its start no client has been selected."""
    nobody = np.zeros(problem.num_clients)
    return recall(problem, History, lambda: History(reference_queue=problem.queue, last_round=nobody))


def update_age(problem: RoundProblem, history: History) -> PerClient:
    """Rounds since each client was last selected, (clients,): t in round t for a client never selected."""
    return problem.round - history.last_round


def remember(problem: RoundProblem, decision: Decision, history: _History) -> Decision:
    """Return the decision with `history`, updated by this round, as its memory."""
    last_round = np.where(decision.selected, float(problem.round), history.last_round)
    return replace(decision, memory=replace(history, last_round=last_round))
