"""Tables of runs, comparisons and scenarios."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bdfl.experiment import Comparison, Interval
from bdfl.experiment.bounds import LongRunBound
from bdfl.experiment.simulation import Answer
from bdfl.records import AggregateRecord, RoundRecord, RunRecord, RunSummary, summarise_aggregate, summarise_run
from bdfl.records.aggregate_run import AggregateRound, spread_clients
from bdfl.records.run import mean_or_nan
from bdfl.scenario import ScenarioRow
from bdfl.scheduling.problem import Status
from bdfl.scheduling.registry import show_choice

# Tables for a terminal of 80 columns, made from records and results only.

_SHOWN_ROUNDS = 5  # at the start and at the end of a run
_SHOWN_CLIENTS = 20
_UNKNOWN = "-"

_Row = TypeVar("_Row")


def new_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    text_columns: int = 1,
    words: Collection[int] = (),
    caption: str = "",
) -> Table:
    """Return a table in the house style; the first `text_columns` and those at `words` are text, the others numbers."""
    table = Table(
        title=title,
        caption=caption or None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(columns):
        is_text = place < text_columns or place in words
        table.add_column(column, justify="left" if is_text else "right", vertical="top")
    for row in rows:
        table.add_row(*row)
    return table


def count_more(count: int, shown: int, what: str) -> str:
    """Say how many more there are than are shown; empty if all are."""
    return f"{count - shown} more {what}" if count > shown else ""


def number(value: float | None, digits: int = 3, unit: str = "") -> str:
    """Format a number for a table; `-` if there is none."""
    return _UNKNOWN if value is None or np.isnan(value) else f"{value:.{digits}f}{unit}"


def interval(value: Interval | None, digits: int = 2) -> str:
    """Format a mean with half its interval, as in `91.86 ± 0.07`."""
    if value is None or np.isnan(value.mean):
        return _UNKNOWN
    width = "" if np.isnan(value.half_width) else f" ± {value.half_width:.{digits}f}"
    return f"{value.mean:.{digits}f}{width}"


def _percent(value: Interval | None, digits: int) -> str:
    """Format the mean of percentages, as in `14.81 %`."""
    return number(None if value is None else value.mean, digits, " %")


def gap_text(gap: float | None) -> str:
    """Format a relative gap: `0` if it is below float64 precision, else in scientific notation."""
    if gap is None or np.isnan(gap):
        return _UNKNOWN
    return "0" if gap < 1e-15 else f"{gap:.1e}"


def infeasible_text(count: int) -> Text:
    """Format a count of infeasible rounds; red unless 0."""
    return Text(str(count), style="bold red" if count else "")


def tabulate_comparison(comparison: Comparison) -> list[Table]:
    """Tabulate each scheduler's delay and energy, then what it saves and by what, then its fairness and effort."""
    num_seeds, bound = len(comparison.seeds), comparison.bound
    costs = new_table(
        f"{comparison.scenario}: {comparison.rounds} rounds, {num_seeds} seeds, mean ± 95 % interval",
        ("scheduler", "total s", "round s", "above bound", "energy J", "of budget"),
    )
    savings = new_table(
        "Mean delay below the best baseline's, and by what",
        ("scheduler", f"s minus {show_choice(comparison.reference)}", "below", "allocating", "choosing"),
    )
    for result in comparison.results:
        name = show_choice(result.scheduler)
        costs.add_row(
            name,
            interval(result.total_s),
            number(result.delay_s.mean, 4),
            _percent(result.above_bound_percent, 2),
            number(result.energy_j.mean, 4),
            number(100.0 * result.energy_use.mean, 1, " %"),
        )
        savings.add_row(
            name,
            _UNKNOWN if result.scheduler == comparison.reference else interval(result.difference_s),
            _UNKNOWN if result.scheduler == comparison.best_baseline else _percent(result.reduction_percent, 2),
            _percent(result.allocating_percent, 2),
            _percent(result.choosing_percent, 2),
        )
    if bound is not None:
        costs.add_section()
        total = Interval(bound.mean * comparison.rounds, bound.half_width * comparison.rounds)
        costs.add_row("lower bound", interval(total), number(bound.mean, 4), *[_UNKNOWN] * 3)
    savings.caption = "allocating: the best baseline at its best frequencies; choosing: other clients at theirs"
    effort = [
        (
            show_choice(result.scheduler),
            f"{result.tradeoff:g}",
            number(result.shortfall.mean),
            number(result.worst_shortfall),
            infeasible_text(result.infeasible_rounds),
            number(result.iterations.mean, 1 if result.iterations.mean < 10 else 0),
            gap_text(result.gap.mean),
        )
        for result in comparison.results
    ]
    columns = ("scheduler", "V", "shortfall", "worst", "infeasible", "K", "gap")
    return [costs, savings, new_table("Fairness and effort", columns, effort)]


def tabulate_run(record: RunRecord) -> list[Table]:
    """Tabulate a run's summary, its first and last rounds, and its clients."""
    return [tabulate_summary(record, summarise_run(record)), _tabulate_rounds(record), _tabulate_clients(record)]


def tabulate_summary(record: RunRecord | AggregateRecord, summary: RunSummary, crowd: str = "") -> Table:
    """Tabulate a run in a few numbers; `crowd` is added to the title."""
    row = (
        number(summary.total_delay_s, 2),
        number(summary.mean_delay_s, 4),
        number(summary.mean_selected, 2),
        number(summary.worst_shortfall),
        number(100.0 * summary.mean_energy_use, 1, " %"),
        number(summary.final_queue_mean, 2),
        infeasible_text(summary.infeasible_rounds),
        number(summary.mean_iterations, 1 if summary.mean_iterations < 10 else 0),
        gap_text(summary.mean_gap),
    )
    title = f"{record.scenario}: {record.scheduler}, V = {record.tradeoff:g}, seed {record.seed}"
    columns = ("total s", "round s", "trained", "shortfall", "energy", "backlog", "infeasible", "K", "gap")
    return new_table(f"{title}, {summary.rounds} rounds{crowd}", columns, [row], text_columns=0)


def _tabulate_rounds(record: RunRecord) -> Table:
    columns = ("round", "who trained", "CPU GHz", "mining GHz", "exchange s", "mining s", "delay s", "backlog")
    table = new_table("Rounds", columns, text_columns=2)
    add_ends(table, range(1, record.num_rounds + 1), lambda round: _round_cells(record.round_record(round)))
    if record.num_infeasible:
        missed = record.round[~record.took_place].tolist()
        table.caption = f"infeasible: round {list_numbers(missed, 12)}, since {record.reason[missed[0] - 1]}"
    return table


def _round_cells(row: RoundRecord) -> list[str | Text]:
    backlog = f"{row.next_queue.mean():.2f}"
    if not row.took_place:
        return [str(row.round), Text(f"infeasible: {row.reason}", style="bold red"), *[_UNKNOWN] * 5, backlog]
    return [
        str(row.round),
        list_numbers(np.flatnonzero(row.selected).tolist()),
        f"{(row.cpu_hz[row.selected] / 1e9).mean():.3f}",
        f"{row.mining_hz.sum() / 1e9:.2f}",
        f"{row.exchange_s:.4f}",
        f"{row.mining_s:.4f}",
        f"{row.delay_s:.4f}",
        backlog,
    ]


def list_numbers(numbers: Sequence[int], shown: int = 8) -> str:
    """Format numbers, truncated after `shown`."""
    text = " ".join(str(value) for value in numbers[:shown])
    return text if len(numbers) <= shown else f"{text} ... {len(numbers)} in all"


def _tabulate_clients(record: RunRecord) -> Table:
    parts_j = (record.training_j, record.upload_j, record.mining_j)
    peak = np.max(record.share_of_budget(record.energy_j), axis=0)
    rows = [
        (
            str(client),
            number(100.0 * record.participation[client], 1, " %"),
            number(100.0 * record.participation_rate[client], 1, " %"),
            *(number(mean_or_nan(part[record.took_place, client]), 4) for part in parts_j),
            number(100.0 * peak[client], 1, " %"),
            number(record.next_queue[-1, client], 2),
        )
        for client in range(min(record.num_clients, _SHOWN_CLIENTS))
    ]
    columns = ("client", "trained", "owed", "training J", "upload J", "mining J", "peak energy", "backlog")
    more = count_more(record.num_clients, _SHOWN_CLIENTS, "clients: --json or the CSV file")
    return new_table("Clients", columns, rows, caption=more)


def tabulate_answer(answer: Answer, scheduler: str) -> Table:
    """Tabulate a round's decision, client by client."""
    if answer.status is Status.INFEASIBLE:
        return new_table(f"{scheduler}: infeasible, {answer.reason}", ())
    chosen = set(answer.selected)
    rows = [
        (
            str(client),
            "yes" if client in chosen else "",
            number(answer.cpu_hz[client] / 1e9, 4),
            number(answer.mining_hz[client] / 1e9, 4),
            number(answer.power_w[client], 4),
            number(answer.energy_j[client], 6),
        )
        for client in range(min(len(answer.cpu_hz), _SHOWN_CLIENTS))
    ]
    return new_table(
        f"{scheduler}: {answer.status.value}, delay {answer.delay_s:.6f} s (mining {answer.mining_s:.6f} s), "
        f"objective {answer.objective:.6g}, gap {gap_text(answer.gap)}",
        ("client", "trains", "CPU GHz", "mining GHz", "power W", "energy J"),
        rows,
        text_columns=2,
        caption=count_more(len(answer.cpu_hz), _SHOWN_CLIENTS, "clients: leave out --table"),
    )


def tabulate_scenario(name: str, rows: Sequence[ScenarioRow], *, with_meaning: bool = False) -> Table:
    """Tabulate every key of a scenario, under its section as in a file; values other than defaults are bold."""
    columns = ("key", "value", "unit", "meaning") if with_meaning else ("key", "value", "unit", "default", "source")
    table = new_table(f"Scenario {name}", columns, text_columns=len(columns))
    sections = list(dict.fromkeys(row.key.rpartition(".")[0] for row in rows))
    section = ""
    for row in sorted(rows, key=lambda row: sections.index(row.key.rpartition(".")[0])):
        where, _, key = row.key.rpartition(".")
        if where != section:
            table.add_section()
            table.add_row(Text(f"[{where}]", style="bold"))
            section = where
        rest = (row.meaning,) if with_meaning else (row.default_text, row.source)
        table.add_row(key, Text(row.value_text, style="" if row.is_default else "bold"), row.unit, *rest)
    return table


def tabulate_facts(title: str, facts: Sequence[tuple[str, str]]) -> Table:
    """Tabulate names and values, without a header."""
    table = new_table(title, ("", ""), ((Text(name, style="dim"), value) for name, value in facts), text_columns=2)
    table.show_header = False
    return table


def tabulate_numbers(title: str, header: Sequence[str], rows: Sequence[Sequence[str | float | int | None]]) -> Table:
    """Tabulate rows of text and numbers; in the first column, text equal to the row above is left out."""
    num_words = sum(isinstance(cell, str) for cell in rows[0])
    table = new_table(title, header, text_columns=num_words)
    above = ""
    for row in rows:
        first, *rest = (cell if isinstance(cell, str) else _short(cell) for cell in row)
        table.add_row("" if first == above else first, *rest)
        above = first
    return table


def tabulate_verdicts(verdicts: Sequence[tuple[str, bool, str]]) -> Table:
    """Tabulate claims, whether they hold, and the numbers behind them."""
    rows = (
        (Text("holds", style="green") if holds else Text("FAILS", style="bold red"), claim, found)
        for claim, holds, found in verdicts
    )
    return new_table("Verdicts", ("", "claim", "found"), rows, text_columns=3)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> list[str]:
    """Return the lines of a Markdown table; `align` has a letter for each column, l or r."""
    rule = "|" + "|".join("--:" if one == "r" else "---" for one in align) + "|"
    head, *body = ("| " + " | ".join(cells) + " |" for cells in (columns, *rows))
    return [head, rule, *body]


def add_ends(
    table: Table, rows: Sequence[_Row], show: Callable[[_Row], Sequence[RenderableType]], num_ends: int = _SHOWN_ROUNDS
) -> None:
    """Add the first and last few rows, with dots for those between them."""
    is_cut = len(rows) > 2 * num_ends
    for row in rows[:num_ends] if is_cut else rows:
        table.add_row(*show(row))
    if is_cut:
        table.add_row(*["..."] * len(table.columns), style="dim")
        for row in rows[-num_ends:]:
            table.add_row(*show(row))


def _short(value: float | int | None) -> str:
    """Format a number with about four significant digits."""
    if value is None or np.isnan(value):
        return _UNKNOWN
    if isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def tabulate_bound(bound: LongRunBound) -> list[Table]:
    """Tabulate the bound with its error, and the price of each client's participation."""
    numbers = [number(value_s, 5) for value_s in (bound.bound_s, bound.error_s, bound.confident_s)]
    table = new_table(
        f"{bound.scenario}: no scheduler that serves every client has shorter rounds in the long run",
        ("bound s", "standard error s", "bound minus two errors s", "rounds", "infeasible"),
        [(*numbers, str(bound.rounds), infeasible_text(bound.infeasible_rounds))],
        text_columns=0,
    )
    path = bound.path
    here = new_table(
        "These very rounds: the least mean delay of any schedule that serves every client",
        ("at least s", "attained at random s", "with whole participations s"),
        [[number(value_s, 5) for value_s in (path.bound_s, path.attained_s, path.whole_s)]],
        text_columns=0,
    )
    pairs = list(zip(bound.participation_rate, bound.multipliers_s, strict=True))
    prices = new_table(
        "Price of participation",
        ("client", "rate owed", "delay per participation (ms)"),
        (
            (str(client), number(100.0 * rate, 1, " %"), number(1e3 * price_s, 2))
            for client, (rate, price_s) in enumerate(pairs[:_SHOWN_CLIENTS])
        ),
        caption=count_more(len(pairs), _SHOWN_CLIENTS, "clients: --json"),
    )
    return [table, here, prices]


# Tables of an aggregate run of very many clients: its rounds, and the spread of its clients' totals.

_NAMES = {  # of the fields of ClientTotals: name, factor, digits, unit
    "participation": ("trained", 100.0, 3, " %"),
    "participation_rate": ("owed", 100.0, 3, " %"),
    "training_j": ("training", 1.0, 4, " J"),
    "upload_j": ("upload", 1.0, 4, " J"),
    "mining_j": ("mining", 1.0, 4, " J"),
    "peak_energy_use": ("peak of budget", 100.0, 1, " %"),
    "queue": ("backlog at the end", 1.0, 4, ""),
}


def tabulate_crowd(record: AggregateRecord) -> list[Table]:
    """Tabulate a run's summary, its first and last rounds, and the spread of its clients."""
    summary = tabulate_summary(record, summarise_aggregate(record), f", {record.num_clients:,} clients")
    return [summary, _tabulate_sums(record), _tabulate_spread(record)]


def _tabulate_sums(record: AggregateRecord) -> Table:
    columns = ("round", "trained", "CPU GHz", "mining THz", "exchange s", "mining s", "delay s", "backlog")
    table = new_table("Rounds", columns)
    add_ends(table, record.rounds, _sum_cells)
    missed = [row for row in record.rounds if row.status is Status.INFEASIBLE]
    if missed:
        table.caption = f"{len(missed)} rounds infeasible, the first since {missed[0].reason}"
    return table


def _sum_cells(row: AggregateRound) -> list[str | Text]:
    if row.status is Status.INFEASIBLE:
        return [str(row.round), Text("infeasible", style="bold red"), *["-"] * 5, number(row.mean_queue, 4)]
    return [
        str(row.round),
        f"{row.num_selected:,}",
        number(row.mean_cpu_hz / 1e9, 3),
        number(row.total_mining_hz / 1e12, 2),
        number(row.exchange_s, 4),
        number(row.mining_s, 4),
        number(row.delay_s, 4),
        number(row.mean_queue, 4),
    ]


def _tabulate_spread(record: AggregateRecord) -> Table:
    rows = []
    for row in spread_clients(record.clients):
        name, scale, digits, unit = _NAMES[row.quantity]
        cells = (row.least, row.five_percent, row.median, row.ninety_five_percent, row.most, row.mean)
        rows.append([name, *(number(scale * cell, digits, unit) for cell in cells)])
    title = f"What each of the {record.num_clients:,} clients did in all rounds"
    return new_table(title, ("", "least", "5 %", "median", "95 %", "most", "mean"), rows)
