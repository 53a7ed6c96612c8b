"""Training runs behind Table IV's accuracies: recipe, folders and summaries; needs the extra `learn`.

Every run has a folder, so that an interrupted campaign can resume, and a summary beside it. A summary is all that the
table needs: a campaign with the summaries of its runs trains nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bdfl.errors import BdflError, other_format
from bdfl.experiment.run_folder import BadRunFolder, RunFolder, open_run_folder
from bdfl.experiment.simulation import play
from bdfl.experiment.training_run import RunOptions, load_run, prepare_run, resume, run as train
from bdfl.learning.data import DataSet
from bdfl.learning.training import Outcome
from bdfl.records import LearningRecord, LearningRound, RoundRecord, RunRecord
from bdfl.records.learning import SCENARIO_FILE, JournalHeader, best_round, or_nan, or_none
from bdfl.records.run import PerRound
from bdfl.reproduce.results import (
    DATA_SET_NAMES,
    DATA_SETS,
    CampaignProgress,
    TrainingSettings,
    differing_keys,
)
from bdfl.scenario import Scenario, SchedulerChoice, load_scenario, scenario_digest
from bdfl.scenario.files import find_scenario, scenario_folder
from bdfl.scenario.validation import MAX_TOML_SIZE, parse_toml, toml_value
from bdfl.scheduling.registry import choose_scheduler, get_scheduler, show_choice, validate_choices
from bdfl.storage import read_regular, replace_file

PAPER_ALGORITHM = "drc"
_NOT_OVERRIDDEN = {"scheduler.name": "--schedulers", "data.source": "--data"}  # and the option to use instead


class InvalidCampaign(BdflError):
    """Training runs that cannot be planned: missing data, an unknown recipe or invalid settings."""


# Recipes: what differs from the shipped scenarios in training, and why.


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of the shipped scenarios, as a TOML file has them."""

    description: str
    cifar10: dict[str, Any] = {}  # keys of a scenario, nested as there
    svhn: dict[str, Any] = {}
    reasons: dict[str, str] = {}  # by key of a scenario

    def overrides(self, data_set: str) -> list[str]:
        """Return the changes for a data set as "key=value"."""
        return list(_flatten(self.cifar10 if data_set == "cifar10" else self.svhn))


def load_recipe(name: str) -> Recipe:
    """Load a shipped recipe by its name, or one from a file. Raises `InvalidCampaign`."""
    shipped = {path.stem: path for path in sorted((scenario_folder() / "recipes").glob("*.toml"))}
    path = shipped.get(name, Path(name))
    try:
        data = parse_toml(read_regular(path, MAX_TOML_SIZE).decode())
    except (OSError, ValueError):
        raise InvalidCampaign(f"--recipe: {name!r} given, expected {', '.join(shipped)} or a TOML file") from None
    try:
        return msgspec.convert(data, Recipe)
    except msgspec.ValidationError as error:
        raise InvalidCampaign(f"--recipe: {path}: {error}") from None


def _flatten(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={toml_value(value)}"


# Runs, planned and trained.


@dataclass(frozen=True)
class PlannedRun:
    """A training run to be made, and its folder."""

    data_set: str
    choice: str  # of the scheduler, as requested
    scenario: Scenario
    folder: Path
    recipe: str | None = None  # if another than the campaign's

    @property
    def name(self) -> str:
        """Scheduler as displayed, with the recipe if it is another one."""
        return show_choice(self.choice) + (f", {self.recipe} recipe" if self.recipe else "")

    @property
    def title(self) -> str:
        """Display name of the run."""
        return f"{DATA_SET_NAMES[self.data_set]}, {self.name}, seed {self.scenario.seed}"

    @property
    def summary_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def digest(self) -> str:
        """Digest of the scenario, whatever the folder of its data is called."""
        return _digest_without_path(self.scenario, self.data_set)

    @property
    def training_digest(self) -> str:
        """The same without the scheduler: equal for runs that differ in their schedules alone."""
        return _digest_without_path(msgspec.structs.replace(self.scenario, scheduler=SchedulerChoice()), self.data_set)


def _digest_without_path(scenario: Scenario, data_set: str) -> str:
    data = msgspec.structs.replace(scenario.data, source=data_set)
    return scenario_digest(msgspec.structs.replace(scenario, data=data))


SUMMARY_FORMAT = 1
_MAX_SUMMARY = 2**24  # bytes


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the table needs of a finished run; lists have an entry for each round."""

    format: int = SUMMARY_FORMAT
    scenario: str  # digest
    training: str  # digest of the scenario without its scheduler
    same_as: str | None = None  # the scheduler whose training this is, as both chose the same clients in every round
    selected: list[list[int]]
    delay_s: list[float]
    num_infeasible: int
    num_diverged: int
    initial_accuracy: float | None
    initial_loss: float | None
    accuracy: list[float | None]  # none where it was not evaluated
    loss: list[float | None]
    num_train: int  # all images, not only those that clients hold
    num_test: int
    data_digest: str
    version: str
    torch: str


def summarise_run(
    planned: PlannedRun, record: RunRecord, learning: LearningRecord, header: JournalHeader, data: DataSet
) -> RunSummary:
    """Summarise a finished run."""
    return RunSummary(
        scenario=planned.digest,
        training=planned.training_digest,
        selected=[np.flatnonzero(row).tolist() for row in record.selected],
        delay_s=record.delay_s.tolist(),
        num_infeasible=record.num_infeasible,
        num_diverged=learning.count_outcomes(Outcome.DIVERGED),
        initial_accuracy=or_none(learning.initial_accuracy),
        initial_loss=or_none(learning.initial_loss),
        accuracy=[or_none(value) for value in learning.accuracy.tolist()],
        loss=[or_none(value) for value in learning.loss.tolist()],
        num_train=len(data.train_labels),
        num_test=len(data.test_labels),
        data_digest=header.data_digest,
        version=header.version,
        torch=header.torch,
    )


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A finished run."""

    planned: PlannedRun
    summary: RunSummary

    @cached_property
    def accuracy(self) -> PerRound:
        """Accuracy after each round; NaN where it was not evaluated."""
        return np.array([or_nan(value) for value in self.summary.accuracy])

    @cached_property
    def seconds(self) -> PerRound:
        """Simulated time at the end of each round."""
        return np.cumsum(self.summary.delay_s)

    @property
    def initial_accuracy(self) -> float:
        return or_nan(self.summary.initial_accuracy)

    @property
    def final_accuracy(self) -> float:
        """Accuracy of the last model evaluated; NaN if none was."""
        known = self.accuracy[np.isfinite(self.accuracy)]
        return float(known[-1]) if known.size else float("nan")

    @property
    def best_accuracy(self) -> float:
        """Accuracy of the best round; NaN if no evaluation gave finite numbers."""
        best = best_round(self.summary.accuracy, self.summary.loss)
        return float("nan") if best is None else float(self.accuracy[best - 1])


def find_data(folder: Path, only: str | None = None) -> dict[str, Path]:
    """Return the folder of every data set: those inside `folder`, or `folder` itself if it is one."""
    if only is not None and only not in DATA_SETS:
        raise InvalidCampaign(f"--only: {only!r} given, allowed are {' and '.join(sorted(DATA_SETS))}")
    if not folder.is_dir():
        found = "not a folder" if folder.exists() else "not found"
        raise InvalidCampaign(f"--data: {folder} {found}, a folder with cifar10 and svhn in it expected")
    inside = {name: folder / name for name in DATA_SETS if (folder / name).is_dir()}
    if not inside and any(folder.rglob("*.parquet")):
        return {_name_data(folder, only): folder}
    wanted = DATA_SETS if only is None else (only,)
    missing = [name for name in wanted if name not in inside]
    if missing:
        others = [name for name in inside if name in wanted]
        hint = f", or --only {others[0]}" if others else ""
        raise InvalidCampaign(
            f"--data: {folder} has no folder {' and none '.join(missing)}, expected with Parquet{hint}"
        )
    return {name: inside[name] for name in wanted}


def _name_data(folder: Path, only: str | None) -> str:
    """Return the data set of a folder by its name; raise if unclear, since training on the wrong one goes unnoticed."""
    called = [name for name in DATA_SETS if name in folder.absolute().name.lower().replace("-", "")]
    if only is None and len(called) != 1:
        raise InvalidCampaign(f"--data: {folder} is one data set, but which? expected --only cifar10 or --only svhn")
    if only is not None and called and only not in called:
        raise InvalidCampaign(f"--data: {folder} is {called[0]} by its name, --only {only} given")
    return only or called[0]


def plan_campaign(settings: TrainingSettings, folder: Path) -> list[PlannedRun]:
    """Return all runs in order: seed after seed, so that an interrupted campaign leaves whole seeds."""
    validate_choices(settings.schedulers)
    if settings.num_seeds < 1:
        raise InvalidCampaign(f"seeds: {settings.num_seeds} given, at least 1 is needed")
    for override in settings.overrides:
        key = override.partition("=")[0].strip()
        if key in _NOT_OVERRIDDEN:
            raise InvalidCampaign(f"--set: {key} given, it is chosen with {_NOT_OVERRIDDEN[key]}")
    sources = find_data(settings.data, settings.only)
    wanted: list[tuple[str, str | None]] = [(choice, None) for choice in settings.schedulers]
    wanted += [] if settings.beside is None else [(PAPER_ALGORITHM, settings.beside)]
    bases = {
        (data_set, recipe): load_used(data_set, source, settings, recipe or settings.recipe)
        for data_set, source in sources.items()
        for _, recipe in wanted
    }
    runs: list[PlannedRun] = []
    for offset in range(settings.num_seeds):
        for data_set in sources:
            for choice, recipe in wanted:
                base = bases[data_set, recipe]
                scenario = msgspec.structs.replace(choose_scheduler(base, choice), seed=base.seed + offset)
                parts = (data_set, choice, recipe, scenario.seed)
                name = re.sub(r"[^\w.]+", "-", "-".join(str(part) for part in parts if part is not None))
                runs.append(PlannedRun(data_set, choice, scenario, folder / "runs" / name, recipe))
    return runs


def load_used(data_set: str, source: Path, settings: TrainingSettings, recipe: str | None) -> Scenario:
    """Load the shipped scenario of a data set with the folder of its data, a recipe and the overrides."""
    changes = [] if recipe is None else load_recipe(recipe).overrides(data_set)
    overrides = [*changes, *settings.overrides, f"data.source={toml_value(str(source.absolute()))}"]
    return load_scenario(find_scenario(f"paper-{data_set}"), overrides)


def run_campaign(runs: Sequence[PlannedRun], settings: TrainingSettings) -> list[TrainedRun]:
    """Return every run, trained one after the other where it is not finished yet.

    Before any training, every existing summary and folder is checked to belong to its run. Runs whose schedulers choose
    the same clients in every round are trained once.
    """
    done = [count_done(run) for run in runs]
    in_all = sum(run.scenario.rounds for run in runs)
    counter = _Counter(len(runs), in_all - sum(done), settings)
    finished: list[TrainedRun] = []
    for place, planned in enumerate(runs, start=1):
        summary = read_summary(planned) or _share_training(planned, finished, counter)
        if summary is None:
            summary = _finish_run(planned, place, counter)
        replace_file(planned.summary_path, msgspec.json.format(msgspec.json.encode(summary)))
        finished.append(TrainedRun(planned, summary))
    return finished


def read_summary(planned: PlannedRun) -> RunSummary | None:
    """Return the summary of a finished run; raise `BadRunFolder` if it is of another one."""
    path = planned.summary_path
    if not path.exists():
        return None
    try:
        content = read_regular(path, _MAX_SUMMARY)
        found_format = msgspec.json.decode(content, type=_Formatted).format
        if found_format != SUMMARY_FORMAT:
            raise BadRunFolder(f"{path}: {other_format(found_format, SUMMARY_FORMAT)}")
        summary = msgspec.json.decode(content, type=RunSummary)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRunFolder(f"{path}: not a summary of a run: {error}") from None
    if summary.scenario != planned.digest:
        raise BadRunFolder(f"{path}: of a run with other settings: another --out, or remove it to start again")
    return summary


class _Formatted(msgspec.Struct):
    format: int


def _share_training(planned: PlannedRun, finished: Sequence[TrainedRun], counter: "_Counter") -> RunSummary | None:
    """Summary of a run that trains as a finished one does, with its own delays; None if it must be trained.

    With faults or adversaries the updates that reach a block depend on its delays too.
    """
    scenario, usual = planned.scenario, Scenario()
    alike = [run for run in finished if run.summary.training == planned.training_digest]
    is_told_by_sets = (scenario.faults, scenario.adversaries) == (usual.faults, usual.adversaries)
    if not alike or planned.folder.exists() or not is_told_by_sets:
        return None
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    record = play(scenario, scheduler, prepare_run(scenario).draws)
    selected = [np.flatnonzero(row).tolist() for row in record.selected]
    twin = next((run for run in alike if run.summary.selected == selected), None)
    if twin is None:
        return None
    counter.skip(planned)
    return msgspec.structs.replace(
        twin.summary,
        scenario=planned.digest,
        same_as=twin.summary.same_as or twin.planned.choice,
        delay_s=record.delay_s.tolist(),
        num_infeasible=record.num_infeasible,
    )


def count_done(run: PlannedRun) -> int:
    """Return the number of rounds trained already; raise if its summary or folder is of another run."""
    num_rounds = 0
    if run.folder.exists() and not (run.folder.is_dir() and not any(run.folder.iterdir())):
        with open_run_folder(run.folder) as opened:
            validate_same(opened, run)
            num_rounds = len(opened.rounds)
    return num_rounds if read_summary(run) is None else run.scenario.rounds


def validate_same(opened: RunFolder, run: PlannedRun) -> None:
    """Raise `BadRunFolder` with the differing keys unless the folder was begun with the same scenario."""
    if scenario_digest(opened.scenario) == scenario_digest(run.scenario):
        return
    differing = differing_keys(run.scenario, opened.scenario, leave_out=())
    shown = "; ".join(f"{key} {was}, now {value}" for key, value, was in differing[:2]) or "another name"
    more = f" and {len(differing) - 2} more" if len(differing) > 2 else ""
    raise BadRunFolder(f"{opened.path}: begun with {shown}{more}: another --out, or remove the folder to start again")


@dataclass
class _Counter:
    """Progress of the campaign, reported to the settings' callback."""

    num_runs: int
    rounds_left: int
    settings: TrainingSettings
    rounds_trained: int = 0

    def skip(self, run: PlannedRun) -> None:
        """Count a run out that needs no training."""
        self.rounds_left -= run.scenario.rounds

    def count(self, place: int, run: PlannedRun, row: LearningRound) -> None:
        self.rounds_trained += 1
        self.rounds_left -= 1
        if self.settings.on_progress is not None:
            self.settings.on_progress(
                CampaignProgress(
                    run=place,
                    num_runs=self.num_runs,
                    title=run.title,
                    round=row.round,
                    rounds=run.scenario.rounds,
                    accuracy=row.accuracy,
                    rounds_trained=self.rounds_trained,
                    rounds_left=self.rounds_left,
                )
            )


def _finish_run(run: PlannedRun, place: int, counter: _Counter) -> RunSummary:
    done_before = 0

    def begin(folder: RunFolder) -> None:
        nonlocal done_before
        validate_same(folder, run)
        done_before = len(folder.rounds)

    def count(_: RoundRecord, row: LearningRound) -> None:
        if row.round > done_before:
            counter.count(place, run, row)

    settings = counter.settings
    options = RunOptions(
        settings.workers, settings.on_ray, settings.address, on_begun=begin, on_settled=count, verify=False
    )
    if not (run.folder / SCENARIO_FILE).is_file():
        made = train(run.scenario, run.folder, options)
    elif count_done(run) < run.scenario.rounds:
        made = resume(run.folder, options=options)
    else:
        made = load_run(run.folder, options=options)
    data = made.federated.data
    assert isinstance(data, DataSet), "the paper's runs have data of their own"
    return summarise_run(run, made.record, made.learning, made.header, data)
