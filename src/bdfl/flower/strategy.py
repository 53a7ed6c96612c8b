"""Strategy for Flower's message API: FedAvg with clients scheduled, and costs computed, by a scenario."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from bdfl.experiment.simulation import Draws
from bdfl.flower.rounds import Order, Roster, ScheduledRounds, find_form, read_arrays
from bdfl.learning.flower_clients import ArrayForm, BadArrays
from bdfl.learning.weights import Vector
from bdfl.records import RunRecord
from bdfl.scenario import Scenario

_PARTITION_ID = "partition-id"  # key of a client's answer to a query
_QUERY_S = 60.0
_POLL_S = 1.0
_NUMPY = "numpy.ndarray"  # Flower's name of numpy's format

_LOG = logging.getLogger("flwr")  # logger of Flower's own strategies

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]


class ScheduledFedAvg(FedAvg):
    """FedAvg whose clients are selected each round by the scenario's scheduler.

    Every round is drawn, decided and recorded as in `bdfl simulate`. A selected client without a valid model has not
    delivered. Updates are weighted by the |D_i| of the scenario and aggregated by its rule, to the bit. `record` has
    delays and energies; `folder` receives them, with the audit chain.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        draws: Draws | None = None,
        folder: Path | str | None = None,
        chain: bool = True,
        secret: bytes | None = None,
        identify: bool = True,
        min_available_nodes: int | None = None,
        fraction_evaluate: float = 1.0,
        min_evaluate_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
    ) -> None:
        """The first four are those of `ScheduledRounds`, the last seven Flower's own.

        With `identify` every node is queried once for its partition-id, which becomes its client number; nodes that do
        not answer are numbered in the order of their IDs. Round 1 waits for `min_available_nodes`, by default one for
        every client; later rounds do not wait.
        """
        super().__init__(
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_evaluate_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        place = None if folder is None else Path(folder)
        self.rounds = ScheduledRounds(scenario, draws=draws, folder=place, chain=chain, secret=secret)
        self._identify = identify
        self._first_nodes = scenario.clients.count if min_available_nodes is None else min_available_nodes
        self._roster = Roster(scenario.clients.count)
        self._form: ArrayForm | None = None
        self._asked: dict[int, int] = {}  # clients of the current round, by node

    @property
    def record(self) -> RunRecord:
        """Delays, energies, queues and other records of the completed rounds."""
        return self.rounds.record

    def close(self) -> None:
        """Write the records and end the chain; `start` does so itself."""
        self.rounds.close()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        self.rounds.validate_rounds(num_rounds)
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        finally:
            self.close()

    def summary(self) -> None:
        scenario = self.rounds.scenario
        _LOG.info("\t├──> Scheduling:")
        _LOG.info("\t│\t├──Scenario: %s, seed %d", scenario.name, scenario.seed)
        _LOG.info("\t│\t├──Scheduler: %s", scenario.scheduler.name)
        clients = scenario.clients
        _LOG.info("\t│\t└──Clients: %d, at least %d train", clients.count, clients.min_selected)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for every selected client whose node is connected."""
        weights = self._read_model(arrays)
        if server_round == 1:
            self._wait_for_nodes(grid)
        assert self._form is not None
        orders = self.rounds.plan(server_round, self._form.layout, weights)
        self._enrol(grid)
        nodes = [(order, self._roster.node_of(order.client)) for order in orders]
        self._asked = {node: order.client for order, node in nodes if node is not None}
        _LOG.info("configure_train: clients %s train, %d are there", [o.client for o in orders], len(self._asked))
        if not self._asked:
            self.rounds.settle(server_round, {})  # no replies to wait for
            return []
        config["server-round"] = server_round
        return [self._order_message(order, node, arrays, config) for order, node in nodes if node is not None]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next global model, None if unchanged, and the metrics of delivering clients, with the costs."""
        if not self.rounds.is_waiting:
            return None, None
        trained: dict[int, Vector] = {}
        contents: list[RecordDict] = []
        for reply in sorted(replies, key=lambda one: self._asked.get(one.metadata.src_node_id, -1)):
            client = self._asked.get(reply.metadata.src_node_id)
            if client is None or client in trained:
                continue  # of another round, or a duplicate
            try:
                trained[client] = self._read_reply(client, reply)
            except BadArrays as error:
                _LOG.warning("round %d, client %d has not delivered: %s", server_round, client, error)
            else:
                contents.append(reply.content)
        settled = self.rounds.settle(server_round, trained)
        metrics = self._aggregate_metrics(contents)
        metrics.update(settled.costs)
        _LOG.info("aggregate_train: %d of %d clients delivered", len(trained), len(self._asked))
        if settled.weights is None:
            return None, metrics
        assert self._form is not None
        return ArrayRecord({name: Array(array) for name, array in self._form.split(settled.weights).items()}), metrics

    # Nodes

    def _wait_for_nodes(self, grid: Grid) -> None:
        while (found := len(list(grid.get_node_ids()))) < self._first_nodes:
            _LOG.info("Waiting for nodes to connect: %d connected (minimum required: %d).", found, self._first_nodes)
            time.sleep(_POLL_S)

    def _enrol(self, grid: Grid) -> None:
        present = list(grid.get_node_ids())
        strangers = self._roster.find_strangers(present)
        told = self._ask_partitions(grid, strangers) if self._identify and strangers else {}
        if strangers and len(told) < len(strangers):
            _LOG.info("%d of %d new nodes told their %s", len(told), len(strangers), _PARTITION_ID)
        for node in self._roster.enrol(present, told):
            _LOG.warning("node %d is one too many for %d clients", node, self.rounds.scenario.clients.count)

    def _ask_partitions(self, grid: Grid, nodes: list[int]) -> dict[int, int | None]:
        """Ask each node for its partition; nodes that do not answer are left out."""
        question = RecordDict({self.configrecord_key: ConfigRecord({"bdfl-question": _PARTITION_ID})})
        messages = [Message(question, node, MessageType.QUERY) for node in nodes]
        told: dict[int, int | None] = {}
        for reply in grid.send_and_receive(messages, timeout=_QUERY_S):
            if reply.has_error():
                continue
            said: list[object] = [record.get(_PARTITION_ID) for record in reply.content.config_records.values()]
            said += [record.get(_PARTITION_ID) for record in reply.content.metric_records.values()]
            numbers = [one for one in said if isinstance(one, int)]
            if numbers:
                told[reply.metadata.src_node_id] = numbers[0]
        return told

    # Messages

    def _order_message(self, order: Order, node: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        own = ConfigRecord({**config, **order.config})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        return Message(content, node, MessageType.TRAIN)

    def _read_reply(self, client: int, reply: Message) -> Vector:
        """Read the model in a reply; raise `BadArrays`."""
        if reply.has_error():
            raise BadArrays(f"it reports an error: {reply.error.reason}")
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise BadArrays(f"{len(records)} ArrayRecords sent, expected one")
        assert self._form is not None
        weights = read_arrays(self._form, _bytes_of(records[0]))
        self._compare_examples(client, reply.content)
        return weights

    def _compare_examples(self, client: int, content: RecordDict) -> None:
        """Warn once if a client trained on another number of examples than the scenario's."""
        for record in content.metric_records.values():
            found = record.get(self.weighted_by_key)
            doubt = None if found is None else self.rounds.doubt_samples(client, found)
            if doubt is not None:
                _LOG.warning(doubt)

    def _aggregate_metrics(self, contents: list[RecordDict]) -> MetricRecord:
        """Aggregate the metrics as Flower does; empty if they differ in form."""
        if not contents:
            return MetricRecord()
        keys = [sorted(key for record in one.metric_records.values() for key in record) for one in contents]
        is_alike = all(len(one.metric_records) == 1 for one in contents) and all(found == keys[0] for found in keys)
        if not is_alike or self.weighted_by_key not in keys[0]:
            _LOG.warning("metrics are not averaged: one MetricRecord with %r expected of each", self.weighted_by_key)
            return MetricRecord()
        return self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    # Models

    def _read_model(self, arrays: ArrayRecord) -> Vector:
        if self._form is None:
            self._form, weights = find_form(_bytes_of(arrays))
            return weights
        return read_arrays(self._form, _bytes_of(arrays))


def _bytes_of(record: ArrayRecord) -> dict[str, bytes]:
    """Return the bytes of every array; raise `BadArrays` unless in numpy's format."""
    for name, array in record.items():
        if array.stype != _NUMPY:
            raise BadArrays(f"{name!r} is serialised as {array.stype}, expected {_NUMPY}")
    return {name: array.data for name, array in record.items()}
