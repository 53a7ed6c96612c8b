"""The paper's numbers beside ours: settings, verdicts, changes, page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.comparison import DEFAULT_SCHEDULERS
from bdfl.experiment.parallel import Progress, map_runs
from bdfl.learning.training import num_local_steps
from bdfl.records import RunRecord
from bdfl.report.style import Picture, Sheet, save_picture, save_sheet
from bdfl.scenario import Scenario, describe_scenario, load_scenario
from bdfl.scenario.files import find_scenario, shipped_scenarios

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


# Computed descriptions of the differences between a campaign's scenario and the shipped one.

_LOCAL_STEPS = ("learning.unit", "learning.local_steps")  # described in one phrase
_SAID_ELSEWHERE = ("rounds", "seed", "data.source", *_LOCAL_STEPS)
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
    """Return the changed keys that simulated time may depend on; data and learning settings do not affect it."""
    return [key for key, _, _ in differing_keys(used, shipped) if not key.startswith(_WITHOUT_DELAY)]


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

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; font-size: 0.9rem; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; border-bottom: 1px solid #e4e4e4; }
th.word, td.word { text-align: left; }
.fails { color: #b2182b; font-weight: bold; }
.notes { background: #fff6e0; padding: 0.6rem 1rem; }
svg { width: 100%; height: auto; }
"""


def write_page(found: Reproduction, picture: Picture, provenance: Sheet, path: Path) -> Path:
    """Write one self-contained HTML file and return its path."""
    title = "Table IV of the paper, trained"
    svg = picture.svg.decode()
    parts = [
        f"<h1>{title}</h1>",
        _notes(found.notes),
        *(_table(table) for table in found.tables),
        "<h2>Accuracy against simulated time and rounds</h2>",
        svg[svg.index("<svg") :],
        _verdicts(found.verdicts),
        f"<p>Calibrated, not in the paper: {escape(', '.join(found.calibrated))}.</p>",
        _table(NumberTable("runs", "Runs", list(provenance.header), [list(row) for row in provenance.rows])),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page + "\n".join(parts) + "\n</body></html>\n", encoding="utf-8")
    return path


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return "<p>Nothing was shortened or changed.</p>"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<div class="notes"><strong>Not as in the paper:</strong><ul>{items}</ul></div>'


def _table(table: NumberTable) -> str:
    words = [isinstance(cell, str) for cell in table.rows[0]]
    head = "".join(_cell("th", name, word) for name, word in zip(table.header, words, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", _text(cell), word) for cell, word in zip(row, words, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{body}</table>"


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    words = {True: '<td class="word">holds</td>', False: '<td class="word fails">FAILS</td>'}
    rows = "".join(
        f"<tr>{words[verdict.holds]}{_cell('td', verdict.claim, True)}{_cell('td', verdict.found, True)}</tr>"
        for verdict in verdicts
    )
    return f"<table><caption>Verdicts</caption>{rows}</table>"


def _cell(tag: str, text: str, word: bool) -> str:
    kind = ' class="word"' if word else ""  # not inline: Python 3.11 does not allow the same quotes inside an f-string
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
