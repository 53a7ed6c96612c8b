"""Parallel runs on all cores, on shared draws, with the same results for any number of workers."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from bdfl.errors import BdflError
from bdfl.experiment.simulation import draw_run, play
from bdfl.processes import count_cores, open_process_pool
from bdfl.records import RunRecord
from bdfl.scenario import Scenario
from bdfl.scheduling.problem import Scheduler
from bdfl.scheduling.registry import InvalidChoice, get_scheduler

Task = TypeVar("Task")
Result = TypeVar("Result")
_DRAWN = [key for key in Scenario.__struct_fields__ if key not in ("name", "description", "scheduler")]
Progress = Callable[[int, int], None]  # tasks done, tasks in all


class Entrant(NamedTuple):
    """A scenario with its scheduler."""

    scenario: Scenario
    scheduler: Scheduler


Group: TypeAlias = list[Entrant]  # on the same draws


class InvalidSweep(BdflError):
    """Runs that cannot be combined: different draws in one group, or a number of workers below one."""


class SweepFailed(BdflError):
    """A process of a sweep that died."""


def map_runs(
    groups: Sequence[Sequence[Scenario]],
    reduce: Callable[[RunRecord], Result],
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> list[list[Result]]:
    """Apply `reduce` to the run of every scenario, in the order given.

    The scenarios of a group differ in their scheduler alone and share the same draws. Groups are spread over processes,
    so `reduce` must be a function of a module.
    """
    tasks = [(group, reduce) for group in prepare_groups(groups)]
    return map_parallel(_play_and_reduce, tasks, workers=workers, on_progress=on_progress)


def list_seeds(scenario: Scenario, num_seeds: int) -> list[int]:
    """Return the scenario's seed and those after it; raise `InvalidChoice` unless there is at least one."""
    if num_seeds < 1:
        raise InvalidChoice(f"seeds: {num_seeds} given, at least 1 is needed")
    return [scenario.seed + offset for offset in range(num_seeds)]


def prepare_groups(groups: Sequence[Sequence[Scenario]]) -> list[Group]:
    """Look up the scheduler of every scenario once; errors are raised before any work."""
    found: dict[bytes, Scheduler] = {}
    prepared: list[Group] = []
    for scenarios in groups:
        group: Group = []
        for scenario in scenarios:
            if any(getattr(scenario, key) != getattr(scenarios[0], key) for key in _DRAWN):
                raise InvalidSweep(f"scenario {scenario.name!r}: differs from its group in more than its scheduler")
            group.append(enter(scenario, found))
        prepared.append(group)
    return prepared


def enter(scenario: Scenario, known: dict[bytes, Scheduler]) -> Entrant:
    """Return the scenario with its scheduler, which is looked up once and then `known`."""
    choice = scenario.scheduler
    key = msgspec.json.encode((choice.name, choice.parameters), order="sorted")
    if key not in known:
        known[key] = get_scheduler(choice.name, choice.parameters)
    return Entrant(scenario, known[key])


def map_parallel(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> list[Result]:
    """Apply `function` to every task, in order, in `workers` processes (default: one per CPU core).

    Results do not depend on the number of workers. Tasks and results are sent between processes, so `function` must be
    one of a module.
    """
    validate_workers(workers)
    num_workers = min(workers or count_cores(), len(tasks))
    results: list[Result] = []
    with ExitStack() as stack:
        found: Iterable[Result] = map(function, tasks)
        if num_workers > 1:
            threads = max(1, count_cores() // num_workers)
            found = stack.enter_context(open_process_pool(num_workers, threads=threads)).map(function, tasks)
        try:
            for result in found:
                results.append(result)
                if on_progress is not None:
                    on_progress(len(results), len(tasks))
        except BrokenProcessPool:
            raise SweepFailed("a process ended by itself (killed, or out of memory); fewer workers may help") from None
    return results


def validate_workers(workers: int | None) -> None:
    """Raise `InvalidSweep` for a number of workers below one."""
    if workers is not None and workers < 1:
        raise InvalidSweep(f"workers: {workers} given, at least 1 is needed")


def _play_and_reduce(task: tuple[Group, Callable[[RunRecord], Result]]) -> list[Result]:
    group, reduce = task
    draws = draw_run(group[0][0])
    return [reduce(play(scenario, scheduler, draws)) for scenario, scheduler in group]
