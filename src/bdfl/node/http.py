"""Read-only HTTP server of a node: status, probes, metrics and the chain as stored.

It binds only the given address, serves only GET, and checks the Host header. That prevents DNS rebinding: a foreign web
page cannot make a browser read it.
"""

import io
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bdfl.addresses import LOOPBACK, is_own_name
from bdfl.encoding import encode
from bdfl.errors import BdflError
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import StoreError
from bdfl.node.status import ServiceState, Snapshot

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


class StatusServer(ThreadingHTTPServer):
    """Serves pages from threads of its own until closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        numbered: Mapping[str, Callable[[int], Page]] | None = None,
    ) -> None:
        """`port` 0 picks a free one. `numbered` pages have a number after their path."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.numbered = numbered or {}
        self._open: list[Any] = []  # open connections, oldest first
        self._turn = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise CannotListen(f"{host}:{port}: {error.strerror}, a free port expected") from None
        self.host = host
        self.port: int = self.server_address[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Drop the oldest connection at the limit: honest requests are short."""
        with self._turn:
            if len(self._open) == MAX_CONNECTIONS:
                _disconnect(self._open.pop(0))
            self._open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._turn:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a request."""


def _disconnect(connection: Any) -> None:
    with suppress(OSError):  # already closed by the client
        connection.shutdown(socket.SHUT_RDWR)


class _BoundedRequest(io.RawIOBase):
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
    server: StatusServer
    server_version = "bdfl"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_BoundedRequest(self.connection))

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


BYTES = "application/octet-stream"
GENESIS_PAGE = "/chain/genesis"
BLOCK_PAGES = "/chain/blocks/"  # followed by a height


class ChainPages:
    """Serves the genesis and blocks of the chain in a folder, for clients that verify it themselves. Thread-safe.

    It reads through a database connection of its own, so requests never block the node.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._store: ChainStore | None = None  # opened by the first request

    def genesis(self) -> Page:
        """Serve the genesis in canonical bytes."""
        return self._answer(lambda store: encode(store.genesis))

    def block(self, height: int) -> Page:
        """Serve a MessagePack array of two byte strings: a block and its certificate."""
        return self._answer(lambda store: msgspec.msgpack.encode(store.raw_block(height)))

    def _answer(self, read: Callable[[ChainStore], bytes]) -> Page:
        with self._turn:
            try:
                if self._store is None:
                    self._store = ChainStore.open(self._path, read_only=True)
                return Page(read(self._store), BYTES)
            except IndexError as error:
                return refusal(HTTPStatus.NOT_FOUND, f"not here: {error} expected")
            except StoreError:
                return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the chain cannot be read")

    def close(self) -> None:
        with self._turn:
            if self._store is not None:
                self._store.close()
                self._store = None


# HTTP pages of a node: Prometheus metrics, liveness, readiness and status.

_ROUND_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PHASES = ("collecting", "mining", "voting", "done")

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)
ReadSnapshot = Callable[[], Snapshot]


class NodeMetrics:
    """All metrics of one node, in a registry of its own."""

    def __init__(self, read: ReadSnapshot) -> None:
        self._read = read
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(read))
        self._rounds = Histogram(
            "bdfl_round_seconds",
            "From one block to the next, as this node saw it",
            buckets=_ROUND_BUCKETS_S,
            registry=self._registry,
        )

    def observe_round(self, seconds: float) -> None:
        self._rounds.observe(seconds)

    @property
    def pages(self) -> dict[str, Callable[[], Page]]:
        """Pages by path."""
        return {
            "/metrics": self.metrics,
            "/healthz": self.liveness,
            "/readyz": self.readiness,
            "/status.json": self.status,
        }

    def metrics(self) -> Page:
        return Page(generate_latest(self._registry), CONTENT_TYPE_LATEST)

    def liveness(self) -> Page:
        """Answer 200 while the event loop runs; otherwise only a restart helps."""
        found = self._read()
        return _probe(found, is_ok=found.is_alive)

    def readiness(self) -> Page:
        """Answer 200 while the node is fully operational."""
        found = self._read()
        return _probe(found, is_ok=found.state.is_ready)

    def status(self) -> Page:
        return Page(msgspec.json.encode(self._read()) + b"\n")


@contextmanager
def serve_pages(at: tuple[str, int] | None, metrics: NodeMetrics, chain_folder: Path) -> Iterator[StatusServer | None]:
    """Serve all pages of a node at host and port inside the `with` block; yield None if `at` is none."""
    if at is None:
        yield None
        return
    chain = ChainPages(chain_folder)
    server = StatusServer(
        {**metrics.pages, GENESIS_PAGE: chain.genesis}, numbered={BLOCK_PAGES: chain.block}, host=at[0], port=at[1]
    )
    try:
        yield server
    finally:
        server.close()
        chain.close()


def _probe(found: Snapshot, *, is_ok: bool) -> Page:
    said = {"state": found.state, "reason": found.reason, "since_s": found.since_s, "loop_s": found.loop_s}
    status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(msgspec.json.encode(said) + b"\n", status=status)


class _SnapshotCollector(Collector):
    """Reads the node's snapshot on each scrape, so metrics cost nothing in between."""

    def __init__(self, read: ReadSnapshot) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        found = self._read()
        info = {"number": str(found.number), "name": found.name, "chain": found.chain[:16], "version": found.version}
        yield InfoMetricFamily("bdfl_node", "Who this is", value=info)
        yield _gauge("bdfl_height", "Blocks that this node has", found.height)
        phases = {phase: float(phase == found.phase) for phase in PHASES}
        yield _gauges("bdfl_phase", "What the node is doing for its height: 1 for that", "phase", phases)
        yield _gauge("bdfl_attempt", "Attempt to agree on the height", found.attempt)
        yield _gauge("bdfl_training", "Whether a training is under way", found.is_training)
        yield _gauge("bdfl_mining", "Whether a nonce is searched", found.is_mining)
        yield _gauge("bdfl_peers", "Other members that are there", len(found.present))
        yield _gauge("bdfl_members", "Members of the network", found.num_members)
        yield _gauges("bdfl_queue_length", "What waits, by queue", "queue", found.queues)
        yield _counters("bdfl_events", "What happened, by kind: messages, bytes, fetches", "kind", found.counters)
        yield _counters("bdfl_dropped", "What arrived and was dropped, by reason", "reason", found.refused)
        yield _counter("bdfl_training_seconds", "Time spent training", found.training_s)
        yield _counter("bdfl_mining_seconds", "Time spent mining", found.mining_s)
        yield _gauge("bdfl_life", "The number of this start, above those of all before it", found.incarnation)
        yield _gauge("bdfl_up_seconds", "Since it was started", found.up_s)
        yield _gauge("bdfl_memory_bytes", "Memory of the node's own process", found.memory_bytes)
        yield _gauge("bdfl_threads", "Threads of the node's own process", found.num_threads)
        yield _gauge("bdfl_store_bytes", "Size of the chain's folder", found.store_bytes)
        yield _gauge("bdfl_model_bytes", "Size of the models in it", found.model_bytes)
        yield _gauge("bdfl_quota_bytes", "Size that models may have, 0 for any", found.quota_bytes)
        yield _gauge("bdfl_quorum", "Votes that a block needs", found.quorum)
        yield _gauge("bdfl_voters", "Members whose votes can be reached, this one included", len(found.voters))
        states = {state.value: float(state is found.state) for state in ServiceState}
        yield _gauges("bdfl_node_state", "State of the node: 1 for that", "state", states)
        yield _gauge("bdfl_node_state_seconds", "Time in this state", found.since_s)
        yield from _about_last_block(found)


def _about_last_block(found: Snapshot) -> Iterator[Metric]:
    if found.accuracy is not None:
        yield _gauge("bdfl_accuracy", "Test accuracy of the newest model that was evaluated", found.accuracy)
    last = found.last_block
    if last is None:
        return
    yield _gauge("bdfl_last_block_attempt", "Attempt in which the last block was agreed on", last.attempt)
    yield _gauge("bdfl_last_block_updates", "Updates that the last block aggregates", last.num_updates)
    if last.age_s is not None:
        yield _gauge("bdfl_last_block_age_seconds", "Since the last block", last.age_s)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _counter(name: str, meaning: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, meaning, value=float(value))


def _gauges(name: str, meaning: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    return _fill(GaugeMetricFamily(name, meaning, labels=[label]), values)


def _counters(name: str, meaning: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    return _fill(CounterMetricFamily(name, meaning, labels=[label]), values)


def _fill(family: _Family, values: Mapping[str, float]) -> _Family:
    for label, value in values.items():
        family.add_metric([label], float(value))
    return family
