"""Conformance test for schedulers, built-in and third-party: run `check_scheduler` on your own.

It checks feasibility and form on random and extreme rounds, not the quality of decisions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from bdfl.scheduling.checker import TOLERANCE, evaluate, find_violations, gap_scale
from bdfl.scheduling.drc import start_round
from bdfl.scheduling.problem import (
    Battery,
    Decision,
    RoundProblem,
    Scheduler,
    make_problem,
    problem_columns,
    restrict_problem,
)
from bdfl.scheduling.queues import next_queue
from bdfl.types import PerClient

# Random rounds for testing schedulers, used by the tests, the benchmarks and third parties.


class Extreme(StrEnum):
    """Extreme cases of a problem, which break schedulers first."""

    DEEP_FADES = "deep fades"
    DEAD_CHANNELS = "dead channels"
    ZERO_BUDGETS = "zero budgets"
    NO_BUDGET_AT_ALL = "no budget at all"
    ONE_CLIENT = "one client"
    EQUAL_CLIENTS = "equal clients"
    HUGE_QUEUES = "huge queues"
    ONE_REACHABLE = "one reachable"
    NO_CYCLES = "no cycles"
    NO_MINING_ALLOWED = "no mining allowed"
    EVERYBODY_NEEDED = "everybody needed"
    TINY_TRADEOFF = "tiny trade-off"
    HUGE_TRADEOFF = "huge trade-off"


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem and a description of its special features."""

    description: str
    problem: RoundProblem


def draw_problem(
    rng: np.random.Generator,
    num_clients: int,
    *,
    min_clients: int | None = None,
    tradeoff: float | None = None,
    with_caps: bool = False,
    unreachable_share: float = 0.0,
) -> RoundProblem:
    """Draw a round whose clients differ in every parameter, within the range of real devices and channels.

    By default m is drawn from 1 to the number of clients (more often small, else most rounds would be infeasible) and V
    log-uniformly from 0.01 to 1,000. Some queues are zero, some clients have no cap even `with_caps`, and the first
    client is always reachable.
    """

    def uniform(low: float, high: float) -> PerClient:
        return rng.uniform(low, high, num_clients)

    def log_uniform(low: float, high: float) -> PerClient:
        return np.exp(uniform(np.log(low), np.log(high)))

    def cap(low: float, high: float) -> PerClient:
        return np.where(uniform(0.0, 1.0) < 0.2, np.inf, uniform(low, high))

    drawn_min_clients = 1 + int(num_clients * rng.uniform() ** 2)
    drawn_tradeoff = float(np.exp(rng.uniform(np.log(0.01), np.log(1000.0))))
    power_w = uniform(0.05, 1.0)
    reachable = uniform(0.0, 1.0) >= unreachable_share
    reachable[0] = True
    return make_problem(
        min_clients=drawn_min_clients if min_clients is None else min_clients,
        tradeoff=drawn_tradeoff if tradeoff is None else tradeoff,
        work_cycles=float(np.exp(rng.uniform(np.log(1e8), np.log(2e9)))),
        bandwidth_hz=float(np.exp(rng.uniform(np.log(1e5), np.log(1e6)))),
        noise_w_per_hz=float(np.exp(rng.uniform(np.log(1e-17), np.log(2e-16)))),
        queue=uniform(0.0, 5.0) * (uniform(0.0, 1.0) < 0.8),
        cycles=log_uniform(1e7, 1e9),
        capacitance=log_uniform(1e-28, 2e-27),
        energy_budget_j=uniform(0.05, 2.0),
        gain=log_uniform(1e-10, 1e-6),
        power_w=power_w,
        power_max_w=power_w * uniform(1.0, 4.0),
        model_bits=log_uniform(1e5, 5e6),
        cpu_max_hz=cap(0.3e9, 5e9) if with_caps else None,
        mining_max_hz=cap(0.3e9, 5e9) if with_caps else None,
        reachable=reachable,
        initial_cpu_hz=uniform(0.5e9, 2e9),
        initial_mining_hz=uniform(0.5e9, 3e9),
        participation_rate=uniform(0.0, 1.0),
        round=int(rng.integers(1, 1000)),
        seed=int(rng.integers(0, 2**31)),
    )


def draw_instances(rng: np.random.Generator, num_rounds: int, max_clients: int = 40) -> Iterator[Instance]:
    """Yield rounds of 1 to `max_clients` clients: ordinary, capped, partly unreachable, and of every extreme.

    In some of them energy has a price, or comes from batteries.
    """
    extremes: tuple[Extreme | None, ...] = (*Extreme, None)
    for number in range(num_rounds):
        with_caps, some_unreachable = number % 2 == 1, number % 3 == 2
        extreme = extremes[number // 2 % len(extremes)] if number % 4 > 1 else None
        problem = draw_problem(
            rng,
            int(rng.integers(1, max_clients + 1)),
            with_caps=with_caps,
            unreachable_share=0.3 if some_unreachable else 0.0,
        )
        traits = ["with caps"] if with_caps else []
        if some_unreachable:
            traits.append("some unreachable")
        if number % 9 == 8:
            problem = replace(problem, energy_price=problem.tradeoff * problem.participation_rate)
            traits.append("with prices on energy")
        if number % 8 == 5:
            half_j = 0.5 * problem.energy_budget_j
            nothing_j, unlimited_j = np.zeros(problem.num_clients), np.full(problem.num_clients, np.inf)
            held = Battery(charge_j=half_j, capacity_j=unlimited_j, income_j=nothing_j)
            problem = replace(problem, battery=held.receive(half_j))
            traits.append("on batteries")
        if extreme is not None:
            problem = make_extreme(problem, extreme)
            traits.append(extreme)
        size = f"{problem.num_clients} clients, m {problem.min_clients}, V {problem.tradeoff:.3g}"
        yield Instance(f"round {number} ({', '.join([size, *traits])})", problem)


def make_extreme(problem: RoundProblem, extreme: Extreme) -> RoundProblem:
    """Return the problem in one extreme case; if it concerns some clients only, it is every second one."""
    num = problem.num_clients
    some = np.arange(num) % 2 == 0
    match extreme:
        case Extreme.DEEP_FADES:
            changed = replace(problem, gain=np.where(some, 1e-9 * problem.gain, problem.gain))
        case Extreme.DEAD_CHANNELS:
            changed = replace(problem, gain=np.where(some, 0.0, problem.gain))
        case Extreme.ZERO_BUDGETS:
            changed = replace(problem, energy_budget_j=np.where(some, 0.0, problem.energy_budget_j))
        case Extreme.NO_BUDGET_AT_ALL:
            changed = replace(problem, energy_budget_j=np.zeros(num))
        case Extreme.ONE_CLIENT:
            changed = restrict_problem(replace(problem, min_clients=1), np.zeros(1, dtype=np.intp))
        case Extreme.EQUAL_CLIENTS:
            changed = restrict_problem(problem, np.zeros(num, dtype=np.intp))
        case Extreme.HUGE_QUEUES:
            changed = replace(problem, queue=1e12 * problem.queue)
        case Extreme.ONE_REACHABLE:
            changed = replace(problem, reachable=np.arange(num) == num - 1, min_clients=1)
        case Extreme.NO_CYCLES:
            changed = replace(problem, cycles=np.where(some, 0.0, problem.cycles))
        case Extreme.NO_MINING_ALLOWED:
            changed = replace(problem, mining_max_hz=np.where(some, 0.0, problem.mining_max_hz))
        case Extreme.EVERYBODY_NEEDED:
            changed = replace(problem, min_clients=num)
        case Extreme.TINY_TRADEOFF:
            changed = replace(problem, tradeoff=1e-9)
        case Extreme.HUGE_TRADEOFF:
            changed = replace(problem, tradeoff=1e9)
    for column in problem_columns(changed).values():
        column.setflags(write=False)
    return changed


_COLUMNS = ("selected", "cpu_hz", "mining_hz", "power_w")
_SHOWN_FAILURES = 10


@dataclass(frozen=True)
class CheckFailure:
    """One fault of a scheduler, and the round in which it occurred."""

    instance: str
    what: str

    def __str__(self) -> str:
        return f"{self.instance}: {self.what}"


@dataclass(frozen=True)
class CheckReport:
    """Result of a conformance test: rounds given, rounds feasible, and all faults."""

    num_rounds: int
    num_feasible: int
    failures: tuple[CheckFailure, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        verdict = "passed" if self.ok else f"{len(self.failures)} failures"
        lines = [f"{verdict}: {self.num_rounds} rounds, {self.num_feasible} of them feasible"]
        lines.extend(f"  {failure}" for failure in self.failures[:_SHOWN_FAILURES])
        if len(self.failures) > _SHOWN_FAILURES:
            lines.append(f"  and {len(self.failures) - _SHOWN_FAILURES} more")
        return "\n".join(lines)


def check_scheduler(
    scheduler: Scheduler,
    num_rounds: int = 200,
    seed: int = 0,
    max_clients: int = 40,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Test a scheduler on `num_rounds` published random rounds; deterministic in its arguments.

    In each round the scheduler decides twice, which must agree, and once more for the following round with its own
    memory. Checked are: C1 to C3 and caps by the checker; form (types, shapes, finite, zero if idle); that the problem
    is unchanged; that a claimed bound is not above the decision's objective; that only infeasible rounds are called
    infeasible. An exception is a failure too. `on_progress` receives the number of rounds done and of all.
    """
    failures: list[CheckFailure] = []
    num_feasible = 0
    for number, instance in enumerate(draw_instances(np.random.default_rng(seed), num_rounds, max_clients), start=1):
        problem = instance.problem
        before = {name: column.copy() for name, column in problem_columns(problem).items()}
        try:
            decision = scheduler(problem)
            again = scheduler(problem)
            found = list(find_faults(problem, decision))
            if not found:
                found.extend(f"{name} differs when asked twice" for name in _differences(decision, again))
                num_feasible += decision.is_feasible
                following = _next_problem(problem, decision)
                found.extend(f"next round: {fault}" for fault in find_faults(following, scheduler(following)))
        except Exception as error:
            found = [f"raised {type(error).__name__}: {error}"]
        changed = [
            name for name, column in problem_columns(problem).items() if not np.array_equal(column, before[name])
        ]
        found.extend(f"changed the problem's {name}" for name in changed)
        failures.extend(CheckFailure(instance.description, what) for what in found)
        if on_progress is not None:
            on_progress(number, num_rounds)
    return CheckReport(num_rounds, num_feasible, tuple(failures))


def find_faults(problem: RoundProblem, decision: Decision) -> Iterator[str]:
    """Yield every fault of one decision, in words."""
    malformed = list(_find_malformed(problem, decision))
    if malformed:
        yield from malformed
        return
    yield from (str(violation) for violation in find_violations(problem, decision))
    if not decision.is_feasible:
        if start_round(problem).reason is None:
            yield f"infeasible ({decision.reason}), but {problem.min_clients} clients can train"
        return
    outcome = evaluate(problem, decision)
    if decision.bound > outcome.objective + TOLERANCE * gap_scale(problem, outcome):
        yield f"bound {decision.bound:.12g} is above its own objective {outcome.objective:.12g}"


def _find_malformed(problem: RoundProblem, decision: Decision) -> Iterator[str]:
    if not isinstance(decision, Decision):
        yield f"returned {type(decision).__name__}, a Decision expected"
        return
    for name in _COLUMNS:
        column = getattr(decision, name)
        expected = np.dtype(np.bool_ if name == "selected" else np.float64)
        if not isinstance(column, np.ndarray) or column.dtype != expected or column.shape != (problem.num_clients,):
            yield f"{name} is not an array of {problem.num_clients} {expected} values"
        elif not np.isfinite(column).all():
            yield f"{name} is not finite"
        elif (name in ("cpu_hz", "power_w") and np.any(column[~decision.selected])) or (
            not decision.is_feasible and np.any(column)
        ):
            yield f"{name} is not zero where idle"
    if decision.reason == "":
        yield "infeasible without a reason"
    if np.isnan(decision.bound):
        yield "bound is not a number"


def _differences(first: Decision, second: Decision) -> list[str]:
    names = [name for name in _COLUMNS if not np.array_equal(getattr(first, name), getattr(second, name))]
    return names + [name for name in ("reason", "bound") if getattr(first, name) != getattr(second, name)]


def _next_problem(problem: RoundProblem, decision: Decision) -> RoundProblem:
    queue = next_queue(problem.queue, problem.participation_rate, decision.selected)
    queue.setflags(write=False)
    return replace(problem, queue=queue, round=problem.round + 1, memory=decision.memory)
