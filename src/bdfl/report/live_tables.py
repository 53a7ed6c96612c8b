"""Live networks and machines, as tables for a terminal of 80 columns."""

from rich.table import Table
from rich.text import Text

from bdfl.operation.calibration import MachineReport
from bdfl.report.tables import new_table, number
from bdfl.transports.live.delay_summary import DelayRow, DelaySummary


def tabulate_delays(summary: DelaySummary) -> Table:
    """Modelled beside measured delay of every node, and what makes up the difference."""
    table = new_table(
        f"Mean delay of a round in seconds, modelled time stretched {summary.time_scale:g} times",
        ("node", "model", "measured", "ratio", "over", "exchange", "mining", "voting", "train", "upload"),
    )
    for row in summary.nodes:
        table.add_row(*_delay_cells(row))
    if len(summary.nodes) > 1:
        table.add_section()
        table.add_row(*_delay_cells(summary.total))
    notes = [
        f"means over {summary.total.num_rounds:,} rounds of {len(summary.nodes)} nodes",
        "over: measured minus modelled, the sum of exchange, mining and voting; training",
        "and uploading are part of the exchange",
    ]
    if summary.num_partial:
        notes.append(f"left out: {summary.num_partial} rounds that a node did not see from their beginning")
    if summary.num_repeated:
        notes.append(f"{summary.num_repeated} rounds took more than one attempt")
    table.caption = "\n".join(notes)
    return table


def tabulate_machine(report: MachineReport) -> Table:
    """What a machine can do, and how that is known."""
    table = new_table("This machine", ("", "", ""), text_columns=3)
    table.show_header = False
    for name, value, source in report.rows():
        table.add_row(Text(name, style="dim"), value, Text(source, style="dim"))
    return table


def _delay_cells(row: DelayRow) -> tuple[str, ...]:
    return (
        "all" if row.node is None else str(row.node),
        number(row.modelled_s, 2),
        number(row.measured_s, 2),
        number(row.ratio, 3),
        *(
            number(value, 3)
            for value in (
                row.overhead_s,
                row.exchange_s,
                row.mining_s,
                row.voting_s,
                row.training_s,
                row.upload_s,
            )
        ),
    )
