"""Server-sent events: one poll and one encoding for all viewers, and nobody slow holds up anybody."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette")

from bdfl.explorer import events as feed_module, server as serving
from bdfl.explorer.documents import BackEvent, GoneEvent, Status, StatusEvent
from bdfl.explorer.events import MAX_WAITING, Feed, TooManyViewers, encode_event
from tests.explorer.asking import TIMEOUT_S, ask
from tests.explorer.fake_library import FakeLibrary
from tests.explorer.serving import serve_in_background

POLL_S = 0.02


class Watching:
    """A viewer: a connection to /events."""

    def __init__(self, port, run=0, *, buffer=None):
        self.line = socket.socket()
        if buffer is not None:
            self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.line.settimeout(20)
        self.line.connect(("127.0.0.1", port))
        self.line.sendall(f"GET /events?run={run} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        self.text = ""

    def read_until(self, wanted):
        """All that came so far; waits until `wanted` is in it."""
        while wanted not in self.text:
            data = self.line.recv(65536)
            assert data, f"it ended before {wanted!r}: {self.text[-200:]}"
            self.text += data.decode()
        return self.text

    def is_over(self):
        try:
            while data := self.line.recv(65536):
                self.text += data.decode()
        except ConnectionError:
            pass
        return True

    def close(self):
        self.line.close()


@contextmanager
def watching(port, count=1):
    viewers = [Watching(port) for _ in range(count)]
    try:
        yield viewers
    finally:
        for viewer in viewers:
            viewer.close()


def wait_until(condition):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_quiet(library):
    """Whether nothing is polled for, over many times the interval of polling."""
    before = library.num_polls
    time.sleep(10 * POLL_S)
    return library.num_polls == before


def status(round):
    return StatusEvent(status=Status(nodes=[], access_points=[], phase=None, round=round))


def test_every_viewer_sees_a_new_block():
    library = FakeLibrary()
    with serve_in_background(library, poll_s=POLL_S) as server, watching(server.port, 5) as viewers:
        for viewer in viewers:
            head = viewer.read_until("retry:")
            assert "text/event-stream" in head
            assert "no-store" in head
        library.grow()
        for viewer in viewers:
            text = viewer.read_until('"height":6')
            line = next(line for line in text.splitlines() if line.startswith("data: "))
            found = json.loads(line.removeprefix("data: "))
            assert found["rounds"]["round"] == [6]
            assert found["overview"]["height"] == 6
            assert "event: block\n" in text


def test_status_news_are_the_status_itself():
    assert encode_event(status(3)) == (
        b'event: status\ndata: {"nodes":[],"access_points":[],"phase":null,"round":3}\n\n'
    )
    assert encode_event(BackEvent()) == b'event: back\ndata: {"event":"back"}\n\n'


def test_text_in_news_cannot_end_a_message():
    message = encode_event(GoneEvent(why="a\n\nevent: block\r\ndata: {}"))
    assert message.count(b"\n") == 3
    assert b"\r" not in message


def test_a_message_is_encoded_once_and_a_run_polled_once_for_all(monkeypatch):
    encoded = []
    monkeypatch.setattr(feed_module, "encode_event", lambda news: encoded.append(news) or encode_event(news))
    library = FakeLibrary()
    threads = set()
    poll = library.poll
    library.poll = lambda run: (threads.add(threading.active_count()), poll(run))[1]
    with serve_in_background(library, poll_s=POLL_S) as server, watching(server.port, 20) as viewers:
        for viewer in viewers:
            viewer.read_until("retry:")
        before, began_s = library.num_polls, time.monotonic()
        library.grow()
        for viewer in viewers:
            viewer.read_until("event: block")
        assert len(encoded) == 1
        time.sleep(0.2)
        assert library.num_polls - before <= (time.monotonic() - began_s) / POLL_S + 2


def test_nobody_is_polled_for_while_nobody_watches():
    library = FakeLibrary()
    with serve_in_background(library, poll_s=POLL_S) as server:
        time.sleep(0.1)
        assert library.num_polls == 0
        with watching(server.port) as viewers:
            viewers[0].read_until("retry:")
            wait_until(lambda: library.num_polls > 2)
        wait_until(lambda: is_quiet(library))
        with watching(server.port) as viewers:
            library.grow()
            viewers[0].read_until("event: block")


def test_a_newcomer_is_told_how_things_are():
    library = FakeLibrary()
    with serve_in_background(library, poll_s=POLL_S) as server, watching(server.port) as viewers:
        library.news += [status(1), status(2), GoneEvent(why="it is gone")]
        viewers[0].read_until("it is gone")
        with watching(server.port) as late:
            text = late[0].read_until("it is gone")
            assert '"round":2' in text
            assert '"round":1' not in text
        library.news += [BackEvent()]
        viewers[0].read_until("event: back")
        with watching(server.port) as late:
            late[0].read_until('"round":2')
            library.grow()
            assert "it is gone" not in late[0].read_until("event: block")


def test_silence_is_broken_now_and_then():
    async def listen():
        feed = Feed(lambda run: [], poll_s=0.01, heartbeat_s=0.05)
        viewer = feed.join(0)
        await viewer.next()
        message = await asyncio.wait_for(viewer.next(), 10)
        feed.leave(viewer)
        await asyncio.sleep(0.05)
        return message

    assert asyncio.run(listen()) == b":\n\n"


def test_a_viewer_that_is_too_far_behind_is_let_go():
    async def fall_behind():
        feed = Feed(lambda run: [], poll_s=10)
        slow, quick = feed.join(0), feed.join(0)
        for number in range(MAX_WAITING + 1):
            slow.put(b"%d" % number)
            quick.put(b"%d" % number)
            await quick.next()
        found = slow.is_closed, await slow.next(), quick.is_closed
        feed.close()
        return found

    assert asyncio.run(fall_behind()) == (True, None, False)


def test_a_viewer_that_hangs_costs_others_nothing_and_is_cut_off(monkeypatch):
    monkeypatch.setattr(serving, "_PATIENCE_S", 0.5)
    library = FakeLibrary()
    with serve_in_background(library, poll_s=POLL_S) as server:
        hanging = Watching(server.port, buffer=4096)
        with watching(server.port) as viewers:
            for number in range(60):
                library.news.append(GoneEvent(why=f"{number} " + "x" * 100_000))
                viewers[0].read_until(f'"why":"{number} ')
                viewers[0].text = ""
            library.grow()
            viewers[0].read_until("event: block")
            assert hanging.is_over()
            assert len(hanging.text) < 60 * 100_000
        hanging.close()


def test_a_connection_that_asks_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(serving, "_PATIENCE_S", 0.2)
    with (
        serve_in_background(FakeLibrary()) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as silent,
        socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""
        assert ask(server.port, "/index.json").status == 200


def test_a_poll_that_fails_lets_viewers_come_again(caplog):
    library = FakeLibrary()
    with serve_in_background(library, poll_s=POLL_S) as server:
        library.failure = OSError("the disk is gone")
        with watching(server.port) as viewers:
            assert viewers[0].is_over()
        assert "the disk is gone" in caplog.text
        library.failure = None
        with watching(server.port) as viewers:
            viewers[0].read_until("retry:")
            library.grow()
            viewers[0].read_until("event: block")


def test_there_is_room_for_so_many_viewers_and_no_more(monkeypatch):
    monkeypatch.setattr(feed_module, "MAX_VIEWERS", 3)

    async def crowd():
        feed = Feed(lambda run: [], poll_s=10)
        viewers = [feed.join(run) for run in (0, 0, 1)]
        with pytest.raises(TooManyViewers):
            feed.join(0)
        feed.leave(viewers[0])
        feed.join(1)
        feed.close()

    asyncio.run(crowd())
    with serve_in_background(FakeLibrary(), poll_s=POLL_S) as server, watching(server.port, 3) as viewers:
        for viewer in viewers:
            viewer.read_until("retry:")
        answer = ask(server.port, "/events")
        assert answer.status == 503
        assert "error" in json.loads(answer.content)
