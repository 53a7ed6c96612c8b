"""What schedulers that look back remember beside a baseline: when each client was last asked to train."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bdfl.arrays import PerClient
from bdfl.scheduling.baselines import BaselineMemory, recall
from bdfl.scheduling.problem import Decision, RoundProblem


@dataclass(frozen=True, eq=False, kw_only=True)
class History(BaselineMemory):
    """A baseline's memory, and the round in which each client was last selected (0: never).

    A scheduler sees whom it selected, not whose update came: on a chain every validator must find the same ages from
    the blocks alone, and whoever did not deliver sits out anyway.
    """

    last_round: PerClient


_History = TypeVar("_History", bound=History)


def recall_history(problem: RoundProblem) -> History:
    """What was remembered of this run; at its start nobody was ever selected."""
    nobody = np.zeros(problem.num_clients)
    return recall(problem, History, lambda: History(reference_queue=problem.queue, last_round=nobody))


def update_age(problem: RoundProblem, history: History) -> PerClient:
    """Rounds since each client was last selected, (clients,): in round t that is t for one that never was."""
    return problem.round - history.last_round


def remember(problem: RoundProblem, decision: Decision, history: _History) -> Decision:
    """The decision with `history` as its memory, this round entered."""
    last_round = np.where(decision.selected, float(problem.round), history.last_round)
    return replace(decision, memory=replace(history, last_round=last_round))
