"""HTTP pages of a node: Prometheus metrics, liveness, readiness and status."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bdfl.operation.chain_pages import BLOCK_PAGES, GENESIS_PAGE, ChainPages
from bdfl.operation.own_name import LOOPBACK
from bdfl.operation.status import ServiceState, Snapshot
from bdfl.operation.window import Page, Window

_ROUND_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PHASES = ("collecting", "mining", "voting", "done")

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

    def open_window(self, *, host: str = LOOPBACK, port: int = 0, chain: ChainPages | None = None) -> Window:
        """Serve /metrics, /healthz, /readyz, /status.json and, if `chain` is given, the chain."""
        pages = {
            "/metrics": self.metrics,
            "/healthz": self.liveness,
            "/readyz": self.readiness,
            "/status.json": self.status,
        }
        if chain is None:
            return Window(pages, host=host, port=port)
        return Window({**pages, GENESIS_PAGE: chain.genesis}, numbered={BLOCK_PAGES: chain.block}, host=host, port=port)

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
        yield _gauge("bdfl_life", "The number of this start, above those of all before it", found.life)
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
    family = GaugeMetricFamily(name, meaning, labels=[label])
    _add_all(family, values.items())
    return family


def _counters(name: str, meaning: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, meaning, labels=[label])
    _add_all(family, values.items())
    return family


def _add_all(family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]) -> None:
    for label, value in values:
        family.add_metric([label], float(value))
