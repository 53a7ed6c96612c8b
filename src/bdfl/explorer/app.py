"""Routes of the explorer: an HTML shell for every page, its content as JSON beside it, and static files.

Threads query the library, with a limit on concurrent requests. Slow requests (what-if analyses, whole models) have a
limit of their own. Static files are a fixed list, made when the server starts: a request's path is looked up in it and
never used as a path on the disk, so path traversal is impossible. Symbolic links are not followed.
"""

import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bdfl.errors import BdflError, one_line
from bdfl.explorer import BadRequest, Busy, NotHere
from bdfl.explorer.documents import WhatIfSettings
from bdfl.explorer.events import EventStream, Feed, TooManyViewers
from bdfl.explorer.library import Library
from bdfl.explorer.static_files import SHELL, StaticFile, StaticFiles

# Parse numbers in URLs; all other text is rejected.

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,20}", re.ASCII)
_MAX_SHOWN = 40  # characters of a bad value in an error message

Query = Mapping[str, str]


def whole(query: Query, name: str) -> int | None:
    """Return a parameter that is a whole number; None if not given."""
    text = query.get(name, "")
    if not text:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a whole number expected")
    return int(text)


def number(query: Query, name: str) -> float | None:
    """Return a parameter that is a finite number; None if not given."""
    text = query.get(name, "")
    if not text:
        return None
    value = float(text) if _NUMBER.fullmatch(text) is not None else math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a number expected")
    return value


def what_if_settings(query: Query) -> WhatIfSettings:
    """Return the settings of the what-if page."""
    names = WhatIfSettings.__struct_fields__
    given = {name: whole(query, name) if name == "client" else number(query, name) for name in names}
    return msgspec.convert(given, WhatIfSettings)


JSON = "application/json"
BYTES = "application/octet-stream"
_NUM_QUICK = 2  # concurrent requests: more would only cost memory
_NUM_SLOW = 4
_MAX_WAITING = 128  # queued requests
_LEAST_COMPRESSED = 8192  # bytes
_STATUS_OF: Mapping[type[Exception], HTTPStatus] = {
    NotHere: HTTPStatus.NOT_FOUND,
    BadRequest: HTTPStatus.BAD_REQUEST,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyViewers: HTTPStatus.SERVICE_UNAVAILABLE,
}

Ask = Callable[[Library, Request], object]

# JSON routes and their queries to the library. Numbers in paths are text until `number_of` has parsed them.
_QUICK: Mapping[str, Ask] = {
    "/index.json": lambda library, request: library.overview(run_of(request)),
    "/rounds.json": lambda library, request: _rounds(library, run_of(request), request.query_params),
    "/blocks.json": lambda library, request: _blocks(library, run_of(request), request.query_params),
    "/block/{number}.json": lambda library, request: library.block(run_of(request), number_of(request)),
    "/client/{number}.json": lambda library, request: library.client(run_of(request), number_of(request)),
    "/raw/genesis": lambda library, request: library.raw_genesis(run_of(request)),
    "/raw/{number}": lambda library, request: library.raw_block(run_of(request), number_of(request)),
}
_SLOW: Mapping[str, Ask] = {
    "/network.json": lambda library, request: library.network(run_of(request), whole(request.query_params, "round")),
    "/model/{number}.json": lambda library, request: _model(library, request),
    "/what-if.json": lambda library, request: _what_if(library, request, None),
    "/what-if/{number}.json": lambda library, request: _what_if(library, request, number_of(request)),
    "/frontier.json": lambda library, request: library.frontier(run_of(request)),
    "/compare.json": lambda library, request: library.compare(),
    "/verify.json": lambda library, request: library.verify(run_of(request)),
}
# HTML pages; valid numbers follow from the run's overview.
_PAGES = ("/", "/network", "/blocks", "/what-if", "/compare")
_NUMBERED_PAGES = ("/block/{number}", "/model/{number}", "/what-if/{number}", "/client/{number}")


def make_app(library: Library, feed: Feed, files: StaticFiles) -> ASGIApp:
    """Return the ASGI application for all open runs; it must be wrapped in a `RequestFilter`."""
    answers = _Endpoints(library, feed, files)
    routes = [Route(path, partial(answers.query, ask, is_slow=False)) for path, ask in _QUICK.items()]
    routes += [Route(path, partial(answers.query, ask, is_slow=True)) for path, ask in _SLOW.items()]
    routes += [Route(path, answers.show) for path in _PAGES]
    routes += [Route(path, answers.show_numbered) for path in _NUMBERED_PAGES]
    routes += [
        Route("/events", answers.stream_events),
        Route("/static/{name:path}", answers.show_file),
        Route("/favicon.ico", answers.show_icon),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={BdflError: _refuse, HTTPException: _refuse_unknown, Exception: _refuse_failure},
    )
    app.router.redirect_slashes = False
    return app


class _Endpoints:
    """HTML pages, static files, events, and thread pools that query the library, with limits."""

    def __init__(self, library: Library, feed: Feed, files: StaticFiles) -> None:
        self._library, self._feed, self._files = library, feed, files
        self._quick, self._slow = CapacityLimiter(_NUM_QUICK), CapacityLimiter(_NUM_SLOW)

    async def query(self, ask: Ask, request: Request, *, is_slow: bool) -> Response:
        """Return the library's answer, encoded and compressed if large enough."""
        limiter = self._slow if is_slow else self._quick
        if limiter.statistics().tasks_waiting >= _MAX_WAITING:
            raise Busy(f"{_MAX_WAITING} questions wait already, try again")

        def work() -> tuple[bytes, str, bool]:
            found = ask(self._library, request)
            content, kind = (found, BYTES) if isinstance(found, bytes) else (msgspec.json.encode(found), JSON)
            is_packed = _takes_gzip(request) and len(content) >= _LEAST_COMPRESSED
            return compress(content) if is_packed else content, kind, is_packed

        content, kind, is_packed = await to_thread.run_sync(work, limiter=limiter)
        return Response(content, media_type=kind, headers=_packing(is_packed))

    async def stream_events(self, request: Request) -> Response:
        return EventStream(self._feed, self._check_run(request))

    async def show(self, request: Request) -> Response:
        """Return the shell of a page, with an error status if the run is not open."""
        try:
            self._check_run(request)
        except BdflError as error:
            return self._file(request, SHELL, status_for(error))
        return self._file(request, SHELL)

    async def show_numbered(self, request: Request) -> Response:
        """Return the shell of the page of a block, model, round or client."""
        page = request.url.path.split("/")[1]
        try:
            run, number = self._check_run(request), number_of(request)
            first = 0 if page in ("client", "model") else 1
            is_there = first <= number <= await self._last_number(page, run)
        except BdflError as error:
            return self._file(request, SHELL, status_for(error))
        return self._file(request, SHELL, HTTPStatus.OK if is_there else HTTPStatus.NOT_FOUND)

    async def show_file(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    async def show_icon(self, request: Request) -> Response:
        return self._file(request, "icon.svg")

    def _check_run(self, request: Request) -> int:
        """Return the run of a request; raise `NotHere` if it is not open."""
        run = run_of(request)
        if run >= self._library.num_runs:
            raise NotHere(f"run {run}: not here, 0 to {self._library.num_runs - 1} expected")
        return run

    async def _last_number(self, page: str, run: int) -> int:
        """Return the last valid number of a page of that kind."""
        overview = await to_thread.run_sync(self._library.overview, run, limiter=self._quick)
        if page == "client":
            return len(overview.clients) - 1
        return overview.height + (page == "what-if")

    def _file(self, request: Request, name: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
        found = self._files.find(name)
        if found is None:
            raise NotHere("static: no such file")
        return _file_response(request, found, status)


def _file_response(request: Request, file: StaticFile, status: HTTPStatus) -> Response:
    """Return the file, or 304 if the client's copy is current."""
    headers = {"Cache-Control": "no-cache", "ETag": file.tag}
    if status is HTTPStatus.OK and request.headers.get("if-none-match") == file.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    is_text = file.kind.startswith("text/") or file.kind.endswith(("json", "xml"))
    is_packed = is_text and _takes_gzip(request) and len(file.content) >= _LEAST_COMPRESSED
    content = file.packed if is_packed else file.content
    return Response(content, status, headers={**headers, **_packing(is_packed), "Content-Type": file.kind})


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def run_of(request: Request) -> int:
    """Return the run of a request (default: 0)."""
    return whole(request.query_params, "run") or 0


def number_of(request: Request) -> int:
    """Return the number of the block, client or round in a request's path; raise `NotHere` for other text."""
    text = request.path_params["number"]
    if _WHOLE.fullmatch(text) is None:
        raise NotHere(f"{text[:_MAX_SHOWN]}: a number expected")
    return int(text)


def _rounds(library: Library, run: int, query: Query) -> object:
    first, last, points = (whole(query, name) for name in ("first", "last", "points"))
    return library.rounds(run, first or 1, last, 2000 if points is None else points)


def _blocks(library: Library, run: int, query: Query) -> object:
    return library.blocks(run, whole(query, "first"), whole(query, "last"))


def _model(library: Library, request: Request) -> object:
    query = request.query_params
    return library.model(run_of(request), number_of(request), whole(query, "without"), whole(query, "other"))


def _what_if(library: Library, request: Request, height: int | None) -> object:
    return library.what_if(run_of(request), height, what_if_settings(request.query_params))


def compress(content: bytes) -> bytes:
    """Compress with gzip at its fastest level: connections are usually local."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def _packing(is_packed: bool) -> dict[str, str]:
    return {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if is_packed else {})


# Errors: one line, as JSON


def status_for(error: Exception) -> HTTPStatus:
    """Return the HTTP status of an error."""
    return _STATUS_OF.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)


async def _refuse(request: Request, error: Exception) -> Response:
    return _refusal(status_for(error), one_line(error))


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    return _refusal(status, "not here" if status == HTTPStatus.NOT_FOUND else HTTPStatus(status).phrase)


async def _refuse_failure(request: Request, error: Exception) -> Response:
    return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "something went wrong in here; the server's terminal says what")


def _refusal(status: int, why: str) -> Response:
    return Response(msgspec.json.encode({"error": why}) + b"\n", status, media_type=JSON)
