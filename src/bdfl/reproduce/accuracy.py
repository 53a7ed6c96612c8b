"""Accuracies of Table IV, and their figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.records.learning import or_nan, or_none
from bdfl.report.style import (
    DASHES,
    SOFT_INK,
    Cell as SheetCell,
    Picture,
    Sheet,
    colour_of,
    drawing,
    label_ends,
    save_sheet,
)
from bdfl.reproduce.results import (
    DATA_SET_NAMES,
    DATA_SETS,
    PAPER_ACCURACY_PERCENT,
    PAPER_TIME_S,
    Cell,
    NumberTable,
    Reproduction,
    Settings,
    Target,
    TrainingSettings,
    describe_changes,
    describe_delay,
    describe_sizes,
    differing_keys,
    finish,
    load_shipped,
    write_page,
)
from bdfl.reproduce.training import (
    PAPER_ALGORITHM,
    TrainedRun,
    find_data,
    load_recipe,
    load_used,
    plan_campaign,
    run_campaign,
)
from bdfl.reproduce.verdicts import (
    PAPER_LEVELS,
    DataSetRuns,
    best_percent,
    common_levels,
    describe_unjudged,
    differences_of,
    final_percent,
    judge_runs,
    reach_level,
    total_s,
)
from bdfl.scheduling.registry import show_choice

# Accuracy of several schedulers against simulated seconds and against rounds, beside the paper's.

Points = NDArray[np.float64]  # (points,): the untrained model, then every evaluated round
_HEADROOM = 1.06


@dataclass(frozen=True, eq=False)
class AccuracyCurve:
    """A scheduler's accuracy (%) round by round: mean over seeds, least and greatest."""

    scheduler: str  # as requested; sets the colour
    name: str  # as shown
    rounds: Points
    seconds: Points  # simulated
    accuracy: Points
    least: Points
    greatest: Points
    paper: tuple[float, float] | None = None  # the paper's time (s) and accuracy (%), if it has them


@dataclass(frozen=True, eq=False)
class AccuracyPanel:
    """The curves of one data set; the paper's accuracies are marks only if runs are as long as the paper's."""

    title: str
    curves: Sequence[AccuracyCurve]
    is_full_length: bool
    num_seeds: int


def draw_accuracies(panels: Sequence[AccuracyPanel]) -> Picture:
    """Draw a row of two panels for every data set: accuracy against simulated seconds, and against rounds."""
    with drawing(10.4, 3.5 * len(panels)) as figure:
        grid = figure.subplots(len(panels), 2, squeeze=False)
        for (over_time, over_rounds), panel in zip(grid, panels, strict=True):
            _draw_panel(over_time, panel, [curve.seconds for curve in panel.curves], with_time=True)
            _draw_panel(over_rounds, panel, [curve.rounds for curve in panel.curves], with_time=False)
            over_time.set(title=panel.title, xlabel="simulated time (s)", ylabel="test accuracy (%)")
            over_rounds.set(title=f"{panel.title}, by rounds", xlabel="round", ylabel="test accuracy (%)")
            over_rounds.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))
    return Picture(
        figure, [Sheet(("data", "scheduler", "round", "simulated_s", "accuracy", "least", "greatest"), _rows(panels))]
    )


def _draw_panel(axes: Axes, panel: AccuracyPanel, places: Sequence[Points], *, with_time: bool) -> None:
    marks: list[tuple[float, float, str]] = []
    for number, (curve, place) in enumerate(zip(panel.curves, places, strict=True)):
        colour = colour_of(curve.scheduler, number)
        before = zip(places[:number], panel.curves[:number], strict=True)
        twin = any(  # one line would hide the other
            np.array_equal(place, other_place) and np.array_equal(curve.accuracy, other.accuracy)
            for other_place, other in before
        )
        axes.plot(place, curve.accuracy, color=colour, linestyle=DASHES if twin else "-")
        axes.plot(place[-1], curve.accuracy[-1], marker="o", markersize=3.5, color=colour, clip_on=False)
        if panel.num_seeds > 1:
            axes.fill_between(place, curve.least, curve.greatest, color=colour, alpha=0.12, linewidth=0)
        if curve.paper is not None:
            marks.append((curve.paper[0] if with_time else float(curve.rounds[-1]), curve.paper[1], colour))
    furthest = max([float(place[-1]) for place in places] + [x for x, _, _ in marks if panel.is_full_length])
    highest = max([float(np.max(curve.greatest)) for curve in panel.curves] + [y for _, y, _ in marks])
    axes.set_xlim(0, furthest or 1.0)
    axes.set_ylim(0, min(_HEADROOM * highest, 102.0) or 1.0)
    keys = _draw_paper(axes, marks, panel)
    if panel.num_seeds > 1:
        keys.append(
            (Line2D([], [], color=SOFT_INK, linewidth=6, alpha=0.3), f"least to greatest of {panel.num_seeds} seeds")
        )
    if keys:
        axes.legend([line for line, _ in keys], [text for _, text in keys], loc="lower right")
    label_ends(
        axes,
        [
            (furthest, float(curve.accuracy[-1]), curve.name, colour_of(curve.scheduler, number))
            for number, curve in enumerate(panel.curves)
        ],
    )


def _draw_paper(
    axes: Axes, marks: Sequence[tuple[float, float, str]], panel: AccuracyPanel
) -> list[tuple[Line2D, str]]:
    """Draw diamonds where the paper's runs end; if ours are shorter, a line and a band over its schedulers."""
    if not marks:
        return []
    if panel.is_full_length:
        for x, accuracy, colour in marks:
            axes.plot(x, accuracy, marker="D", markersize=5.5, markerfacecolor="white", color=colour, clip_on=False)
        diamond = Line2D([], [], marker="D", markersize=5.5, markerfacecolor="white", color=SOFT_INK, linestyle="none")
        return [(diamond, "paper, end of its run")]
    lowest, highest = min(accuracy for _, accuracy, _ in marks), max(accuracy for _, accuracy, _ in marks)
    axes.axhspan(lowest, highest, color=SOFT_INK, alpha=0.15, linewidth=0)
    axes.axhline((lowest + highest) / 2, color=SOFT_INK, linewidth=1.0, linestyle=DASHES)
    shown = f"{lowest:.1f}" if lowest == highest else f"{lowest:.1f} to {highest:.1f}"
    return [(Line2D([], [], color=SOFT_INK, linewidth=1.0, linestyle=DASHES), f"paper, after a whole run: {shown} %")]


def _rows(panels: Sequence[AccuracyPanel]) -> list[list[SheetCell]]:
    return [
        [panel.title, curve.scheduler, int(round), *map(float, numbers)]
        for panel in panels
        for curve in panel.curves
        for round, *numbers in zip(
            curve.rounds, curve.seconds, curve.accuracy, curve.least, curve.greatest, strict=True
        )
    ]


# Table IV from training runs: accuracy and time beside the paper's, and the seconds to reach an accuracy.


def reproduce_accuracies(settings: Settings, training: TrainingSettings) -> Reproduction:
    """Reproduce Table IV from training runs; runs that are missing or unfinished are started or resumed."""
    runs = run_campaign(plan_campaign(training, settings.folder), training)
    found = _group_runs(runs, training)
    levels = {of_data.data_set: common_levels(of_data.runs) for of_data in found}
    verdicts = [verdict for of_data in found for verdict in judge_runs(of_data, levels[of_data.data_set])]
    reasons = {} if training.recipe is None else load_recipe(training.recipe).reasons
    notes = [note for of_data in found for note in _describe(of_data, levels[of_data.data_set], reasons)]
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
            load_used(data_set, source, training, training.recipe),
            {choice: _runs_of(runs, data_set, choice, None) for choice in training.schedulers},
            [] if training.beside is None else _runs_of(runs, data_set, PAPER_ALGORITHM, training.beside),
        )
        for data_set, source in sources.items()
    ]


def _runs_of(runs: Sequence[TrainedRun], *wanted: str | None) -> list[TrainedRun]:
    return [run for run in runs if (run.planned.data_set, run.planned.choice, run.planned.recipe) == wanted]


# Notes: shortened or changed settings, and failures.


def _describe(found: DataSetRuns, levels: Sequence[float], reasons: Mapping[str, str]) -> list[str]:
    notes: list[str] = []
    phrases = describe_changes(found.used, found.shipped)
    if phrases:
        word = "shortened" if found.used.rounds < found.shipped.rounds else "changed"
        notes.append(f"{found.name}, {word}: {'; '.join(phrases)}; {describe_delay(found.used, found.shipped)}")
    changed = {key for key, _, _ in differing_keys(found.used, found.shipped, leave_out=())}
    notes += [f"{found.name}, {key}: {reason}" for key, reason in reasons.items() if key in changed]
    for run in found.beside[:1]:
        phrases = describe_changes(run.planned.scenario, found.shipped)
        notes.append(f"{found.name}, {run.planned.name}: {'; '.join(phrases)}")
    sizes = describe_sizes(found.data_set, found.runs[0].summary.num_train, found.runs[0].summary.num_test)
    if sizes is not None:
        notes.append(f"{found.name}, {sizes}")
    notes += describe_unjudged(found, levels)
    for run in found.runs:
        if run.summary.num_diverged:
            notes.append(f"{run.planned.title}: {run.summary.num_diverged} local updates diverged and were left out")
        if run.summary.num_infeasible:
            notes.append(f"{run.planned.title}: {run.summary.num_infeasible} rounds were infeasible")
    return notes


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
            [row for of_data in found for row in _accuracy_rows(of_data)],
        ),
        NumberTable(
            "trained-times",
            f"Table IV: simulated time (s) of the rounds run, {seeds}",
            ["data", "scheduler", "rounds", "paper, all rounds", "paper, prorated", "ours", "95 % +-"],
            [_time_row(of_data, choice) for of_data in found for choice in of_data.by_choice],
        ),
    ]
    if num_seeds > 1:
        rows = [row for of_data in found for row in _difference_rows(of_data)]
        header = ["data", "scheduler", "minus", "accuracy (points)", "95 % +-", "time (s)", "95 % +- "]
        tables.append(NumberTable("differences", f"Differences of the same seeds, {seeds}", header, rows))
    rows = [
        _reach_row(of_data, choice, level)
        for of_data in found
        for level in sorted({*levels[of_data.data_set], *_reached_levels(of_data)})
        for choice in of_data.by_choice
    ]
    if rows:
        header = ["data", "scheduler", "accuracy (%)", "reached by", "rounds", "seconds", "95 % +-"]
        tables.append(NumberTable("reach", f"Simulated seconds until an accuracy is reached, {seeds}", header, rows))
    return tables


def _reached_levels(found: DataSetRuns) -> list[float]:
    """Levels of the paper's accuracies that some run reached."""
    levels = PAPER_LEVELS[found.data_set]
    return [level for level in levels if any(reach_level(run, level) is not None for run in found.runs)]


def _difference_rows(found: DataSetRuns) -> list[list[Cell]]:
    first, times = next(iter(found.by_choice)), differences_of(total_s, found)
    return [
        [found.name, show_choice(choice), show_choice(first), points.mean, _width(points), times[choice].mean,
         _width(times[choice])]
        for choice, points in differences_of(final_percent, found).items()
    ]  # fmt: skip


def _accuracy_rows(found: DataSetRuns) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for runs in [*found.by_choice.values(), *([found.beside] if found.beside else [])]:
        planned, final, best = runs[0].planned, mean_interval(final_percent(runs)), mean_interval(best_percent(runs))
        paper = PAPER_ACCURACY_PERCENT[found.data_set].get(planned.choice)
        numbers = [paper, final.mean, _width(final), best.mean, _width(best)]
        rows.append([found.name, planned.name, found.rounds_text, *numbers])
    return rows


def _time_row(found: DataSetRuns, choice: str) -> list[Cell]:
    paper_s = PAPER_TIME_S[found.data_set].get(choice)
    prorated_s = None if paper_s is None else paper_s * found.used.rounds / found.shipped.rounds
    ours_s = mean_interval(total_s(found.by_choice[choice]))
    return [found.name, show_choice(choice), found.rounds_text, paper_s, prorated_s, ours_s.mean, _width(ours_s)]


def _reach_row(found: DataSetRuns, choice: str, level: float) -> list[Cell]:
    runs = found.by_choice[choice]
    reached = [place for run in runs if (place := reach_level(run, level)) is not None]
    row: list[Cell] = [found.name, show_choice(choice), level, f"{len(reached)} of {len(runs)}"]
    if not reached:
        return [*row, None, None, None]
    seconds = mean_interval([time_s for _, time_s in reached])
    return [*row, float(np.mean([round for round, _ in reached])), seconds.mean, _width(seconds)]


def _width(interval: Interval) -> float | None:
    return or_none(interval.half_width)


# Curves and provenance.


def _panel(found: DataSetRuns) -> AccuracyPanel:
    curves = [_curve(found, choice) for choice in found.by_choice]
    return AccuracyPanel(found.name, curves, found.is_full_length, found.num_seeds)


def _curve(found: DataSetRuns, choice: str) -> AccuracyCurve:
    """Return the mean over seeds at every evaluated round, from the untrained model at 0 s on."""
    runs = found.by_choice[choice]
    percent = np.array([[run.initial_accuracy, *run.accuracy] for run in runs]) * 100.0
    time_s = np.array([[0.0, *run.seconds] for run in runs])
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
        who: list[SheetCell] = [run.planned.data_set, run.planned.name, run.planned.scenario.seed]
        rows.append([*who, 0, 0.0, run.initial_accuracy, or_nan(run.summary.initial_loss)])
        columns = (run.seconds, run.accuracy, run.summary.loss)
        for round, (time_s, accuracy, loss) in enumerate(zip(*columns, strict=True), start=1):
            if not np.isnan(accuracy):
                rows.append([*who, round, float(time_s), float(accuracy), or_nan(loss)])
    return Sheet(("data", "scheduler", "seed", "round", "simulated_s", "accuracy", "loss"), rows)


def _provenance(runs: Sequence[TrainedRun]) -> Sheet:
    """Return the inputs and versions of every run; folders are left out, since they are local to the machine."""
    rows: list[list[SheetCell]] = [
        [
            run.planned.data_set,
            run.planned.name,
            run.planned.scenario.seed,
            run.summary.same_as or run.planned.choice,
            len(run.summary.delay_s),
            run.summary.num_train,
            run.summary.num_test,
            run.summary.data_digest[:16],
            run.summary.version,
            run.summary.torch,
        ]
        for run in runs
    ]
    images = ("train_images", "test_images", "data_digest")
    header = ("data", "scheduler", "seed", "trained_as", "rounds", *images, "bdfl", "torch")
    return Sheet(header, rows)
