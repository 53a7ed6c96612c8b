"""An audit report as a self-contained, printable page: the records of its JSON as text and tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar
from xml.etree.ElementTree import Element

from bdfl.audit.audit_report import AuditFile, AuditReport, Check, Event, MemberAudit
from bdfl.audit.lineage import Contribution
from bdfl.federation.keys import in_groups, key_fingerprint
from bdfl.report.html import Child, card, facts_node, node, render_page, table_node

_NONE = "-"
_Row = TypeVar("_Row")
_Columns: TypeAlias = dict[str, Callable[[_Row], Child]]
_CHECKS: _Columns[Check] = {
    "what": lambda check: check.subject,
    "found right": lambda check: node("span.bad" if check.count < (check.of or 0) else "span", f"{check.count:,}"),
    "of": lambda check: "all" if check.of is None else f"{check.of:,}",
    "by": lambda check: check.what,
}
_QUORUMS = {"majority": "votes of more than half of the members", "bft": "votes of more than two thirds of the members"}


def render_audit(file: AuditFile) -> str:
    """Return the page: no script, no font, no external link; all names are escaped."""
    report = file.report
    main = node(
        "main.whole",
        _opening(report),
        *_failure(report),
        node("h2", "Identity"),
        _identity_facts(file),
        node("h2", "Verified"),
        node("p", "Computed again from the bytes of the chain, or checked against them."),
        _table("Checks", report.checks, _CHECKS, words=(0, 3)),
        node("h2", "Taken on trust"),
        node("p", "A chain cannot prove these, or this audit could not verify them."),
        _facts([(one.subject, one.why) for one in report.trusted]),
        node("h2", "Members"),
        *_members(report),
        node("h2", "Offences and changes of membership"),
        *_events(report.events),
        node("h2", "Privacy"),
        *_privacy(report),
        node("h2", "Lineage of the final model"),
        *_lineage(report),
        node("h2", "How to check this report"),
        *_checking(file),
    )
    return render_page(f"{report.name}: audit of a chain", node("body", main))


def _opening(report: AuditReport) -> Element:
    num_offences = sum(event.member is not None for event in report.events)
    misses, scheduled = (sum(getattr(one.part, name) for one in report.members) for name in ("missing", "scheduled"))
    models = next(check for check in report.checks if check.subject == "Models")
    return node(
        "header",
        node("p.about", "Audit of a chain"),
        node("h1", report.name),
        node("p.lead verdict" if report.is_right else "p.lead verdict wrong", _verdict(report)),
        node(
            "dl.cards",
            card("Blocks verified", f"{report.verified:,}", f"of {report.height:,}", is_bad=report.failure is not None),
            card("Models recomputed", f"{models.count:,}", f"of {models.of:,}, bit for bit"),
            card("Members", f"{len(report.members):,}", "ever admitted"),
            card("Misses", f"{misses:,}", f"of {scheduled:,} scheduled updates", is_bad=misses > 0),
            card("Offences", f"{num_offences:,}", "proven on the chain", is_bad=num_offences > 0),
            card("Taken on trust", f"{len(report.trusted):,}", "matters, listed below"),
        ),
    )


def _verdict(report: AuditReport) -> str:
    if report.failure is not None:
        where = f"block {report.failure.block:,}" if report.failure.block else "the genesis"
        return f"The chain is not valid: {where} breaks rule {report.failure.rule}. Blocks before it are valid."
    if not report.is_right:
        return f"All {report.verified:,} blocks are valid, but a member stated another epsilon than it spent."
    kept = f" The updates of blocks 1 to {report.checkpoint:,} were pruned." if report.checkpoint else ""
    return f"The chain is valid: all {report.verified:,} blocks keep every rule of its genesis.{kept}"


def _failure(report: AuditReport) -> list[Element]:
    failure = report.failure
    if failure is None:
        return []
    facts: list[tuple[str, Child]] = [
        ("Block", f"{failure.block:,}" if failure.block else "genesis"),
        ("Rule", node("code", failure.rule)),
        ("Expected (what the rules require)", node("code", failure.expected)),
        ("Found (what the block or file says)", node("code", failure.found)),
        ("Valid before it", f"{report.verified:,} of {report.height:,} blocks"),
    ]
    return [node("h2", "Where verification failed"), _facts(facts)]


def _identity_facts(file: AuditFile) -> Element:
    report, rules = file.report, file.report.rules
    blocks = f"1 to {report.verified:,}" if report.verified else "none"
    return _facts(
        [
            ("Chain (genesis digest)", _digest(report.chain)),
            ("in words, first 96 bits", report.chain_words),
            ("Scenario digest", _digest(rules.scenario)),
            ("Blocks covered", f"{blocks}, of {report.height:,} stored"),
            ("Founded", report.founded),
            ("First to last block", f"{report.first_block} to {report.last_block}" if report.last_block else _NONE),
            ("Tip", _digest(report.tip)),
            ("Final model", _digest(report.model)),
            ("Updates kept", f"from block {report.checkpoint + 1:,} on" if report.checkpoint else "all"),
            ("Blocks are final by", _QUORUMS[rules.quorum_rule]),
            ("Proof of work", f"{rules.work}, {rules.difficulty:,} hashes expected for block 1"),
            ("Scheduler", f"{rules.scheduler}, bdfl {rules.scheduler_version}"),
            ("Aggregation", f"{rules.aggregation}; at least {rules.min_updates:,} needed to make a model"),
            ("Private training", rules.privacy or "no"),
            ("Audited with", report.auditor),
            ("Audited at", f"{report.audited_at} (UTC, the auditor's clock)"),
            ("Digest of this report", _digest(file.digest)),
        ]
    )


def _members(report: AuditReport) -> list[Element]:
    participation: _Columns[MemberAudit] = {
        "member": _name,
        "rounds": lambda one: f"{one.rounds:,}",
        "scheduled": lambda one: f"{one.part.scheduled:,}",
        "updates": lambda one: f"{one.part.trained:,}",
        "declined": lambda one: f"{one.part.declined:,}",
        "misses": lambda one: f"{one.part.missing:,}",
        "owed": lambda one: _percent(one.part.rate),
        "got": lambda one: _percent(one.participation),
        "backlog": lambda one: f"{one.part.queue:.2f}",
    }
    agreement: _Columns[MemberAudit] = {
        "member": _name,
        "samples": lambda one: f"{one.part.samples:,}",
        "heights": lambda one: f"{one.part.since:,} {'on' if one.part.until is None else f'to {one.part.until:,}'}",
        "reports": lambda one: f"{one.part.reports:,}",
        "proposed": lambda one: f"{one.part.proposed:,}",
        "share": lambda one: _percent(one.proposed_share),
        "in certificates": lambda one: f"{one.part.in_certificates:,}",
    }
    keys: _Columns[MemberAudit] = {
        "member": _name,
        "fingerprint": lambda one: one.fingerprint,
        "public key": lambda one: node("code", one.part.public_key),
    }
    about = (
        "Owed is the participation rate that the genesis or the admission fixes; got is the share of a member's rounds"
        " with an update of its that counts. Backlog is what the scheduler still owes it, in rounds. A miss is a"
        " scheduled round in which nothing was heard of the member."
    )
    return [
        _table("Participation", report.members, participation),
        node("p", about),
        _table("Agreement", report.members, agreement),
        node("p", report.certificates_note),
        _table("Keys", report.members, keys, words=(0, 1, 2)),
    ]


def _events(events: Sequence[Event]) -> list[Element]:
    if not events:
        return [node("p", "None: no evidence and no change of membership is in the verified blocks.")]
    columns: _Columns[Event] = {
        "block": lambda event: f"{event.block:,}",
        "kind": lambda event: event.kind,
        "what": lambda event: event.what,
    }
    return [_table("By block", events, columns, words=(0, 1, 2))]


def _privacy(report: AuditReport) -> list[Element]:
    if report.rules.privacy is None:
        return [node("p", "Training was not private: updates may tell anything of the data.")]
    columns: _Columns[MemberAudit] = {
        "member": _name,
        "epsilon stated": lambda one: f"{one.part.epsilon:.4f}",
        "recomputed": lambda one: _NONE if one.privacy is None else f"{one.privacy.spent:.4f}",
        "the statement is": lambda one: "not checked" if one.privacy is None else one.privacy.judgement.value,
    }
    return [
        node("p", f"Differentially private training: {report.rules.privacy}."),
        _table("Privacy spent", report.members, columns, words=(0, 3)),
    ]


def _lineage(report: AuditReport) -> list[Element]:
    trace = report.lineage
    if trace is None or trace.made_in == 0:
        return [node("p", "Nobody has trained this model: it is the one that the genesis names.")]
    names = {one.part.member: _name(one) for one in report.members}
    columns: _Columns[Contribution] = {
        "member": lambda row: names[row.client],
        "weight": lambda row: _percent(row.weight),
        "samples": lambda row: _NONE if row.samples is None else f"{row.samples:,}",
        "in models of blocks": lambda row: _NONE if row.since is None else f"{row.since:,} to {row.last:,}",
        "updates": lambda row: f"{row.num_blocks:,}",
        "update in the final model": lambda row: _NONE if row.update is None else node("code", row.update),
    }
    first = next((row.client for row in trace.contributions if row.update is not None), 0)
    made = (
        f"Block {trace.made_in:,} made the final model from these updates by the rule {trace.rule}. Earlier updates are"
        " in it through the models that it grew from."
    )
    proof = "A proof that one of them is in its block, for somebody who has the genesis only: "
    return [
        node("p", made),
        _table("Who is in it", trace.contributions, columns, words=(0, 5)),
        node("p", proof, node("code", f"bdfl chain prove FOLDER {trace.made_in} {first} --json")),
    ]


def _checking(file: AuditFile) -> list[Element]:
    signed = [node("p", "Nobody has signed this report.")]
    if file.signature is not None:
        key = file.signature.public_key
        facts: list[tuple[str, Child]] = [
            ("Signed by the key", node("code", key)),
            ("its fingerprint", key_fingerprint(bytes.fromhex(key))),
            ("Signature (Ed25519)", node("code", file.signature.signature)),
        ]
        signed = [_facts(facts)]
    return [
        *signed,
        node(
            "p",
            "This page shows the records of the JSON file beside it. The digest is SHA-256 of the report in that file,"
            " byte for byte. ",
            node("code", "bdfl chain audit --check audit.json"),
            " compares the digest and the signature without the chain; ",
            node("code", "bdfl chain audit FOLDER"),
            " does the audit again.",
        ),
    ]


def _table(caption: str, rows: Iterable[_Row], columns: _Columns[_Row], *, words: Sequence[int] = (0,)) -> Element:
    cells = [[show(row) for show in columns.values()] for row in rows]
    return node("div.panel", table_node(caption, tuple(columns), cells, words=words))


def _name(one: MemberAudit) -> str:
    return str(one.part.member) if one.name is None else f"{one.part.member} {one.name}"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f} %"


def _digest(text: str) -> Element:
    return node("code", in_groups(bytes.fromhex(text)))


def _facts(facts: Sequence[tuple[str, Child]]) -> Element:
    return node("div.panel", facts_node("dl.facts", facts))
