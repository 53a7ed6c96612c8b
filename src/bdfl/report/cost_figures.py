"""Costs of a training run as captioned figures: delay, energy, queues and participation."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from bdfl.experiment.statistics import is_below_rate, is_overdrawn, rounds_owed
from bdfl.records import PerRoundClient, RunRecord
from bdfl.report.run_figures import (
    MOST_ROWS,
    WIDTH,
    Exhibit,
    draw_delay_parts,
    draw_schedule,
    draw_spread,
    fit_rounds,
    infeasible_text,
    say,
    stack_steps,
)
from bdfl.report.style import (
    BOUND,
    DASHES,
    INFEASIBLE,
    MINING,
    SOFT_INK,
    TRAINING,
    UPLOAD,
    Cell,
    Column,
    Picture,
    Sheet,
    drawing,
)
from bdfl.types import PerClient, PerClientMask

_MOST_BARS = 60  # clients that get a bar each
_ENERGY_KEY = ("training", "upload", "mining", "highest round", "overdrawn", "budget")

_Parts = Mapping[str, tuple[PerClient, str]]  # name: value of every client, colour


def show_delay(run: RunRecord) -> Exhibit:
    """Draw the delay of every round by its parts."""
    with drawing(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        draw_delay_parts(axes, run)
        fit_rounds(axes, run)
        axes.set(title="Delay of a round", xlabel="round")
    columns: dict[str, Column] = {
        "round": run.round,
        "status": [status.value for status in run.status],
        "training_s": run.training_s,
        "upload_s": run.upload_s,
        "mining_s": run.mining_s,
        "protocol_s": run.overhead_s,
        "delay_s": run.delay_s,
    }
    parts = {"training": run.training_s, "upload": run.upload_s, "mining": run.mining_s}
    shares = ", ".join(
        f"{name} {100 * float(np.sum(part)) / (run.total_delay_s or 1.0):.0f} %" for name, part in parts.items()
    )
    return Exhibit(
        "delay",
        "Where the time goes",
        "A round lasts until its slowest client has trained and uploaded, and then until a block is mined. Training and"
        f" upload are those of the slowest client. Over the whole run: {shares}.{infeasible_text(run)}",
        f"Stacked chart of the delay of each round: {shares}; {run.total_delay_s:.1f} seconds in all.",
        Picture(figure, [Sheet.of_columns(columns)]),
    )


def show_energy(run: RunRecord) -> Exhibit:
    """Draw the mean energy of every client by its parts as a share of its budget, and its highest round."""
    happened = run.took_place
    parts = {
        name: (_mean_rounds(run.share_of_budget(part)[happened]), colour)
        for name, part, colour in (
            ("training", run.training_j, TRAINING),
            ("upload", run.upload_j, UPLOAD),
            ("mining", run.mining_j, MINING),
        )
    }
    mean = np.sum([values for values, _ in parts.values()], axis=0)
    highest = np.max(run.share_of_budget(run.energy_j), axis=0)
    with drawing(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        if run.num_clients <= _MOST_BARS:
            _draw_energy_bars(axes, parts, highest, is_overdrawn(run))
            _fit_clients(axes, run)
        else:
            _draw_energy_ranks(axes, parts, highest)
        axes.axhline(1.0, color=BOUND, linewidth=1.0, linestyle=DASHES, label="budget")
        axes.set_ylim(0, max(1.36, 1.3 * float(highest.max())))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(title="Energy of a client in a round", ylabel="share of its budget")
        lines, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda place: _ENERGY_KEY.index(names[place]))
        axes.legend(
            [lines[place] for place in order],
            [names[place] for place in order],
            loc="upper left",
            ncols=len(names) if len(names) <= 5 else 3,
            handlelength=1.1,
            handletextpad=0.5,
            columnspacing=1.0,
            fontsize=7.5,
        )
        if not happened.any():
            say(axes, "no round took place")
    columns = {
        "client": np.arange(run.num_clients),
        **{name: _mean_rounds(getattr(run, name)[happened]) for name in ("training_j", "upload_j", "mining_j")},
        "budget_j": _mean_rounds(run.energy_budget_j),
        "mean_share_of_budget": mean,
        "highest_share_of_budget": highest,
    }
    return Exhibit(
        "energy",
        "What it costs each client",
        "Coloured are the means over the rounds that took place, whether or not the client trained: everybody mines."
        " Grey is the client's highest round, dashed the budget that no round may exceed.",
        f"Bar chart of the energy of {run.num_clients} clients as a share of their budgets. In the mean they spend "
        f"{100 * float(mean.mean()):.0f} %; the highest round of any client is at {100 * float(highest.max()):.0f} %.",
        Picture(figure, [Sheet.of_columns(columns)]),
    )


def _draw_energy_bars(axes: Axes, parts: _Parts, highest: PerClient, overdrawn: PerClientMask) -> None:
    clients, base = np.arange(len(highest)), np.zeros(len(highest))
    for name, (values, colour) in parts.items():
        axes.bar(clients, values, bottom=base, color=colour, width=0.72, label=name)
        base = base + values
    for name, mask, colour in (("highest round", ~overdrawn, SOFT_INK), ("overdrawn", overdrawn, INFEASIBLE)):
        if mask.any():
            axes.plot(clients[mask], highest[mask], "_", color=colour, markersize=9, label=name)


def _draw_energy_ranks(axes: Axes, parts: _Parts, highest: PerClient) -> None:
    """Draw steps instead of bars, for many clients: in descending order of energy."""
    order = np.argsort(-np.sum([values for values, _ in parts.values()], axis=0), kind="stable")
    stack_steps(axes, {name: (values[order], colour) for name, (values, colour) in parts.items()}, first=0.5)
    edges = 0.5 + np.arange(len(highest) + 1)
    axes.stairs(highest[order], edges, baseline=None, color=SOFT_INK, linewidth=0.8, label="highest round")
    axes.set_xlim(0.5, len(highest) + 0.5)
    axes.set_xlabel("clients, in the order of their energy")


def show_backlog(run: RunRecord) -> Exhibit:
    """Draw the queues after every round."""
    return _show_queues(
        run,
        run.next_queue,
        "backlog",
        "How many rounds clients are owed",
        "Queue backlog",
        "backlog (rounds owed)",
        "A client's queue grows by its rate beta in every round and falls by one when it takes part. A backlog that"
        " settles is served; one that keeps rising is not, or not yet: a larger V waits longer.",
    )


def show_stability(run: RunRecord) -> Exhibit:
    """Draw the queues divided by the number of rounds."""
    return _show_queues(
        run,
        run.next_queue / run.round[:, np.newaxis],
        "stability",
        "Whether that will settle",
        "Backlog over rounds",
        "Z(t) / t",
        "The backlog divided by the round. It bounds by how much of its rate a client has missed so far. A curve that"
        " falls to 0 is mean-rate stable (Definition 1 of the paper): every client gets its rate in the long run.",
    )


def _show_queues(
    run: RunRecord, values: PerRoundClient, name: str, heading: str, title: str, label: str, caption: str
) -> Exhibit:
    with drawing(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        draw_spread(axes, values, label)
        fit_rounds(axes, run)
        axes.set(title=title, xlabel="round")
    rows = [(round, float(row.min()), float(row.mean()), float(row.max())) for round, row in enumerate(values, start=1)]
    return Exhibit(
        name,
        heading,
        caption + " The line is the mean of all clients, the band reaches from the least to the greatest.",
        f"Line chart of {title.lower()}: after the last round {float(values[-1].mean()):.2f} in the mean of all clients"
        f" and {float(values[-1].max()):.2f} for the one with most.",
        Picture(figure, [Sheet(("round", "least", "mean", "greatest"), rows)]),
    )


def show_participation(run: RunRecord) -> Exhibit:
    """Draw the participation of every client against the rate beta that it is owed."""
    below = is_below_rate(run)
    with drawing(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        if run.num_clients <= _MOST_BARS:
            _draw_rates(axes, run)
        else:
            _draw_rate_cloud(axes, run)
        axes.set_title("Participation against beta")
    columns = {
        "client": np.arange(run.num_clients),
        "beta": run.participation_rate,
        "participation": run.participation,
        "rounds_owed": np.maximum(rounds_owed(run), 0.0),
    }
    count = int(np.count_nonzero(below))
    verdict = f"{count} of {run.num_clients} clients are" if count else "No client is"
    form = (
        "Bars show in which share of all rounds a client's update counted, the line across what it is owed."
        if run.num_clients <= _MOST_BARS
        else "Every dot is a client: below the line it took part less often than it is owed."
    )
    return Exhibit(
        "participation",
        "Who took part how often",
        f"{form} Red is a client that is owed a whole round or more at the end. Infeasible rounds and diverged updates"
        " count as not taking part.",
        f"Chart of participation against the rate beta. {verdict} below the rate by a whole round or more.",
        Picture(figure, [Sheet.of_columns(columns)]),
    )


def _draw_rates(axes: Axes, run: RunRecord) -> None:
    below, clients = is_below_rate(run), np.arange(run.num_clients)
    for mask, colour in ((~below, TRAINING), (below, INFEASIBLE)):
        axes.bar(clients[mask], run.participation[mask], color=colour, width=0.72)
    edges = np.stack([clients - 0.42, clients + 0.42])
    axes.plot(edges, np.stack([run.participation_rate] * 2), color=BOUND, linewidth=1.6)
    _fit_clients(axes, run)
    axes.set_ylabel("share of rounds")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    highest = float(max(run.participation.max(), run.participation_rate.max()))
    axes.set_ylim(0, 1.3 * highest or 1.0)
    _add_rate_key(axes, [Line2D([], [], color=BOUND, linewidth=1.6)], ["owed (beta)"], any_below=bool(below.any()))


def _draw_rate_cloud(axes: Axes, run: RunRecord) -> None:
    below = is_below_rate(run)
    for mask, colour in ((~below, TRAINING), (below, INFEASIBLE)):
        axes.plot(
            run.participation_rate[mask], run.participation[mask], ".", color=colour, markersize=3, markeredgewidth=0
        )
    low, high = float(run.participation_rate.min()), float(run.participation_rate.max())
    margin = 0.05 * (high - low) or 0.05
    axes.set_xlim(max(low - margin, 0.0), high + margin)
    axes.axline((0, 0), slope=1.0, color=BOUND, linewidth=1.0, linestyle=DASHES)
    axes.set_ylim(0, 1.3 * float(max(run.participation.max(), high + margin)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="owed (beta)", ylabel="share of rounds")
    key = [Line2D([], [], color=BOUND, linewidth=1.0, linestyle=DASHES)]
    _add_rate_key(axes, key, ["as owed"], any_below=bool(below.any()))


def _add_rate_key(axes: Axes, lines: list[Line2D], names: list[str], *, any_below: bool) -> None:
    lines = [Line2D([], [], marker="s", color=TRAINING, linestyle="none"), *lines]
    names = ["took part", *names]
    if any_below:
        lines.append(Line2D([], [], marker="s", color=INFEASIBLE, linestyle="none"))
        names.append("below its rate")
    axes.legend(lines, names, loc="upper left", ncols=len(names), handlelength=1.2, columnspacing=1.2)


def show_schedule(run: RunRecord) -> Exhibit:
    """Draw the clients that trained in each round."""
    with drawing(WIDTH, 3.0) as figure:
        axes = figure.subplots()
        draw_schedule(axes, run)
        fit_rounds(axes, run)
    rows: list[Sequence[Cell]] = [
        (int(round) + 1, int(client), int(run.delivered[round, client]))
        for round, client in np.argwhere(run.selected).tolist()
    ]
    failed = int(np.count_nonzero(run.selected & ~run.delivered))
    return Exhibit(
        "schedule",
        "Round by round",
        "One row per client, one column per round: blue where it trained, red where its update diverged and was left"
        f" out.{infeasible_text(run)}",
        f"Map of {run.num_clients} clients over {run.num_rounds} rounds; {float(run.num_selected.mean()):.1f} clients"
        f" train in a round, in the mean, and {failed} updates diverged.",
        Picture(figure, [Sheet(("round", "client", "delivered"), rows)]),
    )


def _fit_clients(axes: Axes, run: RunRecord) -> None:
    axes.set_xlim(-0.6, run.num_clients - 0.4)
    axes.set_xlabel("client")
    axes.grid(visible=False, axis="x")
    if run.num_clients <= MOST_ROWS:
        axes.set_xticks(range(run.num_clients))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _mean_rounds(values: PerRoundClient) -> NDArray[np.float64]:
    """Return the mean over the given rounds, (clients,); zero if there are none."""
    return values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
