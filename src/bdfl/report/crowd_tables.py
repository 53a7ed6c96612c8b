"""Tables of an aggregate run of very many clients: its rounds, and the spread of its clients' totals."""

from rich.table import Table
from rich.text import Text

from bdfl.records import CrowdRecord, summarise_crowd
from bdfl.records.crowd import CrowdRound, spread_clients
from bdfl.report.tables import new_table, number, tabulate_summary
from bdfl.scheduling.problem import Status

_SHOWN_ROUNDS = 5  # at the start and at the end of a run
_NAMES = {  # of the fields of ClientTotals: name, factor, digits, unit
    "participation": ("trained", 100.0, 3, " %"),
    "participation_rate": ("owed", 100.0, 3, " %"),
    "training_j": ("training", 1.0, 4, " J"),
    "upload_j": ("upload", 1.0, 4, " J"),
    "mining_j": ("mining", 1.0, 4, " J"),
    "peak_energy_use": ("peak of budget", 100.0, 1, " %"),
    "queue": ("backlog at the end", 1.0, 4, ""),
}


def tabulate_crowd(record: CrowdRecord) -> list[Table]:
    """Tabulate a run's summary, its first and last rounds, and the spread of its clients."""
    summary = tabulate_summary(record, summarise_crowd(record), f", {record.num_clients:,} clients")
    return [summary, _tabulate_rounds(record), _tabulate_clients(record)]


def _tabulate_rounds(record: CrowdRecord) -> Table:
    columns = ("round", "trained", "CPU GHz", "mining THz", "exchange s", "mining s", "delay s", "backlog")
    table = new_table("Rounds", columns)
    rows = record.rounds
    for row in rows[:_SHOWN_ROUNDS]:
        _add_round(table, row)
    if len(rows) > 2 * _SHOWN_ROUNDS:
        table.add_row(*["..."] * len(columns), style="dim")
    for row in rows[max(len(rows) - _SHOWN_ROUNDS, _SHOWN_ROUNDS) :]:
        _add_round(table, row)
    missed = [row for row in rows if row.status is Status.INFEASIBLE]
    if missed:
        table.caption = f"{len(missed)} rounds infeasible, the first since {missed[0].reason}"
    return table


def _add_round(table: Table, row: CrowdRound) -> None:
    if row.status is Status.INFEASIBLE:
        table.add_row(str(row.round), Text("infeasible", style="bold red"), *["-"] * 5, number(row.mean_queue, 4))
        return
    table.add_row(
        str(row.round),
        f"{row.num_selected:,}",
        number(row.mean_cpu_hz / 1e9, 3),
        number(row.total_mining_hz / 1e12, 2),
        number(row.exchange_s, 4),
        number(row.mining_s, 4),
        number(row.delay_s, 4),
        number(row.mean_queue, 4),
    )


def _tabulate_clients(record: CrowdRecord) -> Table:
    table = new_table(
        f"What each of the {record.num_clients:,} clients did in all rounds",
        ("", "least", "5 %", "median", "95 %", "most", "mean"),
    )
    for row in spread_clients(record.clients):
        name, scale, digits, unit = _NAMES[row.quantity]
        cells = (row.least, row.five_percent, row.median, row.ninety_five_percent, row.most, row.mean)
        table.add_row(name, *(number(scale * cell, digits, unit) for cell in cells))
    return table
