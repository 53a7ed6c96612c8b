"""Settings, numbers and verdicts of a reproduction, and the files it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from bdfl.errors import BdflError
from bdfl.experiment.comparison import DEFAULT_SCHEDULERS
from bdfl.experiment.sweep import Progress, map_runs
from bdfl.records import RunRecord
from bdfl.report.style import Picture, Sheet, save_picture, save_sheet
from bdfl.scenario import Scenario, describe_scenario, load_scenario
from bdfl.scenario.shipped import find_scenario, shipped_scenarios


class Target(StrEnum):
    """A figure or table that can be reproduced."""

    FIG2 = "fig2"
    FIG3 = "fig3"
    FIG4 = "fig4"
    TABLE4 = "table4"


class UnknownTarget(BdflError):
    """A name that is not a target."""


Result = TypeVar("Result")
Cell = str | float | int | None


class NumberTable(msgspec.Struct, frozen=True):
    """A table of numbers, as printed and written; `part` is added to the file's name."""

    part: str
    title: str
    header: list[str]
    rows: list[list[Cell]]


class Verdict(msgspec.Struct, frozen=True):
    """A claim, true or false by our numbers, and the numbers."""

    claim: str
    holds: bool
    found: str


class Reproduction(msgspec.Struct, frozen=True):
    """Result for one figure or table of the paper."""

    target: Target
    num_seeds: int
    tables: list[NumberTable]
    verdicts: list[Verdict]
    files: list[str]
    calibrated: list[str]  # keys of its scenarios whose values the paper does not give
    notes: list[str] = []  # shortened or changed settings, and claims without a verdict


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign of training runs, reported after every trained round."""

    run: int  # 1-based
    num_runs: int
    title: str  # of the run, such as `CIFAR-10, drc, seed 0`
    round: int
    rounds: int  # of this run
    accuracy: float | None  # none if the round was not evaluated
    rounds_trained: int  # by this process, without earlier ones
    rounds_left: int  # over all runs


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training runs for Table IV; the notes list the differences from the shipped scenarios."""

    data: Path  # with the folders cifar10 and svhn in it, or itself one of them
    num_seeds: int = 1
    schedulers: tuple[str, ...] = DEFAULT_SCHEDULERS
    only: str | None = None  # one data set instead of all
    overrides: tuple[str, ...] = ()  # "key=value"
    workers: int | None = None  # training processes of a run; none: by engine and cores
    on_progress: Callable[[CampaignProgress], None] | None = None


@dataclass(frozen=True)
class Settings:
    """Settings of a reproduction; only `num_seeds`, `max_rounds` and `training` change numbers."""

    folder: Path = Path("results")
    num_seeds: int = 20
    workers: int | None = None
    on_progress: Progress | None = None
    max_rounds: int | None = None  # shorter runs than the paper's, for a trial
    training: TrainingSettings | None = None  # of Table IV; none: its times only, without training


def parse_targets(what: str) -> list[Target]:
    """Return the targets that `what` names: one of them, or `all`."""
    if what == "all":
        return list(Target)
    if what not in list(Target):
        raise UnknownTarget(f"reproduce: {what!r} given, allowed are {', '.join(Target)} and all")
    return [Target(what)]


def load_shipped_curves(prefix: str, settings: Settings) -> list[Scenario]:
    """Load the shipped scenarios whose names begin with `prefix`: one per curve."""
    return [load_shipped(name, settings) for name in shipped_scenarios() if name.startswith(prefix)]


def load_shipped(name: str, settings: Settings) -> Scenario:
    """Load the shipped scenario of that name, with at most `max_rounds` rounds."""
    scenario = load_scenario(find_scenario(name))
    rounds = min(scenario.rounds, settings.max_rounds or scenario.rounds)
    return msgspec.structs.replace(scenario, rounds=rounds)


def play_seeds(
    scenarios: Sequence[Scenario], reduce: Callable[[RunRecord], Result], settings: Settings
) -> list[list[Result]]:
    """Return `reduce` of every run, by scenario and seed."""
    groups = [
        [msgspec.structs.replace(scenario, seed=scenario.seed + offset)]
        for scenario in scenarios
        for offset in range(settings.num_seeds)
    ]
    runs = [run for (run,) in map_runs(groups, reduce, workers=settings.workers, on_progress=settings.on_progress)]
    return [runs[start : start + settings.num_seeds] for start in range(0, len(runs), settings.num_seeds)]


def finish(
    target: Target,
    settings: Settings,
    tables: Sequence[NumberTable],
    verdicts: Sequence[Verdict],
    pictures: Mapping[str, Picture],
) -> Reproduction:
    """Write pictures and tables into the settings' folder and return the reproduction."""
    files = [path for name, picture in pictures.items() for path in save_picture(picture, settings.folder, name)]
    for table in tables:
        rows = [["" if cell is None else cell for cell in row] for row in table.rows]
        path = settings.folder / f"{target.value}-{table.part}.csv"
        files.append(save_sheet(Sheet(tuple(table.header), rows), path))
    calibrated = [row.key for row in describe_scenario(Scenario()) if row.source == "calibrated"]
    paths = [str(path) for path in files]
    return Reproduction(target, settings.num_seeds, list(tables), list(verdicts), paths, calibrated)
