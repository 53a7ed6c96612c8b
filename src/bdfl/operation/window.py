"""A window into a process: a few pages over HTTP, to be looked at and nothing else.

Only on the address it is told, only GET, and only under a name of this machine: a web page elsewhere that has its own
name point here is refused, so that no browser can be made to read it.
"""

import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bdfl.errors import BdflError
from bdfl.operation.own_name import LOOPBACK, is_own_name

MAX_CONNECTIONS = 16
_PATIENCE_S = 5.0  # with whoever asks slowly
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class CannotListen(BdflError):
    """An address that cannot be listened on."""


@dataclass(frozen=True)
class Page:
    """An answer."""

    content: bytes
    kind: str = JSON
    status: int = HTTPStatus.OK


class Window:
    """Serves pages in threads of its own until it is closed."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        numbered: Mapping[str, Callable[[int], Page]] | None = None,
    ) -> None:
        """`port` 0 is any free one. `numbered` pages have a number after their path."""
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
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self.host, self.port = host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server
    server_version = "bdfl"
    sys_version = ""

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
        with suppress(OSError):
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Who looks is not written down."""


def refusal(status: HTTPStatus, why: str) -> Page:
    """An answer that there is none, in one line."""
    return Page(why.encode() + b"\n", TEXT, status)
