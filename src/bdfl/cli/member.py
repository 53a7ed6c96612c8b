"""`bdfl keygen` and `bdfl member`: make a key, admit a member or remove one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import JsonOption, OwnKeyOption
from bdfl.cli.terminal import print_json, print_out, say
from bdfl.storage import write_record

if TYPE_CHECKING:
    from bdfl.federation.membership_change import ChainMembers, ChangeFile


# `bdfl member`: admit a member to a running network or remove one, if a quorum agrees.

member_app = typer.Typer(
    no_args_is_help=True, help="Admit and remove members of a running network, if a quorum agrees."
)

FolderOption = Annotated[
    Path, typer.Option("--folder", metavar="FOLDER", help="Your node's folder; it may be running.")
]
ChangeArgument = Annotated[Path, typer.Argument(metavar="CHANGE", help="The file of a proposed change.")]
ChangeOutOption = Annotated[Path, typer.Option("--out", metavar="CHANGE", help="New file for the change.")]
WithinOption = Annotated[int, typer.Option("--within", min=1, help="Number of blocks after which the change is void.")]

_WITHIN = 1000


@member_app.command("propose-add")
def propose_add(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="The newcomer's card.")],
    genesis: Annotated[Path, typer.Option("--genesis", metavar="GENESIS", help="The network's genesis.")],
    folder: FolderOption,
    out: ChangeOutOption,
    within: WithinOption = _WITHIN,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="MODULE:FUNCTION", help="As for `bdfl node`. Repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Propose to admit a new member.

    The new member makes its card with `bdfl genesis card our.genesis`.

    Example:
      bdfl member propose-add my.card --genesis genesis --folder node --out change
    """
    from bdfl.federation.genesis_file import read_genesis, read_scenario
    from bdfl.federation.member_card import read_card
    from bdfl.federation.membership_change import propose_admission, read_members

    allowed = frozenset(allow or ())
    file, members = read_genesis(genesis, allowed=allowed), read_members(folder)
    scenario = read_scenario(file.scenario, allowed)
    change = propose_admission(members, file, scenario, read_card(card), members.height + within)
    write_record(out, change)
    _print_change(change, members, out, as_json=as_json)


@member_app.command("propose-remove")
def propose_remove(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Number of the member.")],
    folder: FolderOption,
    out: ChangeOutOption,
    within: WithinOption = _WITHIN,
    as_json: JsonOption = False,
) -> None:
    """Propose to remove a member.

    For a member that is gone for good, or that evidence on the chain convicts.

    Example:
      bdfl member propose-remove 2 --folder node --out remove-2.change
    """
    from bdfl.federation.membership_change import propose_removal, read_members

    members = read_members(folder)
    change = propose_removal(members, number, members.height + within)
    write_record(out, change)
    _print_change(change, members, out, as_json=as_json)


@member_app.command("show")
def show(change: ChangeArgument, folder: FolderOption, as_json: JsonOption = False) -> None:
    """Check a change and show its signatures and expiry.

    Example:
      bdfl member show add-south.change --folder node
    """
    from bdfl.federation.membership_change import read_change, read_members, validate_timely

    found, members = read_change(change), read_members(folder)
    validate_timely(found, members)
    _print_change(found, members, None, as_json=as_json)


@member_app.command("sign")
def sign(change: ChangeArgument, key: OwnKeyOption, folder: FolderOption, as_json: JsonOption = False) -> None:
    """Sign a change.

    The signature goes into its file, to be sent on or back.

    Example:
      bdfl member sign add-south.change --key north.key --folder node
    """
    from bdfl.federation.keys import load_key
    from bdfl.federation.membership_change import read_change, read_members, sign_change_file

    members = read_members(folder)
    signed = sign_change_file(read_change(change), members, load_key(key))
    write_record(change, signed, replaces=True)
    _print_change(signed, members, change, as_json=as_json)


@member_app.command("merge")
def merge(
    change: ChangeArgument,
    others: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Copies that other members signed.")],
    folder: FolderOption,
    as_json: JsonOption = False,
) -> None:
    """Merge the signatures of several copies of a change into one.

    Example:
      bdfl member merge add-south.change from-east.change --folder node
    """
    from bdfl.federation.membership_change import merge_changes, read_change, read_members, validate_timely

    members, merged = read_members(folder), read_change(change)
    for path in others:
        merged = merge_changes(merged, read_change(path))
    validate_timely(merged, members)
    write_record(change, merged, replaces=True)
    _print_change(merged, members, change, as_json=as_json)


@member_app.command("submit")
def submit(change: ChangeArgument, folder: FolderOption, as_json: JsonOption = False) -> None:
    """Submit a change that a quorum signed to your node.

    The node broadcasts it, and a proposer puts it into a block. A change in block h takes effect in block h + 2.

    Example:
      bdfl member submit add-south.change --folder node
    """
    from bdfl.federation.membership_change import read_change, read_members, submit_change

    members = read_members(folder)
    path = submit_change(folder, read_change(change), members)
    if as_json:
        print_json({"file": str(path), "height": members.height})
        return
    say(f"wrote {path}: the node takes it from there")


def _print_change(change: "ChangeFile", members: "ChainMembers", written: Path | None, *, as_json: bool) -> None:
    from bdfl.federation.keys import key_fingerprint
    from bdfl.ledger.block import Admission
    from bdfl.ledger.costs import NANO

    signed_by = [assent.member for assent in change.assents]
    is_admission = isinstance(change.change, Admission)
    member = (
        change.change.member
        if isinstance(change.change, Admission)
        else members.member_set.members[change.change.number]
    )
    name = change.card.card.name if change.card is not None else None
    if as_json:
        print_json(
            {
                "kind": "admission" if is_admission else "removal",
                "number": change.change.number,
                "name": name,
                "public_key": member.public_key.hex(),
                "samples": member.limits.samples,
                "rate": member.limits.rate_nano / NANO,
                "chain": change.chain.hex(),
                "height": members.height,
                "expires": change.expires,
                "signed_by": signed_by,
                "quorum": members.quorum,
            }
        )
        return

    from bdfl.report.tables import tabulate_facts

    missing = max(0, members.quorum - len(signed_by))
    facts = [
        ("who", f"member {change.change.number}" + (f", {name}" if name else "")),
        ("key", key_fingerprint(member.public_key)),
        ("samples", f"{member.limits.samples:,}"),
        ("trains", f"in {100 * member.limits.rate_nano / NANO:.1f} % of the rounds"),
        ("void after", f"block {change.expires}; the chain has {members.height}"),
        (
            "signed by",
            f"{' '.join(map(str, signed_by)) or 'nobody'}; " + (f"{missing} more must" if missing else "enough"),
        ),
    ]
    print_out(tabulate_facts("Admission of a member" if is_admission else "Removal of a member", facts))
    if written is not None:
        say(f"wrote {written}")


# `bdfl keygen`: a member's key, or key and certificate of an access point.


def keygen(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="New file, or with --access-point a new folder.",
            show_default="member.key, or NAME",
        ),
    ] = None,
    access_point: Annotated[
        str | None,
        typer.Option("--access-point", metavar="NAME", help="Make key and certificate of this access point."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Host name or address of the access point. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the key of a member, or key and certificate of an access point.

    A key is never overwritten and never leaves its file, which only you can read (mode 0600). Keep a copy of it in a
    safe place: without it a member cannot go on. The output is public.

    Examples:
      bdfl keygen --out north.key
      bdfl keygen --access-point ap-0 --host 127.0.0.1 --out ap-0
    """
    from bdfl.federation.keys import key_fingerprint

    if access_point is not None:
        _make_access_point(access_point, host or [], out or Path(access_point), as_json=as_json)
        return
    if host:
        raise typer.BadParameter("only for an access point, --access-point NAME expected with it", param_hint="--host")
    from bdfl.federation.keys import create_key

    file = out or Path("member.key")
    public_key = create_key(file).public_key
    if as_json:
        print_json({"file": str(file), "public_key": public_key.hex(), "fingerprint": key_fingerprint(public_key)})
        return
    typer.echo(f"public key   {public_key.hex()}")
    typer.echo(f"fingerprint  {key_fingerprint(public_key)}")
    typer.echo(f"wrote {file}: secret, only you can read it; keep a copy in a safe place")


def _make_access_point(name: str, hosts: list[str], folder: Path, *, as_json: bool) -> None:
    from bdfl.encoding import digest
    from bdfl.node.access_point import CERTIFICATE_FILE, KEY_FILE, create_access_point

    if not hosts:
        raise typer.BadParameter("a name or address that members reach it at expected", param_hint="--host")
    found = digest(create_access_point(folder, name, hosts))
    if as_json:
        print_json({"folder": str(folder), "name": name, "hosts": hosts, "certificate": found.hex()})
        return
    typer.echo(f"certificate  {found.hex()}")
    typer.echo(f"wrote {folder / KEY_FILE}: secret, only you can read it")
    typer.echo(f"wrote {folder / CERTIFICATE_FILE}: send it to the organiser")
