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
    genesis: Annotated[Path, typer.Option("--genesis", metavar="FILE", help="The genesis file of the network.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="TLS key, from `bdfl keygen --access-point`.")],
    listen: Annotated[
        list[str], typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on. Repeatable.")
    ],
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="TLS certificate.", show_default="certificate.pem beside the key"
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder for the log.", show_default="that of the key"),
    ] = None,
    peer: PeerOption = None,
    admission: Annotated[
        list[Path] | None,
        typer.Option("--admission", metavar="FILE", help="Admission of a member added after genesis. Repeatable."),
    ] = None,
    allow: AllowOption = None,
    while_input: WhileInputOption = False,
) -> None:
    """Run an access point that forwards messages between nodes until stopped.

    It can delay and drop messages but not forge them: it has no member's key.

    Access points that name each other with --peer forward along the shortest path, in a ring or any other topology.
    An access point whose certificate the genesis does not list is refused.

    Example:
      bdfl ap --genesis our.genesis --key ap-0/key.pem --listen 0.0.0.0:7447
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
