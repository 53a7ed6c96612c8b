"""Points of a sweep in order, identified by digests, and grouped by shared draws."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bdfl.encoding import Record, record_digest
from bdfl.experiment.choices import choose_scheduler
from bdfl.scenario import Scenario, scenario_digest
from bdfl.scenario.toml_text import toml_value
from bdfl.scheduling.problem import Scheduler
from bdfl.scheduling.registry import get_scheduler
from bdfl.sweeps.measures import Mode
from bdfl.sweeps.plan import Settings, Sweep, apply_settings

_MOST_TOGETHER = 8  # points of a group: more would leave other workers idle


class _PointName(Record, frozen=True):
    """Content of a point's digest."""

    format: str
    mode: str
    scenario: str  # digest of the scenario with seed 0
    seed: int


@dataclass(frozen=True, eq=False)
class Entrant:
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


def _enter(scenario: Scenario, known: dict[bytes, Scheduler]) -> Entrant:
    """Return the scenario with its scheduler, which is looked up once."""
    choice = scenario.scheduler
    key = msgspec.json.encode((choice.name, choice.parameters), order="sorted")
    if key not in known:
        known[key] = get_scheduler(choice.name, choice.parameters)
    return Entrant(scenario, known[key])


def _name(mode: Mode, digest: str, seed: int) -> str:
    return record_digest(_PointName("bdfl-sweep-point-1", mode.value, digest, seed)).hex()


def _drawn(settings: Settings) -> str:
    """Settings on which the draws depend."""
    return toml_value([[key, value] for key, value in settings if not key.startswith("scheduler.")])


def _parts(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    for first in range(0, len(points), _MOST_TOGETHER):
        yield points[first : first + _MOST_TOGETHER]
