"""Tables of selfish members, for a terminal of 80 columns and for the documentation."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from bdfl.cli.terminal import describe_machine
from bdfl.report.tables import new_table, number
from campaigns.faults.laws import ENTRY_BLOCKS
from campaigns.selfish.judging import MAX_RECOVERY_S, MAX_SLOWDOWN, UNJUDGED_SHARES, Result, Row
from campaigns.selfish.live import LiveRun

_HEAD = ("attack", "scheduler", "networks", "won", "expected", "slowdown", "removal", "broken")
_LIVE_HEAD = ("member", "seed", "blocks", "won", "expected", "time", "removal", "broken")


def tabulate_rows(result: Result) -> Table:
    """Tabulate the gain and cost of each attack."""
    table = new_table("Selfish members", _HEAD, text_columns=2)
    for row in result.rows:
        table.add_row(*_cells(row))
    table.caption = (
        f"won: blocks of {result.num_blocks} each; slowdown: of the worst network; removal: latest block with it"
    )
    return table


def tabulate_leads(result: Result) -> Table:
    """Tabulate recovery times after two members ran ahead."""
    table = new_table("Members that ran ahead", ("lead", "blocks again after", "at most"))
    for lead in result.leads:
        table.add_row(f"{lead.lead_s:g} s", number(lead.recovery_s, 1, " s"), number(MAX_RECOVERY_S, 1, " s"))
    return table


def simulated_markdown(result: Result, command: str) -> str:
    """Format the results as a page of the documentation."""
    lines = [
        "# Selfish members",
        "",
        "Members that break no rule and gain by it at everybody's expense:",
        "[what stops them](../../security.md#selfish-members), [what each does](../../faults.md#selfish-members).",
        "The same among real processes: [live](live.md).",
        "",
        f"Made by `{command}`. Each network has {result.num_blocks} blocks and is played again without the attack",
        "where a slowdown stands. Laws: blocks won within chance of the share of the hashing, at most",
        f"{MAX_SLOWDOWN:g} times as long a mean round, a removal on the chain within {ENTRY_BLOCKS} blocks.",
        f"{'No law was broken.' if result.is_good else 'Laws were broken.'}",
        "",
        *_markdown(_HEAD, map(_cells, result.rows)),
        "",
    ]
    if any(row.attack in UNJUDGED_SHARES for row in result.rows):
        lines += ["The share of `feign` is told, not judged: see [limits](../../security.md#selfish-members).", ""]
    leads = ((f"{lead.lead_s:g} s", f"{lead.recovery_s:.1f} s", f"{MAX_RECOVERY_S:g} s") for lead in result.leads)
    lines += ["## Members that ran ahead", "", *_markdown(("lead", "blocks again after", "at most"), leads)]
    return "\n".join(lines) + "\n"


def tabulate_live(runs: Sequence[LiveRun]) -> Table:
    """Tabulate the blocks won by a withholding member among real processes, and its removal."""
    table = new_table("A withholding member among real processes", _LIVE_HEAD, text_columns=2)
    for run in runs:
        table.add_row(*_live_cells(run))
    table.caption = "removal: blocks from the offer to the one with it"
    return table


def live_markdown(runs: Sequence[LiveRun], command: str) -> str:
    """Format the live results as a page of the documentation."""
    lines = [
        "# A withholding member among real processes",
        "",
        f"Made by `{command}`.",
        f"Four nodes on one machine ({describe_machine()}), each a process, scenario `live`, two of four train.",
        "The last member keeps its report and update back until it has mined, or is honest as a control.",
        "With *no rules* the others vote without [head-start rule and patience](../../protocol.md#waiting):",
        "its share is told, not judged, and shows what the rules are for.",
        "After so many blocks the three others sign its removal and give it to their own nodes.",
        f"Laws: blocks within chance of the share of the hashing, the removal within {ENTRY_BLOCKS} blocks,",
        "all chains valid and one.",
        f"{'Laws were broken.' if any(run.broken for run in runs) else 'No law was broken.'}",
        "",
        *_markdown(_LIVE_HEAD, map(_live_cells, runs)),
        "",
        "Under the rules, who holds its report back is seldom a candidate, and the schedules give it less hashing.",
    ]
    return "\n".join(lines) + "\n"


def _live_cells(run: LiveRun) -> tuple[str, ...]:
    return (
        run.kind.value,
        str(run.seed),
        str(run.blocks),
        str(run.won),
        f"{run.expected:.1f}",
        f"{run.seconds:.0f} s",
        "none" if run.removal_blocks is None else str(run.removal_blocks),
        ", ".join(run.broken) or "no",
    )


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.attack.value,
        row.scheduler,
        str(row.networks),
        str(row.won),
        f"{row.expected:.0f} ± {row.deviation:.0f}",
        "" if row.worst_slowdown is None else f"{row.worst_slowdown:.2f}",
        "none" if row.latest_removal is None else str(row.latest_removal),
        ", ".join(row.broken) or "no",
    )
