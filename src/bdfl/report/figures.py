"""Figures of a comparison, of curves over rounds and of times beside the paper's, each with its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bdfl.experiment import Comparison, Interval
from bdfl.experiment.comparison import FrontierPoint
from bdfl.records import PerRound
from bdfl.report.style import (
    BOUND,
    DASHES,
    INFEASIBLE,
    SOFT_INK,
    Picture,
    Sheet,
    colour_of,
    draw_interval,
    drawing,
    label_ends,
    write_beside,
)
from bdfl.scheduling.registry import show_choice

_THIN = 0.8


@dataclass(frozen=True, eq=False)
class Curve:
    """A line over rounds: its name, its colour and one value per round."""

    name: str
    colour: str
    values: PerRound
    thin: bool = False  # and not labelled


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves over rounds on common axes.

    `key` explains thick and thin curves; `marks` are open diamonds at (round, value, colour).
    """

    title: str
    curves: Sequence[Curve]
    key: tuple[str, str] | None = None
    marks: Sequence[tuple[float, float, str]] = ()
    mark_name: str = ""


def draw_curves(panels: Sequence[Panel], *, value_label: str, value_column: str) -> Picture:
    """Draw panels side by side, each with its curves over rounds and their names at the right."""
    with drawing(4.8 * len(panels), 3.4) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_lines(axes, panel.curves, highest=max((value for _, value, _ in panel.marks), default=0.0))
            for round, value, colour in panel.marks:
                axes.plot(
                    round, value, marker="D", markersize=5.5, markerfacecolor="white", color=colour, clip_on=False
                )
            axes.set(title=panel.title, ylabel=value_label)
            _add_key(axes, panel)
    rows = [
        (panel.title, curve.name, round, float(value))
        for panel in panels
        for curve in panel.curves
        for round, value in enumerate(curve.values, start=1)
    ]
    return Picture(figure, [Sheet(("panel", "curve", "round", value_column), rows)])


def _add_key(axes: Axes, panel: Panel) -> None:
    if panel.key is not None:
        widths = (1.8, _THIN)
        lines = [Line2D([], [], color=SOFT_INK, linewidth=width) for width in widths]
        axes.legend(lines, panel.key, loc="lower right", handlelength=1.6)
    elif panel.marks:
        diamond = Line2D([], [], marker="D", markersize=5.5, markerfacecolor="white", color=SOFT_INK, linestyle="none")
        axes.legend([diamond], [panel.mark_name], loc="upper left")


@dataclass(frozen=True)
class TimePair:
    """A scheduler's time (s) in the paper, if given, and ours."""

    scheduler: str
    paper_s: float | None
    ours_s: Interval


def draw_times(panels: Sequence[tuple[str, Sequence[TimePair]]]) -> Picture:
    """Draw, for every data set, the paper's times as open marks and ours as filled ones, slowest on top."""
    with drawing(4.8 * len(panels), 3.0) as figure:
        for axes, (title, pairs) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            order = sorted(pairs, key=lambda pair: pair.ours_s.mean)
            for height, pair in enumerate(order):
                colour = colour_of(pair.scheduler, height)
                if pair.paper_s is not None:
                    axes.plot(pair.paper_s, height, "D", markersize=6.5, markerfacecolor="none", color=SOFT_INK)
                half_width = 0.0 if np.isnan(pair.ours_s.half_width) else pair.ours_s.half_width
                axes.errorbar(pair.ours_s.mean, height, xerr=half_width, fmt="o", markersize=5, color=colour, capsize=3)
                write_beside(axes, f"{pair.ours_s.mean:.1f} s", (pair.ours_s.mean, height), colour, (0, 10))
            axes.set_yticks(range(len(order)), [show_choice(pair.scheduler) for pair in order])
            axes.set_ylim(-0.6, len(order) - 0.3)
            axes.grid(visible=False, axis="y")
            axes.margins(x=0.1)
            axes.set(title=title, xlabel="time of the whole run (s)")
            paper, ours = (
                Line2D([], [], marker="D", markerfacecolor="none", color=SOFT_INK, linestyle="none"),
                Line2D([], [], marker="o", color=SOFT_INK, linestyle="none"),
            )
            axes.legend([paper, ours], ["paper", "ours, 95 % interval"], loc="lower right")
    rows = [
        (title, pair.scheduler, "" if pair.paper_s is None else pair.paper_s, pair.ours_s.mean, pair.ours_s.half_width)
        for title, pairs in panels
        for pair in pairs
    ]
    return Picture(figure, [Sheet(("data", "scheduler", "paper_s", "ours_s", "half_width_s"), rows)])


def draw_comparison(comparison: Comparison) -> Picture:
    """Draw cumulative delay, mean delay with its interval against the bound, and delay against shortfall and energy."""
    results, bound = comparison.results, comparison.bound
    happened = any(result.delay_s.mean > 0 for result in results)  # else all means are NaN
    with drawing(9.6, 7.6) as figure:
        (cumulative, means), (frontier, energies) = figure.subplots(2, 2)
        curves = [
            Curve(show_choice(result.scheduler), colour_of(result.scheduler, place), np.array(result.cumulative_s))
            for place, result in enumerate(results)
        ]
        if bound is not None and happened:
            steady = bound.mean * np.arange(1.0, comparison.rounds + 1)
            curves.append(Curve("lower bound", BOUND, steady))
        _draw_lines(cumulative, curves, dashed="lower bound")
        cumulative.set(title="a  Time until the end of each round", ylabel="cumulative delay (s)")
        infeasible = sum(result.infeasible_rounds for result in results)
        if infeasible:
            note = f"{infeasible} infeasible rounds over all runs left out"
            cumulative.text(0.02, 0.97, note, transform=cumulative.transAxes, fontsize=7.5, color=INFEASIBLE, va="top")
        if happened:
            _draw_means(means, comparison)
            _draw_frontier(frontier, comparison)
            _draw_energies(energies, comparison)
    return Picture(
        figure,
        [
            Sheet(
                ("scheduler", "round", "cumulative_delay_s"),
                [(curve.name, t, float(value)) for curve in curves for t, value in enumerate(curve.values, start=1)],
                "cumulative",
            ),
            Sheet(
                (
                    "scheduler", "tradeoff", "mean_delay_s", "half_width_s", "shortfall", "infeasible_rounds",
                    "mean_energy_j", "share_of_budget", "below_percent", "allocating_percent", "choosing_percent",
                ),
                [
                    (
                        result.scheduler,
                        result.tradeoff,
                        result.delay_s.mean,
                        result.delay_s.half_width,
                        result.shortfall.mean,
                        result.infeasible_rounds,
                        result.energy_j.mean,
                        result.energy_use.mean,
                        *(
                            "" if part is None else part.mean
                            for part in (result.reduction_percent, result.allocating_percent, result.choosing_percent)
                        ),
                    )
                    for result in results
                ]
                + ([] if bound is None else [("lower bound", "", bound.mean, bound.half_width, 0.0, *[""] * 6)]),
                "means",
            ),
            _frontier_sheet(comparison.frontier, "frontier"),
            _frontier_sheet(comparison.energy_frontier, "energy"),
        ],
    )  # fmt: skip


def _frontier_sheet(points: Sequence[FrontierPoint], part: str) -> Sheet:
    header = (
        "scheduler",
        "tradeoff",
        "budget_share",
        "mean_delay_s",
        "mean_energy_j",
        "shortfall",
        "infeasible_rounds",
    )
    rows = [
        (one.scheduler, one.tradeoff, one.budget_share, one.delay_s.mean, one.energy_j.mean, one.shortfall.mean,
         one.infeasible_rounds)
        for one in points
    ]  # fmt: skip
    return Sheet(header, rows, part)


def _draw_lines(axes: Axes, curves: Sequence[Curve], *, dashed: str = "", highest: float = 0.0) -> None:
    num_rounds = len(curves[0].values)
    for curve in curves:
        is_dashed = bool(dashed) and curve.name == dashed
        axes.plot(
            np.arange(1, num_rounds + 1),
            curve.values,
            color=curve.colour,
            linestyle=DASHES if is_dashed else "-",
            linewidth=_THIN if curve.thin else 1.2 if is_dashed else 1.8,
        )
    axes.set_xlabel("round")
    axes.set_xlim(0, num_rounds)
    axes.set_ylim(0, 1.06 * max([highest, *(float(np.nanmax(curve.values)) for curve in curves)]) or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))
    ends = [(num_rounds, float(curve.values[-1]), curve.name, curve.colour) for curve in curves if not curve.thin]
    label_ends(axes, ends)


def _draw_means(axes: Axes, comparison: Comparison) -> None:
    """Draw dots with intervals, slowest on top; the dashed line is the lower bound."""
    results, bound = comparison.results, comparison.bound
    happened = [place for place, result in enumerate(results) if result.delay_s.mean > 0]
    order = sorted(happened, key=lambda place: results[place].delay_s.mean)
    for height, place in enumerate(order):
        result = results[place]
        colour = colour_of(result.scheduler, place)
        draw_interval(axes, result.delay_s, height, colour, size=5.5, cap=3, line=1.4)
        text = f"{result.delay_s.mean:.3f} s"
        if result.above_bound_percent is not None:
            text += f"  ({result.above_bound_percent.mean:+.1f} %)"
        write_beside(axes, text, (result.delay_s.mean, height), colour, (8, 0))
    axes.set_yticks(range(len(order)), [show_choice(results[place].scheduler) for place in order])
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.grid(visible=False, axis="y")
    means_s = [results[place].delay_s.mean for place in order]
    lowest, highest = min([*means_s, *([] if bound is None else [bound.mean])]), means_s[-1]
    margin = 0.1 * (highest - lowest) or 0.1 * highest
    axes.set_xlim(lowest - margin, highest + 4.5 * margin)
    if bound is not None:
        axes.axvline(bound.mean, color=BOUND, linewidth=1.2, linestyle=DASHES)
        axes.axvspan(lowest - margin, bound.mean, color="#f2f2f2", zorder=0)
    axes.set(
        title="b  Mean delay of a round, 95 % interval",
        xlabel="delay (s); in brackets: above the lower bound" if bound else "delay (s)",
    )


def _draw_frontier(axes: Axes, comparison: Comparison) -> None:
    """Draw delay against shortfall: lines over V for the swept schedulers, one mark for each of the others."""
    bound = comparison.bound
    swept = list(dict.fromkeys(point.scheduler for point in comparison.frontier))
    for place, scheduler in enumerate(swept):
        points = [point for point in comparison.frontier if point.scheduler == scheduler]
        colour = colour_of(scheduler, place)
        shortfall = [point.shortfall.mean for point in points]
        delay_s = [point.delay_s.mean for point in points]
        axes.plot(
            shortfall,
            delay_s,
            color=colour,
            marker="o",
            markersize=3.5,
            linewidth=1.4,
            label=f"{scheduler} over V, {comparison.frontier_seeds} seeds",
        )
        for point in (points[0], points[-1]):
            axes.annotate(
                f"V={point.tradeoff:g}",
                (point.shortfall.mean, point.delay_s.mean),
                xytext=(5, 4),
                textcoords="offset points",
                fontsize=7.0,
                color=colour,
            )
    for place, result in enumerate(comparison.results):
        if result.scheduler.partition(":")[0] not in swept:
            axes.plot(
                result.shortfall.mean,
                result.delay_s.mean,
                linestyle="none",
                marker="s",
                markersize=5,
                color=colour_of(result.scheduler, place),
                markerfacecolor=_fill_of(result.scheduler, place),
                label=show_choice(result.scheduler),
            )
    if bound is not None:
        axes.axhline(bound.mean, color=BOUND, linewidth=1.2, linestyle=DASHES, label="lower bound at shortfall 0")
    axes.set(
        title="c  Delay against participation owed",
        xlabel="worst client's shortfall (share of rounds)",
        ylabel="mean delay (s)",
    )
    axes.margins(x=0.1, y=0.12)
    axes.legend(loc="best", handlelength=1.6)


def _draw_energies(axes: Axes, comparison: Comparison) -> None:
    """Draw delay against energy: a square for each scheduler, and a line over the energy budgets through it."""
    for place, result in enumerate(comparison.results):
        colour, fill = colour_of(result.scheduler, place), _fill_of(result.scheduler, place)
        points = [
            point
            for point in comparison.energy_frontier
            if point.scheduler == result.scheduler and not point.infeasible_rounds
        ]
        energies_j, delays_s = [one.energy_j.mean for one in points], [one.delay_s.mean for one in points]
        axes.plot(energies_j, delays_s, color=colour, marker="o", markersize=3.0, linewidth=1.2, markerfacecolor=fill)
        axes.plot(
            result.energy_j.mean, result.delay_s.mean, "s", markersize=5.5, color=colour, markerfacecolor=fill
        )  # fmt: skip
    axes.set(title="d  Delay against energy", xlabel="mean energy of a client in a round (J)", ylabel="mean delay (s)")
    axes.margins(x=0.08, y=0.1)
    key = [
        ("s", SOFT_INK, "energy budgets of the scenario"),
        ("s", "white", "the same, f=best"),
    ]
    if shares := [point.budget_share for point in comparison.energy_frontier]:
        key.append(("o", SOFT_INK, f"{min(shares):g} to {max(shares):g} times these budgets"))
    marks = [
        Line2D([], [], marker=marker, color=SOFT_INK, markerfacecolor=fill, linestyle="-" if marker == "o" else "none")
        for marker, fill, _ in key
    ]
    axes.legend(marks, [meaning for *_, meaning in key], loc="upper right", handlelength=1.6)


def _fill_of(scheduler: str, place: int) -> str:
    """Return the colour inside a marker: white for a baseline at its best frequencies."""
    return "white" if "frequencies=best" in scheduler else colour_of(scheduler, place)


_OWN_COLOUR = 2  # place in the cycle for whoever is no scheduler with a colour of its own


def draw_agents(values: Mapping[str, PerRound], *, label: str) -> Picture:
    """A line over runs for everybody in `values`, which has one number per run for each; `label` says of what."""
    with drawing(6.4, 3.4) as figure:
        axes = figure.subplots()
        ends = []
        for name, line in values.items():
            colour = colour_of(name, _OWN_COLOUR)
            axes.plot(np.arange(1, len(line) + 1), line, color=colour)
            ends.append((float(len(line)), float(line[-1]), name, colour))
        axes.set(xlabel="run", ylabel=label)
        axes.set_xlim(1, max(2, max(map(len, values.values()))))
        label_ends(axes, ends)
    rows = [(name, run, float(value)) for name, line in values.items() for run, value in enumerate(line, start=1)]
    return Picture(figure, [Sheet(("who", "run", "value"), rows)])
