"""FedAvg with our schedulers: the rounds of a simulation, Flower's average, and a chain that can be verified."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from bdfl.experiment import simulate
from bdfl.experiment.simulation import draw_run, play
from bdfl.flower import ScheduledFedAvg
from bdfl.flower.rounds import NotOurTraining, OutOfTurn
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.verify import Agreement, verify_chain
from bdfl.records import encode_run
from bdfl.scenario import Aggregation, Clients, Learning, Scenario, SchedulerChoice, override_scenario
from bdfl.scheduling.registry import get_scheduler
from tests.flower.local_grid import LocalGrid, drift, make_app

NODES = [901, 17, 555, 44]  # ids in no order
INITIAL = [np.zeros((3, 2), np.float32), np.ones(4, np.float32)]


def small(name="drc", rounds=6, **changes):
    scenario = Scenario(
        rounds=rounds,
        clients=Clients(count=4, min_selected=2, samples=300),
        scheduler=SchedulerChoice(name=name),
    )
    return override_scenario(scenario, [f"{key.replace('__', '.')}={value}" for key, value in changes.items()])


def start(strategy, grid, num_rounds=None, initial=INITIAL):
    rounds = strategy.rounds.scenario.rounds if num_rounds is None else num_rounds
    return strategy.start(grid, ArrayRecord([array.copy() for array in initial]), num_rounds=rounds)


def strategy_for(scenario, **options):
    return ScheduledFedAvg(scenario, fraction_evaluate=0.0, **options)


def test_no_chain_says_that_clients_trained_privately_when_nobody_knows():
    with pytest.raises(NotOurTraining, match=r"^privacy: on, but .* run the scenario with bdfl run$"):
        strategy_for(small(privacy__noise_multiplier=1.0))


@pytest.mark.parametrize(
    ("name", "mode"), [("drc", "quantile"), ("exact", "quantile"), ("random", "sampled"), ("drc", "sampled")]
)
def test_rounds_are_those_of_a_simulation_to_the_bit(name, mode, tmp_path):
    scenario = small(name, mining__mode=mode, seed=3)
    strategy = strategy_for(scenario, folder=tmp_path / "run")
    start(strategy, LocalGrid(make_app(drift), NODES))
    assert encode_run(strategy.record) == encode_run(simulate(scenario))
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        found = verify_chain(chain)
        assert found.is_valid, found.failure
        assert found.count_schedules(Agreement.SAME) == chain.height == scenario.rounds
        selected = [list(block.body.schedule.selected) for block in chain.blocks()]
    assert selected == [np.flatnonzero(row).tolist() for row in strategy.record.selected]


def test_models_are_those_of_flowers_own_average():
    scenario, trained = small(), []

    def train(client, arrays, round):
        sent = drift(client, arrays, round)
        trained.append((round, sent))
        return sent

    result = start(strategy_for(scenario), LocalGrid(make_app(train), NODES))
    contents = [
        RecordDict({"arrays": ArrayRecord(sent), "metrics": MetricRecord({"num-examples": 300})})
        for round, sent in trained
        if round == scenario.rounds
    ]
    assert len(contents) >= scenario.clients.min_selected
    expected = aggregate_arrayrecords(contents, "num-examples").to_numpy_ndarrays()
    for found, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_same_server_writes_the_same_bytes_and_a_secret_makes_them_its_own(tmp_path):
    tips = {}
    for folder, secret in (("a", None), ("b", None), ("c", b"sixteen bytes !!")):
        start(strategy_for(small(rounds=2), folder=tmp_path / folder, secret=secret), LocalGrid(make_app(drift), NODES))
        with ChainStore.open(tmp_path / folder / "chain", read_only=True) as chain:
            assert verify_chain(chain).is_valid
            tips[folder] = chain.block(2).digest
    assert tips["a"] == tips["b"]
    assert tips["c"] != tips["a"]


def test_whoever_fails_or_lies_about_the_form_has_not_delivered(tmp_path, caplog):
    """The queue of a client that sends nothing usable grows as the core has it, and the others' round goes on."""
    spoiled = {
        0: lambda arrays: [arrays[0], np.ones(5, np.float32)],  # another shape
        1: lambda arrays: [arrays[0] * np.nan, arrays[1]],
        2: lambda arrays: arrays[:1],
        3: lambda arrays: 1 / 0,
    }
    scenario = small("all", rounds=len(spoiled) + 1)

    def train(client, arrays, round):
        return spoiled[client](arrays) if round == client + 1 else drift(client, arrays, round)

    strategy = strategy_for(scenario, folder=tmp_path / "run")
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(make_app(train), NODES))
    record = strategy.record
    everybody = np.ones((5, 4), bool)
    assert (record.selected == everybody).all()
    assert (record.delivered == everybody & ~np.eye(5, 4, dtype=bool)).all()
    missed = np.maximum(record.queue + record.participation_rate - record.delivered, 0)
    assert record.next_queue == pytest.approx(missed)
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        assert verify_chain(chain).is_valid
        updates = [[signed.update for signed in block.body.updates] for block in chain.blocks()]
    declined = [[update.client for update in round if update.is_declined] for round in updates]
    assert declined == [[0], [1], [2], [3], []]
    for expected in ("shape (5,) given, expected shape (4,)", "not all finite", "1 arrays (0) given", "division"):
        assert expected in caplog.text


def test_a_node_that_is_gone_or_deaf_holds_nobody_up():
    scenario = small("all")
    grid = LocalGrid(make_app(drift), NODES, deaf=[NODES[1]])
    grid.gone.add(NODES[3])
    strategy = strategy_for(scenario, min_available_nodes=3)
    start(strategy, grid)
    assert strategy.record.delivered.tolist() == [[True, False, True, False]] * 6


def test_nobody_there_leaves_the_model_as_it_is(tmp_path):
    grid = LocalGrid(make_app(drift), NODES)
    grid.gone.update(NODES)
    strategy = strategy_for(small(rounds=2), folder=tmp_path / "run", min_available_nodes=0)
    result = start(strategy, grid)
    assert len(result.arrays) == 0
    assert not strategy.record.delivered.any()
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        assert verify_chain(chain).is_valid
        assert all(block.body.is_empty for block in chain.blocks())


def test_rounds_that_cannot_take_place_pass_by():
    scenario = small(energy__budget_j=0.0, rounds=3)
    strategy = strategy_for(scenario)
    start(strategy, LocalGrid(make_app(drift), NODES))
    assert encode_run(strategy.record) == encode_run(simulate(scenario))
    assert strategy.record.num_infeasible == 3


@pytest.mark.parametrize(("tells", "order"), [(True, NODES), (False, sorted(NODES))])
def test_nodes_play_the_partition_they_tell_or_are_numbered_by_their_ids(tells, order):
    grid = LocalGrid(make_app(drift, tells=tells), NODES)
    start(strategy_for(small(rounds=4), min_available_nodes=4), grid)
    asked = {
        message.metadata.dst_node_id: message.content["config"]["bdfl-client"]
        for message in grid.sent
        if message.metadata.message_type == "train"
    }
    assert asked.items() <= {node: number for number, node in enumerate(order)}.items()
    queries = [message for message in grid.sent if message.metadata.message_type == "query"]
    assert len(queries) == len(NODES)  # once each


def test_clients_are_told_what_they_are_charged_for():
    grid = LocalGrid(make_app(drift), NODES)
    strategy = strategy_for(small())
    start(strategy, grid)
    record = strategy.record
    for message in grid.sent:
        if message.metadata.message_type == "train":
            config = message.content["config"]
            row, client = config["server-round"] - 1, config["bdfl-client"]
            assert record.selected[row, client]
            assert config["bdfl-frequency-hz"] == record.cpu_hz[row, client]
            assert config["bdfl-power-w"] == record.power_w[row, client]
            assert config["bdfl-local-updates"] == 20


def test_costs_stand_beside_the_clients_metrics():
    strategy = strategy_for(small())
    result = start(strategy, LocalGrid(make_app(drift), NODES))
    for round, metrics in result.train_metrics_clientapp.items():
        record = strategy.record.round_record(round)
        assert metrics["loss"] == pytest.approx(round)
        assert metrics["bdfl-delay-s"] == record.delay_s
        assert metrics["bdfl-energy-j"] == record.energy_j.sum()
        assert metrics["bdfl-delivered"] == record.selected.sum()


def test_other_numbers_of_examples_are_said_once_and_do_not_weigh(caplog):
    plain, other = (start(strategy_for(small()), LocalGrid(make_app(drift, samples=n), NODES)) for n in (300, 7))
    caplog.clear()
    start(strategy_for(small()), LocalGrid(make_app(drift, samples=7), NODES))
    said = [text for text in caplog.messages if "trained on 7 samples, the scenario has 300" in text]
    assert 2 <= len(said) <= 4
    for found, wanted in zip(other.arrays.to_numpy_ndarrays(), plain.arrays.to_numpy_ndarrays(), strict=True):
        assert (found == wanted).all()


def test_whole_numbers_and_doubles_keep_their_types(tmp_path):
    initial = [np.zeros(3, np.float64), np.array(5, np.int64), np.zeros((), np.float16)]

    def train(client, arrays, round):
        return [arrays[0] + client, np.asarray(arrays[1] + 2 * client), arrays[2]]

    strategy = strategy_for(small("all", rounds=1), folder=tmp_path / "run")
    result = start(strategy, LocalGrid(make_app(train), NODES), initial=initial)
    found = result.arrays.to_numpy_ndarrays()
    assert [array.dtype for array in found] == [array.dtype for array in initial]
    assert found[0] == pytest.approx([1.5] * 3)
    assert found[1] == 8  # 5 + the mean of 0, 2, 4, 6


def test_a_robust_rule_of_the_scenario_is_kept(tmp_path):
    learning = Learning(aggregation=Aggregation(rule="median", faulty=1))
    scenario = small("all", rounds=2)
    scenario = Scenario(rounds=2, clients=scenario.clients, scheduler=scenario.scheduler, learning=learning)
    with_chain = strategy_for(scenario, folder=tmp_path / "run")
    results = [start(one, LocalGrid(make_app(drift), NODES)) for one in (with_chain, strategy_for(scenario))]
    first, second = (result.arrays.to_numpy_ndarrays() for result in results)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        assert verify_chain(chain).is_valid


@pytest.mark.parametrize("server", ["momentum", "adam"])
def test_a_server_optimizer_gives_the_same_model_with_a_chain_and_without(tmp_path, server):
    scenario = small("random", learning__aggregation__server=server)
    plain = start(strategy_for(scenario), LocalGrid(make_app(drift), NODES))
    chained = start(strategy_for(scenario, folder=tmp_path / "run"), LocalGrid(make_app(drift), NODES))
    for found, wanted in zip(plain.arrays.to_numpy_ndarrays(), chained.arrays.to_numpy_ndarrays(), strict=True):
        assert found.tobytes() == wanted.tobytes()
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        found = verify_chain(chain)
        assert found.is_valid, found.failure
        assert chain.genesis.law.aggregation.startswith(f"mean {server} rate=")


def test_where_whole_units_choose_another_set_the_chain_binds(tmp_path, monkeypatch):
    """As if rounding had tipped every round: the floats would have all train, the chain has what `drc` chooses."""
    monkeypatch.setattr("bdfl.flower.rounds.get_scheduler", lambda name, parameters: get_scheduler("all", {}))
    strategy = strategy_for(small(), folder=tmp_path / "run")
    start(strategy, LocalGrid(make_app(drift), NODES))
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        assert verify_chain(chain).is_valid
        selected = [list(block.body.schedule.selected) for block in chain.blocks()]
        delay_s = [block.body.modelled.delay_ns / 1e9 for block in chain.blocks()]
    assert selected == [np.flatnonzero(row).tolist() for row in strategy.record.selected]
    assert strategy.record.delay_s == pytest.approx(delay_s, rel=1e-5)
    assert not strategy.record.selected.all()


def test_fewer_rounds_than_planned_leave_a_whole_folder(tmp_path):
    scenario = small()
    strategy = strategy_for(scenario, folder=tmp_path / "run")
    start(strategy, LocalGrid(make_app(drift), NODES), num_rounds=2)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "scenario.toml", "rounds.parquet", "clients.parquet", "chain",
    }  # fmt: skip
    played = play(scenario, get_scheduler("drc", {}), draw_run(scenario))
    assert (strategy.record.delay_s == played.delay_s[:2]).all()
    with ChainStore.open(tmp_path / "run" / "chain", read_only=True) as chain:
        assert verify_chain(chain).is_valid


def test_more_rounds_than_the_scenario_has_and_used_folders_are_refused(tmp_path):
    with pytest.raises(OutOfTurn, match="7 rounds asked for, the scenario has 6"):
        start(strategy_for(small()), LocalGrid(make_app(drift), NODES), num_rounds=7)
    (tmp_path / "there").write_text("")
    with pytest.raises(Exception, match="exists already and is not empty, a new folder expected"):
        strategy_for(small(), folder=tmp_path)
    with pytest.raises(Exception, match="secret: 3 bytes given, at least 16 expected"):
        strategy_for(small(), folder=tmp_path / "run", secret=b"abc")


def test_arrays_that_are_none_are_refused_before_they_are_read(caplog):
    def train(client, arrays, round):
        if client == 0:
            return ArrayRecord({"0": Array("float32", (3, 2), "numpy.ndarray", b"x" * 10**6), "1": Array(arrays[1])})
        if client == 1:
            return ArrayRecord({"0": Array("float32", (3, 2), "torch", b"x"), "1": Array(arrays[1])})
        if client == 2:
            return ArrayRecord({"0": Array("float32", (3, 2), "numpy.ndarray", b"garbage"), "1": Array(arrays[1])})
        return drift(client, arrays, round)

    strategy = strategy_for(small("all", rounds=1))
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(make_app(train), NODES))
    assert strategy.record.delivered.tolist() == [[False, False, False, True]]
    for expected in ("'0' of 1000000 bytes given", "serialised as torch", "is not in numpy's format"):
        assert expected in caplog.text
