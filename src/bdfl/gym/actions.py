"""Conversion of an agent's action to a decision that always satisfies C1 to C3.

Selected clients that cannot train in this round are left out. If fewer than m remain, the quickest of the others join.
Frequencies are reduced to payable ones as for the baselines. There is no penalty: the reward is that of the corrected
action, and `info` has the number of clients changed.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdfl.scheduling.baselines import decide_initial, initial_cpu
from bdfl.scheduling.drc import exchange_time, settle_iterate, start_round
from bdfl.scheduling.exact import best_frequencies, earliest_exchange
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.types import PerClient, PerClientMask

Action = NDArray[Any]  # bits, or numbers from -1 to 1: see `Form`

SPREAD = 4.0  # range of frequencies of an agent: from a quarter to four times the initial ones


class Form(StrEnum):
    """Form of an action."""

    SET = "set"  # the training set: one bit per client
    FREQUENCIES = "frequencies"  # -1 to 1, three per client: trains if above 0; training and mining frequency


class Frequencies(StrEnum):
    """Method of choosing the frequencies if the action is a set."""

    EXACT = "exact"  # the optimal ones for that set
    DRC = "drc"  # those of the paper's algorithm, which do not depend on the set


def action_space(form: Form, num_clients: int) -> spaces.Space[Action]:
    """Return the action space of that form."""
    if form is Form.SET:
        return spaces.MultiBinary(num_clients)
    return spaces.Box(-1.0, 1.0, shape=(3 * num_clients,), dtype=np.float32)


def wanted_set(num_clients: int, action: Action) -> PerClientMask:
    """Clients that the action selects, (clients,)."""
    wanted: PerClientMask = np.asarray(action)[:num_clients] > 0
    return wanted


def decide_action(problem: RoundProblem, form: Form, frequencies: Frequencies, action: Action) -> Decision:
    """Return the decision of the action; infeasible only if no action is feasible."""
    wanted = wanted_set(problem.num_clients, action)
    if form is Form.FREQUENCIES:
        return _decide_frequencies(problem, wanted, np.asarray(action, dtype=np.float64))
    if frequencies is Frequencies.EXACT:
        return best_frequencies(problem, project_set(wanted, earliest_exchange(problem), problem.min_clients))
    return _decide_drc(problem, wanted)


def project_set(wanted: PerClientMask, earliest_s: PerClient, min_clients: int) -> PerClientMask:
    """Return the wanted clients that can train, filled up to m with the quickest of the others.

    `earliest_s` is each client's earliest completion, infinity if it cannot train. Ties are broken by index.
    """
    able = np.isfinite(earliest_s)
    selected = wanted & able
    missing = min_clients - int(np.count_nonzero(selected))
    if missing > 0:
        others = np.flatnonzero(able & ~selected)
        selected[others[np.argsort(earliest_s[others], kind="stable")[:missing]]] = True
    return selected


def earliest_time(problem: RoundProblem, form: Form, frequencies: Frequencies) -> PerClient:
    """Earliest time (s) at which each client can have trained and uploaded, (clients,); infinity if it cannot train."""
    if form is Form.SET and frequencies is Frequencies.EXACT:
        return earliest_exchange(problem)
    start = start_round(problem)
    return exchange_time(problem, start, start.cpu_hz)


def _decide_drc(problem: RoundProblem, wanted: PerClientMask) -> Decision:
    start = start_round(problem)
    if start.reason is not None:
        return infeasible_decision(problem, start.reason)
    iterate, iterations = settle_iterate(problem, start)
    selected = project_set(wanted, exchange_time(problem, start, iterate.cpu_hz), problem.min_clients)
    return Decision(
        selected=selected,
        cpu_hz=np.where(selected, iterate.cpu_hz, 0.0),
        mining_hz=iterate.mining_hz,
        power_w=np.where(selected, problem.power_w, 0.0),
        iterations=iterations,
    )


def _decide_frequencies(problem: RoundProblem, wanted: PerClientMask, action: NDArray[np.float64]) -> Decision:
    """Decide with the requested frequencies in place of the initial ones, otherwise as for a baseline.

    If the requested mining leaves fewer than m clients that can train, the initial frequencies are used.
    """
    _, cpu, mining = np.split(np.clip(np.nan_to_num(action), -1.0, 1.0), 3)
    asked = replace(
        problem,
        initial_cpu_hz=problem.initial_cpu_hz * SPREAD**cpu,
        initial_mining_hz=problem.initial_mining_hz * SPREAD**mining,
    )
    start = start_round(asked)
    if start.reason is not None:
        asked, start = problem, start_round(problem)
    selected = project_set(wanted, exchange_time(asked, start, initial_cpu(asked, start)), problem.min_clients)
    return decide_initial(asked, start, np.flatnonzero(selected), None)
