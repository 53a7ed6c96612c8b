"""`bdfl keygen`: a member's key, or key and certificate of an access point."""

from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import print_json


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
    from bdfl.operation.fingerprint import key_fingerprint

    if access_point is not None:
        _make_access_point(access_point, host or [], out or Path(access_point), as_json=as_json)
        return
    if host:
        raise typer.BadParameter("only for an access point, --access-point NAME expected with it", param_hint="--host")
    from bdfl.operation.key_file import create_key

    file = out or Path("member.key")
    public_key = create_key(file).public_key
    if as_json:
        found = {"file": str(file), "public_key": public_key.hex(), "fingerprint": key_fingerprint(public_key)}
        print_json(found)
        return
    typer.echo(f"public key   {public_key.hex()}")
    typer.echo(f"fingerprint  {key_fingerprint(public_key)}")
    typer.echo(f"wrote {file}: secret, only you can read it; keep a copy in a safe place")


def _make_access_point(name: str, hosts: list[str], folder: Path, *, as_json: bool) -> None:
    from bdfl.encoding import digest
    from bdfl.operation.access_point_files import CERTIFICATE_FILE, KEY_FILE, create_access_point

    if not hosts:
        raise typer.BadParameter("a name or address that members reach it at expected", param_hint="--host")
    found = digest(create_access_point(folder, name, hosts))
    if as_json:
        print_json({"folder": str(folder), "name": name, "hosts": hosts, "certificate": found.hex()})
        return
    typer.echo(f"certificate  {found.hex()}")
    typer.echo(f"wrote {folder / KEY_FILE}: secret, only you can read it")
    typer.echo(f"wrote {folder / CERTIFICATE_FILE}: send it to the organiser")
