"""What a reproduction is made of: settings, numbers, verdicts, and the files they go to."""

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
    """What can be reproduced."""

    FIG2 = "fig2"
    FIG3 = "fig3"
    FIG4 = "fig4"
    TABLE4 = "table4"


class UnknownTarget(BdflError):
    """Something to reproduce that is not in the paper."""


Result = TypeVar("Result")
Cell = str | float | int | None


class NumberTable(msgspec.Struct, frozen=True):
    """Numbers in rows, as they are printed and written; `part` is added to the file's name."""

    part: str
    title: str
    header: list[str]
    rows: list[list[Cell]]


class Verdict(msgspec.Struct, frozen=True):
    """A claim, whether our numbers bear it out, and the numbers."""

    claim: str
    holds: bool
    found: str


class Reproduction(msgspec.Struct, frozen=True):
    """What came out for one figure or table of the paper."""

    target: Target
    num_seeds: int
    tables: list[NumberTable]
    verdicts: list[Verdict]
    files: list[str]
    calibrated: list[str]  # keys of its scenarios with values that the paper does not give: chosen by us
    notes: list[str] = []  # what was shortened or changed, and what could not be judged


@dataclass(frozen=True)
class CampaignProgress:
    """Where a campaign of training runs is; said after every round that was trained."""

    run: int  # 1-based
    num_runs: int
    title: str  # of the run, such as `CIFAR-10, drc, seed 0`
    round: int
    rounds: int  # of this run
    accuracy: float | None  # none where the round was not evaluated
    rounds_trained: int  # by this campaign, not before it
    rounds_left: int  # over all runs


@dataclass(frozen=True)
class TrainingSettings:
    """What Table IV's accuracies are trained with. What differs from the shipped scenarios is said in the notes."""

    data: Path  # with the folders cifar10 and svhn in it, or itself one of them
    num_seeds: int = 1
    schedulers: tuple[str, ...] = DEFAULT_SCHEDULERS
    only: str | None = None  # one data set instead of all
    overrides: tuple[str, ...] = ()  # "key=value", as everywhere
    workers: int | None = None  # training processes of a run; none: by engine and cores
    on_progress: Callable[[CampaignProgress], None] | None = None


@dataclass(frozen=True)
class Settings:
    """How to reproduce, not what: none of it changes a number but `num_seeds` and `training`."""

    folder: Path = Path("results")
    num_seeds: int = 20
    workers: int | None = None
    on_progress: Progress | None = None
    max_rounds: int | None = None  # shorter runs than the paper's, to try things out
    training: TrainingSettings | None = None  # of Table IV; none: its times alone, and nothing is trained


def parse_targets(what: str) -> list[Target]:
    """The targets that `what` names: one of them, or `all`."""
    if what == "all":
        return list(Target)
    if what not in list(Target):
        raise UnknownTarget(f"reproduce: {what!r} given, allowed are {', '.join(Target)} and all")
    return [Target(what)]


def load_shipped_curves(prefix: str, settings: Settings) -> list[Scenario]:
    """The shipped scenarios whose names begin with `prefix`: one per curve."""
    return [load_shipped(name, settings) for name in shipped_scenarios() if name.startswith(prefix)]


def load_shipped(name: str, settings: Settings) -> Scenario:
    """The shipped scenario of that name, no longer than the settings allow."""
    scenario = load_scenario(find_scenario(name))
    rounds = min(scenario.rounds, settings.max_rounds or scenario.rounds)
    return msgspec.structs.replace(scenario, rounds=rounds)


def play_seeds(
    scenarios: Sequence[Scenario], reduce: Callable[[RunRecord], Result], settings: Settings
) -> list[list[Result]]:
    """For every scenario, `reduce` of its runs over all seeds."""
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
    """The reproduction, its pictures and tables written into the settings' folder."""
    files = [path for name, picture in pictures.items() for path in save_picture(picture, settings.folder, name)]
    for table in tables:
        rows = [["" if cell is None else cell for cell in row] for row in table.rows]
        path = settings.folder / f"{target.value}-{table.part}.csv"
        files.append(save_sheet(Sheet(tuple(table.header), rows), path))
    calibrated = [row.key for row in describe_scenario(Scenario()) if row.source == "calibrated"]
    paths = [str(path) for path in files]
    return Reproduction(target, settings.num_seeds, list(tables), list(verdicts), paths, calibrated)
