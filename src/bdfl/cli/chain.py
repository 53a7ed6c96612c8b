"""`bdfl chain`: verify, show, trace and export a chain."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import AllowOption, JsonOption
from bdfl.cli.terminal import print_json, print_out, progress, say, writing_to
from bdfl.errors import BdflError

if TYPE_CHECKING:
    from bdfl.audit.influence import LossOf
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.ledger.verify import Verification
    from bdfl.scenario import Scenario


# `bdfl chain`: verify, show and audit a chain.

INVALID_EXIT = 1

chain_app = typer.Typer(
    no_args_is_help=True, help="Verify a chain, show its blocks and trace its models to their clients."
)

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a run, or of a chain.")]
BlockArgument = Annotated[
    int | None,
    typer.Argument(metavar="[N]", min=1, help="Height of a block; 1 is the first.", show_default="the tip"),
]
ClientArgument = Annotated[int, typer.Argument(metavar="CLIENT", min=0, help="Number of a client.")]


class NoChain(BdflError):
    """A folder without a chain, or without a file that a command on it needs."""


@chain_app.command("verify")
def verify(path: PathArgument, allow: AllowOption = None, as_json: JsonOption = False) -> None:
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
        failure = store_failure(0, error)
        if as_json:
            print_json({"valid": False, **asdict(failure)})
        say(f"INVALID at {failure}", err=True)
        raise typer.Exit(INVALID_EXIT) from None
    _print_verification(found, time.monotonic() - started_s, as_json=as_json)
    if not found.is_valid:
        raise typer.Exit(INVALID_EXIT)


@chain_app.command("show")
def show(
    path: PathArgument,
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

    with open_chain(path) as chain:
        summary = summarise_chain(chain)
    if as_json:
        print_json(asdict(summary))
        return
    from bdfl.report.chain_tables import tabulate_chain

    print_out(*tabulate_chain(summary, all_blocks=all_blocks))


@chain_app.command("block")
def show_block(path: PathArgument, block: BlockArgument = None, as_json: JsonOption = False) -> None:
    """Show one block: proposer, votes, updates, costs and the next schedule.

    Examples:
      bdfl chain block runs/quickstart-drc-0 7
      bdfl chain block runs/quickstart-drc-0 7 --json
    """
    from bdfl.audit.export import plain_block
    from bdfl.audit.lineage import get_block

    with open_chain(path) as chain:
        found = get_block(chain, chain.height if block is None else block)
        certificate = chain.certificate(found.header.height)
    if as_json:
        print_json(plain_block(found, certificate))
        return
    from bdfl.report.chain_tables import tabulate_block

    print_out(*tabulate_block(found, certificate))


@chain_app.command("trace")
def trace(path: PathArgument, block: BlockArgument = None, as_json: JsonOption = False) -> None:
    """Trace a block's model to its clients, their weights and first blocks.

    Example:
      bdfl chain trace runs/quickstart-drc-0 20
    """
    from bdfl.audit.lineage import trace_model

    with open_chain(path) as chain:
        found = trace_model(chain, chain.height if block is None else block)
    if as_json:
        print_json(asdict(found))
        return
    from bdfl.report.chain_tables import tabulate_trace

    print_out(*tabulate_trace(found))


@chain_app.command("blame")
def blame(
    path: PathArgument,
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

    with (
        open_chain(path) as chain,
        _open_judge(path, chain, data, frozenset(allow or ())) as loss_of,
        progress("judging models", "models") as on_progress,
    ):
        found = blame_clients(
            chain,
            loss_of,
            first=first,
            last=last,
            own_functions=frozenset(allow or ()),
            on_judged=on_progress,
        )
    if as_json:
        print_json(asdict(found))
        return
    from bdfl.report.chain_tables import tabulate_blame

    print_out(*tabulate_blame(found))


@chain_app.command("without")
def without(
    path: PathArgument,
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
                chain,
                client,
                block=block,
                since=since,
                own_functions=frozenset(allow or ()),
                on_block=on_progress,
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


@chain_app.command("export")
def export(
    path: PathArgument,
    out: Annotated[Path | None, typer.Option("--out", help="File.", show_default="standard output")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines, as without this option.")] = False,
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
    path: PathArgument,
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
        print_json(asdict(found))
    elif found.num_blocks == 0:
        say(f"nothing to prune: {path} has no blocks beyond the newest {keep} that are not pruned already")
    else:
        say(
            f"pruned {found.num_blocks} blocks up to block {found.checkpoint}: {found.num_blobs} files,"
            f" {found.num_bytes / 1e6:,.1f} MB"
        )


@chain_app.command("prove")
def prove(
    path: PathArgument,
    block: Annotated[int, typer.Argument(metavar="N", min=1, help="Height of a block, 1 is the first.")],
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

    with open_chain(path) as chain:
        found = prove_update(chain, block, client)
    if as_json:
        print_json(found.to_plain())
        return
    from bdfl.ledger.block import block_digest
    from bdfl.report.chain_tables import tabulate_facts

    update, proof = found.update.update, found.proof
    facts = [
        ("update", update.model.hex() or "none: its training diverged"),
        ("leaf", f"{proof.index} of {proof.count}"),
        *((f"beside {level}", sibling.hex()) for level, sibling in enumerate(proof.siblings, start=1)),
        ("root", found.block.header.body.hex()),
        ("block", block_digest(found.block.header, found.block.nonce).hex()),
        ("final by", f"{len(found.certificate)} votes in its certificate"),
    ]
    print_out(tabulate_facts(f"The update of client {client} is in block {block}", facts))


def find_chain(path: Path) -> Path:
    """Return the folder of the chain: that of a run, or the given one itself."""
    from bdfl.ledger.sqlite_store import DATABASE_FILE

    for folder in (path / "chain", path):
        if (folder / DATABASE_FILE).is_file():
            return folder
    if not path.exists():
        raise NoChain(f"{path}: not there, the folder of a run or of a chain expected")
    raise NoChain(f"{path}: no chain in it, the folder of a run or of a chain expected")


@contextmanager
def open_chain(path: Path) -> "Iterator[ChainStore]":
    """Open a chain read-only; another process may be writing it."""
    from bdfl.ledger.sqlite_store import ChainStore

    with ChainStore.open(find_chain(path), read_only=True) as chain:
        yield chain


@contextmanager
def _open_judge(path: Path, chain: "ChainStore", data: str | None, allowed: frozenset[str]) -> "Iterator[LossOf]":
    """Yield a function from a model to its test loss on the run's data, or on the given data."""
    from bdfl.audit.lineage import layout_of
    from bdfl.experiment.training_run import prepare_run
    from bdfl.learning.trainer_pool import open_trainer

    federated = prepare_run(_find_scenario(path, chain, data, allowed))
    with open_trainer(federated.scenario, federated.data, federated.partition) as trainer:
        if trainer.layout != layout_of(chain.genesis):
            raise NoChain(f"{path}: the scenario's model has other tensors than the chain's, the same expected")
        yield lambda weights: trainer.evaluate(weights).loss


def _find_scenario(path: Path, chain: "ChainStore", data: str | None, allowed: frozenset[str]) -> "Scenario":
    from bdfl.cli.options import open_scenario
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


def _print_verification(found: "Verification", seconds: float, *, as_json: bool) -> None:
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
    elif not as_json:
        from bdfl.report.chain_tables import describe_verification

        say("\n".join(describe_verification(found, seconds)))


# `bdfl chain privacy`: the stated privacy budgets of members, recomputed.


@chain_app.command("privacy")
def privacy(path: PathArgument, as_json: JsonOption = False) -> None:
    """Recompute each member's epsilon and compare it with the stated one.

    Steps, sampling rate, noise and delta follow from the genesis and the schedules on the chain. One thing is taken on
    trust: that a member added its noise. Exit code 1 if a member states too little or too much. Needs Opacus.

    Examples:
      bdfl chain privacy runs/quickstart-drc-0
      bdfl chain privacy runs/quickstart-drc-0 --json
    """
    from bdfl.audit.summary import audit_privacy

    with open_chain(path) as chain:
        found = audit_privacy(chain)
    if as_json:
        print_json(asdict(found) | {"is_right": found.is_right})
    else:
        from bdfl.report.privacy import tabulate_privacy

        print_out(tabulate_privacy(found))
    if not found.is_right:
        say("WRONG: what some members state is not what they spent", err=True)
        raise typer.Exit(INVALID_EXIT)
