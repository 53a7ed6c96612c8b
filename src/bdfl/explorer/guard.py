"""Checks of every request, and security headers of every response.

Requests must have this machine's name as Host and be GET or HEAD. Browsers load resources from this server only, show
the pages in no frame, and do not guess content types.
"""

from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bdfl.operation.own_name import is_own_name

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


class Guard:
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
        if not self._is_own(names):
            await _refuse(_guarded(send), HTTPStatus.FORBIDDEN, "Host: a name of this machine expected")
        elif scope["method"] not in _METHODS:
            allow = ((b"allow", ", ".join(_METHODS).encode()),)
            await _refuse(_guarded(send), HTTPStatus.METHOD_NOT_ALLOWED, "GET expected", allow)
        else:
            await self._application(scope, receive, _guarded(send))

    def _is_own(self, names: list[bytes]) -> bool:
        return len(names) == 1 and is_own_name(names[0].decode("latin-1").lower(), self._host, self._port)


def _guarded(send: Send) -> Send:
    """Return `send` with the security headers added to every response."""

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            caching = () if b"cache-control" in names else ((b"cache-control", b"no-store"),)
            message = {**message, "headers": [*given, *_HEADERS, *caching]}
        await send(message)

    return send_guarded


async def _refuse(send: Send, status: HTTPStatus, why: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    content = why.encode() + b"\n"
    about = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": int(status), "headers": [*about, *headers]})
    await send({"type": "http.response.body", "body": content})
