"""Points of a sweep, and the computation of one."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bdfl.encoding import Record, record_digest
from bdfl.errors import one_line
from bdfl.experiment.simulation import draw_run, play
from bdfl.scenario import Scenario, scenario_digest
from bdfl.scenario.validation import toml_value
from bdfl.scheduling.problem import Decision, RoundProblem, Scheduler
from bdfl.scheduling.registry import choose_scheduler, get_scheduler
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
class ScheduledScenario:
    """A scenario with its scheduler; shared by points that differ in their seed alone."""

    scenario: Scenario
    scheduler: Scheduler


@dataclass(frozen=True, eq=False)
class Point:
    """One run of a sweep."""

    id: str  # digest, hex
    settings: Settings
    choice: str  # the scheduler as written in the sweep file
    seed: int
    entrant: ScheduledScenario


@dataclass(frozen=True, eq=False)
class Group:
    """Points that share their draws: they differ in their scheduler alone."""

    mode: Mode
    measures: tuple[str, ...]
    seed: int
    ids: tuple[str, ...]
    entrants: tuple[ScheduledScenario, ...]

    def alone(self) -> "list[Group]":
        """Return each point as a group of its own."""
        return [
            Group(self.mode, self.measures, self.seed, (id,), (entrant,))
            for id, entrant in zip(self.ids, self.entrants, strict=True)
        ]


def list_points(sweep: Sweep) -> list[Point]:
    """Return every point in order: settings, then schedulers, then seeds; raise if any is invalid."""
    chosen = {choice: choose_scheduler(sweep.base, choice) for choice in sweep.schedulers}
    schedulers: dict[bytes, Scheduler] = {}
    points: list[Point] = []
    for settings in sweep.settings():
        for choice, scenario in chosen.items():
            entrant = _enter(apply_settings(scenario, settings), schedulers)
            digest = scenario_digest(msgspec.structs.replace(entrant.scenario, seed=0))
            points += [Point(_name(sweep.mode, digest, seed), settings, choice, seed, entrant) for seed in sweep.seeds]
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


def _enter(scenario: Scenario, known: dict[bytes, Scheduler]) -> ScheduledScenario:
    """Return the scenario with its scheduler, which is looked up once."""
    choice = scenario.scheduler
    key = msgspec.json.encode((choice.name, choice.parameters), order="sorted")
    if key not in known:
        known[key] = get_scheduler(choice.name, choice.parameters)
    return ScheduledScenario(scenario, known[key])


def _name(mode: Mode, digest: str, seed: int) -> str:
    return record_digest(_PointName("bdfl-sweep-point-1", mode.value, digest, seed)).hex()


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


def describe_failure(error: BaseException) -> str:
    """Describe an exception in one line that does not depend on the worker."""
    text = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + "..."


def _compute_group(group: Group) -> list[PointResult]:
    compute = _learn_points if group.mode is Mode.RUN else _play_points
    return compute(group)


def _play_points(group: Group) -> list[PointResult]:
    first, began = group.entrants[0], _now()
    try:
        draws = draw_run(_seeded(first.scenario, group.seed))
    except Exception as error:  # a third party's trace, for instance, may raise anything
        return [_failed(id, describe_failure(error), began) for id in group.ids]
    drawn, share = _now() - began, 1.0 / len(group.ids)

    def play_one(entrant: ScheduledScenario) -> tuple[dict[str, float | None], float]:
        timed = _Timed(entrant.scheduler)
        run = play(_seeded(entrant.scenario, group.seed), timed, draws)
        return measure_run(run, group.measures), timed.cpu_s

    return [
        _attempt(id, entrant, play_one, drawn.scaled(share))
        for id, entrant in zip(group.ids, group.entrants, strict=True)
    ]


def _learn_points(group: Group) -> list[PointResult]:
    """Compute whole learning runs, each in a temporary folder."""

    def learn_one(entrant: ScheduledScenario) -> tuple[dict[str, float | None], float]:
        from bdfl.experiment.training_run import RunOptions, run

        options = RunOptions(workers=1, verify=False)
        made = run(_seeded(entrant.scenario, group.seed), options=options)
        return measure_learning(made.learning, group.measures) | measure_run(made.record, group.measures), 0.0

    return [
        _attempt(id, entrant, learn_one, _Moment(0.0, 0.0))
        for id, entrant in zip(group.ids, group.entrants, strict=True)
    ]


@dataclass(frozen=True)
class _Moment:
    """Readings of two clocks, or the time elapsed on them."""

    wall_s: float
    cpu_s: float

    def __sub__(self, other: "_Moment") -> "_Moment":
        return _Moment(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)

    def scaled(self, share: float) -> "_Moment":
        return _Moment(self.wall_s * share, self.cpu_s * share)


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


def _attempt(
    id: str,
    entrant: ScheduledScenario,
    compute: Callable[[ScheduledScenario], tuple[dict[str, float | None], float]],
    drawn: _Moment,
) -> PointResult:
    began = _now()
    try:
        values, scheduler_s = compute(entrant)
    except Exception as error:  # a scheduler or a model may raise anything: only its point fails
        return _failed(id, describe_failure(error), began)
    spent = _now() - began
    times = PointTimes(
        wall_s=spent.wall_s + drawn.wall_s,
        cpu_s=spent.cpu_s + drawn.cpu_s,
        draws_s=drawn.cpu_s,
        scheduler_s=scheduler_s,
    )
    return PointResult(point=id, values=values, times=times, host=socket.gethostname())


def _failed(id: str, line: str, began: _Moment) -> PointResult:
    spent = _now() - began
    times = PointTimes(wall_s=spent.wall_s, cpu_s=spent.cpu_s, draws_s=0.0, scheduler_s=0.0)
    return PointResult(point=id, error=line, times=times, host=socket.gethostname())


def _now() -> _Moment:
    return _Moment(time.perf_counter(), time.process_time())


def _seeded(scenario: Scenario, seed: int) -> Scenario:
    return scenario if scenario.seed == seed else msgspec.structs.replace(scenario, seed=seed)
