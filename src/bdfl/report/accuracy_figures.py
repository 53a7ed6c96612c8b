"""Accuracy of several schedulers against simulated seconds and against rounds, beside the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from bdfl.report.style import DASHES, SOFT_INK, Cell, Picture, Sheet, colour_of, house_style, label_ends, new_figure

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
    with house_style():
        figure = new_figure(10.4, 3.5 * len(panels))
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
        twin = any(
            _coincide(place, curve, *other) for other in zip(places[:number], panel.curves[:number], strict=True)
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


def _coincide(place: Points, curve: AccuracyCurve, other_place: Points, other: AccuracyCurve) -> bool:
    """Return whether one line would hide the other."""
    return np.array_equal(place, other_place) and np.array_equal(curve.accuracy, other.accuracy)


def _rows(panels: Sequence[AccuracyPanel]) -> list[list[Cell]]:
    return [
        [panel.title, curve.scheduler, int(round), *map(float, numbers)]
        for panel in panels
        for curve in panel.curves
        for round, *numbers in zip(
            curve.rounds, curve.seconds, curve.accuracy, curve.least, curve.greatest, strict=True
        )
    ]
