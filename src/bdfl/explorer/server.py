"""The explorer's server: its process, its address, and the checks of every request.

`bdfl explore` executes this module, so that the server does not keep the command line's modules in memory.

Requests must have this machine's name as Host and be GET or HEAD. Browsers load resources from this server only, show
the pages in no frame, and do not guess content types.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bdfl.addresses import LOOPBACK, is_own_name
from bdfl.errors import BdflError, one_line
from bdfl.explorer import CannotOpen
from bdfl.explorer.app import make_app
from bdfl.explorer.events import POLL_S, Feed
from bdfl.explorer.library import Library, open_library
from bdfl.explorer.static_files import StaticFiles

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_METHODS = ("GET", "HEAD")


class RequestFilter:
    """ASGI middleware with these checks, for a server at `host` and `port`."""

    def __init__(self, application: ASGIApp, *, host: str, port: int) -> None:
        self._application = application
        self._host, self._port = host, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        names = [value for name, value in scope["headers"] if name == b"host"]
        if len(names) != 1 or not is_own_name(names[0].decode("latin-1").lower(), self._host, self._port):
            await _refuse(_secured(send), HTTPStatus.FORBIDDEN, "Host: a name of this machine expected")
        elif scope["method"] not in _METHODS:
            allow = ((b"allow", ", ".join(_METHODS).encode()),)
            await _refuse(_secured(send), HTTPStatus.METHOD_NOT_ALLOWED, "GET expected", allow)
        else:
            await self._application(scope, receive, _secured(send))


def _secured(send: Send) -> Send:
    """Return `send` with the security headers added to every response."""

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            caching = () if b"cache-control" in names else ((b"cache-control", b"no-store"),)
            message = {**message, "headers": [*given, *_HEADERS, *caching]}
        await send(message)

    return send_secured


async def _refuse(send: Send, status: HTTPStatus, why: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    content = why.encode() + b"\n"
    about = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": int(status), "headers": [*about, *headers]})
    await send({"type": "http.response.body", "body": content})


# HTTP server of the explorer: one address, by default on loopback.

PREFERRED_PORTS = tuple(range(8080, 8090))
MAX_CONNECTIONS = 512
_PATIENCE_S = 20.0  # timeout of a client that sends no request or does not read the response
_SEND_BUFFER = 2**18  # bytes, per connection
_GRACE_S = 2  # for responses in progress at shutdown


class CannotServe(BdflError):
    """An address that cannot be listened on."""


class ExplorerServer:
    """HTTP server of a library at one address."""

    def __init__(
        self, library: Library, *, host: str = LOOPBACK, port: int | None = None, poll_s: float = POLL_S
    ) -> None:
        """Bind the address; `port` None: a free one, preferably of `PREFERRED_PORTS`; 0: any free one."""
        self._socket = _bind(host, PREFERRED_PORTS if port is None else (port,))
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{_in_address(host)}:{self.port}/"
        feed = Feed(library.poll, poll_s=poll_s)
        app = RequestFilter(make_app(library, feed, StaticFiles()), host=host, port=self.port)
        settings = uvicorn.Config(
            app,
            loop="asyncio",
            http=_PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(settings, feed)

    def run(self) -> None:
        """Serve until `stop`, or until Ctrl-C in the main thread."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Make `run` return soon; thread-safe."""
        self._server.should_exit = True

    @property
    def is_serving(self) -> bool:
        return self._server.started

    def close(self) -> None:
        """Close the socket of a server that was not run."""
        self._socket.close()


class _Server(uvicorn.Server):
    """A uvicorn server that closes its event streams before it waits for responses at shutdown."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.close()
        await super().shutdown(sockets)


class _PatientProtocol(H11Protocol):
    """A connection that is closed if the client sends no request in time, or stops reading."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:  # a whole request was received
            self._wait_no_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        self._wait_no_more()
        super().resume_writing()

    def _wait(self) -> None:
        self._wait_no_more()
        self._timer = self.loop.call_later(_PATIENCE_S, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _bind(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket at the first free port; if several were given and none is free, at any free one."""
    reason = ""
    for port in (*ports, *([0] if len(ports) > 1 else [])):
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            reason = error.strerror or str(error)
            continue
        listening.setblocking(False)
        return listening
    raise CannotServe(f"{_in_address(host)}:{ports[0]}: {reason}, a free address of this machine expected")


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# Process of the server; its settings are one JSON argument.

_OPENING_S = 120.0
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
    stops: list[Callable[[], None]] = [lambda: os._exit(0)]  # until there is a server to stop
    if settings.while_input:
        from bdfl.localnet.processes import watch_input

        watch_input(lambda: stops[-1]())
    with _open(settings) as library:
        server = ExplorerServer(library, host=settings.host, port=settings.port)
        if settings.host not in LOOPBACK_NAMES:
            whom = f"everybody who reaches {settings.host} can see all of it, without a password"
            print(f"warning: {whom}", file=sys.stderr)
        ending = "" if settings.while_input else " (Ctrl-C ends it)"
        with _ending_by_signals(server):
            print(f"explorer at {server.address}{ending}", flush=True)
            stops.append(server.stop)
            if settings.opens:
                import webbrowser

                webbrowser.open(server.address)
            server.run()


@contextmanager
def _open(settings: Settings) -> Iterator[Library]:
    """Open the library; for a parent process retry for a while, as for its network that is just starting."""
    deadline_s = time.monotonic() + (_OPENING_S if settings.while_input else 0.0)
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
