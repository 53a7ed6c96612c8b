"""One run as a picture: who trained when, delay and energy by their parts, backlog and its mean-rate stability."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bdfl.records import PerRoundClient, RunRecord
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
    house_style,
    new_figure,
)


def draw_run(record: RunRecord) -> Picture:
    """A run at a glance: who trained when, delay, backlog, energy and mean-rate stability [Li24, Definition 1]."""
    with house_style():
        figure = new_figure(10.4, 7.6)
        panels = figure.subplot_mosaic(
            [["who", "who"], ["delay", "energy"], ["backlog", "stability"]], height_ratios=(1.15, 1.0, 1.0)
        )
        _draw_participation(panels["who"], record)
        _draw_delay_parts(panels["delay"], record)
        _draw_energy(panels["energy"], record)
        _draw_spread(panels["backlog"], record.next_queue, "c  Queue backlog after each round", "backlog (rounds owed)")
        _draw_spread(
            panels["stability"],
            record.next_queue / record.round[:, np.newaxis],
            "d  Mean-rate stability: backlog over time tends to 0",
            "Z(t) / t",
        )
        for axes in panels.values():
            _mark_infeasible(axes, record)
            axes.set_xlim(0.5, record.num_rounds + 0.5)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        panels["backlog"].set_xlabel("round")
        panels["stability"].set_xlabel("round")
        _title_run(figure, record)
    return Picture(figure, [_run_sheet(record), _client_sheet(record)])


def _draw_participation(axes: Axes, record: RunRecord) -> None:
    """A dark cell where a client trained; beside it the share of rounds it got and the share it is owed."""
    axes.imshow(
        record.selected.T,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(["#eef2f6", TRAINING]),
        vmin=0,
        vmax=1,
        extent=(0.5, record.num_rounds + 0.5, record.num_clients - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set(title="Who trained when", ylabel="client", xlabel="round")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if record.num_clients <= 16:
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
        for client, (share, rate) in enumerate(zip(record.participation, record.participation_rate, strict=True)):
            axes.annotate(
                f"{100 * share:.0f} % of {100 * rate:.0f} %",
                (record.num_rounds + 0.5, client),
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=7.5,
                va="center",
                color=SOFT_INK if share >= rate - 0.01 else INFEASIBLE,
                annotation_clip=False,
            )


def _draw_delay_parts(axes: Axes, record: RunRecord) -> None:
    parts = {
        "training": (record.training_s, TRAINING),
        "upload": (record.upload_s, UPLOAD),
        "mining": (record.mining_s, MINING),
    }
    if record.overhead_s.any():
        parts["protocol"] = (record.overhead_s, SOFT_INK)
    axes.stackplot(
        record.round,
        *(values for values, _ in parts.values()),
        step="mid",
        colors=[colour for _, colour in parts.values()],
        labels=list(parts),
        linewidth=0,
    )
    axes.set(title="a  Delay of a round, by the slowest client's parts", ylabel="delay (s)")
    axes.set_ylim(0, 1.22 * (float(np.max(record.delay_s)) or 1.0))
    axes.legend(loc="upper left", ncols=len(parts), handlelength=1.0, columnspacing=1.2)


def _draw_energy(axes: Axes, record: RunRecord) -> None:
    """Share of the budget, mean over clients by its parts, and the client that came closest to its limit."""
    parts = [
        np.mean(record.share_of_budget(part), axis=1) for part in (record.training_j, record.upload_j, record.mining_j)
    ]
    axes.stackplot(record.round, *parts, step="mid", colors=(TRAINING, UPLOAD, MINING), linewidth=0)
    axes.step(
        record.round,
        np.where(record.took_place, np.max(record.share_of_budget(record.energy_j), axis=1), np.nan),
        where="mid",
        color=SOFT_INK,
        linewidth=1.0,
        label="highest client",
    )
    axes.axhline(1.0, color=BOUND, linewidth=1.0, linestyle=DASHES, label="budget")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, 1.25)
    axes.set(title="b  Energy as a share of the budget, mean of all clients", ylabel="energy / budget")
    axes.legend(loc="upper left", ncols=2, handlelength=1.4, columnspacing=1.2)


def _draw_spread(axes: Axes, values: PerRoundClient, title: str, label: str) -> None:
    """Mean over clients with a band from the least to the greatest."""
    rounds = np.arange(1, len(values) + 1)
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
    axes.set(title=title, ylabel=label)
    axes.set_ylim(bottom=0, top=1.25 * (float(values.max()) or 1.0))
    axes.legend(loc="upper right", ncols=2, handlelength=1.4, columnspacing=1.2)


def _mark_infeasible(axes: Axes, record: RunRecord) -> None:
    for round in record.round[~record.took_place]:
        axes.axvspan(round - 0.5, round + 0.5, color=INFEASIBLE, alpha=0.35, linewidth=0, gid=f"infeasible-{round}")


def _title_run(figure: Figure, record: RunRecord) -> None:
    figure.suptitle(
        f"{record.scenario}: {record.scheduler}, V = {record.tradeoff:g}, seed {record.seed}",
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
