"""`bdfl explore`: runs, chains and live networks in a browser, or as a folder of pages."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from bdfl.cli.node import WhileInputOption
from bdfl.cli.terminal import BadUsage, progress, say, writing_to
from bdfl.errors import require_extra

# glibc returns the memory of an answer to the system once it is sent; other systems ignore these.
_SPARING = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


def explore(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Folders of runs, chains, nodes, networks or simulate --out; several are compared.",
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="HOST:PORT", help="Address of a live node's --metrics.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port to listen on.", show_default="8080 or the next free one"),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Any but loopback shows everything to others.")
    ] = "127.0.0.1",
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser window.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FOLDER", help="Write pages that need no server, and exit.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, help="With --export: number of newest blocks to write.")
    ] = None,
    while_input: WhileInputOption = False,
) -> None:
    """Show runs, chains and live networks in a browser.

    Pages show blocks, curves, the network map and models, and re-solve rounds with other parameters. A run in progress
    is followed, a finished one can be replayed.

    The server only reads, and serves this machine only unless --host is given. Every page is also available as JSON,
    at its address with .json at the end.

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
        require_extra("the explorer", "explore")
        _become_server(paths or [], node, host, port, opens=opens, while_input=while_input)
    from bdfl.explorer.export import export_site
    from bdfl.explorer.library import open_library

    with open_library(paths or [], node) as library, writing_to(export), progress("exporting", "documents") as show:
        for run in range(library.num_runs):
            library.read_all(run)
        made = export_site(library, export, last=last, on_progress=show)
    say(f"wrote {made.page}, {made.num_bytes / 1e6:.1f} MB in {made.num_files} files; open it in a browser")
    for note in made.notes:
        say(f"note: {note}")


def _become_server(
    paths: list[Path], node: str | None, host: str, port: int | None, *, opens: bool, while_input: bool
) -> NoReturn:
    """Replace this process by the server, which needs less memory without the command line."""
    settings = {
        "paths": [str(path) for path in paths],
        "node": node,
        "host": host,
        "port": port,
        "opens": opens,
        "while_input": while_input,
    }
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**_SPARING, **os.environ}
    # -P: nothing is imported from the current folder.
    command = [sys.executable, "-P", "-m", "bdfl.explorer.server", msgspec.json.encode(settings).decode()]
    os.execve(sys.executable, command, environment)
