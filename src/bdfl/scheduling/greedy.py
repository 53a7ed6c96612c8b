"""Greedy schedulers: by time, by energy, or by age of the last update.

They select as many clients as the paired `drc` (or `clients`) and compute at the initial frequencies, like the
baselines. The cost of mining is then independent of the selection. So for its number of clients `fastest-k` has the
least delay and `energy-greedy` the least energy of any set at these frequencies.
"""

import numpy as np

from bdfl.compute import training_energy
from bdfl.scheduling.baselines import (
    Clients,
    decide_initial,
    initial_cpu,
    pair_round,
    recall_baseline,
    take_least,
)
from bdfl.scheduling.drc import exchange_time
from bdfl.scheduling.history import recall_history, remember, update_age
from bdfl.scheduling.problem import Decision, RoundProblem


def fastest_k(problem: RoundProblem, *, clients: Clients = 0) -> Decision:
    """Decision with the candidates that have trained and uploaded first; ties are broken by index.

    The greedy choice of Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources in
    mobile edge" (FedCS), IEEE ICC 2019, with a number of clients instead of a deadline: here uploads do not queue.
    """
    start, count, memory = pair_round(problem, recall_baseline(problem), clients)
    time_s = exchange_time(problem, start, initial_cpu(problem, start))
    return decide_initial(problem, start, take_least(start, time_s, count), memory)


def energy_greedy(problem: RoundProblem, *, clients: Clients = 0) -> Decision:
    """Decision with the candidates that spend least on training and uploading (J); ties are broken by index.

    Energy as the criterion of selection as in Zeng, Du, Huang and Leung, "Energy-efficient radio resource allocation
    for federated edge learning", IEEE ICC Workshops 2020; bandwidth is not shared here, so a greedy choice suffices.
    """
    start, count, memory = pair_round(problem, recall_baseline(problem), clients)
    energy_j = start.upload_j + training_energy(problem.capacitance, problem.cycles, initial_cpu(problem, start))
    return decide_initial(problem, start, take_least(start, energy_j, count), memory)


def age_of_update(problem: RoundProblem, *, clients: Clients = 0) -> Decision:
    """Decision with the candidates whose last update is oldest; ties are broken by speed, then by index.

    After Yang, Arafa, Quek and Poor, "Age-based scheduling policy for federated learning in mobile edge networks", IEEE
    ICASSP 2020, who weigh age and channel: here age decides, and the channel (with the processor) breaks ties.
    """
    start, count, history = pair_round(problem, recall_history(problem), clients)
    who = start.candidates
    time_s = exchange_time(problem, start, initial_cpu(problem, start))
    chosen = who[np.lexsort((time_s[who], -update_age(problem, history)[who]))[:count]]
    return remember(problem, decide_initial(problem, start, chosen, history), history)
