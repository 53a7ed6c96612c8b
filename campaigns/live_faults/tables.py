"""Results of fault injection in live networks, as tables for a terminal of 80 columns and for the documentation."""

from collections.abc import Sequence

from rich.table import Table

from bdfl.report.tables import infeasible_text, new_table, number
from campaigns.live_faults.campaign import LiveCampaign
from campaigns.live_faults.results import DESCRIPTIONS, LiveOutcome, TroubleKind

_COLUMNS = ("trouble", "quorum", "times", "blocks", "gap", "at most", "back", "s", "broken")


def tabulate_live_campaign(campaign: LiveCampaign) -> Table:
    """Tabulate one row for each kind of fault and quorum rule."""
    sizes = sorted({outcome.num_nodes for outcome in campaign.outcomes})
    seconds = sum(outcome.seconds for outcome in campaign.outcomes)
    title = f"Real networks in trouble: {', '.join(map(str, sizes))} nodes, {seconds:.0f} s"
    table = new_table(title, _COLUMNS, text_columns=2)
    for group in _group(campaign.outcomes):
        kind, quorum, _, *cells, _, broken = _cells(group)
        table.add_row(kind, quorum, *cells, infeasible_text(int(broken)))
    table.caption = (
        "times: how often it was done\n"
        "gap: longest time (s) without a block at a node that nothing was done to\n"
        "at most: what it may be, a calm round's and the deadline for silent members\n"
        "back: most rounds until a node that was started again voted, beyond the one\n"
        "under way; s: seconds, from when it listened"
    )
    return table


def live_campaign_markdown(campaign: LiveCampaign, command: str, machine: str) -> str:
    """Return the results as a page of the documentation."""
    broken = len(campaign.failures)
    lines = [
        "# Real networks in trouble",
        "",
        "Nodes are processes on one machine with mTLS between them, digits and an MLP. Every network is judged by what",
        "it leaves: chains are valid and one, no two statements of a member exclude each other, nobody forgot what it",
        "had said or stored, nobody is blamed, and whoever was started again votes at most two rounds after the one",
        f"under way. {len(campaign.outcomes)} networks, {broken} of them broke a law. {machine}; made by",
        "",
        "```",
        command,
        "```",
        "",
        "| trouble | quorum | nodes | times | blocks | gap s | at most s | back rounds | back s | time s | broken |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups = _group(campaign.outcomes)
    lines += [f"| {' | '.join(_cells(group))} |" for group in groups]
    lines += [
        "",
        "Gap: the longest that a node had no new block to which nothing was done; at most: what that may be.",
        "",
    ]
    lines += [f"- `{kind.value}`: {DESCRIPTIONS[kind]}{_details(groups, kind)}" for kind in _kinds(groups)]
    for outcome in campaign.failures:
        lines += ["", f"`{outcome.kind.value}`, seed {outcome.seed}:", *(f"- {breach}" for breach in outcome.breaches)]
    return "\n".join(lines) + "\n"


def _group(outcomes: Sequence[LiveOutcome]) -> list[list[LiveOutcome]]:
    groups: dict[tuple[str, str], list[LiveOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.kind.value, outcome.quorum.value), []).append(outcome)
    return list(groups.values())


def _kinds(groups: Sequence[Sequence[LiveOutcome]]) -> list[TroubleKind]:
    return list(dict.fromkeys(group[0].kind for group in groups))


def _cells(group: Sequence[LiveOutcome]) -> list[str]:
    first, figures = group[0], [outcome.figures for outcome in group]
    gaps = [one.gap_s for one in figures if one.gap_s is not None]
    limits = [one.deadline_s + (one.calm_gap_s or 0.0) for one in figures if one.deadline_s is not None]
    rounds = [outcome.return_rounds for outcome in group if outcome.return_rounds is not None]
    seconds = [outcome.return_s for outcome in group if outcome.return_s is not None]
    return [
        first.kind.value,
        first.quorum.value,
        str(first.num_nodes),
        str(sum(one.num_trials for one in figures)),
        str(sum(outcome.height for outcome in group)),
        number(max(gaps, default=None), 1),
        number(min(limits, default=None), 1),
        str(max(rounds)) if rounds else "-",
        number(max(seconds, default=None), 1),
        f"{sum(outcome.seconds for outcome in group):.0f}",
        str(sum(not outcome.is_good for outcome in group)),
    ]


def _details(groups: Sequence[Sequence[LiveOutcome]], kind: TroubleKind) -> str:
    """Return the notes of a kind of fault."""
    said = []
    for group in groups:
        for outcome in group:
            figures = outcome.figures
            if outcome.kind is kind and figures.note:
                said.append(figures.note)
            if outcome.kind is kind and figures.block_s is not None:
                said.append(f"{figures.block_s:.1f} s a block ({outcome.quorum.value})")
    kills = [outcome.figures for group in groups for outcome in group if outcome.kind is kind is TroubleKind.KILL]
    if kills:
        said.append(f"{sum(one.num_during_writes for one in kills)} of them during a write")
    return f": {'; '.join(said)}" if said else ""
