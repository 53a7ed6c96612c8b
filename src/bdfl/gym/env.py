"""The Gymnasium environment, and its observation of a round."""

from dataclasses import replace
from typing import Any, TypeVar

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.experiment.simulation import Draws, PlannedRound, collect_rounds, draw_run, round_problems
from bdfl.gym.actions import (
    Action,
    Form,
    Frequencies,
    action_space,
    decide_action,
    earliest_time,
    wanted_set,
)
from bdfl.radio import uplink_rate
from bdfl.records import RoundRecord, RunRecord
from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.problem import Decision, RoundProblem
from bdfl.types import PerClient

# Observation of a round: four numbers between 0 and 1 for every client.

Observation = NDArray[np.float32]

COLUMNS = ("channel", "queue", "budget", "speed")


def observation_space(num_clients: int) -> spaces.Space[Any]:
    """Four blocks of one number per client, in the order of `COLUMNS`."""
    return spaces.Box(0.0, 1.0, shape=(len(COLUMNS) * num_clients,), dtype=np.float32)


def observe(problem: RoundProblem, earliest_s: PerClient, usual_budget_j: float) -> Observation:
    """Observe the round in four blocks, each x / (1 + x) of a measured value, hence within 0 to 1.

    `channel`: spectral efficiency of the uplink (bit/s/Hz); `queue`: Z_i; `budget`: E_i in units of `usual_budget_j`;
    `speed`: 1 / `earliest_s`, the earliest completion of the client (s), so 0 for one that cannot train.
    """
    rate = uplink_rate(problem.bandwidth_hz, problem.power_w, problem.gain, problem.noise_w_per_hz)
    scale_j = max(usual_budget_j, float(np.finfo(np.float64).tiny))
    columns = [
        _squash(rate / problem.bandwidth_hz),
        _squash(problem.queue),
        problem.energy_budget_j / (scale_j + problem.energy_budget_j),
        1.0 / (1.0 + earliest_s),
    ]
    return np.concatenate(columns).astype(np.float32)


def _squash(values: PerClient) -> PerClient:
    return values / (1.0 + values)


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
        self.observation_space = observation_space(num_clients)
        self.action_space = action_space(self.form, num_clients)
        self._usual_budget_j = _usual_budget(self.scenario)
        self._draws: Draws | None = None
        self._drawn: list[RoundProblem] = []
        self._queue: PerClient = np.zeros(num_clients)
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
        self._rounds = []
        return self._observe(), {"seed": run_seed}

    @property
    def problem(self) -> RoundProblem:
        """The current round's problem, as given to a scheduler; after the end the last one."""
        return replace(self._drawn[min(len(self._rounds), len(self._drawn) - 1)], queue=self._queue)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play the decision of the action; raise `InvalidEnvironment` if its shape is wrong."""
        if np.shape(action) != self.action_space.shape:
            raise InvalidEnvironment(f"action: shape {np.shape(action)} given, {self.action_space.shape} expected")
        problem = self._next_problem()
        decision = decide_action(problem, self.form, self.frequencies, action)
        wanted = wanted_set(problem.num_clients, action)
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
        self._queue = planned.next_queue
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
        problem = self.problem
        return observe(problem, earliest_time(problem, self.form, self.frequencies), self._usual_budget_j)


def _usual_budget(scenario: Scenario) -> float:
    """Mean budget (J) in the first round of the scenario's own seed: the unit of observed budgets."""
    one_round = msgspec.structs.replace(scenario, rounds=1)
    return float(np.mean(draw_run(one_round).states[0].energy_budget_j))


def _choose(kind: type[_Choice], name: str, given: str) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        raise InvalidEnvironment(f"{name}: {given!r} given, expected one of {', '.join(kind)}") from None
