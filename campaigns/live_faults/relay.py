"""TCP impairment proxy: a slow, lossy network on loopback, where the kernel has no netem.

Nodes connect to the proxy's address instead of each other's. Bytes and their order are unchanged, so TLS passes
through. For a given seed the n-th segment of a connection always has the same delay and loss; its content depends on
when the sender writes.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from campaigns.live_faults.wire import SEGMENT, Wire

LOOPBACK = "127.0.0.1"
_ANSWER_LIMIT_S = 30.0
_SHORTEST_PAUSE_S = 0.001  # asyncio cannot sleep more precisely


@dataclass(frozen=True)
class Traffic:
    """Traffic through a relay, both directions together."""

    connections: int
    segments: int
    stalls: int  # segments that were lost at first and delivered late
    num_bytes: int


@dataclass
class _Counts:
    """Mutable counters of `Traffic`."""

    connections: int = 0
    segments: int = 0
    stalls: int = 0
    num_bytes: int = 0


@dataclass
class _Lane:
    """One direction of one connection: reads segments from one end and writes each to the other on arrival."""

    wire: Wire
    rng: np.random.Generator
    whole: asyncio.Event
    counts: _Counts
    under_way: "asyncio.Queue[tuple[float, bytes]]" = field(default_factory=asyncio.Queue)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run until the receiver has the sender's last byte."""
        window = asyncio.Semaphore(self.wire.window)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(reader, window))
            tasks.create_task(self._give(writer, window))

    async def _take(self, reader: asyncio.StreamReader, window: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        free_s = arrives_s = loop.time()
        segment = b" "
        while segment:
            await window.acquire()
            try:
                segment = await reader.read(SEGMENT)
            except OSError:
                segment = b""  # segments in flight are still delivered
            free_s = max(free_s, loop.time()) + len(segment) / self.wire.bytes_per_s
            stall_s = self.wire.draw_stall_s(self.rng)
            arrives_s = max(arrives_s, free_s + self.wire.draw_delay_s(self.rng) + stall_s)
            self.under_way.put_nowait((arrives_s, segment))
            self.counts.segments += bool(segment)
            self.counts.stalls += stall_s > 0.0
            if free_s - loop.time() > _SHORTEST_PAUSE_S:
                await asyncio.sleep(free_s - loop.time())

    async def _give(self, writer: asyncio.StreamWriter, window: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        while True:
            arrives_s, segment = await self.under_way.get()
            if arrives_s > loop.time():
                await asyncio.sleep(arrives_s - loop.time())
            await self.whole.wait()
            if not segment:
                writer.write_eof()
                return
            writer.write(segment)
            await writer.drain()
            self.counts.num_bytes += len(segment)
            loop.call_later(self.wire.delay_s, window.release)


class Relay:
    """A proxy from a port on loopback to a target, from `start` (or entering) to `close` (or leaving).

    It can be cut and healed at any time, from any thread. While cut, nothing passes: data waits as if retransmitted,
    connections neither open nor close, and back-pressure finally blocks the senders.
    """

    def __init__(self, target: tuple[str, int], wire: Wire, *, seed: int, port: int = 0) -> None:
        self._target = target
        self._wire = wire
        self._seed = seed
        self._port = port
        self._counts = _Counts()
        self._started: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._is_asked_to_stop = asyncio.Event()
        self._whole = asyncio.Event()
        self._whole.set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="relay", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """The address to use instead of the target's."""
        return LOOPBACK, self._port

    @property
    def traffic(self) -> Traffic:
        counts = self._counts
        return Traffic(counts.connections, counts.segments, counts.stalls, counts.num_bytes)

    def start(self) -> None:
        """Start listening. Raises `OSError` if the port is taken."""
        self._thread.start()
        try:
            _, self._port = self._started.result(_ANSWER_LIMIT_S)
        except OSError:
            self._thread.join(_ANSWER_LIMIT_S)
            raise

    def cut(self) -> None:
        """Stop all traffic; nothing passes once this returns."""
        self._do(self._whole.clear)

    def heal(self) -> None:
        """Resume traffic, including data that waited."""
        self._do(self._whole.set)

    def close(self) -> None:
        """Close all connections and stop the proxy."""
        if self._thread.is_alive():
            self._do(self._is_asked_to_stop.set)
            self._thread.join(_ANSWER_LIMIT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, action: Callable[[], None]) -> None:
        """Run `action` in the proxy's event loop and wait for it."""
        done: Future[None] = Future()

        def act() -> None:
            action()
            done.set_result(None)

        loop, _ = self._started.result(_ANSWER_LIMIT_S)
        loop.call_soon_threadsafe(act)
        done.result(_ANSWER_LIMIT_S)

    async def _serve(self) -> None:
        open_ones: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._carry(reader, writer))
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)

        try:
            server = await asyncio.start_server(accept, LOOPBACK, self._port)
        except OSError as error:
            self._started.set_exception(error)
            return
        self._started.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        await self._is_asked_to_stop.wait()
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until both ends have sent all; opening it takes a round trip."""
        number = self._counts.connections
        self._counts.connections += 1
        writers = [writer]
        try:
            await asyncio.sleep(self._wire.round_trip_s)
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._new_lane(number, 0).run(reader, far_writer))
                tasks.create_task(self._new_lane(number, 1).run(far_reader, writer))
            for each in writers:
                each.close()
                await each.wait_closed()
        except* OSError:
            pass  # one end has closed; the other is aborted below
        finally:
            for each in writers:
                each.transport.abort()

    def _new_lane(self, connection: int, way: int) -> _Lane:
        rng = np.random.default_rng((self._seed, connection, way))
        return _Lane(self._wire, rng, self._whole, self._counts)
