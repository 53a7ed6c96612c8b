"""Conformance test for schedulers, built-in and third-party: run `check_scheduler` on your own.

It checks feasibility and form on random and extreme rounds, not the quality of decisions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bdfl.scheduling.checker import TOLERANCE, evaluate, find_violations, gap_scale
from bdfl.scheduling.drc import start_round
from bdfl.scheduling.instances import draw_instances, problem_columns
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.queues import next_queue

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
