"""The scheduled strategy for Flower's older API, whose clients are NumPyClients."""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.common import (
    FitIns,
    FitRes,
    GetPropertiesIns,
    MetricsAggregationFn,
    NDArrays,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from bdfl.experiment.simulation import Draws
from bdfl.flower.model_form import find_form, read_arrays
from bdfl.flower.roster import Roster
from bdfl.flower.rounds import ScheduledRounds
from bdfl.flower.strategy import PARTITION_ID, QUERY_S
from bdfl.learning.flower_arrays import ArrayForm, BadArrays
from bdfl.learning.weights import Vector
from bdfl.records import RunRecord
from bdfl.scenario import Scenario

_WAIT_S = 86400
_LOG = logging.getLogger("flwr")  # logger of Flower's own strategies

Configure = Callable[[int], dict[str, Scalar]]
EvaluateCentrally = Callable[[int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class LegacyScheduledFedAvg(FedAvg):
    """Variant of `ScheduledFedAvg` for `flwr.server`: clients report their partition-id as a property.

    Closes itself after the scenario's last round; a server that plays fewer calls `close`.
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
        min_available_clients: int | None = None,
        fraction_evaluate: float = 1.0,
        min_evaluate_clients: int = 1,
        initial_parameters: Parameters | None = None,
        evaluate_fn: EvaluateCentrally | None = None,
        on_fit_config_fn: Configure | None = None,
        on_evaluate_config_fn: Configure | None = None,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
    ) -> None:
        """The first six are as for `ScheduledFedAvg`, the last eight are Flower's own."""
        super().__init__(
            fraction_evaluate=fraction_evaluate,
            min_fit_clients=1,
            min_evaluate_clients=min_evaluate_clients,
            min_available_clients=min_evaluate_clients,
            initial_parameters=initial_parameters,
            evaluate_fn=evaluate_fn,
            on_fit_config_fn=on_fit_config_fn,
            on_evaluate_config_fn=on_evaluate_config_fn,
            fit_metrics_aggregation_fn=fit_metrics_aggregation_fn,
            evaluate_metrics_aggregation_fn=evaluate_metrics_aggregation_fn,
        )
        place = None if folder is None else Path(folder)
        self.rounds = ScheduledRounds(scenario, draws=draws, folder=place, chain=chain, secret=secret)
        self._identify = identify
        self._first_clients = scenario.clients.count if min_available_clients is None else min_available_clients
        self._roster: Roster[str] = Roster(scenario.clients.count)
        self._form: ArrayForm | None = None
        self._asked: dict[str, int] = {}  # clients of the current round, by Flower's client ID

    @property
    def record(self) -> RunRecord:
        """Delays, energies, queues and other records of the completed rounds."""
        return self.rounds.record

    def close(self) -> None:
        """Write the records and end the chain."""
        self.rounds.close()

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return instructions for every selected client that is connected."""
        if self._form is None:
            self._form, weights = find_form(_bytes_of(parameters))
        else:
            weights = read_arrays(self._form, _bytes_of(parameters))
        if server_round == 1:
            client_manager.wait_for(self._first_clients, _WAIT_S)
        orders = self.rounds.plan(server_round, self._form.layout, weights)
        proxies = client_manager.all()
        self._enrol(proxies)
        config = {} if self.on_fit_config_fn is None else self.on_fit_config_fn(server_round)
        nodes = [(order, self._roster.node_of(order.client)) for order in orders]
        self._asked = {node: order.client for order, node in nodes if node is not None}
        _LOG.info("configure_fit: clients %s train, %d are there", [o.client for o in orders], len(self._asked))
        if not self._asked:
            self.rounds.settle(server_round, {})  # no replies to wait for
        return [
            (proxies[node], FitIns(parameters, {**config, **order.config})) for order, node in nodes if node is not None
        ]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Return the next global model, None if unchanged, and the metrics with the round's costs."""
        if not self.rounds.is_waiting:
            return None, {}
        assert self._form is not None
        trained: dict[int, Vector] = {}
        counted: list[tuple[int, dict[str, Scalar]]] = []
        for proxy, result in sorted(results, key=lambda one: self._asked.get(one[0].cid, -1)):
            client = self._asked.get(proxy.cid)
            if client is None or client in trained:
                continue  # of another round, or a duplicate
            try:
                trained[client] = read_arrays(self._form, _bytes_of(result.parameters))
            except BadArrays as error:
                _LOG.warning("round %d, client %d has not delivered: %s", server_round, client, error)
                continue
            counted.append((result.num_examples, result.metrics))
            if (doubt := self.rounds.doubt_samples(client, result.num_examples)) is not None:
                _LOG.warning(doubt)
        settled = self.rounds.settle(server_round, trained)
        metrics: dict[str, Scalar] = {}
        if self.fit_metrics_aggregation_fn is not None and counted:
            metrics = self.fit_metrics_aggregation_fn(counted)
        if settled.weights is None:
            return None, {**metrics, **settled.costs}
        arrays = list(self._form.split(settled.weights).values())
        return ndarrays_to_parameters(arrays), {**metrics, **settled.costs}

    def _enrol(self, proxies: dict[str, ClientProxy]) -> None:
        strangers = self._roster.find_strangers(proxies)
        told = {name: _ask_partition(proxies[name]) for name in strangers} if self._identify else {}
        for name in self._roster.enrol(proxies, told):
            _LOG.warning("client %s is one too many: the scenario has %d", name, self.rounds.scenario.clients.count)


def _ask_partition(proxy: ClientProxy) -> int | None:
    """Return the partition that a client reports; None if it does not answer."""
    try:
        found = proxy.get_properties(GetPropertiesIns(config={}), QUERY_S, None).properties.get(PARTITION_ID)
    except Exception as error:  # any error of the transport if a client does not answer
        _LOG.info("client %s does not tell its %s: %s", proxy.cid, PARTITION_ID, error)
        return None
    return found if isinstance(found, int) else None


def _bytes_of(parameters: Parameters) -> dict[str, bytes]:
    """Return the bytes of every tensor, named by its position; raise `BadArrays` unless in numpy's format."""
    if parameters.tensor_type != "numpy.ndarray":
        raise BadArrays(f"tensors of type {parameters.tensor_type!r} sent, expected numpy.ndarray")
    return {str(place): data for place, data in enumerate(parameters.tensors)}
