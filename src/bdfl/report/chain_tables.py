"""Tables about chains, genesis files and networks for a terminal of 80 columns."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bdfl.audit.influence import Blame
from bdfl.audit.lineage import BlockSummary, Trace, UpdateProof, describe_change, describe_offence, show_utc
from bdfl.audit.summary import ChainSummary, Judgement, PrivacyAudit
from bdfl.federation.genesis_summary import GenesisSummary
from bdfl.federation.keys import key_fingerprint
from bdfl.federation.member_card import Card
from bdfl.ledger.block import Block, Certificate, block_digest
from bdfl.ledger.costs import ATTO, MICROWATT, NANO, PICOJOULE
from bdfl.ledger.member_set import find_change, find_evidence
from bdfl.ledger.verify import Agreement, ModelCheck, Verification
from bdfl.localnet.verdict import DelaySummary, NetworkSummary
from bdfl.report.tables import add_ends, count_more, new_table, number, tabulate_facts

_SHOWN_BLOCKS = 5  # at the start and at the end of a chain
_SHOWN_MEMBERS = 20
_SHOWN_EPSILONS = 50
_SHOWN_RUNS = 6
_UNKNOWN = "-"
_SHORT = 16  # characters of a digest in running text
_SHORTER = 8  # in tables


def short_digest(text: str, length: int = _SHORT) -> str:
    """Return the first characters of a digest, enough to identify it."""
    return text[:length]


def show_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges, as in `0-5 7`; truncated if there are many."""
    parts: list[str] = []
    start = 0
    for place, value in enumerate(numbers):
        if place + 1 < len(numbers) and numbers[place + 1] == value + 1:
            continue
        run = numbers[start : place + 1]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
        start = place + 1
    return (
        " ".join(parts) if len(parts) <= _SHOWN_RUNS else f"{' '.join(parts[:_SHOWN_RUNS])} ... {len(numbers)} in all"
    )


def tabulate_chain(summary: ChainSummary, *, all_blocks: bool = False) -> list[Table]:
    """Tabulate a chain's facts, its first and last blocks (or all), and its members."""
    kept = f"updates of blocks {summary.checkpoint + 1} to {summary.height}"
    facts = [
        ("id", summary.chain),
        ("tip", summary.tip),
        ("model", summary.model),
        ("founded", summary.founded),
        ("form", f"{summary.num_parameters:,} parameters, {summary.model_bytes:,} bytes"),
        ("members", f"{summary.num_active}, of which {summary.quorum} decide ({summary.quorum_rule})"),
        ("work", f"{summary.work}, {summary.difficulty:,} hashes expected for the first block"),
        ("scheduler", summary.scheduler),
        ("aggregation", f"{summary.aggregation} of at least {summary.min_updates}"),
        ("stored", f"{kept}; those before were pruned" if summary.checkpoint else "everything"),
    ]
    if summary.trusted:
        facts.append(("on trust", f"models of blocks {show_ranges(summary.trusted)}: never aggregated by this node"))
    if summary.privacy is not None:
        facts.append(("privacy", summary.privacy))
    title = f"Chain {short_digest(summary.chain)}: {summary.name}, {summary.height} blocks"
    tables = [tabulate_facts(title, facts)]
    if summary.blocks:
        tables.append(_tabulate_blocks(summary.blocks, all_blocks=all_blocks))
    return [*tables, _tabulate_members(summary)]


def _tabulate_blocks(blocks: Sequence[BlockSummary], *, all_blocks: bool) -> Table:
    columns = ("block", "time", "digest", "by", "try", "trained", "missing", "delay s", "backlog", "note")
    day = blocks[0].time[:10]
    title = f"Blocks; times are UTC on {day}, or a later date"
    table = new_table(title, columns, text_columns=0, words=(1, 2, 5, 6, 9))
    is_cut = not all_blocks and len(blocks) > 2 * _SHOWN_BLOCKS + 1
    add_ends(table, blocks, lambda block: _block_cells(block, day), num_ends=_SHOWN_BLOCKS if is_cut else len(blocks))
    if is_cut:
        table.caption = "all of them: --all"
    return table


def _block_cells(block: BlockSummary, first_day: str) -> list[str | Text]:
    notes = [
        "empty" if block.is_empty else "",
        f"diverged: {show_ranges(block.declined)}" if block.declined else "",
        f"evidence against {show_ranges(block.offenders)}" if block.offenders else "",
        block.change,
        "nobody could train" if block.reason else "",
    ]
    return [
        str(block.height),
        block.time[11:19] if block.time[:10] == first_day else block.time[:10],
        short_digest(block.digest, _SHORTER),
        str(block.proposer),
        str(block.attempt),
        show_ranges(block.trained) or _UNKNOWN,
        show_ranges(block.missing),
        number(block.delay_s),
        number(block.mean_queue, 2),
        Text(", ".join(filter(None, notes)), style="yellow"),
    ]


def _tabulate_members(summary: ChainSummary) -> Table:
    has_changed = any(member.since > 1 or member.until is not None for member in summary.members)
    columns = ["member", "key", "samples", "trained", "missed", "proposed", "in cert.", "backlog"]
    rows = (
        (
            str(member.member),
            short_digest(member.public_key, _SHORTER),
            f"{member.samples:,}",
            str(member.trained),
            str(member.missing),
            str(member.proposed),
            str(member.in_certificates),
            number(member.queue, 2),
            *([f"{member.since} to {'' if member.until is None else member.until}"] if has_changed else []),
        )
        for member in summary.members[:_SHOWN_MEMBERS]
    )
    notes = [
        "in cert.: blocks with its precommit in their certificate; one that came too late is not in it",
        count_more(len(summary.members), _SHOWN_MEMBERS, "members: --json"),
    ]
    columns += ["heights"] if has_changed else []
    return new_table("Members", columns, rows, words=(1,), caption="; ".join(filter(None, notes)))


def tabulate_block(block: Block, certificate: Certificate) -> list[Table]:
    """Tabulate the main facts and the clients of a block; its JSON has the rest."""
    header, body = block.header, block.body
    voters = [signed.vote.voter for signed in certificate]
    modelled, planned = body.modelled, body.next_schedule
    facts = [
        ("digest", block.digest.hex()),
        ("parent", header.parent.hex()),
        ("model", body.model.hex() + (" (unchanged: the block is empty)" if body.is_empty else "")),
        ("time", f"{show_utc(header.time_ms)}, by its proposer's clock"),
        ("proposer", f"member {header.proposer}, attempt {header.attempt}"),
        ("work", f"difficulty {header.difficulty:,}, nonce {block.nonce.hex()}"),
        ("final by", f"{len(voters)} votes in its certificate: members {show_ranges(voters)};"
                     " who is not in it may have voted later"),
        ("round", f"{_seconds(modelled.delay_ns)}: exchange {_seconds(modelled.exchange_ns)},"
                  f" mining {_seconds(modelled.mining_ns)}"),
        ("next round", planned.reason or f"clients {show_ranges(planned.selected)} train,"
                                         f" objective {planned.objective_nano / NANO:.6g}"),
    ]  # fmt: skip
    evidence = find_evidence(body.entries)
    facts += [("evidence", describe_offence(entry)) for entry in evidence]
    change = find_change(body.entries)
    if change is not None:
        assenting = show_ranges([assent.member for assent in change.assents])
        facts.append(("membership", f"{describe_change(block)}; agreed to by members {assenting}"))
    return [
        tabulate_facts(f"Block {header.height} of chain {short_digest(header.chain.hex())}", facts),
        _tabulate_parts(block),
    ]


def _tabulate_parts(block: Block) -> Table:
    body = block.body
    columns = ("client", "update", "samples", "backlog", "energy J", "gain", "budget J", "spent J")
    more = count_more(len(body.queue_nano), _SHOWN_MEMBERS, "clients: --json")
    title = "Clients: this round by the cost model, and what they report for the next"
    table = new_table(title, columns, words=(1,), caption=more)
    updates = {signed.update.client: signed.update for signed in body.updates}
    reports = {signed.report.client: signed.report for signed in body.reports}
    energy_pj = body.modelled.energy_pj  # a member that joins with the next round has none
    for client in range(min(len(body.queue_nano), _SHOWN_MEMBERS)):
        update, report = updates.get(client), reports.get(client)
        is_missing = update is None and client in body.schedule.selected
        name = "missing" if is_missing else "" if update is None else update.model.hex()[:_SHORTER] or "diverged"
        receipt = None if report is None else report.receipt
        table.add_row(
            str(client),
            Text(name, style="yellow" if is_missing or name == "diverged" else ""),
            "" if update is None else f"{update.samples:,}",
            number(body.queue_nano[client] / NANO, 2),
            number(energy_pj[client] / PICOJOULE, 4) if client < len(energy_pj) else _UNKNOWN,
            _UNKNOWN if report is None else f"{report.conditions.gain_atto / ATTO:.2e}",
            _UNKNOWN if report is None else number(report.conditions.energy_budget_pj / PICOJOULE, 3),
            _UNKNOWN if receipt is None else number(receipt.energy_pj / PICOJOULE, 4),
        )
    return table


def tabulate_trace(trace: Trace) -> list[RenderableType]:
    """Tabulate the contributors to a model."""
    made = "" if trace.made_in == trace.block else f", made in block {trace.made_in}"
    nobody = " (nobody has trained it)" if trace.made_in == 0 else ""
    table = new_table(
        f"Model {short_digest(trace.model)} of block {trace.block}{made}{nobody}: {trace.rule}",
        ("client", "weight", "samples", "update", "in models since", "last", "blocks"),
    )
    for row in trace.contributions:
        if row.since is None and len(trace.contributions) > _SHOWN_MEMBERS:
            continue
        table.add_row(
            str(row.client),
            "" if row.weight is None else f"{100 * row.weight:.2f} %",
            "" if row.samples is None else f"{row.samples:,}",
            "" if row.update is None else short_digest(row.update),
            "never" if row.since is None else f"block {row.since}",
            _UNKNOWN if row.last is None else str(row.last),
            str(row.num_blocks),
        )
    about = (
        "weight: of the client's update in the block that made this model.\n"
        "since: the first block whose model its updates entered; later ones grew from it."
    )
    return [table, about]


def tabulate_blame(blame: Blame) -> list[RenderableType]:
    """Tabulate the influence of each client, the most harmful first."""
    table = new_table(
        f"Blocks {blame.first} to {blame.last}: test loss without a client's update minus with it",
        ("client", "mean effect", "worst", "in block", "harmed", "of blocks", ""),
        words=(6,),
    )
    for row in blame.verdicts:
        if row.mean_effect is None or row.worst_effect is None:
            table.add_row(str(row.client), _UNKNOWN, _UNKNOWN, _UNKNOWN, "0", "0", "no update")
            continue
        harms = row.mean_effect < 0 and 2 * row.num_harmed > row.num_blocks
        table.add_row(
            str(row.client),
            f"{row.mean_effect:+.5f}",
            f"{row.worst_effect:+.5f}",
            str(row.worst_block),
            str(row.num_harmed),
            str(row.num_blocks),
            Text("harms", style="bold red") if harms else Text("helps" if row.mean_effect > 0 else "", style="green"),
        )
    about = (
        "Above 0 the update made its block's model better. It is an effect in that block:\n"
        "what later blocks made of it is not in it."
    )
    return [table, about]


def tabulate_privacy(audit: PrivacyAudit) -> Table:
    """Tabulate every member's epsilon, as stated and as recomputed by the accountant."""
    columns = ("member", "samples", "rate", "rounds", "steps", "stated", audit.accountant, "spent", "")
    facts = f"noise {audit.noise_multiplier:g}, clipped to {audit.max_grad_norm:g}, delta {audit.delta:g}"
    more = count_more(len(audit.members), _SHOWN_EPSILONS, "members: --json")
    caption = f"{facts}; {more}" if more else facts
    table = new_table(f"Privacy after {audit.height} blocks", columns, words=(8,), caption=caption)
    for one in audit.members[:_SHOWN_EPSILONS]:
        is_wrong = one.judgement in (Judgement.TOO_LOW, Judgement.TOO_HIGH)
        verdict = f"{one.judgement.value} in block {one.block}" if is_wrong else one.judgement.value
        table.add_row(
            str(one.client),
            f"{one.samples:,}",
            f"{one.rate:.3g}",
            str(one.rounds),
            f"{one.steps:,}",
            number(one.stated, 3),
            number(one.recomputed, 3),
            number(one.spent, 3),
            Text(verdict, style="red" if is_wrong else ""),
        )
    return table


def tabulate_proof(found: UpdateProof) -> Table:
    """Tabulate the Merkle path from a client's update to its block."""
    update, proof = found.update.update, found.proof
    facts = [
        ("update", update.model.hex() or "none: its training diverged"),
        ("leaf", f"{proof.index} of {proof.count}"),
        *((f"beside {level}", sibling.hex()) for level, sibling in enumerate(proof.siblings, start=1)),
        ("root", found.block.header.body.hex()),
        ("block", block_digest(found.block.header, found.block.nonce).hex()),
        ("final by", f"{len(found.certificate)} votes in its certificate"),
    ]
    return tabulate_facts(f"The update of client {update.client} is in block {found.block.header.height}", facts)


def describe_verification(found: Verification, seconds: float) -> list[str]:
    """Describe a successful verification, in lines."""
    counts = {check: found.count_models(check) for check in ModelCheck}
    agreed = {agreement: found.count_schedules(agreement) for agreement in Agreement}
    num_blocks = len(found.blocks)
    lines = [
        f"valid: chain {short_digest(found.chain)}, {num_blocks:,} blocks, verified in {seconds:.1f} s",
        f"  {found.num_signatures:,} signatures, {num_blocks:,} proofs of work, {num_blocks:,} certificates",
        f"  {counts[ModelCheck.RECOMPUTED]:,} models aggregated again, equal in every bit"
        f" ({found.num_bytes / 1e6:,.1f} MB of updates)",
    ]
    if counts[ModelCheck.UNCHANGED]:
        lines.append(f"  {counts[ModelCheck.UNCHANGED]:,} empty blocks, which keep the model")
    if counts[ModelCheck.PRUNED]:
        lines += [
            f"  {counts[ModelCheck.PRUNED]:,} models NOT aggregated again: updates up to block {found.checkpoint} were"
            " pruned",
            "    (their Merkle proofs hold, and a quorum voted for those blocks)",
        ]
    if found.trusted:
        lines += [
            f"  {len(found.trusted):,} models TAKEN ON TRUST, never aggregated by the node that stored them: blocks"
            f" {show_ranges(found.trusted)}",
            "    (their updates were gone when it caught up; a quorum voted for those blocks)",
        ]
    lines.append("  queues, receipts and schedules derived again, C1 to C3 in 40 decimal digits")
    same = f"  the scheduler, run again, gave the same schedule {agreed[Agreement.SAME]:,} times"
    within, different = agreed[Agreement.WITHIN_TOLERANCE], agreed[Agreement.DIFFERENT]
    lines.append(same + (f", nearly the same {within:,} times" if within else ""))
    if different:
        lines.append(f"    and another one {different:,} times: other version or platform, or a proposer's choice")
    return lines


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NANO:.3f} s"


# A draft or genesis of a federation as tables and sentences for a terminal of 80 columns.

_SHOWN_LABELS = 20


def describe_founding(summary: GenesisSummary) -> list[RenderableType]:
    """Describe the rules, the members, the trust assumptions and the missing steps."""
    trust = new_table("Whoever signs trusts that", ("",), ([Text(sentence)] for sentence in summary.trust))
    trust.show_header = False
    missing = describe_missing(summary.missing, summary.kind)
    return [_tabulate_rules(summary), _tabulate_seats(summary), trust, Text(missing)]


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
    rows = (
        (
            str(seat.member),
            "nobody yet" if seat.name is None else Text(seat.name),
            seat.fingerprint or "-",
            "-" if seat.samples is None else f"{seat.samples:,}",
            number(seat.rate),
            "yes" if seat.is_signed else "no",
        )
        for seat in summary.seats
    )
    return new_table("Members", ("", "name", "key", "samples", "rate", "signed"), rows, text_columns=3)


def describe_missing(members: Sequence[int], kind: str = "genesis") -> str:
    """Say whose cards a draft still needs, or whose signatures a genesis."""
    numbers = ", ".join(map(str, members))
    if kind == "draft":
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
        parts_s = (row.modelled_s, row.measured_s, row.overhead_s, row.exchange_s, row.mining_s, row.voting_s)
        name = "all" if row.node is None else str(row.node)
        table.add_row(name, str(row.num_rounds), *(f"{value:.3f}" for value in parts_s))
    return table
