"""`bdfl chain`: verify, show, trace, export and prune a chain."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.audit import audit, blame, privacy, without
from bdfl.cli.options import AllowOption, ChainArgument, ClientArgument, JsonOption, find_chain, open_chain
from bdfl.cli.terminal import FAILED_EXIT, print_json, progress, say, show_result, writing_to

chain_app = typer.Typer(
    no_args_is_help=True, help="Verify a chain, show its blocks and trace its models to their clients."
)

BlockArgument = Annotated[
    int | None, typer.Argument(metavar="[N]", min=1, help="Height of a block; 1 is the first.", show_default="the tip")
]


@chain_app.command("verify")
def verify(path: ChainArgument, allow: AllowOption = None, as_json: JsonOption = False) -> None:
    """Verify a whole chain offline, every aggregate bit for bit.

    Checks links, work, votes, signatures, schedules, queues, receipts and aggregates. Needs nothing but the folder.

    Exit code 1 at the first broken rule. The message has the rule, the block, what was found (what the block or the
    file says) and what was expected (what the rules require).

    Examples:
      bdfl chain verify runs/quickstart-drc-0
      bdfl chain verify runs/quickstart-drc-0/chain --json
    """
    from bdfl.ledger.store import DamagedStore
    from bdfl.ledger.verify import store_failure, verify_chain
    from bdfl.records.files import known_height

    started_s = time.monotonic()
    try:
        with open_chain(path) as chain, progress(f"verifying {path}", "blocks") as on_progress:
            known = known_height(chain, find_chain(path))
            height = chain.height
            found = verify_chain(
                chain,
                own_functions=frozenset(allow or ()),
                known=known,
                on_block=lambda verdict: on_progress(verdict.height, height),
            )
    except DamagedStore as error:  # the genesis itself is unreadable
        broken = store_failure(0, error)
        if as_json:
            print_json({"valid": False, **asdict(broken)})
        say(f"INVALID at {broken}", err=True)
        raise typer.Exit(FAILED_EXIT) from None
    seconds = time.monotonic() - started_s
    if as_json:
        failure = {} if found.failure is None else asdict(found.failure)
        print_json(
            {
                "valid": found.is_valid,
                **failure,
                "chain": found.chain,
                "height": found.height,
                "checkpoint": found.checkpoint,
                "signatures": found.num_signatures,
                "bytes": found.num_bytes,
                "seconds": seconds,
                "blocks": [asdict(block) for block in found.blocks],
            }
        )
    if found.failure is not None:
        say(f"INVALID at {found.failure}; {len(found.blocks)} blocks before it are valid", err=True)
        raise typer.Exit(FAILED_EXIT)
    if not as_json:
        from bdfl.report.chain_tables import describe_verification

        say("\n".join(describe_verification(found, seconds)))


@chain_app.command("show")
def show(
    path: ChainArgument,
    all_blocks: Annotated[
        bool, typer.Option("--all", help="Show every block, not only the first and last few.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the rules, blocks and members of a chain without verifying them.

    Example:
      bdfl chain show runs/quickstart-drc-0
    """
    from bdfl.audit.summary import summarise_chain
    from bdfl.report.chain_tables import tabulate_chain

    with open_chain(path) as chain:
        summary = summarise_chain(chain)
    show_result(summary, lambda: tabulate_chain(summary, all_blocks=all_blocks), as_json=as_json)


@chain_app.command("block")
def show_block(path: ChainArgument, block: BlockArgument = None, as_json: JsonOption = False) -> None:
    """Show one block: proposer, votes, updates, costs and the next schedule.

    Examples:
      bdfl chain block runs/quickstart-drc-0 7
      bdfl chain block runs/quickstart-drc-0 7 --json
    """
    from bdfl.audit.export import plain_block
    from bdfl.audit.lineage import get_block
    from bdfl.report.chain_tables import tabulate_block

    with open_chain(path) as chain:
        found = get_block(chain, chain.height if block is None else block)
        certificate = chain.certificate(found.header.height)
    show_result(plain_block(found, certificate), lambda: tabulate_block(found, certificate), as_json=as_json)


@chain_app.command("trace")
def trace(path: ChainArgument, block: BlockArgument = None, as_json: JsonOption = False) -> None:
    """Trace a block's model to its clients, their weights and first blocks.

    Example:
      bdfl chain trace runs/quickstart-drc-0 20
    """
    from bdfl.audit.lineage import trace_model
    from bdfl.report.chain_tables import tabulate_trace

    with open_chain(path) as chain:
        found = trace_model(chain, chain.height if block is None else block)
    show_result(found, lambda: tabulate_trace(found), as_json=as_json)


chain_app.command("blame")(blame)
chain_app.command("without")(without)


@chain_app.command("export")
def export(
    path: ChainArgument,
    out: Annotated[Path | None, typer.Option("--out", help="File.", show_default="standard output")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines (the default).")] = False,
) -> None:
    """Write a chain as JSON lines.

    The genesis comes first, then every block with its certificate. Models are named by their digests, not included.

    Example:
      bdfl chain export runs/quickstart-drc-0 --out chain.jsonl
    """
    from bdfl.audit.export import export_lines

    with open_chain(path) as chain, progress("exporting", "blocks") as on_progress:
        height = chain.height
        lines = enumerate(export_lines(chain))
        if out is None:
            for _, line in lines:
                print_json(line)
            return
        with writing_to(out.parent), out.open("wb") as file:
            for done, line in lines:
                file.write(line + b"\n")
                on_progress(done, height)
    if not as_json:
        say(f"wrote {out}")


@chain_app.command("prune")
def prune(
    path: ChainArgument,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of newest blocks that keep their updates.")],
    as_json: JsonOption = False,
) -> None:
    """Delete the models of old updates to save space; this cannot be undone.

    Blocks, votes and a proof of every deleted update stay. Pruned blocks cannot be aggregated again; `verify`
    reports them.

    Example:
      bdfl chain prune runs/quickstart-drc-0 --keep 10
    """
    from bdfl.ledger.sqlite_store import ChainStore

    with ChainStore.open(find_chain(path)) as chain:
        found = chain.prune(keep)
    if as_json:
        print_json(found)
    elif found.num_blocks == 0:
        say(f"nothing to prune: {path} has no blocks beyond the newest {keep} that are not pruned already")
    else:
        say(
            f"pruned {found.num_blocks} blocks up to block {found.checkpoint}: {found.num_blobs} files,"
            f" {found.num_bytes / 1e6:,.1f} MB"
        )


@chain_app.command("prove")
def prove(
    path: ChainArgument,
    block: Annotated[int, typer.Argument(metavar="N", min=1, help="Height of a block; 1 is the first.")],
    client: ClientArgument,
    as_json: JsonOption = False,
) -> None:
    """Prove that a client's update is in a block.

    The proof is a Merkle path to a header that a quorum signed, and exists after pruning too. With --json it has all
    that a verifier needs besides the genesis.

    Example:
      bdfl chain prove runs/quickstart-drc-0 7 3 --json
    """
    from bdfl.audit.lineage import prove_update
    from bdfl.report.chain_tables import tabulate_proof

    with open_chain(path) as chain:
        found = prove_update(chain, block, client)
    show_result(found.to_plain(), lambda: [tabulate_proof(found)], as_json=as_json)


chain_app.command("privacy")(privacy)
chain_app.command("audit")(audit)
