"""A network of real nodes that emulate a scenario agrees on what the simulated one does, and its rounds are timed."""

from bdfl.learning.weights import decode_weights, encode_weights
from bdfl.ledger.genesis import conditions_of
from bdfl.localnet.verdict import summarise
from bdfl.protocol.state import Timing
from bdfl.records.files import ROUNDS_FILE, read_rounds
from bdfl.transports.cost_model import ScenarioCostModel, simulated_timing
from bdfl.transports.live.round_clock import RoundClock
from bdfl.transports.live.work import EmulatedWork
from bdfl.transports.simulated import Network
from campaigns.faults.world import train_by_formula
from tests.live.idle_training import IdleTraining
from tests.live.memory_network import MS, MemoryNetwork, running, wait_until
from tests.transports.simulated_nodes import make_nodes

HEIGHT = 4
SCALE = 0.5
TIMING = Timing(grace_ns=20_000 * MS, attempt_ns=2_000 * MS, resend_ns=300 * MS, time_scale=SCALE)


class FormulaTraining(IdleTraining):
    """Trains a client by a formula."""

    def __init__(self, network, number):
        super().__init__()
        self.network, self.number = network, number

    def train(self, model, round, on_done, rounds_before=()):
        self.model = train(self.network, self.number, round, model)
        super().train(model, round, on_done)


def train(network, number, round, model):
    weights = decode_weights(model, network.layout)
    return encode_weights(train_by_formula(weights, round, number), network.layout)


def simulate(network):
    """The blocks of the same network, simulated."""

    def find_conditions(round, client):
        return conditions_of(network.rounds[round - 1], client)

    world = ScenarioCostModel(
        network.scenario,
        lambda client, chain, model: train(network, client, chain.height + 1, model),
        find_conditions,
    )
    timing = simulated_timing(network.scenario)
    nodes = make_nodes(network.genesis, network.initial, network.signers, timing, last_height=HEIGHT)
    Network(nodes, world).run()
    return list(nodes[0].store.blocks())


def test_an_emulated_network_agrees_on_what_the_simulated_one_does(tmp_path):
    network = MemoryNetwork(tmp_path)
    threads = []
    for number in range(network.count):
        training = FormulaTraining(network, number)
        work = EmulatedWork(number, network.scenario, training, time_scale=SCALE)
        clock = RoundClock(number, work, tmp_path / f"{number}.{ROUNDS_FILE}")
        threads.append(network.thread(number, work=work, observers=[clock], last_height=HEIGHT, timing=TIMING))
    with running(*threads):
        wait_until(lambda: all(thread.node.state.chain.height == HEIGHT for thread in threads))
    for thread in threads:
        assert thread.error is None
        blocks = list(thread.store.blocks())
        for block, simulated in zip(blocks, simulate(network), strict=True):
            assert block.body.model == simulated.body.model
            found, wanted = ([signed.update for signed in one.body.updates] for one in (block, simulated))
            assert found == wanted
            assert block.body.next_schedule == simulated.body.next_schedule
            assert block.body.modelled == simulated.body.modelled
            found, wanted = ([signed.report.conditions for signed in one.body.reports] for one in (block, simulated))
            assert found == wanted
    rounds = [row for number in range(network.count) for row in read_rounds(tmp_path / f"{number}.{ROUNDS_FILE}")]
    assert len(rounds) == network.count * HEIGHT
    summary = summarise(rounds)
    assert summary.time_scale == SCALE
    assert summary.total.num_rounds <= network.count * (HEIGHT - 1)  # the first is not seen from its beginning
    assert all(row.training_ns >= row.modelled.training_ns for row in rounds if row.training_ns is not None)
