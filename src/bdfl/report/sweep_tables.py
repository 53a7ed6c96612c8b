"""Outcome and results of a sweep as text and tables for a terminal."""

import math

from rich.table import Table

from bdfl.experiment.choices import show_choice
from bdfl.experiment.statistics import Interval
from bdfl.report.sweep_figures import label_line
from bdfl.report.tables import new_table
from bdfl.sweeps.running import SweepOutcome
from bdfl.sweeps.summary import SCHEDULER, Line, SweepSummary

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
    table = new_table(title, (summary.x, *measures), text_columns=1)
    for place in line.places[:_MOST_ROWS]:
        x = show_choice(str(place.x)) if summary.x == SCHEDULER else _number(place.x)
        table.add_row(x, *(show_interval(place.measures[measure]) for measure in measures))
    if len(line.places) > _MOST_ROWS:
        table.caption = f"{len(line.places) - _MOST_ROWS} more rows in the CSV file"
    return table


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


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
