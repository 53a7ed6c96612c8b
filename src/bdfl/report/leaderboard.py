"""The leaderboard as tables, figures, Markdown for the site and a self-contained HTML page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from bdfl.experiment import Interval
from bdfl.experiment.leaderboard import SERVED, Leaderboard, Standing
from bdfl.report.html import document, node, table_node
from bdfl.report.style import BOUND, SOFT_INK, Cell, Picture, Sheet, colour_of, draw_interval, drawable, drawing
from bdfl.report.tables import interval, markdown_table, new_table, number
from bdfl.scheduling.registry import show_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_INCH = 0.27
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}caption{text-align:left;font-weight:600}"
    "th,td{padding:.2rem .8rem .2rem 0;border-bottom:1px solid #e4e4e4;white-space:nowrap}"
    ".number{text-align:right;font-variant-numeric:tabular-nums}.words{text-align:left}img{width:100%}"
)
_READING = (
    "`#`: rank by delay among those that serve everybody; `-`: the worst served client misses its participation rate by"
    f" more than {SERVED:g} on average, which makes a scheduler quick and is not what was asked for",
    "above bound: mean delay above what no schedule of these rounds that serves everybody can beat, proven;"
    " for one that chooses its transmit power the bound is lower",
    "below: mean delay below that of the fastest ranked baseline at its initial frequencies; allocating: what that"
    " baseline saves at its best frequencies (`f=best`), for the same clients; choosing: the rest, what other clients"
    " save, at the best frequencies for them",
    "energy: of a client in a round, whether or not it trains, and as a share of its budget",
    "Jain: fairness of the shares of rounds, 1 where all train equally often",
)


@dataclass(frozen=True)
class _Measure:
    """A column: its header in tables, its title in figures, its getter and its number of digits."""

    head: str
    title: str
    column: str
    find: Callable[[Standing], Interval | None]
    digits: int


_MEASURES = (
    _Measure("delay s", "delay of a round (s)", "delay_s", lambda one: one.delay_s, 4),
    _Measure("above bound %", "", "above_bound_percent", lambda one: one.above_bound_percent, 2),
    _Measure("below %", "", "reduction_percent", lambda one: one.reduction_percent, 2),
    _Measure("allocating %", "", "allocating_percent", lambda one: one.allocating_percent, 2),
    _Measure("choosing %", "", "choosing_percent", lambda one: one.choosing_percent, 2),
    _Measure("energy J", "energy of a client (J)", "energy_j", lambda one: one.energy_j, 4),
    _Measure("of budget", "", "energy_use", lambda one: one.energy_use, 3),
    _Measure("shortfall", "shortfall of the worst", "shortfall", lambda one: one.shortfall, 3),
    _Measure("Jain", "Jain's index", "jain", lambda one: one.jain, 3),
    _Measure("trained", "", "selected", lambda one: one.selected, 2),
    _Measure("accuracy %", "accuracy (%)", "accuracy_percent", lambda one: one.accuracy_percent, 1),
)


def tabulate_board(board: Leaderboard) -> list[Table]:
    """Tabulate the standings for a terminal of 80 columns: costs, savings, then fairness."""
    costs = new_table(
        _title(board), ("#", "scheduler", "delay s", "above bound %", "energy J", "of budget"), text_columns=2
    )
    savings = new_table(
        "Mean delay below the best baseline's, and by what",
        ("#", "scheduler", "below %", "allocating %", "choosing %"),
        text_columns=2,
    )
    fairness = new_table(
        "Fairness" + (" and accuracy" if board.is_learned else ""),
        ("#", "scheduler", "trained", "shortfall", "Jain", *(("accuracy %",) if board.is_learned else ())),
        text_columns=2,
    )
    for standing in board.standings:
        cells = {measure.head: interval(measure.find(standing), measure.digits) for measure in _MEASURES}
        name = [_rank_text(standing), show_choice(standing.scheduler)]
        use = number(100.0 * standing.energy_use.mean, 1, " %")
        costs.add_row(*name, cells["delay s"], cells["above bound %"], number(standing.energy_j.mean, 4), use)
        savings.add_row(*name, cells["below %"], cells["allocating %"], cells["choosing %"])
        learned = [cells["accuracy %"]] if board.is_learned else []
        fairness.add_row(*name, cells["trained"], cells["shortfall"], cells["Jain"], *learned)
    fairness.caption = f"-: no rank, mean shortfall above {SERVED:g}: somebody is left out"
    return [costs, savings, fairness]


def draw_board(board: Leaderboard) -> Picture:
    """Draw standings as rows, best on top, and measures as columns: dots with intervals, and the proven bound."""
    from matplotlib.lines import Line2D

    measures = [one for one in _MEASURES if one.title and any(one.find(standing) for standing in board.standings)]
    with drawing(1.6 + 2.25 * len(measures), 1.15 + _ROW_INCH * len(board.standings)) as figure:
        row = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axes, measure in zip(row, measures, strict=True):
            _draw_measure(axes, board, measure)
        names = [f"{show_choice(one.scheduler)}  {_rank_text(one)}" for one in board.standings]
        row[0].set_yticks(range(len(names)), [drawable(name, otherwise="?", longest=34) for name in names])
        row[0].set_ylim(len(names) - 0.4, -0.6)
        figure.suptitle(drawable(_title(board), otherwise="leaderboard", longest=110), fontsize=9.5, x=0.01, ha="left")
        marks = [
            Line2D([], [], marker="o", color=SOFT_INK, linestyle="none"),
            Line2D([], [], marker="o", color=SOFT_INK, markerfacecolor="white", linestyle="none"),
            Line2D([], [], marker="|", markersize=9, color=BOUND, linestyle="none"),
        ]
        meaning = ["mean, 95 % interval", f"leaves somebody out (shortfall above {SERVED:g})", "proven lower bound"]
        figure.legend(marks, meaning, loc="outside lower right", ncols=3)
    return Picture(figure, [_sheet(board)])


def _draw_measure(axes: "Axes", board: Leaderboard, measure: _Measure) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, standing in enumerate(board.standings):
        found = measure.find(standing)
        if found is None or np.isnan(found.mean):
            continue
        colour = colour_of(standing.scheduler, place)
        fill = colour if standing.rank is not None else "white"
        draw_interval(axes, found, place, colour, size=4.5, cap=2.5, line=1.2, fill=fill)
        if measure.column == "delay_s" and standing.bound_s is not None:
            axes.plot(standing.bound_s.mean, place, marker="|", markersize=9, color=BOUND)
    axes.set_title(measure.title, fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


def write_leaderboard_markdown(boards: Sequence[Leaderboard], made_with: Sequence[str]) -> str:
    """Return the boards as Markdown, each with its figure; `made_with` are lines about their provenance."""
    lines = ["# Leaderboard", "", "Written by the command below.", ""]
    lines += [f"- {line}" for line in (*made_with, *_READING)]
    for board in boards:
        columns, rows = _rows(board)
        lines += ["", f"## {board.scenario}", "", f"{_title(board)}. Mean ± 95 % interval over seeds.", ""]
        lines += markdown_table(columns, rows, "rl" + "r" * (len(columns) - 2))
        lines += ["", f"![Standings in {board.scenario}]({file_name(board)}.svg)"]
    return "\n".join(lines) + "\n"


def write_leaderboard_html(boards: Sequence[Leaderboard], pictures: Sequence[Picture], made_with: Sequence[str]) -> str:
    """Return the boards as one self-contained HTML file."""
    parts = []
    for board, picture in zip(boards, pictures, strict=True):
        columns, rows = _rows(board)
        turned = [[row[1], row[0], *row[2:]] for row in rows]  # the first column names the row
        heads = [columns[1], columns[0], *columns[2:]]
        source = "data:image/svg+xml;base64," + b64encode(picture.svg).decode()
        parts += [
            node("h2", board.scenario),
            table_node(f"{_title(board)}, mean ± 95 % interval", heads, turned),
            node("img", attributes={"src": source, "alt": f"Standings in {board.scenario}: the table above as dots"}),
        ]
    head = node(
        "head",
        node("meta", attributes={"charset": "utf-8"}),
        node("meta", attributes={"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        node("title", "Leaderboard of schedulers"),
        node("style", _STYLE),
    )
    made = node("ul", *(node("li", line.replace("`", "")) for line in (*made_with, *_READING)))
    body = node("body", node("main", node("h1", "Leaderboard"), made, *parts))
    return document(node("html", head, body, attributes={"lang": "en"}))


def file_name(board: Leaderboard) -> str:
    """Return the name of a board's files, without extension."""
    return f"leaderboard-{board.scenario}"


def _rows(board: Leaderboard) -> tuple[list[str], list[list[str]]]:
    measures = [one for one in _MEASURES if board.is_learned or one.column != "accuracy_percent"]
    columns = ["#", "scheduler", *(measure.head for measure in measures)]
    rows = [
        [
            _rank_text(standing),
            show_choice(standing.scheduler),
            *(interval(measure.find(standing), measure.digits) for measure in measures),
        ]
        for standing in board.standings
    ]
    return columns, rows


def _sheet(board: Leaderboard) -> Sheet:
    header = ["rank", "scheduler", "tradeoff", "seeds", "infeasible_rounds", "bound_s"]
    header += [name for measure in _MEASURES for name in (measure.column, f"{measure.column}_half_width")]
    rows: list[list[Cell]] = []
    for one in board.standings:
        row: list[Cell] = ["" if one.rank is None else one.rank, one.scheduler, one.tradeoff, len(board.seeds)]
        row += [one.infeasible_rounds, "" if one.bound_s is None else one.bound_s.mean]
        for measure in _MEASURES:
            found = measure.find(one)
            row += ["", ""] if found is None else [found.mean, found.half_width]
        rows.append(row)
    return Sheet(tuple(header), rows)


def _rank_text(standing: Standing) -> str:
    return "-" if standing.rank is None else str(standing.rank)


def _title(board: Leaderboard) -> str:
    seeds = "1 seed" if len(board.seeds) == 1 else f"{len(board.seeds)} seeds"
    learned = ", trained" if board.is_learned else ""
    return f"{board.scenario}: {board.clients} clients, {board.rounds} rounds, {seeds}{learned}"
