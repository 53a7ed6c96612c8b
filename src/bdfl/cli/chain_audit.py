"""`bdfl chain audit`: a report on a chain from its folder alone, and the check of a signed report."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.chain import INVALID_EXIT, NoChain, chain_app, find_chain, open_chain
from bdfl.cli.options import AllowOption, JsonOrFilesOption
from bdfl.cli.terminal import print_files, print_json, progress, say, writing_to

if TYPE_CHECKING:
    from bdfl.audit.audit_report import AuditFile, AuditReport

_PAGE = Path("audit.html")


@chain_app.command("audit")
def audit(
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="Folder of a run, a node or a chain.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The page; the JSON goes beside it.", show_default="audit.html")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Sign with this key, from `bdfl keygen`.")] = None,
    genesis: Annotated[
        Path | None, typer.Option("--genesis", help="Genesis file, for members' names and signatures.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="JSON", help="Check a signed report instead of making one.")
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Write an audit report: what was verified, what is trusted, each member's part.

    The report is a page to read and print, and the same as JSON with its digest. It covers members, participation,
    misses, offences, privacy spent and the lineage of the final model.

    Exit code 1 if the chain breaks a rule. The report then has the place, what was expected and what was found, and
    covers the blocks before.

    Examples:
      bdfl chain audit runs/quickstart-drc-0
      bdfl chain audit node-2 --genesis our.genesis --key auditor.key
      bdfl chain audit --check audit.json
    """
    if (path is None) == (check is None):
        raise NoChain("audit: a PATH to audit expected, or --check with the JSON of a report, not both")
    if check is not None:
        _check(check, as_json=as_json)
        return
    assert path is not None
    from bdfl.audit.audit_report import seal_audit

    signer = None
    if key is not None:
        from bdfl.federation.keys import load_key

        signer = load_key(key)
    file = seal_audit(_audit(path, genesis, frozenset(allow or ())), signer)
    page = out or _PAGE
    if as_json:
        print_json(file.to_json().rstrip())
    if out is not None or not as_json:
        from bdfl.report.audit_page import render_audit

        files = {page.with_suffix(".html"): render_audit(file).encode(), page.with_suffix(".json"): file.to_json()}
        with writing_to(page.parent):
            page.parent.mkdir(parents=True, exist_ok=True)
            for target, data in files.items():
                target.write_bytes(data)
        if not as_json:
            _describe(file)
            print_files(list(files))
    if not file.report.is_right:
        raise typer.Exit(INVALID_EXIT)


def _audit(path: Path, genesis: Path | None, allowed: frozenset[str]) -> "AuditReport":
    from bdfl.audit.audit_report import audit_chain
    from bdfl.federation.genesis_file import read_genesis
    from bdfl.ledger.store import DamagedStore
    from bdfl.ledger.verify import store_failure
    from bdfl.records.files import known_height

    agreed = None if genesis is None else read_genesis(genesis, allowed=allowed)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        with open_chain(path) as chain, progress(f"auditing {path}", "blocks") as on_progress:
            return audit_chain(
                chain,
                audited_at=now,
                genesis_file=agreed,
                own_functions=allowed,
                known=known_height(chain, find_chain(path)),
                on_progress=on_progress,
            )
    except DamagedStore as error:  # the genesis itself is unreadable
        say(f"INVALID at {store_failure(0, error)}; no report can be made", err=True)
        raise typer.Exit(INVALID_EXIT) from None


def _describe(file: "AuditFile") -> None:
    report = file.report
    if report.failure is not None:
        say(f"INVALID at {report.failure}; {report.verified} blocks before it are valid", err=True)
    else:
        say(f"valid: chain {report.chain[:16]}, {report.verified:,} blocks, {len(report.members):,} members")
    offences = sum(event.member is not None for event in report.events)
    misses = sum(one.part.missing for one in report.members)
    say(f"  {misses:,} misses, {offences:,} offences; {len(report.trusted)} matters are taken on trust")
    say(f"  digest {file.digest}")
    say(_signer_of(file))


def _signer_of(file: "AuditFile") -> str:
    from bdfl.federation.keys import key_fingerprint

    if file.signature is None:
        return "  not signed"
    public_key = file.signature.public_key
    member = next((one for one in file.report.members if one.part.public_key == public_key), None)
    who = "no member of this chain" if member is None else f"member {member.part.member}"
    return f"  signed by {key_fingerprint(bytes.fromhex(public_key))}, {who}\n  key    {public_key}"


def _check(path: Path, *, as_json: bool) -> None:
    from bdfl.audit.audit_report import BadAudit, read_audit

    try:
        file = read_audit(path)
        if file.signature is None:
            raise BadAudit(f"{path}: no signature found, one expected: bdfl chain audit PATH --key KEY makes it")
    except BadAudit as error:
        if as_json:
            print_json({"valid": False, "message": str(error)})
        say(f"INVALID: {error}", err=True)
        raise typer.Exit(INVALID_EXIT) from None
    report = file.report
    if as_json:
        print_json({"valid": True, "digest": file.digest, "public_key": file.signature.public_key,
                    "chain": report.chain, "verified": report.verified, "is_right": report.is_right})  # fmt: skip
        return
    say(f"{path}: as it was signed")
    say(f"  digest {file.digest}")
    say(_signer_of(file))
    found = "not valid" if report.failure is not None else "valid"
    say(f"  audited {report.audited_at} with {report.auditor}")
    say(f"  it says: chain {report.chain[:16]} {found}, {report.verified:,} blocks verified")
