"""Figure of one run: schedule, delay and energy by their parts, backlog and its mean-rate stability."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from bdfl.records import RunRecord
from bdfl.report.panels import draw_delay_parts, draw_schedule, draw_spread, fit_rounds, stack_steps
from bdfl.report.style import (
    BOUND,
    DASHES,
    INFEASIBLE,
    MINING,
    SOFT_INK,
    TRAINING,
    UPLOAD,
    Picture,
    Sheet,
    drawable,
    house_style,
    new_figure,
)


def draw_run(record: RunRecord) -> Picture:
    """Draw a run: schedule, delay, backlog, energy and mean-rate stability [Li24, Definition 1]."""
    with house_style():
        figure = new_figure(10.4, 7.6)
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
        _title_run(figure, record)
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


def _title_run(figure: Figure, record: RunRecord) -> None:
    name = drawable(record.scenario, otherwise="scenario")
    figure.suptitle(
        f"{name}: {record.scheduler}, V = {record.tradeoff:g}, seed {record.seed}",
        x=0.01,
        ha="left",
        fontsize=10.5,
        fontweight="bold",
    )
    if record.num_infeasible:
        figure.legend(
            handles=[Patch(color=INFEASIBLE, alpha=0.35, label=f"{record.num_infeasible} infeasible rounds")],
            loc="outside upper right",
        )


def _run_sheet(record: RunRecord) -> Sheet:
    header = (
        "round", "status", "selected", "training_s", "upload_s", "mining_s", "delay_s",
        "mean_energy_j", "mean_backlog", "mean_backlog_over_round", "lyapunov", "drift", "drift_bound",
        "objective", "gap", "iterations",
    )  # fmt: skip
    rows = [
        (
            row.round,
            row.status.value,
            int(np.count_nonzero(row.selected)),
            row.training_s,
            row.upload_s,
            row.mining_s,
            row.delay_s,
            float(np.mean(row.energy_j)),
            float(np.mean(row.next_queue)),
            float(np.mean(row.next_queue)) / row.round,
            row.lyapunov,
            row.drift,
            row.drift_bound,
            row.objective,
            row.gap,
            row.iterations,
        )
        for row in record.rounds
    ]
    return Sheet(header, rows, "rounds")


def _client_sheet(record: RunRecord) -> Sheet:
    header = ("round", "client", "selected", "training_j", "upload_j", "mining_j", "energy_budget_j", "backlog")
    rows = [
        (
            row.round,
            client,
            int(row.selected[client]),
            float(row.training_j[client]),
            float(row.upload_j[client]),
            float(row.mining_j[client]),
            float(row.energy_budget_j[client]),
            float(row.next_queue[client]),
        )
        for row in record.rounds
        for client in range(record.num_clients)
    ]
    return Sheet(header, rows, "clients")
