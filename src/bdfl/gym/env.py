"""The Gymnasium environment: actions, observations and episodes.

An action is corrected to a decision that satisfies C1 to C3: selected clients that cannot train are left out, the
quickest of the others join if fewer than m remain, and frequencies are reduced to payable ones as for the baselines.
There is no penalty: the reward is that of the corrected action, and `info` has the number of clients changed.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.experiment.simulation import (
    Draws,
    PlannedRound,
    charge_batteries,
    collect_rounds,
    draw_run,
    first_battery,
    round_problems,
)
from bdfl.radio import uplink_rate
from bdfl.records import RoundRecord, RunRecord
from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.baselines import decide_for, initial_cpu
from bdfl.scheduling.drc import decide_at, exchange_time, settle_iterate, start_round
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


def decide_action(problem: RoundProblem, form: Form, frequencies: Frequencies, action: Action) -> Decision:
    """Return the decision of the action; infeasible only if no action is feasible."""
    wanted = np.asarray(action)[: problem.num_clients] > 0
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


def _decide_drc(problem: RoundProblem, wanted: PerClientMask) -> Decision:
    start = start_round(problem)
    if start.reason is not None:
        return infeasible_decision(problem, start.reason)
    iterate, iterations = settle_iterate(problem, start)
    selected = project_set(wanted, exchange_time(problem, start, iterate.cpu_hz), problem.min_clients)
    return decide_at(problem, selected, iterate.cpu_hz, iterate.mining_hz, iterations=iterations)


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
    return decide_for(asked, start, np.flatnonzero(selected), None, "initial")


# Observation of a round: four numbers between 0 and 1 for every client.

Observation = NDArray[np.float32]

COLUMNS = ("channel", "queue", "budget", "speed")  # blocks of one number per client


# A run as an episode: a step is a round, and the reward is minus its drift-plus-penalty objective.

AGENT = "agent"  # replaces a scheduler's name in the record of an episode
_SEEDS = 2**31  # range of drawn episode seeds

_Choice = TypeVar("_Choice", Form, Frequencies)


class InvalidEnvironment(BdflError):
    """An unknown form of actions or choice of frequencies, or an action of the wrong shape."""


class SchedulingEnv(gymnasium.Env[Observation, Action]):
    """Rounds of a scenario for an agent that schedules them, with the same draws, costs and queues as `simulate`.

    The reward of a round is minus its objective V d - sum of the selected queues, as computed by the checker, and 0 for
    an infeasible round. An episode is a run: `reset(seed=...)` plays the scenario with that seed, by default one drawn
    by the environment's own generator. It is truncated after the last round; the last observation shows that round's
    channels with the queues after it.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        scenario: str | Scenario = "paper-cifar10",
        *,
        form: str = Form.SET,
        frequencies: str = Frequencies.EXACT,
        rounds: int | None = None,
    ) -> None:
        """`scenario` is a shipped scenario's name, a file or a scenario; `rounds` defaults to its own."""
        loaded = scenario if isinstance(scenario, Scenario) else load_scenario(find_scenario(scenario))
        self.scenario = loaded if rounds is None else msgspec.structs.replace(loaded, rounds=rounds)
        self.form = _choose(Form, "form", form)
        self.frequencies = _choose(Frequencies, "frequencies", frequencies)
        num_clients = self.scenario.clients.count
        self.observation_space = spaces.Box(0.0, 1.0, shape=(len(COLUMNS) * num_clients,), dtype=np.float32)
        self.action_space = (
            spaces.MultiBinary(num_clients)
            if self.form is Form.SET
            else spaces.Box(-1.0, 1.0, shape=(3 * num_clients,), dtype=np.float32)
        )
        one_round = msgspec.structs.replace(self.scenario, rounds=1)
        self._usual_budget_j = float(np.mean(draw_run(one_round).states[0].energy_budget_j))  # of its own seed
        self._draws: Draws | None = None
        self._drawn: list[RoundProblem] = []
        self._queue: PerClient = np.zeros(num_clients)
        self._battery = first_battery(self.scenario)
        self._rounds: list[RoundRecord] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the first observation of an episode; `info` has the seed of its run. There are no options."""
        super().reset(seed=seed)
        run_seed = int(self.np_random.integers(_SEEDS)) if seed is None else seed
        self.scenario = msgspec.structs.replace(self.scenario, seed=run_seed)
        self._draws = draw_run(self.scenario)
        self._drawn = round_problems(self.scenario, self._draws)
        self._queue = np.zeros(self.scenario.clients.count)
        self._battery = first_battery(self.scenario)
        self._rounds = []
        return self._observe(), {"seed": run_seed}

    @property
    def problem(self) -> RoundProblem:
        """The current round's problem, as given to a scheduler; after the end the last one."""
        drawn = self._drawn[min(len(self._rounds), len(self._drawn) - 1)]
        return replace(charge_batteries(drawn, self._battery), queue=self._queue)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play the decision of the action; raise `InvalidEnvironment` if its shape is wrong."""
        if np.shape(action) != self.action_space.shape:
            raise InvalidEnvironment(f"action: shape {np.shape(action)} given, {self.action_space.shape} expected")
        problem = self._next_problem()
        decision = decide_action(problem, self.form, self.frequencies, action)
        wanted = np.asarray(action)[: problem.num_clients] > 0
        num_changed = int(np.count_nonzero(wanted != decision.selected)) if decision.is_feasible else 0
        return self._settle(problem, decision, num_changed)

    def play(self, decision: Decision) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play a scheduler's decision for `problem`, otherwise as `step`."""
        return self._settle(self._next_problem(), decision, 0)

    @property
    def record(self) -> RunRecord:
        """The record of this episode so far, for tables, figures and Parquet."""
        if self._draws is None:
            raise ResetNeeded("record asked for before reset()")
        return replace(collect_rounds(self.scenario, self._draws, self._rounds), scheduler=AGENT)

    def _next_problem(self) -> RoundProblem:
        if len(self._rounds) >= len(self._drawn):
            raise ResetNeeded("no round left to play: call reset() first")
        return self.problem

    def _settle(
        self, problem: RoundProblem, decision: Decision, num_changed: int
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert self._draws is not None
        planned = PlannedRound(self.scenario, problem, self._draws.states[len(self._rounds)], decision)
        record = planned.settle(decision.selected)
        assert planned.next_queue is not None
        self._queue, self._battery = planned.next_queue, planned.next_battery
        self._rounds.append(record)
        info = {
            "round": record.round,
            "feasible": decision.is_feasible,
            "changed": num_changed,
            "delay_s": record.delay_s,
            "energy_j": float(np.sum(record.energy_j)),
            "selected": decision.selected.copy(),
        }
        reward = -record.objective if decision.is_feasible else 0.0
        return self._observe(), reward, False, len(self._rounds) == len(self._drawn), info

    def _observe(self) -> Observation:
        """Observe the round in four blocks, each x / (1 + x) of a measured value, hence within 0 to 1.

        `channel`: spectral efficiency of the uplink (bit/s/Hz); `queue`: Z_i; `budget`: E_i in units of the usual
        budget; `speed`: 1 / the earliest completion of the client (s), so 0 for one that cannot train.
        """
        problem = self.problem
        if self.form is Form.SET and self.frequencies is Frequencies.EXACT:
            earliest_s = earliest_exchange(problem)
        else:
            start = start_round(problem)
            earliest_s = exchange_time(problem, start, start.cpu_hz)
        rate = uplink_rate(problem.bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
        efficiency = rate / problem.bandwidth_hz
        scale_j = max(self._usual_budget_j, float(np.finfo(np.float64).tiny))
        columns = [
            efficiency / (1.0 + efficiency),
            problem.queue / (1.0 + problem.queue),
            problem.energy_budget_j / (scale_j + problem.energy_budget_j),
            1.0 / (1.0 + earliest_s),
        ]
        return np.concatenate(columns).astype(np.float32)


def _choose(kind: type[_Choice], name: str, given: str) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        raise InvalidEnvironment(f"{name}: {given!r} given, expected one of {', '.join(kind)}") from None
