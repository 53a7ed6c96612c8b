"""Round times: exact where a network is exactly as modelled, kept line by line, and shown beside the model."""

import msgspec
import pytest

from bdfl.ledger.genesis import conditions_of
from bdfl.localnet.verdict import summarise
from bdfl.records.files import BadRoundsFile, ModelledRound, RoundTimes, read_rounds
from bdfl.scenario import Protocol
from bdfl.transports.cost_model import ScenarioCostModel, simulated_timing
from bdfl.transports.interfaces import Observer
from bdfl.transports.live.round_clock import RoundClock
from bdfl.transports.live.work import Spent
from bdfl.transports.simulated import Network
from tests.ledger.small_federation import ROUNDS, found_federation, small_scenario
from tests.transports.simulated_nodes import make_nodes

SECOND_NS = 10**9
PLAYED = 5
SCENARIO = small_scenario(protocol=Protocol(downlink_s=0.05, verification_s=0.02, voting_s=0.1))


class ModelledWork:
    """Work that takes what the model says."""

    def __init__(self, number, world, time_scale=1.0):
        self.time_scale = time_scale
        self._number = number
        self._world = world
        self._upload_ns = {}

    def modelled(self, chain):
        return self._world.modelled(self._number, chain)

    def remember(self, chain):
        self._upload_ns[chain.height + 1] = self._world.upload_ns(self._number, chain)

    def spent(self, height):
        return Spent(training_ns=height, hashing_ns=2 * height, upload_ns=self._upload_ns.get(height, 0))


class Clocks(Observer):
    """A clock for every node of a simulated network."""

    def __init__(self, clocks, works):
        self.clocks = clocks
        self.works = works

    def stepped(self, now_ns, number, done):
        self.works[number].remember(done.before.chain)
        self.clocks[number].stepped(now_ns, done)


def play(folder, *, scenario=SCENARIO, incident=None, **options):
    """The round times of all nodes of a simulated network, by node."""
    small = found_federation(scenario)

    def find_conditions(round, client):
        return conditions_of(small.rounds[round - 1], client) if round <= ROUNDS else None

    world = ScenarioCostModel(
        scenario, lambda client, chain, model: small.model(client, chain.height + 1), find_conditions
    )
    timing = simulated_timing(scenario)
    nodes = make_nodes(small.genesis, small.initial_model, small.signers, timing, last_height=PLAYED)
    paths = [folder / f"{node.number}.jsonl" for node in nodes]
    works = [ModelledWork(node.number, world) for node in nodes]
    clocks = [RoundClock(number, work, paths[number], **options) for number, work in enumerate(works)]
    network = Network(
        nodes,
        world,
        observer=Clocks(clocks, works),
        on_commit=lambda number, block, certificate: clocks[number].committed(block, certificate, None),
        voting_ns=round(scenario.protocol.voting_s * SECOND_NS),
    )
    if incident is not None:
        incident(network)
    network.run()
    return [read_rounds(path) for path in paths]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return play(tmp_path_factory.mktemp("rounds"))


def test_every_round_of_every_node_is_there(played):
    for number, rounds in enumerate(played):
        assert [(row.node, row.round) for row in rounds] == [(number, round) for round in range(1, PLAYED + 1)]
        assert [row.is_whole for row in rounds] == [False, *[True] * (PLAYED - 1)]  # nodes began with the first
        assert [row.computing_ns for row in rounds] == [1, 2, 3, 4, 5]


def test_a_network_as_modelled_has_no_overhead(played):
    for row in (row for rounds in played for row in rounds):
        assert abs(row.overhead_ns) <= 10
        assert abs(row.exchange_ns - row.modelled.exchange_ns) <= 5
        assert row.voting_ns == 100_000_000
        assert abs(row.mining_ns - row.modelled.mining_ns - 70_000_000) <= 5
        assert row.exchange_ns + row.mining_ns + row.voting_ns == row.delay_ns
        if row.training_ns is None:
            assert row.modelled.training_ns == 0
        else:
            assert row.training_ns == row.modelled.training_ns


def test_updates_of_others_are_timed_from_their_announcement(played):
    for row in (row for rounds in played for row in rounds):
        assert row.node not in row.upload_ns
        assert len(row.upload_ns) + (row.training_ns is not None) == row.num_updates
        assert set(row.upload_ns.values()) == {0}  # in a simulation both come when the upload is over


def test_a_summary_of_a_network_as_modelled_has_a_ratio_of_one(played):
    summary = summarise([row for rounds in played for row in rounds])
    assert summary.num_partial == len(played)
    assert summary.num_repeated == 0
    assert summary.total.num_rounds == len(played) * (PLAYED - 1)
    assert summary.total.ratio == pytest.approx(1.0, abs=1e-7)
    assert [row.node for row in summary.nodes] == list(range(len(played)))


def test_a_round_that_a_node_missed_or_caught_up_with_is_not_whole(tmp_path):
    rounds = play(tmp_path, incident=lambda network: network.at(SECOND_NS, lambda: network.crash(1, 3 * SECOND_NS)))
    assert rounds[1][-1].round == PLAYED
    assert rounds[1][-1].is_whole
    assert sum(not row.is_whole for row in rounds[1]) > 1


# By hand


def row(node, round, **changes):
    modelled = ModelledRound(
        training_ns=4 * SECOND_NS,
        upload_ns=2 * SECOND_NS,
        exchange_ns=6 * SECOND_NS,
        mining_ns=2 * SECOND_NS,
        rest_ns=2 * SECOND_NS,
        delay_ns=10 * SECOND_NS,
    )
    settings = {
        "node": node,
        "round": round,
        "attempt": 1,
        "num_updates": 2,
        "is_whole": True,
        "time_scale": 20.0,
        "modelled": modelled,
        "training_ns": 5 * SECOND_NS,
        "computing_ns": 1,
        "hashing_ns": 1,
        "upload_ns": {1 - node: 3 * SECOND_NS},
        "exchange_ns": 7 * SECOND_NS,
        "mining_ns": 5 * SECOND_NS,
        "voting_ns": 1 * SECOND_NS,
        "delay_ns": 13 * SECOND_NS,
    }
    return RoundTimes(**(settings | changes))


def test_overheads_are_means_beyond_the_model_and_add_up():
    rounds = [row(0, 1), row(1, 1), row(1, 2, upload_ns={}, training_ns=None, attempt=2), row(0, 3, is_whole=False)]
    total = summarise(rounds).total
    assert (total.modelled_s, total.measured_s, total.ratio, total.overhead_s) == (10.0, 13.0, 1.3, 3.0)
    assert (total.exchange_s, total.mining_s, total.voting_s) == (1.0, 1.0, 1.0)
    assert (total.training_s, total.upload_s) == (1.0, 1.0)
    assert (summarise(rounds).num_partial, summarise(rounds).num_repeated) == (1, 1)


def test_the_slowest_of_the_others_says_how_long_an_upload_took():
    rounds = [row(0, 1), row(1, 1), row(2, 1, upload_ns={0: 9 * SECOND_NS, 1: SECOND_NS})]
    assert [one.upload_s for one in summarise(rounds).nodes[:2]] == [7.0, 1.0]


def test_without_rounds_or_a_model_there_is_no_ratio():
    assert summarise([]).total.ratio != summarise([]).total.ratio
    free = msgspec.structs.replace(row(0, 1).modelled, delay_ns=0)
    assert summarise([row(0, 1, modelled=free)]).total.ratio != 1.3


# The file


def test_a_line_that_is_cut_off_is_left_out_and_dropped_when_more_comes(tmp_path):
    path = tmp_path / "rounds.jsonl"
    line = msgspec.json.encode(row(0, 1)) + b"\n"
    path.write_bytes(line + line[:50])
    assert read_rounds(path) == [row(0, 1)]
    RoundClock(0, ModelledWork(0, None), path)
    assert path.read_bytes() == line
    path.write_bytes(line[:50])
    RoundClock(0, ModelledWork(0, None), path)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("length", [10, 100, 1_000])
def test_a_torn_line_is_found_from_the_end_however_long_it_is(tmp_path, length):
    path = tmp_path / "rounds.jsonl"
    for whole in (b"", b"a line\n" * 100):
        path.write_bytes(whole + b"x" * length)
        RoundClock(0, ModelledWork(0, None), path)
        assert path.read_bytes() == whole
        RoundClock(0, ModelledWork(0, None), path)
        assert path.read_bytes() == whole


def test_a_file_that_is_full_is_begun_anew_and_both_are_read(tmp_path):
    folders = [tmp_path / name for name in ("whole", "cut", "short")]
    for folder in folders:
        folder.mkdir()
    rounds = play(folders[0])[0]
    size = (folders[0] / "0.jsonl").stat().st_size
    limit = size * 2 // 3
    assert play(folders[1], max_bytes=limit)[0] == rounds
    assert all(0 < (folders[1] / name).stat().st_size <= limit for name in ("0.jsonl", "0.jsonl.1"))
    assert play(folders[2], max_bytes=1)[0] == rounds[-2:]  # no more than two files are kept


def test_what_is_no_round_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(msgspec.json.encode(row(0, 1)) + b"\n{}\n")
    with pytest.raises(BadRoundsFile, match="line 2"):
        read_rounds(path)
    with pytest.raises(BadRoundsFile, match="No such file"):
        read_rounds(tmp_path / "nothing.jsonl")


def test_a_disk_that_takes_nothing_does_not_stop_the_node(tmp_path):
    (tmp_path / "missing").mkdir()
    folder = tmp_path / "missing"

    def take_away(network):
        network.at(1, folder.rmdir)

    with pytest.raises(BadRoundsFile):
        play(folder, incident=take_away)
