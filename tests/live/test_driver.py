"""Live nodes on a real clock: they agree, and they stop and begin again without losing what they said."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bdfl.ledger.blob_store import BlobFolder
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.store import NotKept
from bdfl.ledger.verify import verify_chain
from bdfl.protocol.messages import Gossip
from bdfl.scenario import ServerOptimizer
from bdfl.transports.interfaces import LiveObserver, recover
from bdfl.transports.live.event_log import EVENTS_FILE
from bdfl.transports.live.replay import replay
from campaigns.live_faults.failing_store import FailingStore, FaultKind, FaultPoint
from tests.live.memory_network import MemoryNetwork, running, wait_until

ROOT = Path(__file__).parents[2]


def blocks_of(store):
    return list(store.blocks())


def end_of(*threads):
    """Whether these are done."""
    return lambda: all(thread.node.state.end for thread in threads)


def height_of(thread):
    return thread.node.state.chain.height


def votes_said(link, number):
    """A member's own votes that went out, by height."""
    said = {}
    for _, message in link.sent:
        if isinstance(message.content, Gossip):
            own = [vote for vote in message.content.votes if vote.vote.voter == number]
            said.setdefault(message.height, set()).update(own)
    return said


def validate_votes(*saids):
    """Nobody ever said two votes of one kind and attempt for different blocks."""
    for height in set().union(*saids):
        votes = set().union(*(said.get(height, set()) for said in saids))
        assert len({(vote.vote.attempt, vote.vote.kind) for vote in votes}) == len({vote.vote for vote in votes})


@pytest.mark.parametrize(("num_parameters", "num_threads"), [(4, 2), (4, 0), (100_000, 2)])
def test_nodes_agree_on_the_same_valid_blocks(tmp_path, num_parameters, num_threads):
    network = MemoryNetwork(tmp_path, num_parameters=num_parameters)
    threads = [
        network.thread(number, network.open_store(number), last_height=4, num_threads=num_threads)
        for number in range(4)
    ]
    with running(*threads):
        wait_until(end_of(*threads))
    assert [thread.error for thread in threads] == [None] * 4
    chains = [blocks_of(thread.store) for thread in threads]
    assert len(chains[0]) == 4
    assert chains[1:] == chains[:1] * 3
    assert all(len(block.body.updates) == 4 for block in chains[0])
    for thread in threads:
        assert verify_chain(thread.store).height == 4
        assert thread.node.status().num_dropped == 0
        assert thread.link.members == [[signer.public_key for signer in network.signers]]
        assert thread.link.num_forgotten == 4
        assert thread.work.is_over.is_set()
        thread.store.close()


def test_wall_clocks_before_the_genesis_that_go_back_all_the_time_halt_nobody(tmp_path, monkeypatch):
    readings = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(readings)))
    network = MemoryNetwork(tmp_path)
    threads = [network.thread(number, last_height=2) for number in range(4)]
    with running(*threads):
        wait_until(end_of(*threads))
    assert len({thread.store.block(2).digest for thread in threads}) == 1
    assert threads[0].store.block(2).header.time_ms > network.genesis.time_ms


def test_a_node_whose_clock_is_a_day_ahead_is_told_so_and_the_others_are_not(tmp_path, monkeypatch):
    network, right, day_ms = MemoryNetwork(tmp_path), time.time, 24 * 3600 * 1000
    threads = [network.thread(number, last_height=3) for number in range(4)]
    wrong = threads[3]
    assert wrong.node.status().clock_offset_ms is None
    monkeypatch.setattr(
        time, "time", lambda: right() + (day_ms / 1000 if threading.current_thread() is wrong._thread else 0)
    )
    with running(*threads):
        wait_until(end_of(*threads))
    assert all(abs(time.time() - block.header.time_ms / 1000) < 3600 for block in blocks_of(threads[0].store))
    assert wrong.node.status().clock_offset_ms == pytest.approx(day_ms, abs=60_000)
    assert all(thread.node.status().clock_offset_ms in (0, None) for thread in threads[:3])


def test_the_rest_go_on_without_a_member(tmp_path):
    network = MemoryNetwork(tmp_path)
    threads = [network.thread(number, last_height=2) for number in range(3)]
    with running(*threads):
        wait_until(end_of(*threads))
    blocks = blocks_of(threads[0].store)
    assert [len(block.body.updates) for block in blocks] == [3, 3]
    assert blocks_of(threads[1].store) == blocks


@pytest.mark.parametrize("server", [ServerOptimizer.NONE, ServerOptimizer.ADAM])
def test_who_was_away_longer_than_updates_are_kept_comes_back(monkeypatch, tmp_path, server):
    """It says what it took on trust, also after a restart, and its recorded incarnation can be played again."""
    network, removed, remove = MemoryNetwork(tmp_path, server=server), {}, BlobFolder.remove

    def remember(blobs, blob):  # what it began with may be pruned before it stops
        removed[blob] = blobs.path(blob).read_bytes()
        return remove(blobs, blob)

    monkeypatch.setattr(BlobFolder, "remove", remember)
    options = {"keep_blocks": 2}
    others = [network.thread(number, network.open_store(number), **options) for number in range(3)]
    first = network.thread(3, network.open_store(3), **options)
    with running(*others):
        with running(first):
            wait_until(lambda: height_of(first) >= 1)
        first.store.close()
        left = height_of(first)
        wait_until(lambda: others[0].store.checkpoint >= left + 2)
        second = network.thread(3, network.open_store(3), folder=tmp_path, **options)
        assert second.node.status().num_trusted == 0
        with running(second):
            wait_until(lambda: second.store.checkpoint > left and height_of(second) >= max(map(height_of, others)))
            wait_until(lambda: any(height > left for height in votes_said(second.link, 3)))
    assert [thread.error for thread in (*others, first, second)] == [None] * 5
    trusted = second.store.trusted
    assert trusted[0] == left + 1
    assert second.node.status().num_trusted == len(trusted)
    model = second.store.block(trusted[-1]).body.model
    assert {size for blob, size, _ in second.link.fetches if blob == model} == {blob_limit(network.genesis)}
    found = verify_chain(second.store)
    assert found.is_valid, found.failure
    assert found.trusted == [height for height in trusted if not second.store.block(height).body.is_empty]
    validate_votes(votes_said(first.link, 3), votes_said(second.link, 3))
    stored = second.store.get_blob
    monkeypatch.setattr(second.store, "get_blob", lambda blob: stored(blob) or removed.get(blob))
    assert replay(tmp_path / EVENTS_FILE, second.store).incarnations[0].first_height == left + 1
    second.store.close()
    with network.open_store(3) as store:
        assert store.trusted == trusted
        assert network.thread(3, store, **options).node.status().num_trusted == len(trusted)
    for thread in others:
        thread.store.close()


def test_a_node_that_was_stopped_goes_on_where_it_was(tmp_path):
    network = MemoryNetwork(tmp_path)
    others = [network.thread(number, last_height=7) for number in range(3)]
    first = network.thread(3, network.open_store(3), last_height=7)
    with running(*others):
        first.start()
        wait_until(lambda: height_of(first) >= 2)
        first.stop()
        tip, height = first.node.state.chain.tip, height_of(first)
        first.store.close()
        store = network.open_store(3)
        assert (store.height, store.block(height).digest) == (height, tip)
        again = network.thread(3, store, last_height=7)
        assert again.node.state.chain.tip == tip
        with running(again):
            wait_until(end_of(again, *others))
    assert first.error is None
    assert blocks_of(store) == blocks_of(others[0].store)
    validate_votes(votes_said(first.link, 3), votes_said(again.link, 3))
    store.close()


@pytest.mark.parametrize("kind", [FaultKind.FULL, FaultKind.READ_ONLY])
@pytest.mark.parametrize("point", ["put_vote", "append", "put_blob"])
def test_a_node_whose_disk_fails_stops_with_the_reason_and_says_nothing_more(tmp_path, kind, point):
    network = MemoryNetwork(tmp_path)
    others = [network.thread(number, last_height=4) for number in range(3)]
    disk = network.open_store(3)
    failing = network.thread(3, FailingStore(disk, FaultPoint(point, 3, kind)), last_height=4)
    with running(*others):
        failing.start()
        failing.wait()
        num_sent = len(failing.link.sent)
        assert isinstance(failing.error, NotKept)
        assert failing.node.status().stopped_by == str(failing.error)
        assert "\n" not in str(failing.error)
        kept = disk.read_round(disk.height + 1)
        said = votes_said(failing.link, 3)
        assert said.get(disk.height + 1, set()) <= set(kept.votes)  # nothing was said that is not kept
        disk.close()
        store = network.open_store(3)
        again = network.thread(3, store, last_height=4)
        with running(again):
            wait_until(end_of(again, *others))
        assert len(failing.link.sent) == num_sent
    assert blocks_of(store) == blocks_of(others[0].store)
    validate_votes(said, votes_said(again.link, 3))
    store.close()


@pytest.mark.parametrize("point", ["append:2", "put_vote:2"])
def test_a_process_killed_during_a_write_begins_again_with_all_it_said(tmp_path, point):
    """All four nodes are in one process; the write of one of them ends it."""
    command = [sys.executable, "-c", _NETWORK, str(tmp_path), point]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, timeout=280, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    said = [line.split() for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]
    network = MemoryNetwork(tmp_path)
    stores = [network.open_store(number) for number in range(4)]
    for number, height, vote in said:
        assert vote in [kept.signature.hex() for kept in stores[int(number)].read_round(int(height)).votes]
    recovered = [recover(network.context(number), store) for number, store in enumerate(stores)]
    assert [state.chain.height for state in recovered] == [store.height for store in stores]
    threads = [network.thread(number, store, last_height=4) for number, store in enumerate(stores)]
    with running(*threads):
        wait_until(end_of(*threads))
    assert len({tuple(block.digest for block in store.blocks()) for store in stores}) == 1
    for store in stores:
        store.close()


_NETWORK = """
import os
import sys
from bdfl.protocol.messages import Gossip
from campaigns.live_faults.failing_store import with_fault_point
from tests.live.memory_network import MemoryLink, MemoryNetwork, running, wait_until

send = MemoryLink.send

def telling_send(self, to, message):
    if isinstance(message.content, Gossip):
        for vote in message.content.votes:
            if vote.vote.voter == self.number:
                os.write(1, f"{self.number} {message.height} {vote.signature.hex()}\\n".encode())
    send(self, to, message)

MemoryLink.send = telling_send
network = MemoryNetwork(sys.argv[1])
stores = [network.open_store(number) for number in range(4)]
stores[1] = with_fault_point(stores[1], {"BDFL_FAULT": sys.argv[2]})
threads = [network.thread(number, store, last_height=30) for number, store in enumerate(stores)]
with running(*threads):
    wait_until(lambda: all(thread.node.state.end for thread in threads))
"""


class _Diary(LiveObserver):
    def __init__(self):
        self.stepped_events, self.blocks, self.refusals = [], [], []

    def stepped(self, now_ns, done):
        self.stepped_events.append((now_ns, done.event))

    def committed(self, block, certificate, chain):
        self.blocks.append((block, chain.height))

    def refused(self, sender, reason):
        self.refusals.append((sender, reason))


def test_an_observer_hears_of_everything(tmp_path):
    network = MemoryNetwork(tmp_path)
    diary = _Diary()
    threads = [network.thread(number, last_height=2, observers=[diary] if number == 0 else ()) for number in range(4)]
    with running(*threads):
        wait_until(end_of(*threads))
        wait_until(lambda: len(diary.blocks) == 2)
        threads[0].node.refuse(3, "too large: 9 bytes")
    times = [now_ns for now_ns, _ in diary.stepped_events]
    assert times == sorted(times)
    assert [block for block, _ in diary.blocks] == blocks_of(threads[0].store)
    assert diary.refusals[-1] == (3, "too large: 9 bytes")
    assert threads[0].node.status().refused["too"] == 1


def test_a_blob_that_nobody_asked_for_is_dropped(tmp_path):
    network = MemoryNetwork(tmp_path)
    thread = network.thread(0)
    with running(thread):
        wait_until(lambda: thread.link.is_open)
        thread.node.receive_blob(1, b"x" * 100)
        wait_until(lambda: thread.node.status().refused.get("blob") == 1)


def test_blobs_are_fetched_from_all_who_tell_of_them(tmp_path):
    """The one who trained it serves nothing here; who repeats its update is asked as well."""
    network = MemoryNetwork(tmp_path)
    threads = [network.thread(number, last_height=1) for number in range(4)]
    threads[0].node.offer = lambda to, blob: None if to == 3 else type(threads[0].node).offer(threads[0].node, to, blob)
    with running(*threads):
        wait_until(end_of(*threads))
    model = next(update.update.model for update in threads[3].store.block(1).body.updates if update.update.client == 0)
    asked = [holders for blob, _, holders in threads[3].link.fetches if blob == model]
    assert set(sum(asked, ())) - {0}


def test_a_full_log_is_begun_anew_and_the_node_goes_on(tmp_path):
    network = MemoryNetwork(tmp_path)
    threads = [
        network.thread(number, last_height=4, folder=tmp_path if number == 0 else None, max_log_bytes=2000)
        for number in range(4)
    ]
    with running(*threads):
        wait_until(end_of(*threads))
        assert threads[0].node.status().is_recording
    assert (tmp_path / "events.log.1").exists()
    assert blocks_of(threads[0].store) == blocks_of(threads[1].store)


def test_a_node_that_is_told_of_a_failure_ends_with_the_first(tmp_path):
    thread = MemoryNetwork(tmp_path).thread(0)
    thread.start()
    wait_until(lambda: thread.link.is_open)
    thread.node.fail(ValueError("deaf"))
    thread.node.fail(ValueError("mute"))
    thread.wait()
    assert str(thread.error) == "deaf"
    assert thread.node.status().stopped_by == "deaf"


def test_a_node_may_stop_when_all_is_done(tmp_path):
    network = MemoryNetwork(tmp_path)
    threads = [network.thread(number, last_height=1) for number in range(3)]
    last = network.thread(3, last_height=1, stops_when_done=True)
    with running(*threads):
        last.start()
        last.wait()
    assert last.error is None
    assert last.store.height == 1
