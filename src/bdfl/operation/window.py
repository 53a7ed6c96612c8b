"""Read-only HTTP status server.

It binds only the given address, serves only GET, and checks the Host header. That prevents DNS rebinding: a foreign web
page cannot make a browser read it.
"""

import io
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

from bdfl.errors import BdflError
from bdfl.operation.own_name import LOOPBACK, is_own_name

MAX_CONNECTIONS = 16
_PATIENCE_S = 5.0  # for a whole request, against slow clients
_MAX_REQUEST = 16_384  # bytes
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class CannotListen(BdflError):
    """An address on which the server cannot listen."""


@dataclass(frozen=True)
class Page:
    """An HTTP response."""

    content: bytes
    kind: str = JSON
    status: int = HTTPStatus.OK


class Window:
    """Serves pages from threads of its own until closed."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        numbered: Mapping[str, Callable[[int], Page]] | None = None,
    ) -> None:
        """`port` 0 picks a free one. `numbered` pages have a number after their path."""
        try:
            self._server = _Server(pages, numbered or {}, host, port)
        except OSError as error:
            raise CannotListen(f"{host}:{port}: {error.strerror}, a free port expected") from None
        self.port: int = self._server.server_address[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="window", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        numbered: Mapping[str, Callable[[int], Page]],
        host: str,
        port: int,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.numbered = numbered
        self._asking: list[Any] = []  # open connections, oldest first
        self._turn = threading.Lock()
        super().__init__((host, port), _Handler)
        self.host, self.port = host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Drop the oldest connection at the limit: honest requests are short."""
        with self._turn:
            if len(self._asking) == MAX_CONNECTIONS:
                _hang_up(self._asking.pop(0))
            self._asking.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._turn:
            if request in self._asking:
                self._asking.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a request."""


def _hang_up(connection: Any) -> None:
    with suppress(OSError):  # already closed by the client
        connection.shutdown(socket.SHUT_RDWR)


class _Question(io.RawIOBase):
    """A request, limited in total size and time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ends_s = monotonic() + _PATIENCE_S
        self._left = _MAX_REQUEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends_s - monotonic()
        if left_s <= 0.0 or self._left <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        num_bytes = self._connection.recv_into(buffer)
        self._left -= num_bytes
        return num_bytes


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "bdfl"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Question(self.connection))

    def do_GET(self) -> None:
        name = (self.headers.get("Host") or "").lower()
        if not is_own_name(name, self.server.host, self.server.port):
            self._answer(refusal(HTTPStatus.FORBIDDEN, "Host: a name of this machine expected"))
            return
        self._answer(self._find(self.path.partition("?")[0]))

    def _find(self, path: str) -> Page:
        page = self.server.pages.get(path)
        if page is not None:
            return page()
        folder, _, number = path.rpartition("/")
        numbered = self.server.numbered.get(f"{folder}/")
        if numbered is not None and _NUMBER.fullmatch(number) is not None:
            return numbered(int(number))
        known = ", ".join([*self.server.pages, *(f"{name}NUMBER" for name in self.server.numbered)])
        return refusal(HTTPStatus.NOT_FOUND, f"not here: {known} expected")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._answer(refusal(HTTPStatus.METHOD_NOT_ALLOWED, "GET expected"))

    def _answer(self, page: Page) -> None:
        self.connection.settimeout(_PATIENCE_S)
        with suppress(OSError):
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no access log."""


def refusal(status: HTTPStatus, why: str) -> Page:
    """Make an error page with a one-line text."""
    return Page(why.encode() + b"\n", TEXT, status)
