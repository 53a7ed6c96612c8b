"""`bdfl chain audit`, `blame`, `without` and `privacy`: audits of a chain from its folder alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import (
    AllowOption,
    ChainArgument,
    ClientArgument,
    JsonOption,
    JsonOrFilesOption,
    NoChain,
    find_chain,
    open_chain,
    open_scenario,
)
from bdfl.cli.terminal import FAILED_EXIT, BadUsage, print_files, print_json, progress, say, show_result, writing_to

if TYPE_CHECKING:
    from bdfl.audit.audit_report import AuditFile, AuditReport
    from bdfl.audit.influence import LossOf
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.scenario import Scenario

_PAGE = Path("audit.html")


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
        raise BadUsage("audit: a PATH to audit expected, or --check with the JSON of a report, not both")
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
        raise typer.Exit(FAILED_EXIT)


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
        raise typer.Exit(FAILED_EXIT) from None


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
        raise typer.Exit(FAILED_EXIT) from None
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


def blame(
    path: ChainArgument,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="Data whose test set is used.", show_default="the run's own"),
    ] = None,
    first: Annotated[int, typer.Option("--first", min=1, help="First block.")] = 1,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Last block.", show_default="the tip")] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the effect of each client's updates on the test loss.

    The effect of an update is the loss of its block's model aggregated again without it, minus the loss with it. A
    client whose effect is below 0 in most blocks makes the model worse.

    Examples:
      bdfl chain blame runs/quickstart-drc-0
      bdfl chain blame runs/poisoned --data path/to/cifar10 --first 10
    """
    from bdfl.audit.influence import blame_clients
    from bdfl.report.chain_tables import tabulate_blame

    with (
        open_chain(path) as chain,
        _open_judge(path, chain, data, frozenset(allow or ())) as loss_of,
        progress("judging models", "models") as on_progress,
    ):
        found = blame_clients(
            chain, loss_of, first=first, last=last, own_functions=frozenset(allow or ()), on_judged=on_progress
        )
    show_result(found, lambda: tabulate_blame(found), as_json=as_json)


def without(
    path: ChainArgument,
    client: ClientArgument,
    block: Annotated[
        int | None, typer.Option("--block", min=1, help="Block of the model.", show_default="the tip")
    ] = None,
    since: Annotated[int, typer.Option("--since", min=1, help="First block whose updates are left out.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Model file.", show_default="without-CLIENT-block-N.safetensors")
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Aggregate the model of a block again without a client, and save it.

    Every block since --since that holds an update of the client is aggregated again without it, by the chain's rule.
    The changes of each block's model are added up and carried on to the last.

    Nothing is trained again. Other clients' later updates were trained on models that included the client, and stay as
    they were sent. So this removes the client's updates, not what others learned from them.

    Examples:
      bdfl chain without runs/quickstart-drc-0 3
      bdfl chain without runs/quickstart-drc-0 3 --block 10 --out ten.safetensors
    """
    from bdfl.audit.influence import leave_out
    from bdfl.audit.lineage import layout_of
    from bdfl.learning.weights import encode_weights

    with open_chain(path) as chain:
        with progress("aggregating again", "blocks") as on_progress:
            found = leave_out(
                chain, client, block=block, since=since, own_functions=frozenset(allow or ()), on_block=on_progress
            )
        layout = layout_of(chain.genesis)
    target = out or Path(f"without-{client}-block-{found.block}.safetensors")
    with writing_to(target.parent):
        target.write_bytes(encode_weights(found.weights, layout))
    if as_json:
        facts = {name: getattr(found, name) for name in ("client", "block", "since", "changed_in", "distance")}
        print_json(facts | {"relative_distance": found.relative_distance, "model": str(target)})
        return
    from bdfl.report.chain_tables import show_ranges

    if found.changed_in:
        blocks = show_ranges(found.changed_in)
        say(f"block {found.block} without client {client}: its updates left out of blocks {blocks},")
        say(f"{100 * found.relative_distance:.2f} % away from the chain's model")
        say("others' later updates are as they were: trained on models that knew it")
    else:
        say(f"block {found.block} without client {client}: the chain's model, it holds no update of this client")
    say(f"wrote {target}")


def privacy(path: ChainArgument, as_json: JsonOption = False) -> None:
    """Recompute each member's epsilon and compare it with the stated one.

    Steps, sampling rate, noise and delta follow from the genesis and the schedules on the chain. One thing is taken on
    trust: that a member added its noise. Exit code 1 if a member states too little or too much. Needs Opacus.

    Examples:
      bdfl chain privacy runs/quickstart-drc-0
      bdfl chain privacy runs/quickstart-drc-0 --json
    """
    from bdfl.audit.summary import audit_privacy
    from bdfl.report.chain_tables import tabulate_privacy

    with open_chain(path) as chain:
        found = audit_privacy(chain)
    show_result(asdict(found) | {"is_right": found.is_right}, lambda: [tabulate_privacy(found)], as_json=as_json)
    if not found.is_right:
        say("WRONG: what some members state is not what they spent", err=True)
        raise typer.Exit(FAILED_EXIT)


@contextmanager
def _open_judge(path: Path, chain: "ChainStore", data: str | None, allowed: frozenset[str]) -> "Iterator[LossOf]":
    """Yield a function from a model to its test loss on the run's data, or on the given data."""
    from bdfl.audit.lineage import layout_of
    from bdfl.experiment.training_run import prepare_run
    from bdfl.learning.trainer_pool import open_trainer

    scenario = _find_scenario(path, chain, data, allowed)
    if scenario.learning.personal:
        layers = ", ".join(scenario.learning.personal)
        raise NoChain(
            f"{path}: the layers {layers} are personal, without which no loss is known; bdfl chain without works"
        )
    federated = prepare_run(scenario)
    with open_trainer(federated.scenario, federated.data, federated.partition) as trainer:
        if trainer.layout != layout_of(chain.genesis):
            raise NoChain(f"{path}: the scenario's model has other tensors than the chain's, the same expected")
        yield lambda weights: trainer.evaluate(weights).loss


def _find_scenario(path: Path, chain: "ChainStore", data: str | None, allowed: frozenset[str]) -> "Scenario":
    from bdfl.records.learning import SCENARIO_FILE
    from bdfl.scenario import scenario_digest
    from bdfl.scenario.files import load_foreign_scenario, validate_allowed

    found = next((file for file in (path / SCENARIO_FILE, path.parent / SCENARIO_FILE) if file.is_file()), None)
    if found is None:
        raise NoChain(f"{path}: no {SCENARIO_FILE} beside the chain, which says what the model and the data are")
    if bytes.fromhex(scenario_digest(load_foreign_scenario(found))) != chain.genesis.scenario:
        raise NoChain(f"{found}: not the scenario that the chain was begun with")
    scenario = open_scenario(str(found), None, data=data)
    validate_allowed(scenario, allowed | ({data} if data is not None else set()))
    return scenario
