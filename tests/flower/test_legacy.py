"""The same strategy for Flower's older server: same rounds, same models, same chain."""

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    GetPropertiesRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from bdfl.experiment import simulate
from bdfl.flower import LegacyScheduledFedAvg, ScheduledFedAvg
from bdfl.ledger.store import ChainStore
from bdfl.ledger.verify import verify_chain
from bdfl.records import encode_run
from tests.flower.test_strategy import INITIAL, NODES, start, town
from tests.flower.town_grid import TownGrid, drift, make_app

OK = Status(Code.OK, "")


class Client(NumPyClient):
    def __init__(self, place, tells):
        self.place = place
        self.tells = tells

    def get_properties(self, config):
        if not self.tells:
            raise ValueError("no properties")
        return {"partition-id": self.place}

    def fit(self, parameters, config):
        return drift(self.place, parameters, config["round"]), 300, {"loss": 1.0}


class Proxy(ClientProxy):
    """A client in this process."""

    def __init__(self, name, client, fails=False):
        super().__init__(name)
        self.client = client
        self.fails = fails

    def get_properties(self, ins, timeout, group_id):
        return GetPropertiesRes(OK, self.client.get_properties(ins.config))

    def fit(self, ins: FitIns, timeout, group_id):
        if self.fails:
            raise RuntimeError("no power")
        arrays, samples, metrics = self.client.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(OK, ndarrays_to_parameters(arrays), samples, metrics)

    def get_parameters(self, ins, timeout, group_id): ...
    def evaluate(self, ins, timeout, group_id): ...
    def reconnect(self, ins, timeout, group_id): ...


def serve(scenario, *, fails=(), tells=True, **options):
    """The strategy after all rounds by Flower's own server, and the last model."""
    strategy = LegacyScheduledFedAvg(
        scenario,
        initial_parameters=ndarrays_to_parameters(INITIAL),
        on_fit_config_fn=lambda round: {"round": round},
        fraction_evaluate=0.0,
        **options,
    )
    manager = SimpleClientManager()
    for place, node in enumerate(NODES):
        manager.register(Proxy(str(node), Client(place, tells), place in fails))
    server = Server(client_manager=manager, strategy=strategy)
    server.fit(scenario.rounds, timeout=None)
    return strategy, parameters_to_ndarrays(server.parameters)


@pytest.mark.parametrize("name", ["drc", "exact"])
def test_both_apis_play_the_same_rounds_to_the_same_model(name, tmp_path):
    scenario = town(name, seed=3)
    older, found = serve(scenario, folder=tmp_path / "older")
    newer = ScheduledFedAvg(scenario, folder=tmp_path / "newer", fraction_evaluate=0.0)
    wanted = start(newer, TownGrid(make_app(drift), NODES)).arrays.to_numpy_ndarrays()
    assert encode_run(older.record) == encode_run(newer.record) == encode_run(simulate(scenario))
    assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
    chains = []
    for folder in ("older", "newer"):
        with ChainStore.open(tmp_path / folder / "chain", read_only=True) as chain:
            assert verify_chain(chain).is_valid
            chains.append([block.digest for block in chain.blocks()])
    assert chains[0] == chains[1]


def test_failures_and_infeasible_rounds_are_settled():
    strategy, _ = serve(town("all", rounds=3), fails=[2])
    assert strategy.record.delivered.tolist() == [[True, True, False, True]] * 3
    strategy, model = serve(town(energy__budget_j=0.0, rounds=3))
    assert strategy.record.num_infeasible == 3
    assert all((a == b).all() for a, b in zip(model, INITIAL, strict=True))


def test_clients_without_properties_are_numbered_by_their_names():
    strategy, _ = serve(town("all", rounds=1), fails=[3], tells=False)  # its name is "44", between "17" and "555"
    assert strategy.record.delivered.tolist() == [[True, False, True, True]]
    assert np.isfinite(strategy.record.delay_s).all()
