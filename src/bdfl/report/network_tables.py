"""Tables of a genesis and of a network."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bdfl.federation.genesis_summary import GenesisSummary
from bdfl.federation.keys import key_fingerprint
from bdfl.federation.member_card import Card
from bdfl.ledger.costs import ATTO, MICROWATT, PICOJOULE
from bdfl.localnet.verdict import DelayRow, DelaySummary, NetworkSummary
from bdfl.report.tables import new_table, number, tabulate_facts

# A draft or genesis of a federation as tables and sentences for a terminal of 80 columns.

_SHOWN_LABELS = 20


def describe_founding(summary: GenesisSummary) -> list[RenderableType]:
    """Describe the rules, the members, the trust assumptions and the missing steps."""
    return [_tabulate_rules(summary), _tabulate_seats(summary), _list_trust(summary), Text(_say_missing(summary))]


def _tabulate_rules(summary: GenesisSummary) -> Table:
    points = ", ".join(f"{point.name} ({point.certificate[:16]})" for point in summary.access_points)
    bears = f", bears {summary.faulty} wrong ones" if summary.faulty else ""
    facts = [
        ("digest", summary.digest_groups or "none yet: this is a draft"),
        ("read out", summary.digest_words or "-"),
        ("mode", summary.mode),
        ("ends after", f"block {summary.rounds}, unless all members give their nodes another --rounds"),
        ("data", f"{summary.data}, unless a member has its own"),
        ("inputs", f"{summary.inputs or 'whatever fits the model'}, {summary.num_labels} labels"),
        ("model", f"{summary.model}, {summary.num_parameters:,} parameters, {summary.model_bytes:,} bytes"),
        ("final by", f"{summary.quorum} of {len(summary.seats)} votes ({summary.quorum_rule})"),
        ("work", summary.work),
        ("scheduler", summary.scheduler),
        ("aggregation", f"{summary.aggregation} of the updates{bears}"),
        ("access points", points or "none: members reach each other directly"),
    ]
    if summary.privacy is not None:
        facts.append(("privacy", summary.privacy))
    if summary.first_round is not None:
        facts.append(("round 1", f"members {' '.join(map(str, summary.first_round)) or 'none'} train"))
    return tabulate_facts(f"{summary.kind.capitalize()} of {summary.name}", facts)


def _tabulate_seats(summary: GenesisSummary) -> Table:
    table = new_table("Members", ("", "name", "key", "samples", "rate", "signed"), text_columns=3)
    for seat in summary.seats:
        table.add_row(
            str(seat.member),
            "nobody yet" if seat.name is None else Text(seat.name),
            seat.fingerprint or "-",
            "-" if seat.samples is None else f"{seat.samples:,}",
            number(seat.rate),
            "yes" if seat.is_signed else "no",
        )
    return table


def _list_trust(summary: GenesisSummary) -> Table:
    table = new_table("Whoever signs trusts that", ("",), text_columns=1)
    table.show_header = False
    for sentence in summary.trust:
        table.add_row(Text(sentence))
    return table


def _say_missing(summary: GenesisSummary) -> str:
    numbers = ", ".join(map(str, summary.missing))
    if summary.kind == "draft":
        return f"cards of members {numbers} are missing" if numbers else "all cards are there: bdfl genesis make"
    return f"members {numbers} have not signed yet" if numbers else "all members have signed: ready to start"


def tabulate_card(card: Card) -> Table:
    """Tabulate everything that a member card makes public."""
    limits, conditions = card.limits, card.conditions
    caps = [("training cap", limits.cpu_max_hz), ("mining cap", limits.mining_max_hz)]
    facts = [
        ("key", f"{card.public_key.hex()[:32]}... ({key_fingerprint(card.public_key)})"),
        ("plays", "any client" if card.client is None else f"client {card.client}"),
        ("samples", f"{limits.samples:,}"),
        ("of each label", " ".join(map(str, card.label_counts[:_SHOWN_LABELS])) + _more(len(card.label_counts))),
        ("a round's training", f"{limits.cycles / 1e6:,.1f} million cycles"),
        *((name, "none" if cap is None else f"{cap / 1e9:.3f} GHz") for name, cap in caps),
        ("power", f"{limits.power_uw / MICROWATT:g} W"),
        ("energy in round 1", f"{conditions.energy_budget_pj / PICOJOULE:g} J"),
        ("gain in round 1", f"{conditions.gain_atto / ATTO:.3e}"),
        ("for scenario", card.scenario.hex()[:16]),
    ]
    return tabulate_facts(f"Card of {card.name}; all of it becomes public", facts)


def _more(num_labels: int) -> str:
    return f" and {num_labels - _SHOWN_LABELS} more" if num_labels > _SHOWN_LABELS else ""


# Results of a local network of processes as tables.


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
