"""`bdfl ap`: an access point of a live network."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.node import (
    PeerOption,
    WhileInputOption,
    end_with_input,
    on_signals,
    read_addresses,
)
from bdfl.cli.options import AllowOption
from bdfl.errors import require_extra


def access_point(
    genesis: Annotated[Path, typer.Option("--genesis", metavar="FILE", help="What all members signed.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="Its TLS key, from bdfl keygen --access-point.")],
    listen: Annotated[
        list[str], typer.Option("--listen", metavar="HOST:PORT", help="Where nodes reach it. Repeatable.")
    ],
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="certificate.pem beside the key unless given.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="For its log; that of the key unless given.")
    ] = None,
    peer: PeerOption = None,
    admission: Annotated[
        list[Path] | None,
        typer.Option("--admission", metavar="FILE", help="How a member came in later. Repeatable."),
    ] = None,
    allow: AllowOption = None,
    while_input: WhileInputOption = False,
) -> None:
    """Forward between the nodes of a live network until stopped.

    It can delay and drop, never forge: it has no member's key.

    Access points that name each other with --peer forward along the shortest way, in a ring or any other form. One
    whose certificate the genesis does not list is refused.

    Example:

      bdfl ap --genesis genesis.bdfl --key ap-0/key.pem --listen 0.0.0.0:7447 --peer 192.0.2.8:7447
    """
    require_extra("an access point", "live")
    from bdfl.operation.access_point_files import CERTIFICATE_FILE
    from bdfl.operation.access_point_service import AccessPointSettings, open_service

    settings = AccessPointSettings(
        genesis=genesis,
        key=key,
        certificate=certificate or key.parent / CERTIFICATE_FILE,
        folder=folder or key.parent,
        listen=read_addresses(listen),
        peers=read_addresses(peer),
        allowed=frozenset(allow or ()),
        admissions=tuple(admission or ()),
    )
    with open_service(settings, echo=sys.stderr) as service, on_signals(service.stop):
        if while_input:
            end_with_input(service.stop)
        service.run()
