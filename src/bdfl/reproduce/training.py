"""Training runs behind Table IV's accuracies: their folders, numbers by seed, and verdicts; needs the extra `learn`.

Every run has a folder of its own, so that an interrupted campaign can resume. There are two accuracies. `final` is of
the last model; verdicts use it. `best` is of the best round, chosen on the test set and hence biased upwards. The paper
does not state which of the two it reports.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError
from bdfl.experiment.run_folder import BadRunFolder, RunFolder, open_run_folder
from bdfl.experiment.statistics import Interval, cumulative_delay, mean_interval
from bdfl.experiment.training_run import RunOptions, load_run, resume
from bdfl.experiment.training_run import run as train
from bdfl.learning.data import DataSet
from bdfl.records import LearningRecord, LearningRound, RoundRecord, RunRecord
from bdfl.records.learning import SCENARIO_FILE, JournalHeader
from bdfl.reproduce.figures import TIME_TOLERANCE_PERCENT
from bdfl.reproduce.results import (
    DATA_SET_NAMES,
    DATA_SETS,
    PAPER_ACCURACY_PERCENT,
    PAPER_TIME_S,
    CampaignProgress,
    TrainingSettings,
    Verdict,
    delay_keys,
    differing_keys,
)
from bdfl.scenario import Scenario, load_scenario, scenario_digest
from bdfl.scenario.files import find_scenario
from bdfl.scenario.validation import toml_value
from bdfl.scheduling.registry import BASELINES, choose_scheduler, show_choice, validate_choices

_NOT_OVERRIDDEN = {"scheduler.name": "--schedulers", "data.source": "--data"}  # and the option to use instead


class InvalidCampaign(BdflError):
    """Training runs that cannot be planned: missing data or invalid settings."""


@dataclass(frozen=True)
class PlannedRun:
    """A training run to be made, and its folder."""

    data_set: str
    choice: str  # of the scheduler, as requested
    scenario: Scenario
    folder: Path

    @property
    def title(self) -> str:
        """Display name of the run."""
        return f"{DATA_SET_NAMES[self.data_set]}, {show_choice(self.choice)}, seed {self.scenario.seed}"


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A finished run."""

    planned: PlannedRun
    record: RunRecord
    learning: LearningRecord
    header: JournalHeader
    num_train: int  # all images, not only those that clients hold
    num_test: int


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
    bases = {
        data_set: load_used(data_set, source, settings)
        for data_set, source in find_data(settings.data, settings.only).items()
    }
    runs: list[PlannedRun] = []
    for offset in range(settings.num_seeds):
        for data_set, base in bases.items():
            for choice in settings.schedulers:
                chosen = choose_scheduler(base, choice)
                scenario = msgspec.structs.replace(chosen, seed=base.seed + offset)
                name = re.sub(r"[^\w.]+", "-", f"{data_set}-{choice}-{scenario.seed}")
                runs.append(PlannedRun(data_set, choice, scenario, folder / "runs" / name))
    return runs


def load_used(data_set: str, source: Path, settings: TrainingSettings) -> Scenario:
    """Load the shipped scenario of a data set with the folder of its data and the overrides of the settings."""
    overrides = [*settings.overrides, f"data.source={toml_value(str(source.absolute()))}"]
    return load_scenario(find_scenario(f"paper-{data_set}"), overrides)


def run_campaign(runs: Sequence[PlannedRun], settings: TrainingSettings) -> list[TrainedRun]:
    """Return every run, trained one after the other where it is not finished yet.

    Before any training, every existing folder is checked to belong to its run.
    """
    done = [count_done(run) for run in runs]
    in_all = sum(run.scenario.rounds for run in runs)
    counter = _Counter(len(runs), in_all - sum(done), settings)
    return [_finish_run(run, place, counter) for place, run in enumerate(runs, start=1)]


def count_done(run: PlannedRun) -> int:
    """Return the number of rounds in a run's folder; raise if the folder is of another run."""
    if not run.folder.exists():
        return 0
    if run.folder.is_dir() and not any(run.folder.iterdir()):
        return 0
    with open_run_folder(run.folder) as opened:
        validate_same(opened, run)
        return len(opened.rounds)


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


def _finish_run(run: PlannedRun, place: int, counter: _Counter) -> TrainedRun:
    done_before = 0

    def begin(folder: RunFolder) -> None:
        nonlocal done_before
        validate_same(folder, run)
        done_before = len(folder.rounds)

    def count(_: RoundRecord, row: LearningRound) -> None:
        if row.round > done_before:
            counter.count(place, run, row)

    options = RunOptions(counter.settings.workers, on_begun=begin, on_settled=count, verify=False)
    if not (run.folder / SCENARIO_FILE).is_file():
        made = train(run.scenario, run.folder, options)
    elif count_done(run) < run.scenario.rounds:
        made = resume(run.folder, options=options)
    else:
        made = load_run(run.folder, options=options)
    data = made.federated.data
    assert isinstance(data, DataSet), "the paper's runs have data of their own"
    return TrainedRun(run, made.record, made.learning, made.header, len(data.train_labels), len(data.test_labels))


STEP_PERCENT = 5  # compared accuracies are multiples of it
MOST_LEVELS = 3

PerSeed = NDArray[np.float64]  # (seeds,)


@dataclass(frozen=True, eq=False)
class DataSetRuns:
    """All runs on one data set, and the scenario they share beside the shipped one."""

    data_set: str
    shipped: Scenario
    used: Scenario  # before choosing schedulers and seeds
    by_choice: Mapping[str, Sequence[TrainedRun]]  # a scheduler's runs in the order of the seeds

    @property
    def name(self) -> str:
        """Display name of the data set."""
        return DATA_SET_NAMES[self.data_set]

    @property
    def runs(self) -> list[TrainedRun]:
        """All runs, scheduler by scheduler."""
        return [run for of_choice in self.by_choice.values() for run in of_choice]

    @property
    def num_seeds(self) -> int:
        """Number of runs of each scheduler."""
        return len(next(iter(self.by_choice.values())))

    @property
    def is_full_length(self) -> bool:
        """True if runs have as many rounds as the shipped scenario."""
        return self.used.rounds == self.shipped.rounds


def final_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the last model evaluated, (seeds,)."""
    return np.array([100.0 * run.learning.final_accuracy for run in runs])


def best_percent(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the accuracy (%) of the best round, (seeds,); NaN if no round was evaluated with finite loss."""
    rounds = [(run.learning.accuracy, run.learning.best_round) for run in runs]
    return np.array([np.nan if best is None else 100.0 * float(accuracy[best - 1]) for accuracy, best in rounds])


def total_s(runs: Sequence[TrainedRun]) -> PerSeed:
    """Return the simulated time (s) of all rounds, (seeds,)."""
    return np.array([float(np.sum(run.record.delay_s)) for run in runs])


def common_levels(runs: Sequence[TrainedRun]) -> list[float]:
    """Return the highest few accuracies (%) that every run reached and no untrained model has, ascending."""
    lowest_best = float(np.min(best_percent(runs)))
    if np.isnan(lowest_best):
        return []
    highest_start = max(100.0 * float(np.nan_to_num(run.learning.initial_accuracy)) for run in runs)
    levels = np.arange(STEP_PERCENT, lowest_best + 1e-9, STEP_PERCENT)
    return [float(level) for level in levels[levels > highest_start][-MOST_LEVELS:]]


def reach_level(run: TrainedRun, level_percent: float) -> tuple[int, float]:
    """Return the first evaluated round with this accuracy (%), and the simulated seconds up to its end."""
    place = int(np.flatnonzero(100.0 * run.learning.accuracy >= level_percent - 1e-9)[0])
    return place + 1, float(cumulative_delay(run.record)[place])


def seconds_to(runs: Sequence[TrainedRun], level_percent: float) -> PerSeed:
    """Return the simulated seconds to reach this accuracy (%), (seeds,)."""
    return np.array([reach_level(run, level_percent)[1] for run in runs])


# Verdicts of training runs on the paper's claims; claims that the runs cannot decide get no verdict.

ACCURACY_TOLERANCE_POINTS = 2.0  # of the paper's
BASELINE_TOLERANCE_POINTS = 1.0  # below the best baseline's


def judge_runs(found: DataSetRuns, levels: Sequence[float]) -> list[Verdict]:
    """Return all verdicts on one data set; `levels` are accuracies (%) that all runs reached."""
    return [*_judge_accuracy(found), *_judge_time(found), *_judge_baseline(found), *_judge_reach(found, levels),
            *_judge_noise(found)]  # fmt: skip


def _judge_accuracy(found: DataSetRuns) -> list[Verdict]:
    paper = PAPER_ACCURACY_PERCENT[found.data_set]
    off = {
        choice: float(np.mean(final_percent(runs))) - paper[choice]
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return []
    worst = max(off, key=lambda choice: float(np.nan_to_num(abs(off[choice]), nan=np.inf)))
    best = float(np.mean(best_percent(found.by_choice[worst])))
    return [
        Verdict(
            f"{found.name}: final accuracy within {ACCURACY_TOLERANCE_POINTS:g} points of the paper's"
            f" ({', '.join(off)})",
            all(abs(points) <= ACCURACY_TOLERANCE_POINTS for points in off.values()),
            f"furthest is {worst}, {off[worst]:+.2f} points; its best round {best - paper[worst]:+.2f}",
        )
    ]


def _judge_time(found: DataSetRuns) -> list[Verdict]:
    """Judge full-length runs with the shipped delays only: a part of a run does not compare with the paper's time."""
    paper = PAPER_TIME_S[found.data_set]
    if not found.is_full_length or delay_keys(found.used, found.shipped):
        return []
    off = {
        choice: 100.0 * (float(np.mean(total_s(runs))) / paper[choice] - 1.0)
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return []
    worst = max(off, key=lambda choice: abs(off[choice]))
    return [
        Verdict(
            f"{found.name}: time within {TIME_TOLERANCE_PERCENT:g} % of the paper's ({', '.join(off)})",
            abs(off[worst]) <= TIME_TOLERANCE_PERCENT,
            f"furthest is {worst}, {off[worst]:+.2f} %",
        )
    ]


def _judge_baseline(found: DataSetRuns) -> list[Verdict]:
    """Compare with the best baseline, which is the stricter test."""
    final = {choice: float(np.mean(final_percent(runs))) for choice, runs in found.by_choice.items()}
    baselines = [choice for choice in final if choice.partition(":")[0] in BASELINES]
    others = [choice for choice in final if choice not in baselines]
    if not baselines or not others:
        return []
    best = max(baselines, key=lambda choice: float(np.nan_to_num(final[choice], nan=-np.inf)))
    shown = ", ".join(f"{show_choice(choice)} {final[choice] - final[best]:+.2f}" for choice in others)
    return [
        Verdict(
            f"{found.name}: {' and '.join(map(show_choice, others))} end at most"
            f" {BASELINE_TOLERANCE_POINTS:g} point below the best baseline's accuracy",
            all(final[choice] >= final[best] - BASELINE_TOLERANCE_POINTS for choice in others),
            f"against {best} with {final[best]:.2f} %: {shown} points",
        )
    ]


def _judge_reach(found: DataSetRuns, levels: Sequence[float]) -> list[Verdict]:
    """Compare the seconds to the highest accuracy that all runs reached."""
    exact = next((choice for choice in found.by_choice if choice.partition(":")[0] == "exact"), None)
    if exact is None or len(found.by_choice) < 2 or not levels:
        return []
    seconds = {choice: float(np.mean(seconds_to(runs, levels[-1]))) for choice, runs in found.by_choice.items()}
    return [
        Verdict(
            f"{found.name}: {show_choice(exact)} needs least simulated seconds to reach {levels[-1]:g} %",
            all(seconds[exact] < other_s for choice, other_s in seconds.items() if choice != exact),
            ", ".join(f"{show_choice(choice)} {time_s:.1f} s" for choice, time_s in seconds.items()),
        )
    ]


def _judge_noise(found: DataSetRuns) -> list[Verdict]:
    """Judge if accuracies differ; no verdict if the intervals are too wide to exclude a difference."""
    differences = _differences(found)
    if not differences or (not _any_differs(differences) and _widest(differences) > ACCURACY_TOLERANCE_POINTS):
        return []
    first = next(iter(found.by_choice))
    shown = ", ".join(
        f"{show_choice(choice)} {points.mean:+.2f} ± {points.half_width:.2f}" for choice, points in differences.items()
    )
    return [
        Verdict(
            f"{found.name}: no final accuracy differs from {show_choice(first)}'s beyond the noise of"
            f" {found.num_seeds} seeds ({len(differences)} comparisons at 95 %)",
            not _any_differs(differences),
            f"points: {shown}",
        )
    ]


def describe_unjudged(found: DataSetRuns, levels: Sequence[float]) -> list[str]:
    """Describe the claims without a verdict, and pairs of schedulers with the same training."""
    notes = [
        f"{found.name}: {show_choice(one)} and {show_choice(other)} trained the same clients in every round, so their"
        " models are the same: their accuracies are one measurement, not two"
        for one, other in combinations(found.by_choice, 2)
        if _is_same_training(found, one, other)
    ]
    if not levels:
        notes.append(
            f"{found.name}: no multiple of {STEP_PERCENT} % above the untrained models was reached by all runs,"
            " so there are no seconds to compare"
        )
    differences = _differences(found)
    if differences and not _judge_noise(found):
        notes.append(
            f"{found.name}: {found.num_seeds} seeds leave differences of accuracy uncertain by up to"
            f" {_widest(differences):.1f} points, so whether schedulers differ is not judged"
        )
    return notes


def _is_same_training(found: DataSetRuns, one: str, other: str) -> bool:
    pairs = zip(found.by_choice[one], found.by_choice[other], strict=True)
    return all(np.array_equal(left.record.selected, right.record.selected) for left, right in pairs)


def _differences(found: DataSetRuns) -> dict[str, Interval]:
    """Return final accuracy (points) minus the first scheduler's, paired over seeds; empty for a single seed.

    The reference is the first scheduler: one chosen by its result would bias every difference.
    """
    if found.num_seeds < 2:
        return {}
    first, *others = found.by_choice
    reference = final_percent(found.by_choice[first])
    return {choice: mean_interval(final_percent(found.by_choice[choice]) - reference) for choice in others}


def _any_differs(differences: Mapping[str, Interval]) -> bool:
    return any(abs(points.mean) > points.half_width for points in differences.values())


def _widest(differences: Mapping[str, Interval]) -> float:
    return max(points.half_width for points in differences.values())
