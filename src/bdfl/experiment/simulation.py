"""Simulation of a scenario under a scheduler: records per round, or sums for many clients; a single round as JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import msgspec
import numpy as np

from bdfl.compute import mining_energy, mining_work
from bdfl.environment import (
    DrawnRounds,
    Federation,
    Purpose,
    RoundState,
    draw_federation,
    draw_rounds,
    owed_participation,
    stream,
)
from bdfl.environment.draws import draw_finding, draw_values
from bdfl.errors import InvalidProblem
from bdfl.learning.participation import draw_participation
from bdfl.records import NOBODY, AggregateCollector, AggregateRecord, RoundRecord, RunRecord, collect_run
from bdfl.records.run import RunHead, facts_of
from bdfl.scenario import Horizon, MiningMode, Scenario, Sharing, scenario_digest
from bdfl.scheduling.checker import decision_status, evaluate, optimality_gap
from bdfl.scheduling.exact import exact, exact_power
from bdfl.scheduling.problem import Battery, Decision, RoundProblem, Scheduler, Status, make_problem
from bdfl.scheduling.queues import drift_bound, drift_constant, lyapunov, lyapunov_drift, next_queue
from bdfl.scheduling.registry import ParameterValue, get_scheduler
from bdfl.types import PerClient, PerClientMask

# Simulation of one scheduler in one run: draw, decide, check, record.


@dataclass(frozen=True, eq=False)
class Draws:
    """All draws of a run, independent of the scheduler."""

    federation: Federation
    participation_rate: PerClient  # beta_i
    states: Sequence[RoundState]


def simulate(
    scenario: Scenario, *, prove_gaps: bool = False, on_round: Callable[[RoundRecord], None] | None = None
) -> RunRecord:
    """Simulate the scenario's own scheduler.

    With `prove_gaps` every round is also solved by `exact`, so that schedulers without a bound get a proven gap.
    """
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    return play(scenario, scheduler, stream_run(scenario), prove_gaps=prove_gaps, on_round=on_round)


def draw_run(scenario: Scenario) -> Draws:
    """Draw the clients of a run, their participation rates and all its rounds."""
    federation = draw_federation(scenario)
    return Draws(federation, draw_participation(scenario, federation), list(draw_rounds(scenario, federation)))


def stream_run(scenario: Scenario) -> Draws:
    """Draw a run that is played once, as `draw_run`, but with rounds drawn on demand and not stored."""
    federation = draw_federation(scenario)
    return Draws(federation, draw_participation(scenario, federation), DrawnRounds(scenario, federation))


def play(
    scenario: Scenario,
    scheduler: Scheduler,
    draws: Draws,
    *,
    prove_gaps: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> RunRecord:
    """Simulate `scheduler` on the given draws: the same `draws` serve any scheduler."""
    rounds: list[RoundRecord] = []
    for planned in play_rounds(scenario, scheduler, draws):
        record = planned.settle(planned.decision.selected, prove_gap=prove_gaps)
        rounds.append(record)
        if on_round is not None:
            on_round(record)
    return collect_rounds(scenario, draws, rounds)


@dataclass(eq=False)
class PlannedRound:
    """A decided round without its outcome: settle it before taking the next one."""

    scenario: Scenario
    problem: RoundProblem
    state: RoundState
    decision: Decision
    next_queue: PerClient | None = None  # known once settled
    next_battery: Battery | None = None

    @property
    def clients(self) -> list[int]:
        """Numbers of the clients that train, ascending."""
        return [int(client) for client in np.flatnonzero(self.decision.selected)]

    def settle(self, delivered: PerClientMask, *, prove_gap: bool = False) -> RoundRecord:
        """Record the round; clients that `delivered` an update count as participants."""
        self.next_queue = next_queue(self.problem.queue, self.problem.participation_rate, delivered)
        record = record_round(self, self.next_queue, delivered, prove_gap=prove_gap)
        if self.problem.battery is not None:
            self.next_battery = self.problem.battery.spend(record.energy_j)
        return record


def play_rounds(scenario: Scenario, scheduler: Scheduler, draws: Draws) -> Iterator[PlannedRound]:
    """Yield the rounds of a run in order, each decided from the outcomes of those before."""
    queue: PerClient = np.zeros(draws.federation.num_clients)
    memory: object | None = None
    battery = first_battery(scenario)
    first: RoundProblem | None = None
    for state in draws.states:
        first = _first_problem(scenario, draws, state) if first is None else first
        problem = replace(charge_batteries(_problem_of(first, state), battery), queue=queue, memory=memory)
        planned = PlannedRound(scenario, problem, state, scheduler(problem))
        yield planned
        if planned.next_queue is None:
            raise RuntimeError(f"round {state.round} was not settled before the next one")
        queue, battery, memory = planned.next_queue, planned.next_battery, planned.decision.memory


def first_battery(scenario: Scenario) -> Battery | None:
    """Return the batteries before the first round; None if every round has its own budget."""
    energy, num_clients = scenario.energy, scenario.clients.count
    if energy.horizon is Horizon.ROUND:
        return None
    charge_j = draw_values(stream(scenario.seed, Purpose.BATTERY_CHARGE), energy.charge_j, num_clients)
    capacity_j = np.full(num_clients, np.inf)
    if energy.capacity_j is not None:
        capacity_j = draw_values(stream(scenario.seed, Purpose.BATTERY_CAPACITY), energy.capacity_j, num_clients)
    return Battery(charge_j=np.minimum(charge_j, capacity_j), capacity_j=capacity_j, income_j=np.zeros(num_clients))


def charge_batteries(problem: RoundProblem, battery: Battery | None) -> RoundProblem:
    """Return the problem with the batteries charged by its budget, and what they can give in this round as budget."""
    if battery is None:
        return problem
    charged = battery.receive(problem.energy_budget_j)
    return replace(problem, battery=charged, energy_budget_j=charged.charge_j)


def collect_rounds(scenario: Scenario, draws: Draws, rounds: Sequence[RoundRecord]) -> RunRecord:
    """Return the record of a run, or of its first rounds."""
    owed = owed_participation(scenario, draws.participation_rate, len(rounds))
    return collect_run(rounds, _head_of(scenario, draws), owed)


def _head_of(scenario: Scenario, draws: Draws) -> RunHead:
    return RunHead(
        scenario=scenario.name,
        scenario_digest=scenario_digest(scenario),
        scheduler=scenario.scheduler.name,
        tradeoff=scenario.scheduler.tradeoff,
        seed=scenario.seed,
        drift_constant=drift_constant(draws.participation_rate),
    )


def round_problems(scenario: Scenario, draws: Draws) -> list[RoundProblem]:
    """Validated problem of every round, with empty queues: the scheduler's input without its own past."""
    first = _first_problem(scenario, draws, draws.states[0])
    return [_problem_of(first, state) for state in draws.states]


def _problem_of(first: RoundProblem, state: RoundState) -> RoundProblem:
    """Derive the problem of a round from the template of all.

    A client that is away owes no participation: its queue stands still.
    """
    return replace(
        first,
        round=state.round,
        gain=state.gain,
        energy_budget_j=state.energy_budget_j,
        reachable=state.reachable,
        participation_rate=np.where(state.available, first.participation_rate, 0.0),
        access_point=None if first.access_point is None else state.access_point,
    )


def _first_problem(scenario: Scenario, draws: Draws, first: RoundState) -> RoundProblem:
    """Validated problem of the first round."""
    federation = draws.federation
    return make_problem(
        min_clients=scenario.clients.min_selected,
        tradeoff=scenario.scheduler.tradeoff,
        work_cycles=mining_work(scenario.mining.difficulty, scenario.mining.miss_probability),
        bandwidth_hz=scenario.radio.bandwidth_hz,
        noise_w_per_hz=scenario.radio.noise_w_per_hz,
        queue=np.zeros(federation.num_clients),
        cycles=federation.cycles,
        capacitance=federation.capacitance,
        energy_budget_j=first.energy_budget_j,
        gain=first.gain,
        power_w=federation.power_w,
        power_max_w=federation.power_max_w,
        model_bits=federation.model_bits,
        cpu_max_hz=federation.cpu_max_hz,
        mining_max_hz=federation.mining_max_hz,
        initial_cpu_hz=federation.initial_cpu_hz,
        initial_mining_hz=federation.initial_mining_hz,
        reachable=first.reachable,
        participation_rate=draws.participation_rate,
        samples=federation.samples,
        access_point=first.access_point if scenario.radio.sharing is Sharing.EQUAL else None,
        energy_price=np.full(federation.num_clients, scenario.energy.price) if scenario.energy.price > 0 else None,
        overhead_s=scenario.protocol.downlink_s + scenario.protocol.verification_s + scenario.protocol.voting_s,
        rounds=scenario.rounds,
        seed=scenario.seed,
    )


def record_round(
    planned: PlannedRound,
    queue: PerClient,
    delivered: PerClientMask,
    *,
    prove_gap: bool = False,
    mined: tuple[float, int] | None = None,
) -> RoundRecord:
    """Record a round: the cost of the decision, computed by the checker, and the queues after it (`queue`).

    A client that trained pays for it even if it `delivered` no update; the drift counts deliveries. `mined` is the
    mining time (s) and the winner, if sampled and already known.
    """
    scenario, problem, state, decision = planned.scenario, planned.problem, planned.state, planned.decision
    outcome = evaluate(problem, decision)
    bounded = prove_bound(problem, decision) if prove_gap else decision
    gap = optimality_gap(problem, outcome, bounded.bound)
    slowest = int(np.argmax(outcome.training_s + outcome.upload_s)) if decision.is_feasible else NOBODY
    mining_s, winner = outcome.mining_s, NOBODY
    mining_j = outcome.mining_j
    if scenario.mining.mode is MiningMode.SAMPLED and decision.is_feasible:
        mining_s, winner = draw_mining(scenario, state.round, decision.mining_hz) if mined is None else mined
        mining_j = mining_energy(problem.capacitance, mining_s, decision.mining_hz)
    return RoundRecord(
        round=state.round,
        status=decision_status(problem, bounded, outcome),
        reason=decision.reason,
        selected=decision.selected,
        delivered=delivered,
        cpu_hz=decision.cpu_hz,
        mining_hz=decision.mining_hz,
        power_w=decision.power_w,
        training_j=outcome.training_j,
        upload_j=outcome.upload_j,
        mining_j=mining_j,
        energy_budget_j=state.energy_budget_j if problem.battery is None else problem.energy_budget_j,
        slowest=slowest,
        training_s=float(outcome.training_s[slowest]) if decision.is_feasible else 0.0,
        upload_s=float(outcome.upload_s[slowest]) if decision.is_feasible else 0.0,
        planned_mining_s=outcome.mining_s,
        mining_s=mining_s,
        overhead_s=problem.overhead_s if decision.is_feasible else 0.0,
        winner=winner,
        objective=outcome.objective if decision.is_feasible else float("nan"),
        gap=gap if np.isfinite(gap) else float("nan"),
        iterations=decision.iterations,
        queue=problem.queue,
        next_queue=queue,
        lyapunov=lyapunov(problem.queue),
        drift=lyapunov_drift(problem.queue, queue),
        drift_bound=drift_bound(problem.queue, problem.participation_rate, delivered),
        connectivity=state.connectivity,
        is_connected=state.is_connected,
        num_reachable=int(np.count_nonzero(state.reachable)),
    )


def draw_mining(scenario: Scenario, round: int, mining_hz: PerClient) -> tuple[float, int]:
    """Mining time (s) and winner, drawn instead of planned.

    The underlying draws depend on the seed and the round only, so they are the same for every scheduler.
    """
    return draw_finding(stream(scenario.seed, Purpose.MINING, round), scenario.mining.difficulty, mining_hz)


def prove_bound(problem: RoundProblem, decision: Decision) -> Decision:
    """Return the decision with a proven bound: its own, or else the one that `exact` proves.

    A decision with its own powers is compared with `exact-power`: the bound of `exact` holds for the given powers.
    """
    if np.isfinite(decision.bound) or not decision.is_feasible:
        return decision
    keeps_power = np.array_equal(decision.power_w[decision.selected], problem.power_w[decision.selected])
    solver = exact if keeps_power else exact_power
    return replace(decision, bound=solver(replace(problem, memory=None)).bound)


# Runs of very many clients: simulated like any other, but aggregated per round instead of stored.

MAX_KEPT_CLIENTS = 20_000  # with full records: 1.5 MB a round


def is_aggregated(scenario: Scenario) -> bool:
    """Return whether there are too many clients to store and show each one's rounds."""
    return scenario.clients.count > MAX_KEPT_CLIENTS


def simulate_aggregate(
    scenario: Scenario, *, prove_gaps: bool = False, on_round: Callable[[RoundRecord], None] | None = None
) -> AggregateRecord:
    """Simulate the scenario's own scheduler and aggregate its records; the same rounds as in `simulate`.

    Memory does not grow with the rounds. `on_round` is called after every round.
    """
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    draws = stream_run(scenario)
    book = AggregateCollector(owed_participation(scenario, draws.participation_rate, scenario.rounds))
    for planned in play_rounds(scenario, scheduler, draws):
        record = planned.settle(planned.decision.selected, prove_gap=prove_gaps)
        book.add(record)
        if on_round is not None:
            on_round(record)
    return AggregateRecord(**facts_of(_head_of(scenario, draws)), rounds=book.rounds, clients=book.totals())


class ClientProblem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A client of a problem, in SI units; a cap that is `null` or missing means no cap."""

    queue: float
    cycles: float
    capacitance: float
    energy_budget_j: float
    gain: float
    power_w: float
    model_bits: float
    power_max_w: float | None = None  # None: power_w
    cpu_max_hz: float | None = None
    mining_max_hz: float | None = None
    energy_price: float = 0.0


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A round's problem in JSON."""

    min_clients: int
    tradeoff: float
    work_cycles: float
    bandwidth_hz: float
    noise_w_per_hz: float
    clients: list[ClientProblem]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision in JSON: lists have one entry per client, 0 if idle; `gap` is proven.

    An infeasible answer has a reason, and `null` as objective and gap.
    """

    status: Status
    selected: list[int]
    cpu_hz: list[float]
    mining_hz: list[float]
    power_w: list[float]
    energy_j: list[float]
    delay_s: float
    mining_s: float
    objective: float | None
    gap: float | None
    reason: str | None = None


def decode_problem(text: bytes) -> RoundProblem:
    """Decode a `ProblemDocument`; raise `InvalidProblem` with the location and the fault."""
    try:
        document = msgspec.json.decode(text, type=ProblemDocument)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        where = place.rstrip("`").lstrip(".")
        raise InvalidProblem(f"{where or 'problem'}: {message[:1].lower()}{message[1:]}") from error
    columns = {name: _column(document.clients, name) for name in ClientProblem.__struct_fields__}
    columns["power_max_w"] = np.where(np.isnan(columns["power_max_w"]), columns["power_w"], columns["power_max_w"])
    for name in ("cpu_max_hz", "mining_max_hz"):
        columns[name] = np.nan_to_num(columns[name], nan=np.inf)
    return make_problem(
        min_clients=document.min_clients,
        tradeoff=document.tradeoff,
        work_cycles=document.work_cycles,
        bandwidth_hz=document.bandwidth_hz,
        noise_w_per_hz=document.noise_w_per_hz,
        **columns,  # type: ignore[arg-type]  # arguments that are no columns have their defaults
    )


def solve(problem: RoundProblem, scheduler: str, parameters: Mapping[str, ParameterValue] | None = None) -> Answer:
    """Return the scheduler's decision with its cost and its proven gap.

    A scheduler without a bound is compared with the bound that `exact` proves.
    """
    return answer(problem, decide(problem, scheduler, parameters))


def decide(problem: RoundProblem, scheduler: str, parameters: Mapping[str, ParameterValue] | None = None) -> Decision:
    """Return the scheduler's decision with a proven bound, see `prove_bound`."""
    return prove_bound(problem, get_scheduler(scheduler, parameters)(problem))


def answer(problem: RoundProblem, decision: Decision) -> Answer:
    """Return a decision with its cost, and the gap to its bound."""
    outcome = evaluate(problem, decision)
    feasible = decision.is_feasible
    return Answer(
        status=decision_status(problem, decision, outcome),
        selected=np.flatnonzero(decision.selected).tolist(),
        cpu_hz=decision.cpu_hz.tolist(),
        mining_hz=decision.mining_hz.tolist(),
        power_w=decision.power_w.tolist(),
        energy_j=outcome.energy_j.tolist(),
        delay_s=outcome.delay_s,
        mining_s=outcome.mining_s,
        objective=outcome.objective if feasible else None,
        gap=optimality_gap(problem, outcome, decision.bound) if feasible else None,
        reason=decision.reason,
    )


def _column(clients: list[ClientProblem], name: str) -> PerClient:
    """One value per client; NaN, which JSON cannot carry, if not given."""
    return np.array(list(map(attrgetter(name), clients)), dtype=np.float64)
