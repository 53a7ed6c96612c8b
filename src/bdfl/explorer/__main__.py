"""The explorer's process, told in one JSON argument what to open and where to listen.

`bdfl explore` becomes this process: what its command line needs in memory, the server does not.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bdfl.errors import BdflError, one_line
from bdfl.explorer.errors import CannotOpen
from bdfl.explorer.library import Library, open_library
from bdfl.explorer.serving import ExplorerServer
from bdfl.operation.own_name import LOOPBACK

_STARTING_S = 120.0
_POLL_S = 0.5
ERROR_EXIT = 2  # as elsewhere on the command line
LOOPBACK_NAMES = (LOOPBACK, "localhost", "::1")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to show, and where."""

    paths: list[str]
    node: str | None = None
    host: str = LOOPBACK
    port: int | None = None
    opens: bool = False  # a browser
    while_input: bool = False  # ends when standard input does


def main() -> int:
    """Serves until it is stopped; an exit code."""
    try:
        serve(msgspec.json.decode(sys.argv[1], type=Settings))
    except BdflError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return ERROR_EXIT
    return 0


def serve(settings: Settings) -> None:
    """Opens everything, says where it is, and serves."""
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
    """Whoever started this process: when it is gone, this one ends."""

    def __init__(self) -> None:
        from bdfl.operation.children import watch_input

        self.stop: Callable[[], None] = lambda: os._exit(0)  # until there is something to end
        watch_input(lambda: self.stop())


@contextmanager
def _open(settings: Settings, *, is_patient: bool) -> Iterator[Library]:
    """The library; who is patient waits a while for what is not there yet, such as a network that starts just now."""
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
    """Inside, signals end the server, also before it has begun; it hears them itself while it runs."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
