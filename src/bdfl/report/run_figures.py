"""Figures of a run, their panels and captions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from bdfl.experiment.statistics import is_below_rate
from bdfl.records import PerRound, PerRoundClient, RunRecord
from bdfl.report.style import (
    BOUND,
    DASHES,
    HOLLOW,
    INFEASIBLE,
    MINING,
    SOFT_INK,
    TRAINING,
    UPLOAD,
    Picture,
    Sheet,
    drawable,
    drawing,
    title_figure,
    write_beside,
)

# Panels over the rounds of a run, shared by several figures: schedule, delay by its parts, spread.

MOST_ROWS = 16  # clients that a panel of usual height can label
_EVERY_TICK = 6  # rounds that get a tick each
_MOST_CELLS = 400  # rows or columns of an image drawn cell by cell; more of them are averaged


def fit_rounds(axes: Axes, record: RunRecord) -> None:
    """Set limits and ticks of an axis over the rounds; mark infeasible rounds in red."""
    for round in record.round[~record.took_place]:
        axes.axvspan(round - 0.5, round + 0.5, color=INFEASIBLE, alpha=0.35, linewidth=0, gid=f"infeasible-{round}")
    axes.set_xlim(0.5, record.num_rounds + 0.5)
    if record.num_rounds <= _EVERY_TICK:
        axes.set_xticks(range(1, record.num_rounds + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def draw_schedule(axes: Axes, record: RunRecord) -> None:
    """Draw blue cells where a client trained, red if its update failed; beside them its achieved and owed rates."""
    failed = record.selected & ~record.delivered
    cells = np.zeros((record.num_clients, record.num_rounds, 4))  # transparent
    cells[record.selected.T] = (*to_rgb(TRAINING), 1.0)
    cells[failed.T] = (*to_rgb(INFEASIBLE), 1.0)
    draw_cells(axes, cells)
    axes.set_facecolor(HOLLOW)
    axes.set(title="Who trained when", ylabel="client", xlabel="round")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if record.num_clients <= MOST_ROWS:
        for edge in np.arange(0.5, record.num_clients - 0.5):
            axes.axhline(edge, color="white", linewidth=1.5)
        axes.annotate(
            "got, of owed",
            (record.num_rounds + 0.5, -0.5),
            xytext=(6, 5),
            textcoords="offset points",
            fontsize=7.5,
            color=SOFT_INK,
            annotation_clip=False,
        )
        below = is_below_rate(record)
        for client, (share, rate) in enumerate(zip(record.participation, record.participation_rate, strict=True)):
            colour = INFEASIBLE if below[client] else SOFT_INK
            text = f"{100 * share:.0f} % of {100 * rate:.0f} %"
            write_beside(axes, text, (record.num_rounds + 0.5, client), colour)


def draw_cells(axes: Axes, cells: NDArray[np.float64]) -> None:
    """Draw an image of (rows, rounds, RGBA), rows from 0 downwards, rounds from 1; cells are sharp unless too many."""
    num_rows, num_rounds = cells.shape[:2]
    is_sharp = max(num_rows, num_rounds) <= _MOST_CELLS
    axes.imshow(
        cells,
        aspect="auto",
        interpolation="none" if is_sharp else "antialiased",
        extent=(0.5, num_rounds + 0.5, num_rows - 0.5, -0.5),
    )
    axes.grid(visible=False)


def draw_delay_parts(axes: Axes, record: RunRecord) -> None:
    """Draw the delay of every round as a stack: training and upload of the slowest client, mining, protocol if any."""
    parts = {
        "training": (record.training_s, TRAINING),
        "upload": (record.upload_s, UPLOAD),
        "mining": (record.mining_s, MINING),
    }
    if record.overhead_s.any():
        parts["protocol"] = (record.overhead_s, SOFT_INK)
    stack_steps(axes, parts, first=0.5)
    axes.set(ylabel="delay (s)")
    axes.set_ylim(0, 1.22 * (float(np.max(record.delay_s)) or 1.0))
    axes.legend(loc="upper left", ncols=len(parts), handlelength=1.0, columnspacing=1.2)


def stack_steps(axes: Axes, parts: Mapping[str, tuple[PerRound, str]], *, first: float) -> None:
    """Stack values with their colours as steps of width 1, from `first` on."""
    num_steps = len(next(iter(parts.values()))[0])
    axes.stackplot(
        first + np.arange(num_steps + 1),
        *(np.append(values, values[-1]) for values, _ in parts.values()),
        step="post",
        colors=[colour for _, colour in parts.values()],
        labels=list(parts),
        linewidth=0,
    )


def draw_spread(axes: Axes, values: PerRoundClient, label: str) -> None:
    """Draw the mean over clients with a band from the least to the greatest."""
    rounds = np.arange(1, len(values) + 1)
    if len(values) == 1:  # a band without width is made one round wide
        rounds, values = np.array([0.6, 1.4]), np.repeat(values, 2, axis=0)
    axes.fill_between(
        rounds,
        values.min(axis=1),
        values.max(axis=1),
        color=TRAINING,
        alpha=0.18,
        linewidth=0,
        label="least to greatest",
    )
    axes.plot(rounds, values.mean(axis=1), color=TRAINING, label="mean of clients")
    axes.set(ylabel=label)
    axes.set_ylim(bottom=0, top=1.25 * (float(values.max()) or 1.0))
    axes.legend(loc="upper right", ncols=2, handlelength=1.4, columnspacing=1.2)


# Figure of one run: schedule, delay and energy by their parts, backlog and its mean-rate stability.


def draw_run(record: RunRecord) -> Picture:
    """Draw a run: schedule, delay, backlog, energy and mean-rate stability [Li24, Definition 1]."""
    with drawing(10.4, 7.6) as figure:
        panels = figure.subplot_mosaic(
            [["who", "who"], ["delay", "energy"], ["backlog", "stability"]], height_ratios=(1.15, 1.0, 1.0)
        )
        draw_schedule(panels["who"], record)
        draw_delay_parts(panels["delay"], record)
        panels["delay"].set_title("a  Delay of a round, by the slowest client's parts")
        _draw_energy(panels["energy"], record)
        draw_spread(panels["backlog"], record.next_queue, "backlog (rounds owed)")
        panels["backlog"].set(title="c  Queue backlog after each round", xlabel="round")
        draw_spread(panels["stability"], record.next_queue / record.round[:, np.newaxis], "Z(t) / t")
        panels["stability"].set(title="d  Mean-rate stability: backlog over time tends to 0", xlabel="round")
        for axes in panels.values():
            fit_rounds(axes, record)
        name = drawable(record.scenario, otherwise="scenario")
        title_figure(figure, f"{name}: {record.scheduler}, V = {record.tradeoff:g}, seed {record.seed}")
        if record.num_infeasible:
            mark = Patch(color=INFEASIBLE, alpha=0.35, label=f"{record.num_infeasible} infeasible rounds")
            figure.legend(handles=[mark], loc="outside upper right")
    return Picture(figure, [_run_sheet(record), _client_sheet(record)])


def _draw_energy(axes: Axes, record: RunRecord) -> None:
    """Draw the energy as a share of the budget: mean over clients by its parts, and the highest client."""
    parts = {
        "_training": (record.training_j, TRAINING),  # hidden from the legend: the panel beside it has the key
        "_upload": (record.upload_j, UPLOAD),
        "_mining": (record.mining_j, MINING),
    }
    means = {name: (record.share_of_budget(part).mean(axis=1), colour) for name, (part, colour) in parts.items()}
    stack_steps(axes, means, first=0.5)
    highest = np.where(record.took_place, np.max(record.share_of_budget(record.energy_j), axis=1), np.nan)
    axes.stairs(
        highest,
        0.5 + np.arange(record.num_rounds + 1),
        baseline=None,
        color=SOFT_INK,
        linewidth=1.0,
        label="highest client",
    )
    axes.axhline(1.0, color=BOUND, linewidth=1.0, linestyle=DASHES, label="budget")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, 1.25)
    axes.set(title="b  Energy as a share of the budget, mean of all clients", ylabel="energy / budget")
    axes.legend(loc="upper left", ncols=2, handlelength=1.4, columnspacing=1.2)


def _run_sheet(record: RunRecord) -> Sheet:
    backlog = np.array([np.mean(row) for row in record.next_queue])
    columns = {
        "round": record.round,
        "status": [status.value for status in record.status],
        "selected": record.num_selected,
        **{name: getattr(record, name) for name in ("training_s", "upload_s", "mining_s", "delay_s")},
        "mean_energy_j": [float(np.mean(row)) for row in record.energy_j],
        "mean_backlog": backlog,
        "mean_backlog_over_round": backlog / record.round,
        **{
            name: getattr(record, name)
            for name in ("lyapunov", "drift", "drift_bound", "objective", "gap", "iterations")
        },
    }
    return Sheet.of_columns(columns, "rounds")


def _client_sheet(record: RunRecord) -> Sheet:
    columns = {
        "round": np.repeat(record.round, record.num_clients),
        "client": np.tile(np.arange(record.num_clients), record.num_rounds),
        "selected": record.selected.astype(np.int64).ravel(),
        **{name: getattr(record, name).ravel() for name in ("training_j", "upload_j", "mining_j", "energy_budget_j")},
        "backlog": record.next_queue.ravel(),
    }
    return Sheet.of_columns(columns, "clients")


# A captioned figure of a training run's report, all of one width.

WIDTH = 5.2  # inches: readable on a phone
FEW_POINTS = 40  # a line of at most so many points shows them


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A picture with its file name, heading, caption and alternative text."""

    name: str
    heading: str
    caption: str
    description: str
    picture: Picture


def say(axes: Axes, text: str) -> None:
    """Write a reason into the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT_INK)


def infeasible_text(run: RunRecord) -> str:
    """Explain the red columns of a figure; empty if it has none."""
    return f" Red columns: {run.num_infeasible} infeasible rounds, which take no time." if run.num_infeasible else ""
