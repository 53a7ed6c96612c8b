"""A relay passes everything in order, late, and not while it is cut."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from campaigns.live_faults.relay import LOOPBACK, Relay
from campaigns.live_faults.wire import SEGMENT, BadWire, Wire

LIMIT_S = 240.0
QUIET_S = 0.2  # long enough for what passes to be here


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back all it hears, on every connection until its end."""
    with socket.create_server((LOOPBACK, 0)) as server:
        threading.Thread(target=serve_echo, args=(server,), daemon=True).start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)


def serve_echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        try:
            while heard := connection.recv(65536):
                connection.sendall(heard)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextmanager
def line(wire: Wire, seed: int = 0) -> Iterator[tuple[Relay, socket.socket]]:
    with (
        echo() as target,
        Relay(target, wire, seed=seed) as relay,
        socket.create_connection(relay.address, LIMIT_S) as near,
    ):
        yield relay, near


def hear(near: socket.socket, num_bytes: int) -> bytes:
    heard = bytearray()
    while len(heard) < num_bytes and (more := near.recv(65536)):
        heard += more
    return bytes(heard)


def is_quiet(near: socket.socket) -> bool:
    near.settimeout(QUIET_S)
    try:
        near.recv(1)
    except TimeoutError:
        return True
    finally:
        near.settimeout(LIMIT_S)
    return False


def is_over(near: socket.socket) -> bool:
    """Waits for the other end to close, properly or not."""
    try:
        return near.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "wire",
    [
        Wire(),
        Wire(delay_s=0.01, jitter_s=0.02),
        Wire(bytes_per_s=2e6),
        Wire(delay_s=0.001, loss=0.02),
    ],
    ids=["plain", "jitter", "bandwidth", "loss"],
)
def test_every_byte_passes_in_order_and_the_end_too(wire):
    sent = np.random.default_rng(1).bytes(60 * SEGMENT + 7)
    with line(wire) as (relay, near):
        speaker = threading.Thread(target=lambda: (near.sendall(sent), near.shutdown(socket.SHUT_WR)))
        speaker.start()
        assert hear(near, len(sent) + 1) == sent
        speaker.join()
        assert relay.traffic.num_bytes == 2 * len(sent)
        assert relay.traffic.connections == 1


def test_there_and_back_takes_the_delay_twice_and_opening_a_round_trip():
    wire = Wire(delay_s=0.05)
    begun_s = time.monotonic()
    with line(wire) as (_, near):
        near.sendall(b"a")
        assert hear(near, 1) == b"a"
        opened_s = time.monotonic()
        near.sendall(b"b")
        assert hear(near, 1) == b"b"
        assert opened_s - begun_s >= 2 * wire.round_trip_s
        assert time.monotonic() - opened_s >= wire.round_trip_s


def test_a_narrow_wire_takes_its_time():
    begun_s = time.monotonic()
    with line(Wire(bytes_per_s=100_000)) as (_, near):
        near.sendall(bytes(20_000))
        hear(near, 20_000)
    assert time.monotonic() - begun_s >= 0.19


def test_nothing_passes_while_cut_and_everything_once_healed():
    with line(Wire()) as (relay, near):
        near.sendall(b"before")
        assert hear(near, 6) == b"before"
        relay.cut()
        near.sendall(b"meanwhile")
        assert is_quiet(near)
        relay.heal()
        near.sendall(b"after")
        assert hear(near, 14) == b"meanwhileafter"


def test_a_connection_made_while_cut_opens_once_healed():
    with echo() as target, Relay(target, Wire(), seed=0) as relay:
        relay.cut()
        with socket.create_connection(relay.address, LIMIT_S) as near:
            near.sendall(b"hello")
            assert is_quiet(near)
            relay.heal()
            assert hear(near, 5) == b"hello"


def test_a_target_that_is_not_there_ends_the_connection():
    with socket.create_server((LOOPBACK, 0)) as gone:
        address = gone.getsockname()
    with Relay(address, Wire(), seed=0) as relay, socket.create_connection(relay.address, LIMIT_S) as near:
        assert is_over(near)


def test_closing_ends_connections_that_are_cut():
    with line(Wire(delay_s=0.01)) as (relay, near):
        near.sendall(b"a")
        hear(near, 1)
        relay.cut()
        near.sendall(bytes(10 * SEGMENT))
        relay.close()
        assert is_over(near)


def test_a_port_that_is_taken_is_refused():
    with socket.create_server((LOOPBACK, 0)) as taken:
        relay = Relay(taken.getsockname(), Wire(), seed=0, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            relay.start()
        relay.close()


def test_the_same_seed_stalls_the_same_segments():
    wire = Wire(loss=0.3)
    stalls = [[wire.draw_stall_s(rng) for _ in range(100)] for rng in map(np.random.default_rng, (5, 5, 6))]
    assert stalls[0] == stalls[1] != stalls[2]


def test_a_segment_that_is_lost_again_waits_twice_as_long_again():
    wire = Wire(delay_s=0.1, loss=0.5)
    stalls = sorted({round(wire.draw_stall_s(rng), 9) for rng in [np.random.default_rng(2)] for _ in range(1000)})
    assert stalls[:4] == [0.0, 0.4, 1.2, 2.8]


def test_fewer_segments_are_under_way_the_more_are_lost():
    windows = [Wire(loss=loss).window for loss in (0.0, 0.0001, 0.02, 0.9)]
    assert windows == [3000, 122, 8, 2]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"delay_s": -1.0}, "delay_s: -1.0 given"),
        ({"jitter_s": float("inf")}, "jitter_s: inf given"),
        ({"loss": 1.0}, "loss: 1.0 given"),
        ({"bytes_per_s": 0.0}, "bytes_per_s: 0.0 given"),
    ],
)
def test_a_wire_that_does_not_exist_is_refused(settings, named):
    with pytest.raises(BadWire, match=named):
        Wire(**settings)
