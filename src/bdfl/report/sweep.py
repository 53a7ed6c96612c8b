"""Figures and tables of a sweep."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from bdfl.experiment.statistics import Interval
from bdfl.report.style import CYCLE, SOFT_INK, Picture, Sheet, colour_of, drawable, drawing
from bdfl.report.tables import count_more, new_table
from bdfl.scenario import Scenario, describe_scenario
from bdfl.scheduling.registry import show_choice
from bdfl.sweeps.plan import MEASURES, Mode
from bdfl.sweeps.results import SCHEDULER, Line, SweepSummary, Value
from bdfl.sweeps.runner import SweepOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The figure of a sweep: a panel for every measure, a line for every scheduler or other setting.

_PANEL_INCH = (3.7, 3.0)
_MOST_COLUMNS = 3
_STYLES = (("o", "-"), ("s", (0, (4, 2))), ("D", (0, (1, 1.5))), ("^", (0, (5, 1.5, 1, 1.5))))  # marker, dashes
_LONG_WORDS = 40  # characters that fit side by side below an x axis
_DODGE = 0.5  # of the distance between two words on the x axis: lines are offset within it


def draw_sweep(summary: SweepSummary) -> Picture:
    """Draw means with 95 % intervals over seeds: bands if points are connected, else error bars."""
    num_panels = len(summary.measures)
    columns = min(num_panels, _MOST_COLUMNS)
    rows = -(-num_panels // columns)
    with drawing(_PANEL_INCH[0] * columns, _PANEL_INCH[1] * rows + 0.5) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        panels: list[Axes] = list(grid.flat)
        for axes, measure in zip(panels, summary.measures, strict=False):
            _draw_panel(axes, summary, measure)
        for axes in panels[num_panels:]:
            axes.set_visible(False)
        figure.suptitle(_caption(summary), x=0.01, ha="left", fontsize=8.0, color=SOFT_INK)
        if summary.by:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return Picture(figure, [_sheet(summary)])


def label_line(line: Line) -> str:
    """Return the label of a line: its settings."""
    settings = line.settings.items()
    return ", ".join(("" if key == SCHEDULER else f"{key} ") + _show_value(key, value) for key, value in settings)


def describe_key(key: str) -> str:
    """Return a key with its unit."""
    units = {row.key: row.unit for row in describe_scenario(Scenario())}
    return f"{key} ({units[key]})" if units.get(key) else key


def _draw_panel(axes: "Axes", summary: SweepSummary, measure: str) -> None:
    looks = _choose_looks(summary.lines)
    words = list(dict.fromkeys(place.x for line in summary.lines for place in line.places))
    for number, (line, (colour, style)) in enumerate(zip(summary.lines, looks, strict=True)):
        known = [place for place in line.places if not np.isnan(place.measures[measure].mean)]
        mean = np.array([place.measures[measure].mean for place in known])
        half = np.nan_to_num(np.array([place.measures[measure].half_width for place in known]))
        label = drawable(label_line(line), otherwise=f"line {number + 1}")
        marker, dashes = _STYLES[style]
        if summary.is_numeric:
            x = np.array([float(place.x) for place in known])
        else:
            offset = _DODGE * ((number + 0.5) / len(summary.lines) - 0.5)
            x = np.array([words.index(place.x) + offset for place in known])
        if summary.is_connected:
            axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
            axes.plot(
                x, mean, color=colour, marker=marker, markersize=3.5, linestyle=dashes, linewidth=1.6, label=label
            )
        else:
            axes.errorbar(
                x, mean, yerr=half, color=colour, marker=marker, markersize=4.5, capsize=2, linestyle="none",
                linewidth=1.0, label=label,
            )  # fmt: skip
    _fit(axes, summary, words)
    axes.set_title(MEASURES[Mode.RUN][measure].capitalize())
    axes.set_xlabel(drawable(describe_key(summary.x), otherwise="x"))


def _fit(axes: "Axes", summary: SweepSummary, words: Sequence[Value]) -> None:
    """Set scales and ticks after everything is drawn."""
    if not summary.is_numeric:
        texts = [_show_value(summary.x, word) for word in words]
        shown = [drawable(text, otherwise=str(place), longest=24) for place, text in enumerate(texts)]
        axes.set_xticks(range(len(words)), shown)
        if sum(map(len, shown)) > _LONG_WORDS:
            axes.tick_params(axis="x", labelrotation=20)
        axes.set_xlim(-0.6, len(words) - 0.4)
        axes.grid(visible=False, axis="x")
    elif summary.is_logarithmic:
        axes.set_xscale("log")
    low, high = axes.get_ylim()
    if 0 < low < 0.5 * high:  # close enough to zero to show it
        axes.set_ylim(bottom=0)


def _choose_looks(lines: Sequence[Line]) -> list[tuple[str, int]]:
    """Return colour and style number of every line: if enough, a colour per scheduler, a style per other settings."""
    schedulers = list(dict.fromkeys(str(line.settings.get(SCHEDULER, "")) for line in lines))
    others = list(dict.fromkeys(_without_scheduler(line) for line in lines))
    if len(others) > len(_STYLES) or len(schedulers) == 1:
        return [(CYCLE[place % len(CYCLE)], place // len(CYCLE) % len(_STYLES)) for place in range(len(lines))]
    own = [colour_of(scheduler, place) for place, scheduler in enumerate(schedulers)]
    colours = own if len(set(own)) == len(own) else [CYCLE[place % len(CYCLE)] for place in range(len(own))]
    return [
        (colours[schedulers.index(str(line.settings[SCHEDULER]))], others.index(_without_scheduler(line)))
        for line in lines
    ]


def _without_scheduler(line: Line) -> tuple[Value, ...]:
    return tuple(value for key, value in line.settings.items() if key != SCHEDULER)


def _caption(summary: SweepSummary) -> str:
    seeds = f"{summary.num_seeds} seeds" if summary.num_seeds > 1 else "one seed"
    text = f"{drawable(summary.name, otherwise='sweep')}: mean and 95 % interval over {seeds}"
    if summary.pooled:
        text += f" and all values of {', '.join(summary.pooled)}"
    return text + (f"; {summary.num_failed} failed points left out" if summary.num_failed else "")


def _show_value(key: str, value: Value) -> str:
    if key == SCHEDULER:
        return show_choice(str(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sheet(summary: SweepSummary) -> Sheet:
    header = (summary.x, *summary.by, "points", "measure", "mean", "half_width")
    rows = [
        (
            place.x,
            *line.settings.values(),
            place.num_points,
            measure,
            place.measures[measure].mean,
            place.measures[measure].half_width,
        )
        for line in summary.lines
        for place in line.places
        for measure in summary.measures
    ]
    return Sheet(header, rows)


# Outcome and results of a sweep as text and tables for a terminal.

_MOST_ROWS = 20  # of a line
_ROUNDING = 1e-12  # relative: smaller intervals count as 0
_MOST_FAILURES = 5
_MOST_MEASURES = 3


def tabulate_summary(summary: SweepSummary) -> list[Table]:
    """Tabulate means with their intervals: a table for every line, a row for every place on it."""
    return [_tabulate_line(summary, line) for line in summary.lines]


def _tabulate_line(summary: SweepSummary, line: Line) -> Table:
    measures = summary.measures[:_MOST_MEASURES]
    title = label_line(line) if summary.by else f"{summary.name}: mean ± 95 % interval"
    rows = (
        (_show_value(summary.x, place.x), *(show_interval(place.measures[measure]) for measure in measures))
        for place in line.places[:_MOST_ROWS]
    )
    more = count_more(len(line.places), _MOST_ROWS, "rows in the CSV file")
    return new_table(title, (summary.x, *measures), rows, caption=more)


def describe_outcome(outcome: SweepOutcome) -> list[str]:
    """Describe the outcome of a sweep, in lines."""
    num_ok = outcome.num_points - len(outcome.failed)
    lines = [f"{num_ok} of {outcome.num_points} points have results, {outcome.num_computed} computed now"]
    if outcome.num_computed:
        share = f", {100 * outcome.busy_share:.0f} % of the workers' time in the points"
        lines[0] += f" in {outcome.wall_s:.1f} s by {outcome.num_workers} workers ({outcome.engine}){share}"
    shown = outcome.failed[:_MOST_FAILURES]
    lines += [f"failed {row.point[:12]} after {row.attempt} attempts: {row.error}" for row in shown]
    if len(outcome.failed) > _MOST_FAILURES:
        lines.append(f"and {len(outcome.failed) - _MOST_FAILURES} more that failed: column error of the table")
    return lines


def show_interval(value: Interval) -> str:
    """Format a mean with four digits, and half its interval."""
    if math.isnan(value.mean):
        return "-"
    half_width = 0.0 if value.half_width < _ROUNDING * abs(value.mean) else value.half_width
    return f"{value.mean:.4g}" + ("" if math.isnan(half_width) else f" ± {half_width:.2g}")
