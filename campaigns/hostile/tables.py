"""Results of attacks by hostile peers, as a table for a terminal of 80 columns and for the documentation."""

from rich.table import Table
from rich.text import Text

from bdfl.report.tables import new_table
from campaigns.hostile.attacks import Who, find_attack
from campaigns.hostile.campaign import MAX_FALL, MAX_GROWTH, AttackResult, HostileResult, fall_of

_COLUMNS = ("attack", "sent", "us each", "quiet", "control", "attack", "fall", "MiB", "growth")


def tabulate_hostile(result: HostileResult) -> Table:
    """Tabulate one row for each attack, and one for each kind of peer."""
    table = new_table(f"Hostile peers of {result.num_nodes} nodes", _COLUMNS)
    for one in result.attacks:
        name, sent, cost, _, *rest = _cells(one)
        table.add_row(name, sent, cost, *rest)
    for who in Who:
        some = [one for one in result.attacks if one.who == who]
        if some:
            fall = fall_of(some)
            style = "bold red" if fall >= MAX_FALL else "bold"
            table.add_row(Text(f"all, {who}", style="bold"), *[""] * 5, Text(_percent(fall), style=style), "", "")
    table.caption = (
        "us each: processor time of all nodes together for each thing sent, beside "
        "what rounds cost; quiet, control, attack: honest rounds a minute, left alone, "
        "beside processes that burn as much as the attacker did, attacked; fall: "
        "against the control; MiB: most memory of a node; growth: of it, during the attack"
    )
    return table


def summarise_hostile(result: HostileResult) -> list[str]:
    """List the faults found, a line each, or the confirmed results."""
    if result.faults:
        return [f"NOT GOOD: {fault}" for fault in result.faults]
    return [
        f"{result.height} blocks, the same and valid in all nodes; nothing accepted, nobody accused;",
        f"memory at most {result.memory_growth >> 20} MiB above what it was before, {MAX_GROWTH >> 20} allowed.",
    ]


def hostile_markdown(result: HostileResult, command: str, machine: str) -> str:
    """Return the results as a page of the documentation."""
    lines = [
        "# Hostile peers",
        "",
        f"A network of {result.num_nodes} honest nodes and one hostile member, real processes on one machine with mTLS",
        "between them, digits and an MLP, as fast as it goes. For each attack the network is watched for at least",
        f"{result.rounds} rounds three times: left alone, attacked with at least {result.count} messages or",
        "connections as fast as they are taken, and beside processes that burn as much processor time as the",
        "attacker did, when it did.",
        f"{machine}; made by",
        "",
        "```",
        command,
        "```",
        "",
        "| attack | by | sent | us each | rounds | quiet /min | control /min | attack /min | fall | MiB | growth MiB |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in result.attacks:
        name, *cells = _cells(one)
        lines.append(f"| `{name}` | {one.who} | {' | '.join(cells)} |")
    for who in Who:
        some = [one for one in result.attacks if one.who == who]
        if some:
            lines.append(f"| all | {who} |  |  |  |  |  |  | {_percent(fall_of(some))} |  |  |")
    lines += [
        "",
        "Us each: processor time of all nodes together for each thing sent, beside what their rounds cost. Fall: of",
        f"honest rounds against the control, {100 * MAX_FALL:.0f} % allowed over all attacks of a peer. MiB: most",
        "memory of a node at any time; growth: of it, during the attack.",
        "",
        *summarise_hostile(result),
        "",
        *(f"- `{one.attack}`: {find_attack(one.attack).what}{_told(one)}" for one in result.attacks),
    ]
    return "\n".join(lines) + "\n"


def _cells(one: AttackResult) -> list[str]:
    phases = (one.quiet, one.control, one.attacked)
    return [
        one.attack,
        str(one.said.sent),
        f"{one.rejected_us:.0f}",
        str(one.attacked.rounds),
        *(f"{phase.rounds_per_min:.0f}" for phase in phases),
        _percent(one.fall),
        str(one.attacked.memory_peak >> 20),
        str((one.attacked.memory_peak - one.attacked.memory_before) >> 20),
    ]


def _told(one: AttackResult) -> str:
    reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(one.attacked.refused.items()))
    failed = f"; {one.said.failed} of those sent found nobody to send to" if one.said.failed else ""
    burned = f"; the control burned {one.burned_s:.1f} s of {one.wanted_s:.1f} s wanted"
    return failed + (f"; dropped by nodes: {reasons}" if reasons else "") + burned


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
