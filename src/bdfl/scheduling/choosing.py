"""Power-of-choice: draw candidates by the size of their data and select those with the highest loss.

Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning", AISTATS 2022 (first as
"Client selection in federated learning: convergence analysis and power-of-choice selection strategies", 2020).
"""

from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.environment.draws import Purpose, stream
from bdfl.scheduling.baselines import Clients, decide_initial, pair_round
from bdfl.scheduling.history import History, recall_history, remember, update_age
from bdfl.scheduling.problem import Decision, RoundProblem

_CANDIDATES_EACH = 2  # default of d / m


def power_of_choice(
    problem: RoundProblem, *, candidates: Annotated[int, Meta(ge=0)] = 0, clients: Clients = 0
) -> Decision:
    """Decision with the highest losses among `candidates` (d; 0: twice as many as train) drawn by data size.

    The variant rpow-d, which needs no extra messages: a client's loss is that of its last training, and clients that
    have not trained yet come first. If losses are unknown (in delay-only runs, and on chains, whose updates carry
    none), the age of the last update replaces them: the older it is, the further the model has moved from the client's
    data. The selection is then by age, without any claim about losses. Ties are broken by index.
    """
    start, count, history = pair_round(problem, recall_history(problem), clients)
    size = max(candidates or _CANDIDATES_EACH * count, count)
    drawn = np.sort(draw_order(problem, start.candidates, data_sizes(problem))[:size])
    chosen = drawn[np.argsort(-_urgency(problem, history)[drawn], kind="stable")[:count]]
    return remember(problem, decide_initial(problem, start, chosen, history), history)


def _urgency(problem: RoundProblem, history: History) -> PerClient:
    """Selection score, (clients,): the last known loss, infinite before the first; the age if losses are unknown."""
    if problem.last_loss is None:
        return update_age(problem, history)
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
