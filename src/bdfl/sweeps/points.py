"""Points of a sweep, and the computation of one."""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from bdfl.encoding import Record, record_digest
from bdfl.experiment.parallel import Entrant, enter
from bdfl.experiment.simulation import Draws, draw_run, play
from bdfl.plugins import show_exception
from bdfl.scenario import Scenario, scenario_digest
from bdfl.scenario.validation import toml_value
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.registry import choose_scheduler
from bdfl.sweeps.plan import Mode, Settings, Sweep, apply_settings, measure_learning, measure_run

# Points of a sweep in order, identified by digests, and grouped by shared draws.

_MOST_TOGETHER = 8  # points of a group: more would leave other workers idle


class _PointName(Record, frozen=True):
    """Content of a point's digest."""

    format: str
    mode: str
    scenario: str  # digest of the scenario with seed 0
    seed: int


@dataclass(frozen=True, eq=False)
class Point:
    """One run of a sweep."""

    id: str  # digest, hex
    settings: Settings
    choice: str  # the scheduler as written in the sweep file
    seed: int
    entrant: Entrant


@dataclass(frozen=True, eq=False)
class Group:
    """Points that share their draws: they differ in their scheduler alone."""

    mode: Mode
    measures: tuple[str, ...]
    seed: int
    ids: tuple[str, ...]
    entrants: tuple[Entrant, ...]

    def alone(self) -> "list[Group]":
        """Return each point as a group of its own."""
        pairs = zip(self.ids, self.entrants, strict=True)
        return [replace(self, ids=(id,), entrants=(entrant,)) for id, entrant in pairs]


def list_points(sweep: Sweep) -> list[Point]:
    """Return every point in order: settings, then schedulers, then seeds; raise if any is invalid."""
    chosen = {choice: choose_scheduler(sweep.base, choice) for choice in sweep.schedulers}
    schedulers: dict[bytes, Scheduler] = {}
    points: list[Point] = []
    for settings in sweep.settings():
        for choice, scenario in chosen.items():
            entrant = enter(apply_settings(scenario, settings), schedulers)
            digest = scenario_digest(msgspec.structs.replace(entrant.scenario, seed=0))
            for seed in sweep.seeds:
                name = _PointName("bdfl-sweep-point-1", sweep.mode.value, digest, seed)
                points.append(Point(record_digest(name).hex(), settings, choice, seed, entrant))
    return points


def group_points(sweep: Sweep, points: Sequence[Point]) -> list[Group]:
    """Group these points by their draws, in order; groups are limited in size."""
    together: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        together.setdefault((_drawn(point.settings), point.seed), []).append(point)
    return [
        Group(
            sweep.mode,
            sweep.measures,
            part[0].seed,
            tuple(point.id for point in part),
            tuple(point.entrant for point in part),
        )
        for members in together.values()
        for part in _parts(members)
    ]


def _drawn(settings: Settings) -> str:
    """Settings on which the draws depend."""
    return toml_value([[key, value] for key, value in settings if not key.startswith("scheduler.")])


def _parts(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    for first in range(0, len(points), _MOST_TOGETHER):
        yield points[first : first + _MOST_TOGETHER]


# Evaluation of points: pure functions of their arguments on any worker; exceptions become one-line errors.

_LONGEST_LINE = 300  # characters of an error


class PointTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time spent on a point, in seconds; shared draws are divided among the points."""

    wall_s: float  # total
    cpu_s: float  # of it, CPU time of the process
    draws_s: float  # CPU: drawing federation and rounds
    scheduler_s: float  # CPU: inside the scheduler's function


class PointResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a point: values, or an error."""

    point: str
    values: dict[str, float | None] | None = None
    error: str | None = None
    times: PointTimes
    host: str


NO_TIME = PointTimes(wall_s=0.0, cpu_s=0.0, draws_s=0.0, scheduler_s=0.0)


@dataclass(frozen=True, eq=False)
class Batch:
    """Groups that are computed one after the other by one worker."""

    groups: tuple[Group, ...]

    @property
    def ids(self) -> list[str]:
        """IDs of its points."""
        return [id for group in self.groups for id in group.ids]


def compute_batch(batch: Batch) -> list[PointResult]:
    """Compute the results of all points, in order."""
    return [result for group in batch.groups for result in _compute_group(group)]


class _Watch:
    """Time since its making."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def read(self) -> PointTimes:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return PointTimes(wall_s=wall_s, cpu_s=cpu_s, draws_s=0.0, scheduler_s=0.0)


class _Timed:
    """A scheduler that measures its CPU time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.cpu_s = 0.0

    def __call__(self, problem: RoundProblem) -> Decision:
        began = time.process_time()
        decision = self._scheduler(problem)
        self.cpu_s += time.process_time() - began
        return decision


def _compute_group(group: Group) -> list[PointResult]:
    draws, drawing = None, NO_TIME
    if group.mode is Mode.SIMULATE:
        watch = _Watch()
        try:
            draws = draw_run(_seeded(group.entrants[0].scenario, group.seed))
        except Exception as error:  # a third party's trace, for instance, may raise anything
            return [_failed(id, error, watch) for id in group.ids]
        drawing = watch.read()
    return [
        _compute_point(group, id, entrant, draws, drawing)
        for id, entrant in zip(group.ids, group.entrants, strict=True)
    ]


def _compute_point(group: Group, id: str, entrant: Entrant, draws: Draws | None, drawing: PointTimes) -> PointResult:
    """Simulate a point on these draws; without draws, learn in a temporary folder."""
    scenario, scheduler, watch = _seeded(entrant.scenario, group.seed), _Timed(entrant.scheduler), _Watch()
    try:
        if draws is not None:
            values = measure_run(play(scenario, scheduler, draws), group.measures)
        else:
            from bdfl.experiment.training_run import RunOptions, run

            made = run(scenario, options=RunOptions(workers=1, verify=False))
            values = measure_learning(made.learning, group.measures) | measure_run(made.record, group.measures)
    except Exception as error:  # a scheduler or a model may raise anything: only its point fails
        return _failed(id, error, watch)
    spent, num_sharing = watch.read(), len(group.ids)
    times = PointTimes(
        wall_s=spent.wall_s + drawing.wall_s / num_sharing,
        cpu_s=spent.cpu_s + drawing.cpu_s / num_sharing,
        draws_s=drawing.cpu_s / num_sharing,
        scheduler_s=scheduler.cpu_s,
    )
    return PointResult(point=id, values=values, times=times, host=socket.gethostname())


def _failed(id: str, error: Exception, watch: _Watch) -> PointResult:
    """Describe the exception in one line that does not depend on the worker."""
    text = show_exception(error)
    line = text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + "..."
    return PointResult(point=id, error=line, times=watch.read(), host=socket.gethostname())


def _seeded(scenario: Scenario, seed: int) -> Scenario:
    return scenario if scenario.seed == seed else msgspec.structs.replace(scenario, seed=seed)
