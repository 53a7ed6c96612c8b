"""Events of the runs, broadcast to viewers as server-sent events.

Each run is polled once for all its viewers, and only while it has any; each message is encoded once. A viewer that
falls behind is dropped: its browser reconnects and reads the missed rounds.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bdfl.errors import BdflError
from bdfl.explorer.documents import RunEvent, StatusEvent

POLL_S = 0.5
HEARTBEAT_S = 10.0
MAX_VIEWERS = 256
MAX_WAITING = 32  # messages queued for a viewer
_HEARTBEAT = b":\n\n"
_GREETING = b"retry: 1000\n\n"
_log = logging.getLogger("bdfl.explorer")
_KEPT = ("status", "gone")  # events that a new viewer gets at once


class TooManyViewers(BdflError):
    """More viewers than a server takes."""


Poll = Callable[[int], Sequence[RunEvent]]


class Viewer:
    """Bounded message queue of one viewer of a run."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.is_closed = False
        self._waiting: deque[bytes] = deque()
        self._has_news = asyncio.Event()

    def put(self, message: bytes) -> None:
        """Add a message; close a viewer that is too far behind."""
        if len(self._waiting) >= MAX_WAITING:
            self.close()
        if not self.is_closed:
            self._waiting.append(message)
            self._has_news.set()

    def close(self) -> None:
        self.is_closed = True
        self._waiting.clear()
        self._has_news.set()

    async def next(self) -> bytes | None:
        """Wait for messages and return all that are queued; None if the viewer is closed."""
        await self._has_news.wait()
        if self.is_closed:
            return None
        message = b"".join(self._waiting)
        self._waiting.clear()
        self._has_news.clear()
        return message


class Feed:
    """Polls runs for their viewers. All but `poll` happens in one event loop."""

    def __init__(self, poll: Poll, *, poll_s: float = POLL_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        """Create a feed; `poll` returns the events of a run since its last call, and runs in a thread."""
        self._poll = poll
        self._poll_s, self._heartbeat_s = poll_s, heartbeat_s
        self._viewers: dict[int, set[Viewer]] = {}
        self._pollers: dict[int, asyncio.Task[None]] = {}
        self._kept: dict[int, dict[str, bytes]] = {}
        self._is_closed = False

    @property
    def num_viewers(self) -> int:
        return sum(map(len, self._viewers.values()))

    def join(self, run: int) -> Viewer:
        """Return a new viewer of a run, to be passed to `leave` at the end."""
        if self.num_viewers >= MAX_VIEWERS:
            raise TooManyViewers(f"events: {MAX_VIEWERS} watch already, fewer expected")
        viewer = Viewer(run)
        viewer.put(_GREETING + b"".join(self._kept.get(run, {}).values()))
        if self._is_closed:
            viewer.close()
            return viewer
        self._viewers.setdefault(run, set()).add(viewer)
        if run not in self._pollers:
            poller = asyncio.get_running_loop().create_task(self._watch(run), name=f"poll {run}")
            self._pollers[run] = poller
        return viewer

    def leave(self, viewer: Viewer) -> None:
        viewer.close()
        self._viewers.get(viewer.run, set()).discard(viewer)

    def close(self) -> None:
        """Close all viewers, and accept no more."""
        self._is_closed = True
        for viewers in self._viewers.values():
            for viewer in viewers:
                viewer.close()
        for poller in self._pollers.values():
            poller.cancel()

    async def _watch(self, run: int) -> None:
        """Broadcast a run's events until it has no viewers."""
        limiter = CapacityLimiter(1)
        viewers = self._viewers[run]
        beat_s = time.monotonic()
        try:
            while viewers:
                found = await to_thread.run_sync(self._poll, run, limiter=limiter)
                message = b"".join(self._keep(run, news) for news in found)
                if time.monotonic() - beat_s >= self._heartbeat_s:
                    message += _HEARTBEAT
                if message:
                    beat_s = time.monotonic()
                    for viewer in tuple(viewers):
                        viewer.put(message)
                await asyncio.sleep(self._poll_s)
        except Exception:  # browsers reconnect, which starts a new poller
            _log.exception("run %d cannot be followed", run)
        finally:
            del self._pollers[run]
            for viewer in tuple(viewers):
                viewer.close()

    def _keep(self, run: int, news: RunEvent) -> bytes:
        """Encode an event; store it if new viewers get it."""
        name, message = name_of(news), encode_event(news)
        kept = self._kept.setdefault(run, {})
        if name == "back":
            kept.pop("gone", None)
        if name in _KEPT:
            kept[name] = message
        return message


def name_of(news: RunEvent) -> str:
    """Return the name of the event, such as block."""
    return str(type(news).__struct_config__.tag)


def encode_event(news: RunEvent) -> bytes:
    """Encode an event as a server-sent event."""
    document = news.status if isinstance(news, StatusEvent) else news
    return b"event: " + name_of(news).encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"


class EventStream(Response):
    """A response that streams events until its viewer disconnects."""

    def __init__(self, feed: Feed, run: int) -> None:
        self._feed, self._run = feed, run
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer = None if scope["method"] == "HEAD" else self._feed.join(self._run)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": headers})
        if viewer is not None:
            await self._stream(viewer, receive, send)
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, viewer: Viewer, receive: Receive, send: Send) -> None:
        waiting = asyncio.get_running_loop().create_task(_await_end(receive))
        waiting.add_done_callback(lambda task: viewer.close())
        try:
            while (message := await viewer.next()) is not None:
                await send({"type": "http.response.body", "body": message, "more_body": True})
        finally:
            waiting.cancel()
            self._feed.leave(viewer)


async def _await_end(receive: Receive) -> None:
    """Return when the viewer has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
