"""Table IV from training runs: accuracy and time beside the paper's, and the seconds to reach an accuracy."""

from collections.abc import Sequence

import msgspec
import numpy as np

from bdfl.experiment.choices import show_choice
from bdfl.experiment.measures import cumulative_delay
from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.learning.training import Outcome
from bdfl.report.accuracy_figures import AccuracyCurve, AccuracyPanel, draw_accuracies
from bdfl.report.style import Cell as SheetCell
from bdfl.report.style import Sheet, save_sheet
from bdfl.reproduce.accuracy_verdicts import describe_unjudged, judge_runs
from bdfl.reproduce.campaign import TrainedRun, find_data, load_used, plan_campaign, run_campaign
from bdfl.reproduce.changes import describe_changes, describe_delay, describe_sizes
from bdfl.reproduce.page import write_page
from bdfl.reproduce.paper import DATA_SET_NAMES, DATA_SETS, PAPER_ACCURACY_PERCENT, PAPER_TIME_S
from bdfl.reproduce.results import (
    Cell,
    NumberTable,
    Reproduction,
    Settings,
    Target,
    TrainingSettings,
    finish,
    load_shipped,
)
from bdfl.reproduce.trained import (
    DataSetRuns,
    best_percent,
    common_levels,
    final_percent,
    reach_level,
    total_s,
)


def reproduce_accuracies(settings: Settings, training: TrainingSettings) -> Reproduction:
    """Reproduce Table IV from training runs; runs that are missing or unfinished are started or resumed."""
    runs = run_campaign(plan_campaign(training, settings.folder), training)
    found = _group_runs(runs, training)
    levels = {of_data.data_set: common_levels(of_data.runs) for of_data in found}
    verdicts = [verdict for of_data in found for verdict in judge_runs(of_data, levels[of_data.data_set])]
    notes = [note for of_data in found for note in _describe(of_data, levels[of_data.data_set])]
    notes += _describe_campaign(found, training)
    picture = draw_accuracies([_panel(of_data) for of_data in found])
    tables = _tabulate(found, levels, training.num_seeds)
    provenance = _provenance(runs)
    written = finish(Target.TABLE4, settings, tables, verdicts, {"table4-curves": picture})
    sheets = [
        save_sheet(_seed_sheet(runs), settings.folder / "table4-seeds.csv"),
        save_sheet(provenance, settings.folder / "table4-runs.csv"),
    ]
    whole = msgspec.structs.replace(
        written, num_seeds=training.num_seeds, notes=notes, files=[*written.files, *map(str, sheets)]
    )
    page = write_page(whole, picture, provenance, settings.folder / "table4.html")
    return msgspec.structs.replace(whole, files=[*whole.files, str(page)])


def _group_runs(runs: Sequence[TrainedRun], training: TrainingSettings) -> list[DataSetRuns]:
    sources = find_data(training.data, training.only)
    return [
        DataSetRuns(
            data_set,
            load_shipped(f"paper-{data_set}", Settings()),
            load_used(data_set, source, training),
            {
                choice: [run for run in runs if (run.planned.data_set, run.planned.choice) == (data_set, choice)]
                for choice in training.schedulers
            },
        )
        for data_set, source in sources.items()
    ]


# Notes: shortened or changed settings, and failures.


def _describe(found: DataSetRuns, levels: Sequence[float]) -> list[str]:
    notes: list[str] = []
    phrases = describe_changes(found.used, found.shipped)
    if phrases:
        word = "shortened" if found.used.rounds < found.shipped.rounds else "changed"
        notes.append(f"{found.name}, {word}: {'; '.join(phrases)}; {describe_delay(found.used, found.shipped)}")
    sizes = describe_sizes(found.data_set, found.runs[0].num_train, found.runs[0].num_test)
    if sizes is not None:
        notes.append(f"{found.name}, {sizes}")
    notes += describe_unjudged(found, levels)
    return notes + [note for run in found.runs for note in _describe_trouble(run)]


def _describe_trouble(run: TrainedRun) -> list[str]:
    counts = {
        "local updates diverged and were left out": run.learning.count_outcomes(Outcome.DIVERGED),
        "rounds were infeasible": run.record.num_infeasible,
    }
    return [f"{run.planned.title}: {count} {what}" for what, count in counts.items() if count]


def _describe_campaign(found: Sequence[DataSetRuns], training: TrainingSettings) -> list[str]:
    there = [of_data.data_set for of_data in found]
    left_out = [DATA_SET_NAMES[data_set] for data_set in DATA_SETS if data_set not in there]
    notes = [f"left out: {name}; only {found[0].name} was run" for name in left_out]
    if training.num_seeds == 1:
        notes.append("1 seed: no intervals, and differences between schedulers cannot be told from chance")
    return notes


# Tables.


def _tabulate(found: Sequence[DataSetRuns], levels: dict[str, list[float]], num_seeds: int) -> list[NumberTable]:
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    tables = [
        NumberTable(
            "accuracy",
            f"Table IV: test accuracy (%), {seeds}",
            ["data", "scheduler", "rounds", "paper", "final", "final 95 % +-", "best", "best 95 % +-"],
            [_accuracy_row(of_data, choice) for of_data in found for choice in of_data.by_choice],
        ),
        NumberTable(
            "trained-times",
            f"Table IV: simulated time (s) of the rounds run, {seeds}",
            ["data", "scheduler", "rounds", "paper, all rounds", "paper, prorated", "ours", "95 % +-"],
            [_time_row(of_data, choice) for of_data in found for choice in of_data.by_choice],
        ),
    ]
    rows = [
        _reach_row(of_data, choice, level)
        for of_data in found
        for level in levels[of_data.data_set]
        for choice in of_data.by_choice
    ]
    if rows:
        header = ["data", "scheduler", "accuracy (%)", "rounds", "seconds", "95 % +-"]
        tables.append(NumberTable("reach", f"Simulated seconds until an accuracy is reached, {seeds}", header, rows))
    return tables


def _accuracy_row(found: DataSetRuns, choice: str) -> list[Cell]:
    runs = found.by_choice[choice]
    final, best = mean_interval(final_percent(runs)), mean_interval(best_percent(runs))
    paper = PAPER_ACCURACY_PERCENT[found.data_set].get(choice)
    numbers = [paper, final.mean, _width(final), best.mean, _width(best)]
    return [found.name, show_choice(choice), _rounds_text(found), *numbers]


def _time_row(found: DataSetRuns, choice: str) -> list[Cell]:
    paper_s = PAPER_TIME_S[found.data_set].get(choice)
    prorated_s = None if paper_s is None else paper_s * found.used.rounds / found.shipped.rounds
    ours_s = mean_interval(total_s(found.by_choice[choice]))
    return [found.name, show_choice(choice), _rounds_text(found), paper_s, prorated_s, ours_s.mean, _width(ours_s)]


def _reach_row(found: DataSetRuns, choice: str, level: float) -> list[Cell]:
    reached = [reach_level(run, level) for run in found.by_choice[choice]]
    seconds = mean_interval([time_s for _, time_s in reached])
    rounds = float(np.mean([round for round, _ in reached]))
    return [found.name, show_choice(choice), level, rounds, seconds.mean, _width(seconds)]


def _rounds_text(found: DataSetRuns) -> str:
    return f"{found.used.rounds} of {found.shipped.rounds}"


def _width(interval: Interval) -> float | None:
    return None if np.isnan(interval.half_width) else interval.half_width


# Curves and provenance.


def _panel(found: DataSetRuns) -> AccuracyPanel:
    curves = [_curve(found, choice) for choice in found.by_choice]
    return AccuracyPanel(found.name, curves, found.is_full_length, found.num_seeds)


def _curve(found: DataSetRuns, choice: str) -> AccuracyCurve:
    """Return the mean over seeds at every evaluated round, from the untrained model at 0 s on."""
    runs = found.by_choice[choice]
    percent = np.array([[run.learning.initial_accuracy, *run.learning.accuracy] for run in runs]) * 100.0
    time_s = np.array([[0.0, *cumulative_delay(run.record)] for run in runs])
    evaluated = np.flatnonzero(~np.isnan(percent).any(axis=0))
    accuracy = PAPER_ACCURACY_PERCENT[found.data_set].get(choice)
    return AccuracyCurve(
        scheduler=choice,
        name=show_choice(choice),
        rounds=evaluated.astype(np.float64),
        seconds=np.mean(time_s[:, evaluated], axis=0),
        accuracy=np.mean(percent[:, evaluated], axis=0),
        least=np.min(percent[:, evaluated], axis=0),
        greatest=np.max(percent[:, evaluated], axis=0),
        paper=None if accuracy is None else (PAPER_TIME_S[found.data_set][choice], accuracy),
    )


def _seed_sheet(runs: Sequence[TrainedRun]) -> Sheet:
    """Return every run's own curve, at the evaluated rounds."""
    rows: list[list[SheetCell]] = []
    for run in runs:
        who: list[SheetCell] = [run.planned.data_set, run.planned.choice, run.planned.scenario.seed]
        rows.append([*who, 0, 0.0, run.learning.initial_accuracy, run.learning.initial_loss])
        columns = (cumulative_delay(run.record), run.learning.accuracy, run.learning.loss)
        for round, (time_s, accuracy, loss) in enumerate(zip(*columns, strict=True), start=1):
            if not np.isnan(accuracy):
                rows.append([*who, round, float(time_s), float(accuracy), float(loss)])
    return Sheet(("data", "scheduler", "seed", "round", "simulated_s", "accuracy", "loss"), rows)


def _provenance(runs: Sequence[TrainedRun]) -> Sheet:
    """Return the inputs and versions of every run; folders are left out, since they are local to the machine."""
    rows: list[list[SheetCell]] = [
        [
            run.planned.data_set,
            run.planned.choice,
            run.planned.scenario.seed,
            run.learning.num_rounds,
            run.num_train,
            run.num_test,
            run.header.data_digest[:16],
            run.header.version,
            run.header.torch,
        ]
        for run in runs
    ]
    header = ("data", "scheduler", "seed", "rounds", "train_images", "test_images", "data_digest", "bdfl", "torch")
    return Sheet(header, rows)
