"""The paper's numbers beside ours: settings, verdicts, changes, page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from xml.etree.ElementTree import Element

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.comparison import PAPER_SCHEDULERS
from bdfl.experiment.parallel import Progress, map_runs
from bdfl.learning.training import num_local_steps
from bdfl.records import RunRecord
from bdfl.report.html import inline_svg, node, render_page, table_node
from bdfl.report.style import Picture, Sheet, save_picture, save_sheet
from bdfl.scenario import Scenario, describe_scenario, load_scenario
from bdfl.scenario.files import find_scenario, shipped_scenarios

TRAINED_SCHEDULERS = (*PAPER_SCHEDULERS, "exact:tradeoff=50")

# Numbers reported in the paper.

DATA_SETS = ("svhn", "cifar10")
DATA_SET_NAMES = {"svhn": "SVHN", "cifar10": "CIFAR-10"}

# [Li24, Table IV]: training time (s); SVHN's are those of 200 rounds by our reading.
PAPER_TIME_S = {
    "svhn": {"random": 219.128, "round-robin": 222.479, "channel-best": 207.962, "drc": 188.750},
    "cifar10": {"random": 108.310, "round-robin": 109.658, "channel-best": 103.929, "drc": 90.964},
}
PAPER_REDUCTION_PERCENT = {"svhn": 9.24, "cifar10": 12.47}

# [Li24, Table IV]: test accuracy (%).
PAPER_ACCURACY_PERCENT = {
    "svhn": {"random": 91.134, "round-robin": 91.563, "channel-best": 91.627, "drc": 91.610},
    "cifar10": {"random": 74.85, "round-robin": 75.66, "channel-best": 75.43, "drc": 74.57},
}

FULL_SIZES = {"svhn": (73_257, 26_032), "cifar10": (50_000, 10_000)}  # training and test images as published


# Settings, numbers and verdicts of a reproduction, and the files it writes.


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
    schedulers: tuple[str, ...] = TRAINED_SCHEDULERS
    only: str | None = None  # one data set instead of all
    recipe: str | None = None  # name or file of the changes in training; none: the scenarios as they are
    beside: str | None = None  # recipe by which the paper's algorithm is trained too, for a row of its own
    overrides: tuple[str, ...] = ()  # "key=value", after those of the recipe
    workers: int | None = None  # training processes of a run; none: by engine and cores
    on_ray: bool = False  # train on a Ray cluster, that at `address` or a local one
    address: str | None = None
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


# Computed descriptions of the differences between a campaign's scenario and the shipped one.

_LOCAL_STEPS = ("learning.unit", "learning.local_steps")  # described in one phrase
_SAID_ELSEWHERE = ("rounds", "seed", "data.source", *_LOCAL_STEPS)
_WORK_KEYS = ("clients.samples", "compute.cycles_per_sample")
_WITHOUT_DELAY = ("data.", "learning.")  # sections that the delay model does not read


def describe_changes(used: Scenario, shipped: Scenario) -> list[str]:
    """Return phrases such as `20 of 100 rounds` and `1 instead of 20 local epochs`; none if nothing was changed."""
    phrases: list[str] = []
    if used.rounds < shipped.rounds:
        phrases.append(f"{used.rounds} of {shipped.rounds} rounds")
    elif used.rounds > shipped.rounds:
        phrases.append(f"{used.rounds} instead of {shipped.rounds} rounds")
    made, usual = (num_local_steps(scenario) for scenario in (used, shipped))
    unit, usual_unit = used.learning.unit.value, shipped.learning.unit.value
    if unit != usual_unit:
        phrases.append(f"{made} local {unit} instead of {usual} local {usual_unit}")
    elif made != usual:
        phrases.append(f"{made} instead of {usual} local {unit}")
    phrases += [f"{key} {value} instead of {was}" for key, value, was in differing_keys(used, shipped)]
    return phrases


def differing_keys(used: Scenario, shipped: Scenario, leave_out: Sequence[str] = _SAID_ELSEWHERE) -> list[list[str]]:
    """Return every key whose value differs, with the value used and the one shipped, as TOML."""
    rows = zip(describe_scenario(used), describe_scenario(shipped), strict=True)
    return [
        [row.key, row.value_text, was.value_text]
        for row, was in rows
        if row.value != was.value and row.key not in (*leave_out, "name", "description")
    ]


def delay_keys(used: Scenario, shipped: Scenario) -> list[str]:
    """Return the changed keys that simulated time may depend on; data and learning settings do not affect it.

    Nor do more samples that take as many cycles in all.
    """
    keys = [key for key, _, _ in differing_keys(used, shipped) if not key.startswith(_WITHOUT_DELAY)]
    is_same_work = None is not _cycles_of_pass(used) == _cycles_of_pass(shipped)
    return [key for key in keys if not (is_same_work and key in _WORK_KEYS)]


def _cycles_of_pass(scenario: Scenario) -> float | None:
    """Cycles of a pass over a client's data; None if clients differ."""
    samples, cycles = scenario.clients.samples, scenario.compute.cycles_per_sample
    if not isinstance(samples, int) or not isinstance(cycles, (int, float)):
        return None
    return samples * cycles


def describe_delay(used: Scenario, shipped: Scenario) -> str:
    """Describe in a phrase if simulated time differs from that of the shipped scenario."""
    changed = delay_keys(used, shipped)
    if changed:
        return f"simulated time is affected, by {', '.join(changed)}"
    charged = used.compute.local_updates
    return f"simulated time is not affected: every round is charged H = {charged} passes over a client's data"


def describe_sizes(data_set: str, num_train: int, num_test: int) -> str | None:
    """Describe the splits whose size differs from the published data set; None if none does."""
    found = zip(("training", "test"), (num_train, num_test), FULL_SIZES[data_set], strict=True)
    parts = [f"{count:,} {split} images (published: {full:,})" for split, count, full in found if count != full]
    return f"data: {' and '.join(parts)}" if parts else None


# A reproduction as one self-contained HTML page: changes, numbers, curves, verdicts and runs.


def write_page(found: Reproduction, picture: Picture, provenance: Sheet, path: Path) -> Path:
    """Write one self-contained HTML file and return its path."""
    title, curves = "Table IV of the paper, trained", "Accuracy against simulated time and rounds"
    notes = [node("ul.notes", *(node("li", note) for note in found.notes))] if found.notes else []
    verdicts = [["holds" if one.holds else node("strong.bad", "FAILS"), one.claim, one.found] for one in found.verdicts]
    body = node(
        "body",
        node("h1", title),
        node("p", "Not as in the paper:" if notes else "Nothing was shortened or changed."),
        *notes,
        *(_table(table.title, table.header, table.rows) for table in found.tables),
        node("h2", curves),
        node("figure", inline_svg(picture.svg, "curves", curves)),
        table_node("Verdicts", ["", "claim", "found"], verdicts, words=(0, 1, 2)),
        node("p", f"Calibrated, not in the paper: {', '.join(found.calibrated)}."),
        _table("Runs", provenance.header, provenance.rows),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(title, body), encoding="utf-8")
    return path


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Element:
    words = {0, *(place for place, cell in enumerate(rows[0]) if isinstance(cell, str))}
    return table_node(caption, header, [[_text(cell) for cell in row] for row in rows], words=words)


def _text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
