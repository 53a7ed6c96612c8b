"""Process of the explorer; its settings are one JSON argument.

`bdfl explore` executes this process, so that the server does not keep the command line's modules in memory.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bdfl.addresses import LOOPBACK
from bdfl.errors import BdflError, one_line
from bdfl.explorer import CannotOpen
from bdfl.explorer.library import Library, open_library
from bdfl.explorer.server import ExplorerServer

_STARTING_S = 120.0
_POLL_S = 0.5
ERROR_EXIT = 2  # as elsewhere on the command line
LOOPBACK_NAMES = (LOOPBACK, "localhost", "::1")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Runs to show, and the address to listen on."""

    paths: list[str]
    node: str | None = None
    host: str = LOOPBACK
    port: int | None = None
    opens: bool = False  # a browser
    while_input: bool = False  # stop at the end of standard input


def main() -> int:
    """Serve until stopped and return an exit code."""
    try:
        serve(msgspec.json.decode(sys.argv[1], type=Settings))
    except BdflError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return ERROR_EXIT
    return 0


def serve(settings: Settings) -> None:
    """Open all runs, print the address, and serve."""
    owner = _Owner() if settings.while_input else None
    with _open(settings, is_patient=owner is not None) as library:
        server = ExplorerServer(library, host=settings.host, port=settings.port)
        if settings.host not in LOOPBACK_NAMES:
            whom = f"everybody who reaches {settings.host} can see all of it, without a password"
            print(f"warning: {whom}", file=sys.stderr)
        ending = " (Ctrl-C ends it)" if owner is None else ""
        with _ending_by_signals(server):
            print(f"explorer at {server.address}{ending}", flush=True)
            if owner is not None:
                owner.stop = server.stop
            if settings.opens:
                import webbrowser

                webbrowser.open(server.address)
            server.run()


class _Owner:
    """The parent process; this process stops when the parent exits."""

    def __init__(self) -> None:
        from bdfl.localnet.processes import watch_input

        self.stop: Callable[[], None] = lambda: os._exit(0)  # until there is a server to stop
        watch_input(lambda: self.stop())


@contextmanager
def _open(settings: Settings, *, is_patient: bool) -> Iterator[Library]:
    """Open the library; if patient, retry for a while, such as for a network that is just starting."""
    deadline_s = time.monotonic() + (_STARTING_S if is_patient else 0.0)
    with ExitStack() as resources:
        while True:
            opening = open_library([Path(path) for path in settings.paths], settings.node)
            try:
                library = resources.enter_context(opening)
                break
            except CannotOpen:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_POLL_S)
        yield library


@contextmanager
def _ending_by_signals(server: ExplorerServer) -> Iterator[None]:
    """Stop the server on signals, also before it runs; while it runs it handles them itself."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
