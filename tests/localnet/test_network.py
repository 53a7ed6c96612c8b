"""A real network on this machine: processes, sockets and TLS; nodes die and come back; nothing is left behind."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack

import msgspec
import pytest

from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on
from bdfl.ledger.verify import Failure, Verification
from bdfl.localnet import verdict as judging
from bdfl.localnet.network import create_network, find_ports, run_network, view_network
from bdfl.localnet.processes import BadNetwork, node_folder, read_network
from bdfl.localnet.verdict import summarise_network, verify_network
from bdfl.node.run_file import is_locked, lock_folder, read_incarnation
from bdfl.node.status import read_status
from bdfl.transports.live.event_log import EVENTS_FILE
from bdfl.transports.live.replay import replay
from campaigns.live_faults.log_reader import Diary
from tests.localnet.small_network import BY_FORMULA, FORMULA_CLIENT, descendants, is_alive, tiny_scenario, wait_for

BLOCKS = 12


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The folder of four nodes behind an access point, one of which was killed and started again."""
    folder = tmp_path_factory.mktemp("played") / "network"
    create_network(folder, tiny_scenario(4), 1, BLOCKS)
    others = set(descendants(os.getpid()))  # of tests before this one
    pids = set()
    with run_network(folder) as network:
        wait_for(lambda: len(network.look().heights) == 4 and min(network.look().heights) >= 2, "block 2 everywhere")
        pids |= set(descendants(os.getpid())) - others
        victim = network.nodes[3]
        os.kill(victim.pid, signal.SIGKILL)
        wait_for(lambda: not victim.is_up, "the end of node 3")
        before = max(network.look().heights)
        wait_for(lambda: max(network.look().heights) >= min(before + 2, BLOCKS), "blocks without node 3")
        assert not network.look().nodes[3].is_up
        assert [child.name for child in network.fallen] == ["node 3"]
        victim.restart()
        wait_for(lambda: network.look().is_done, "the last block everywhere")
        pids |= set(descendants(os.getpid())) - others
        assert network.stop() == []
    wait_for(lambda: not any(map(is_alive, pids)), "the end of all processes")
    return folder


def test_all_chains_are_the_same_and_valid_though_a_node_was_killed(played):
    verdict = verify_network(played)
    assert verdict.heights == dict.fromkeys(range(4), BLOCKS)
    assert verdict.failures == ()
    assert verdict.difference is None
    assert verdict.is_good


def test_the_killed_node_came_back_with_a_higher_number(played):
    killed, other = (Diary(node_folder(played, number)).read().joinings for number in (3, 0))
    assert [joining.incarnation - killed[0].incarnation for joining in killed] == [0, 1]
    assert read_incarnation(node_folder(played, 3)) == killed[-1].incarnation
    assert len(other) == 1


def test_nodes_are_finished_after_the_rounds_that_all_agreed_on(tmp_path):
    create_network(tmp_path / "network", tiny_scenario(2, "rounds=3", BY_FORMULA), 0, None)
    with run_network(tmp_path / "network", evaluates=False) as network:
        wait_for(
            lambda: all(view.snapshot is not None and view.snapshot.is_done for view in network.look().nodes),
            "the last block everywhere",
        )
        assert [(view.snapshot.height, view.snapshot.phase) for view in network.look().nodes] == [(3, "done")] * 2


def test_blocks_that_nobody_would_train_for_are_refused(played):
    with pytest.raises(BadNetwork, match="31 blocks asked for, at most 30"), run_network(played, blocks=31):
        pass


@pytest.mark.parametrize("number", [0, 3])
def test_recorded_events_played_again_give_the_same_blocks(played, number):
    folder = node_folder(played, number)
    with ChainStore.open(folder / "chain", read_only=True) as store:
        found = replay(folder / EVENTS_FILE, store)
    assert found.num_blocks >= 1
    assert (number == 3) == (len(found.incarnations) == 2)
    assert number == 3 or found.not_recorded == ()


def test_the_summary_says_what_came_out(played):
    summary = summarise_network(played, verify_network(played), 30.0)
    assert summary.height == BLOCKS
    assert 0.1 < summary.accuracy <= 1
    assert summary.delays is not None
    assert summary.delays.total.num_rounds >= BLOCKS
    assert summary.failures == ()
    msgspec.json.encode(summary)


def test_a_node_evaluates_where_it_is_told_to(played):
    lines = [json.loads(line) for line in (node_folder(played, 0) / "node.log").read_text().splitlines()]
    assert any(line["event"] == "accuracy" and 0 < line["accuracy"] <= 1 and line["loss"] > 0 for line in lines)
    assert "accuracy" not in (node_folder(played, 1) / "node.log").read_text()


def test_secrets_are_for_their_owner_only(played):
    for path in played.rglob("key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    secret = (node_folder(played, 0) / "key.pem").read_text().splitlines()[1]
    for path in (*played.rglob("*.log"), *played.rglob("*.json"), *played.rglob("*.jsonl")):
        assert secret.encode() not in path.read_bytes(), path


def test_a_network_that_ended_is_shown_as_such(played):
    view = view_network(played)
    assert not view.is_up
    assert [(node.state, node.reason) for node in view.nodes] == [("stopped", "asked to stop")] * 4
    assert view.heights == []
    assert not view.is_done


@pytest.fixture
def changed(monkeypatch):
    """Block 3 of node 2 has another nonce, which nothing but the comparison notices."""
    unchanged = ChainStore.block

    def block(self, height):
        found = unchanged(self, height)
        if "node-2" in str(self._path) and height == 3:
            return msgspec.structs.replace(found, nonce=bytes(255 - byte for byte in found.nonce))
        return found

    nothing_wrong = Verification(chain="", height=0, checkpoint=0, blocks=(), failure=None)
    monkeypatch.setattr(judging, "verify_chain", lambda *_, **__: nothing_wrong)
    monkeypatch.setattr(ChainStore, "block", block)


def test_a_chain_that_differs_is_noticed(played, changed):
    assert verify_network(played).difference == "block 3 of node 2 is not that of node 0"


@pytest.fixture
def damaged(played, tmp_path):
    """A copy of the network in which the store of node 0 does not open and that of node 3 ends at block 5."""
    for name in ("network.json", "scenario.toml"):
        shutil.copy(played / name, tmp_path)
    for number in (1, 2):
        shutil.copytree(node_folder(played, number) / "chain", node_folder(tmp_path, number) / "chain")
    with ChainStore.open(node_folder(played, 3) / "chain", read_only=True) as whole:
        initial = whole.get_blob(whole.genesis.model.initial)
        with ChainStore.create(node_folder(tmp_path, 3) / "chain", whole.genesis, initial) as short:
            for height in range(1, 6):
                block = whole.block(height)
                for use in rested_on(block):
                    short.put_blob(use.blob, whole.get_blob(use.blob))
                short.append(block, whole.certificate(height))
    return tmp_path


def test_chains_keep_their_nodes_numbers_where_another_does_not_open(damaged):
    verdict = verify_network(damaged)
    assert verdict.heights == {1: BLOCKS, 2: BLOCKS, 3: 5}
    assert [node for node, _ in verdict.failures] == [0]
    assert verdict.problems == (f"node 0: {verdict.failures[0][1]}",)


def test_a_chain_that_differs_is_named_by_its_node_where_another_does_not_open(damaged, changed):
    verdict = verify_network(damaged)
    assert verdict.problems[1:] == ("block 3 of node 2 is not that of node 1",)


def test_means_are_of_the_common_blocks_of_whichever_chain_opens(damaged, played):
    summary = summarise_network(damaged, verify_network(damaged), 30.0)
    with ChainStore.open(node_folder(played, 2) / "chain", read_only=True) as store:
        common = [store.block(height).body for height in range(1, 6)]
    assert summary.height == 5
    assert summary.mean_updates == sum(len(body.updates) for body in common if not body.is_empty) / 5
    assert summary.empty_blocks == sum(body.is_empty for body in common)
    assert summary.accuracy is not None


def test_a_chain_that_is_not_there_is_a_failure(played, tmp_path):
    network = read_network(played)
    (tmp_path / "network.json").write_bytes(msgspec.json.encode(network))
    verdict = verify_network(tmp_path)
    assert [node for node, _ in verdict.failures] == [0, 1, 2, 3]
    assert not verdict.is_good
    assert isinstance(verdict.failures[0][1], Failure)


def test_a_folder_that_exists_is_left_as_it_is(played):
    before = sorted(path.name for path in played.iterdir())
    with pytest.raises(BadNetwork, match="exists already"):
        create_network(played, tiny_scenario(4), 1, 3)
    assert sorted(path.name for path in played.iterdir()) == before


def test_what_cannot_be_founded_leaves_no_folder(tmp_path):
    with pytest.raises(Exception, match="samples"):
        create_network(tmp_path / "new", tiny_scenario(4, "clients.samples=5000"), 0, 3)
    assert not (tmp_path / "new").exists()


def test_other_folders_are_no_networks(tmp_path):
    with pytest.raises(BadNetwork, match=r"no network\.json in it"):
        read_network(tmp_path)
    (tmp_path / "network.json").write_text("{")
    with pytest.raises(BadNetwork, match=r"network\.json"):
        read_network(tmp_path)


def test_free_ports_are_all_different_and_none_is_given_to_an_outgoing_connection():
    ports = [int(address.rpartition(":")[2]) for address in find_ports(20)]
    assert len(set(ports)) == 20
    assert max(ports) < 32_768  # where Linux begins; others begin at 49,152


def test_a_port_that_is_taken_is_not_free(monkeypatch):
    with socket.socket() as taken:
        port = int(find_ports(1)[0].rpartition(":")[2])
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr("bdfl.localnet.network._PORTS", range(port, port + 1))
        with pytest.raises(BadNetwork, match="0 free ports"):
            find_ports(1)


def test_nothing_outlives_whoever_started_it_even_where_that_is_killed(tmp_path):
    folder = tmp_path / "network"
    create_network(folder, tiny_scenario(2, "rounds=1000", BY_FORMULA), 1, 1000)
    command = [sys.executable, "-P", "-m", "bdfl.cli", "network", "up", "--resume", str(folder), "--plain"]
    command += ["--allow", FORMULA_CLIENT]
    with ExitStack() as resources:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        resources.callback(process.wait)
        resources.callback(process.kill)
        places = [node_folder(folder, 0), node_folder(folder, 1), folder / "ap-0"]
        wait_for(lambda: all(map(is_locked, places)), "all processes")
        wait_for(lambda: read_status(places[0]).snapshot is not None, "an answer of node 0")
        below = descendants(process.pid)
        assert len(below) >= 3
        process.kill()
        wait_for(lambda: not any(map(is_alive, below)), "the end of all others")
    assert not any(map(is_locked, places))


def test_nobody_else_may_look_into_a_nodes_folder(tmp_path):
    create_network(tmp_path / "network", tiny_scenario(2, BY_FORMULA), 1, 1)
    folders = [tmp_path / "network" / "node-1", tmp_path / "network" / "ap-0", tmp_path / "new"]
    with lock_folder(tmp_path / "new"):
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
