"""`bdfl explore`: runs, chains and live networks in a browser, or as a folder of pages."""

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.explore_extra import validate_explore_extra
from bdfl.cli.node import WhileInputOption, end_with_input, on_signals
from bdfl.cli.terminal import progress, writing_to
from bdfl.errors import BdflError

if TYPE_CHECKING:
    from bdfl.explorer.library import Library

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class BadUsage(BdflError):
    """Options that are missing or do not go together."""


def explore(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...", help="Folders of runs, chains, nodes, networks or simulate --out; several to compare."
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="HOST:PORT", help="A live node, by the address of its --metrics.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="8080 or the next that is free unless given.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Anything but loopback shows all to others.")
    ] = LOOPBACK_NAMES[0],
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser window.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FOLDER", help="Write pages that need no server, and end.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, help="With --export: only so many blocks, the newest.")
    ] = None,
    while_input: WhileInputOption = False,
) -> None:
    """Look at runs, chains and live networks in a browser: blocks, curves, map, models, and the scheduler's desk.

    Follows what is still under way, and plays again what is over. Only reads; on this machine only unless --host says
    otherwise. Every page is also there as JSON, at its address with .json at the end.

    Examples:

      bdfl explore runs/quickstart-drc-0

      bdfl explore runs/a runs/b --port 9000 --open

      bdfl explore --node 127.0.0.1:9100

      bdfl explore runs/quickstart-drc-0 --export site
    """
    if not paths and node is None:
        raise BadUsage("explore: a PATH is missing, such as runs/quickstart-drc-0, or --node HOST:PORT")
    if last is not None and export is None:
        raise BadUsage("--last: says how much --export writes, which is missing")
    if export is None:
        validate_explore_extra()
    from bdfl.explorer.library import open_library

    with open_library(paths or [], node) as library:
        if export is not None:
            _export(library, export, last)
        else:
            _serve(library, host, port, opens=opens, while_input=while_input)


def _serve(library: "Library", host: str, port: int | None, *, opens: bool, while_input: bool) -> None:
    from bdfl.explorer.serving import ExplorerServer

    server = ExplorerServer(library, host=host, port=port)
    if host not in LOOPBACK_NAMES:
        typer.echo(f"warning: everybody who reaches {host} can see all of it; no names, no passwords", err=True)
    ending = "" if while_input else " (Ctrl-C ends it)"
    typer.echo(f"explorer at {server.address}{ending}")
    sys.stdout.flush()
    with on_signals(server.stop):
        if while_input:
            end_with_input(server.stop)
        if opens:
            webbrowser.open(server.address)
        server.run()


def _export(library: "Library", folder: Path, last: int | None) -> None:
    from bdfl.explorer.export import export_site

    with writing_to(folder), progress("exporting", "documents") as on_progress:
        made = export_site(library, folder, last=last, on_progress=on_progress)
    typer.echo(f"wrote {made.page}, {made.num_bytes / 1e6:.1f} MB in {made.num_files} files; open it in a browser")
    for note in made.notes:
        typer.echo(f"note: {note}")
