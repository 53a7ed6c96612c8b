"""Verdict on a network: all chains verified and compared, measured delay beside the model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import fsum, nan
from pathlib import Path

import msgspec

from bdfl.encoding import digest, encode
from bdfl.experiment.training_run import prepare_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.weights import decode_weights
from bdfl.ledger.chain_params import weights_file
from bdfl.ledger.costs import NANO
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import StoreError
from bdfl.ledger.verify import Failure, store_failure, verify_chain
from bdfl.localnet.processes import SCENARIO_FILE, node_folder, read_network
from bdfl.node.settings import CHAIN_FOLDER
from bdfl.records.files import ROUNDS_FILE, RoundTimes, known_height, read_rounds
from bdfl.scenario import Scenario, load_scenario

# Modelled and measured delay of a live network, with the overhead by phase.


@dataclass(frozen=True)
class DelayRow:
    """Means over rounds (s). Overheads are measured minus modelled; those of exchange, mining and voting add up."""

    node: int | None  # None: all nodes
    num_rounds: int
    modelled_s: float  # delay, times the time scale
    measured_s: float
    exchange_s: float  # overhead until collecting ends
    mining_s: float  # overhead until the first valid block, beyond modelled mining and rest of the round
    voting_s: float
    training_s: float  # overhead of training, over rounds with any; part of the exchange
    upload_s: float  # overhead of upload, until the last other node has it; part of the exchange

    @property
    def overhead_s(self) -> float:
        return self.measured_s - self.modelled_s

    @property
    def ratio(self) -> float:
        """Measured over modelled delay; NaN if the modelled one is 0."""
        return self.measured_s / self.modelled_s if self.modelled_s else nan


@dataclass(frozen=True)
class DelaySummary:
    """One row per node, and the mean over all rounds of all nodes."""

    time_scale: float
    nodes: tuple[DelayRow, ...]
    total: DelayRow
    num_partial: int  # rounds left out: the node joined after their start
    num_repeated: int  # rounds with more than one attempt


def summarise(rounds: Sequence[RoundTimes]) -> DelaySummary:
    """Return means over the rounds that nodes saw from start to end."""
    whole = [row for row in rounds if row.is_whole]
    uploads = _find_uploads(rounds)
    numbers = sorted({row.node for row in whole})
    return DelaySummary(
        time_scale=rounds[0].time_scale if rounds else nan,
        nodes=tuple(_summarise(node, [row for row in whole if row.node == node], uploads) for node in numbers),
        total=_summarise(None, whole, uploads),
        num_partial=len(rounds) - len(whole),
        num_repeated=len({row.round for row in whole if row.attempt > 1}),
    )


def _find_uploads(rounds: Iterable[RoundTimes]) -> dict[tuple[int, int], int]:
    """Return the time (ns) until the last other node had each update, by round and client."""
    slowest: dict[tuple[int, int], int] = {}
    for row in rounds:
        for client, upload_ns in row.upload_ns.items():
            key = row.round, client
            slowest[key] = max(slowest.get(key, 0), upload_ns)
    return slowest


def _summarise(node: int | None, rows: Sequence[RoundTimes], uploads: dict[tuple[int, int], int]) -> DelayRow:
    def mean(value: Callable[[RoundTimes], int]) -> float:
        return _mean_s(map(value, rows))

    return DelayRow(
        node=node,
        num_rounds=len(rows),
        modelled_s=mean(lambda row: row.modelled.delay_ns),
        measured_s=mean(lambda row: row.delay_ns),
        exchange_s=mean(lambda row: row.exchange_ns - row.modelled.exchange_ns),
        mining_s=mean(lambda row: row.mining_ns - row.modelled.mining_ns - row.modelled.rest_ns),
        voting_s=mean(lambda row: row.voting_ns),
        training_s=_mean_s(row.training_ns - row.modelled.training_ns for row in rows if row.training_ns is not None),
        upload_s=_mean_s(
            uploads[row.round, row.node] - row.modelled.upload_ns for row in rows if (row.round, row.node) in uploads
        ),
    )


def _mean_s(values_ns: Iterable[int]) -> float:
    values = list(values_ns)
    return fsum(values) / len(values) / NANO if values else nan


# Verify and compare the chains of all nodes of a network.


@dataclass(frozen=True)
class NetworkVerdict:
    """Result of comparing and verifying all nodes' stores."""

    heights: Mapping[int, int]  # by node, of the chains found valid
    tip: str  # digest of their newest common block; empty: none
    difference: str | None  # first difference between two of them
    failures: tuple[tuple[int, Failure], ...]  # node, and the fault in its chain

    @property
    def height(self) -> int:
        """Height of the newest block that all valid chains have."""
        return min(self.heights.values(), default=0)

    @property
    def problems(self) -> tuple[str, ...]:
        """All failures and the difference, in a line each."""
        found = [f"node {node}: {failure}" for node, failure in self.failures]
        return tuple(found if self.difference is None else [*found, self.difference])

    @property
    def is_good(self) -> bool:
        return not self.problems


def verify_network(
    folder: Path, *, own_functions: frozenset[str] = frozenset(), on_progress: Callable[[int, int], None] | None = None
) -> NetworkVerdict:
    """Verify each node's chain, and compare the valid ones byte for byte up to the newest common block."""
    num_nodes = read_network(folder).num_nodes
    failures: list[tuple[int, Failure]] = []
    with ExitStack() as resources:
        stores: dict[int, ChainStore] = {}
        for number in range(num_nodes):
            path = node_folder(folder, number) / CHAIN_FOLDER
            try:
                store = resources.enter_context(ChainStore.open(path, read_only=True))
                failure = verify_chain(store, own_functions=own_functions, known=known_height(store, path)).failure
            except StoreError as error:
                failure = store_failure(0, error)
            if failure is None:
                stores[number] = store
            else:
                failures.append((number, failure))
            if on_progress is not None:
                on_progress(number + 1, num_nodes)
        heights = {number: store.height for number, store in stores.items()}
        height = min(heights.values(), default=0)
        difference = _find_difference(stores, height)
        tip = stores[min(stores)].block(height).digest.hex() if height else ""
    return NetworkVerdict(heights, tip, difference, tuple(failures))


class NetworkSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a network run."""

    folder: str
    scenario: str
    num_nodes: int
    num_access_points: int
    height: int  # of the newest common block
    tip: str
    seconds: float  # from start to end
    accuracy: float | None  # of the model after the newest block
    loss: float | None
    empty_blocks: int
    mean_updates: float  # of a block
    delays: DelaySummary | None  # none: no rounds were timed
    failures: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.failures


def summarise_network(folder: Path, verdict: NetworkVerdict, took_s: float) -> NetworkSummary:
    """Summarise a network run, with the last model evaluated on the scenario's test data."""
    network = read_network(folder)
    scenario = load_scenario(folder / SCENARIO_FILE)
    accuracy = loss = None
    empty, updates = 0, 0
    if verdict.height:
        with ChainStore.open(node_folder(folder, min(verdict.heights)) / CHAIN_FOLDER, read_only=True) as store:
            for block in islice(store.blocks(), verdict.height):
                empty += block.body.is_empty
                updates += 0 if block.body.is_empty else len(block.body.updates)
            genesis, model = store.genesis, store.get_blob(store.block(verdict.height).body.model)
        if model is not None and not scenario.learning.personal:  # those layers are the members'
            accuracy, loss = evaluate_model(scenario, weights_file(genesis, model))
    return NetworkSummary(
        folder=str(folder),
        scenario=network.scenario,
        num_nodes=network.num_nodes,
        num_access_points=network.num_access_points,
        height=verdict.height,
        tip=verdict.tip,
        seconds=took_s,
        accuracy=accuracy,
        loss=loss,
        empty_blocks=empty,
        mean_updates=updates / verdict.height if verdict.height else 0.0,
        delays=_summarise_delays(folder, network.num_nodes),
        failures=verdict.problems,
    )


def evaluate_model(scenario: Scenario, model: bytes) -> tuple[float, float]:
    """Return accuracy and loss of a model on the scenario's test data."""
    federated = prepare_run(scenario)
    with open_trainer(scenario, federated.data, federated.partition) as trainer:
        found = trainer.evaluate(decode_weights(model, trainer.layout))
    return found.accuracy, found.loss


def _summarise_delays(folder: Path, num_nodes: int) -> DelaySummary | None:
    paths = [node_folder(folder, number) / ROUNDS_FILE for number in range(num_nodes)]
    rounds = [row for path in paths if path.exists() for row in read_rounds(path)]
    return summarise(rounds) if rounds else None


def _find_difference(stores: Mapping[int, ChainStore], height: int) -> str | None:
    """Describe the first difference between two chains, by node; None if all are identical."""
    if len({encode(store.genesis) for store in stores.values()}) > 1:
        return "different genesis blocks"
    for number in range(1, height + 1):
        found = {node: digest(encode(store.block(number))) for node, store in stores.items()}
        first = min(found)
        for node, name in found.items():
            if name != found[first]:
                return f"block {number} of node {node} is not that of node {first}"
    return None
