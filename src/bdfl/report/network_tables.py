"""Results of a local network of processes as tables."""

from rich.table import Table

from bdfl.operation.judging import NetworkSummary
from bdfl.report.chain_tables import tabulate_facts
from bdfl.report.tables import new_table
from bdfl.transports.live.delay_summary import DelayRow, DelaySummary


def tabulate_summary(summary: NetworkSummary) -> list[Table]:
    """Tabulate the common chain, its model, and measured beside modelled delays."""
    accuracy = "not evaluated" if summary.accuracy is None else f"{100 * summary.accuracy:.1f} %"
    per_block = f", {summary.seconds / summary.height:.2f} s a block" if summary.height else ""
    verdict = "the same bytes in every chain, all verified" if summary.is_good else "NOT GOOD"
    facts = [
        ("blocks", f"{summary.height}: {verdict}"),
        ("tip", summary.tip or "none"),
        ("accuracy", accuracy),
        ("updates", f"{summary.mean_updates:.1f} a block, {summary.empty_blocks} empty blocks"),
        ("time", f"{summary.seconds:.0f} s from start to end{per_block}"),
    ]
    tables = [tabulate_facts(f"{summary.scenario}: {summary.num_nodes} nodes", facts)]
    return tables if summary.delays is None else [*tables, tabulate_delays(summary.delays)]


def tabulate_delays(delays: DelaySummary) -> Table:
    """Tabulate mean seconds of a round, modelled and as measured by each node, with their difference and parts."""
    title = f"Seconds of a round, time scale {delays.time_scale:g}"
    columns = ("node", "rounds", "modelled", "measured", "over", "exchange", "mining", "voting")
    table = new_table(title, columns, text_columns=1)
    for row in (*delays.nodes, delays.total):
        table.add_row("all" if row.node is None else str(row.node), *_cells(row))
    return table


def _cells(row: DelayRow) -> list[str]:
    shares = (row.modelled_s, row.measured_s, row.overhead_s, row.exchange_s, row.mining_s, row.voting_s)
    return [str(row.num_rounds), *(f"{value:.3f}" for value in shares)]
