"""Verify and compare the chains of all nodes of a network."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bdfl.encoding import digest, encode
from bdfl.experiment.training_run import prepare_run
from bdfl.learning.weights import decode_weights
from bdfl.learning.workers import open_trainer
from bdfl.ledger.keeping import StoreError
from bdfl.ledger.store import ChainStore
from bdfl.ledger.verify import Failure, store_failure, verify_chain
from bdfl.operation.network_file import SCENARIO_FILE, node_folder, read_network
from bdfl.operation.node_files import CHAIN_FOLDER
from bdfl.records.known_height import known_height
from bdfl.records.round_times import ROUNDS_FILE, read_rounds
from bdfl.scenario import Scenario, load_scenario
from bdfl.transports.live.delay_summary import DelaySummary, summarise


@dataclass(frozen=True)
class NetworkVerdict:
    """Result of comparing and verifying all nodes' stores."""

    heights: tuple[int, ...]  # by node, without stores that could not be opened
    tip: str  # digest of the newest common block; empty: none
    difference: str | None  # first difference between two chains
    failures: tuple[tuple[int, Failure], ...]  # node, and the fault in its chain

    @property
    def height(self) -> int:
        """Height of the newest common block."""
        return min(self.heights, default=0)

    @property
    def is_good(self) -> bool:
        return self.difference is None and not self.failures


def judge_network(
    folder: Path,
    *,
    own_functions: frozenset[str] = frozenset(),
    on_progress: Callable[[int, int], None] | None = None,
) -> NetworkVerdict:
    """Compare all nodes' blocks byte for byte, up to the newest common one, and verify each chain independently."""
    num_nodes = read_network(folder).num_nodes
    failures: list[tuple[int, Failure]] = []
    with ExitStack() as resources:
        stores: list[ChainStore] = []
        for number in range(num_nodes):
            path = node_folder(folder, number) / CHAIN_FOLDER
            try:
                stores.append(resources.enter_context(ChainStore.open(path, read_only=True)))
                known = known_height(stores[-1], path)
                found = verify_chain(stores[-1], own_functions=own_functions, known=known)
            except StoreError as error:
                failures.append((number, store_failure(0, error)))
                continue
            if found.failure is not None:
                failures.append((number, found.failure))
            if on_progress is not None:
                on_progress(number + 1, num_nodes)
        heights = tuple(store.height for store in stores)
        height = min(heights, default=0)
        difference = _find_difference(stores, height)
        tip = stores[0].block(height).digest.hex() if height else ""
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
        with ChainStore.open(node_folder(folder, 0) / CHAIN_FOLDER, read_only=True) as store:
            for block in store.blocks():
                empty += block.body.is_empty
                updates += 0 if block.body.is_empty else len(block.body.updates)
            model = store.get_blob(store.block(verdict.height).body.model)
        if model is not None:
            accuracy, loss = judge_model(scenario, model)
    failures = [f"node {node}: {failure}" for node, failure in verdict.failures]
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
        failures=tuple(failures + ([] if verdict.difference is None else [verdict.difference])),
    )


def judge_model(scenario: Scenario, model: bytes) -> tuple[float, float]:
    """Return accuracy and loss of a model on the scenario's test data."""
    federated = prepare_run(scenario)
    with open_trainer(scenario, federated.data, federated.partition) as trainer:
        found = trainer.evaluate(decode_weights(model, trainer.layout))
    return found.accuracy, found.loss


def _summarise_delays(folder: Path, num_nodes: int) -> DelaySummary | None:
    paths = [node_folder(folder, number) / ROUNDS_FILE for number in range(num_nodes)]
    rounds = [row for path in paths if path.exists() for row in read_rounds(path)]
    return summarise(rounds) if rounds else None


def _find_difference(stores: list[ChainStore], height: int) -> str | None:
    """Describe the first difference between two chains; None if all are identical."""
    if len({encode(store.genesis) for store in stores}) > 1:
        return "different genesis blocks"
    for number in range(1, height + 1):
        found = [digest(encode(store.block(number))) for store in stores]
        for node, name in enumerate(found):
            if name != found[0]:
                return f"block {number} of node {node} is not that of node 0"
    return None
