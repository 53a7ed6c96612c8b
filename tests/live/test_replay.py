"""A recorded incarnation, played again without the node's key, gives the same blocks byte for byte."""

import os

import pytest

from bdfl.encoding import encode
from bdfl.ledger.block import ModelUpdate, SignedUpdate
from bdfl.protocol.events import BlobArrived, MessageArrived, Timer, TimerFired
from bdfl.protocol.messages import Gossip, Message
from bdfl.transports.interfaces import read_recovered
from bdfl.transports.live import event_log
from bdfl.transports.live.event_log import (
    EVENTS_FILE,
    BrokenLog,
    EventLog,
    LoggedBlob,
    LoggedStep,
    LoggedTraining,
    LogHeader,
    former_log,
    log_beginning,
    log_event,
    read_entries,
)
from bdfl.transports.live.replay import ReplayDiffers, replay
from tests.live.memory_network import MemoryNetwork, running, wait_until
from tests.protocol.manual_network import ManualNetwork


def live(network, height, stores, folder, **options):
    """Lets a network of four run until all have so many blocks; the first of them writes its events down."""
    threads = [
        network.thread(number, store, folder=None if number else folder, **options)
        for number, store in enumerate(stores)
    ]
    with running(*threads):
        wait_until(lambda: all(thread.node.state.chain.height >= height for thread in threads))


def rewrite(path, change):
    """Writes a log anew, each entry as `change` has it; none: left out."""
    entries = [changed for entry in read_entries(path) if (changed := change(entry)) is not None]
    path.unlink()
    log = EventLog(path)
    for entry in entries:
        if isinstance(entry, LogHeader):
            log.begin(entry)
        else:
            log.append(entry.now_ns, entry.utc_ms, entry.event, entry.signatures)
    log.close()


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A network whose first member lived twice: to block 3 or so, and on to block 6."""
    folder = tmp_path_factory.mktemp("lived")
    network = MemoryNetwork(folder, noise=1.0)
    stores = [network.memory_store() for _ in range(4)]
    live(network, 3, stores, folder)
    live(network, 6, stores, folder)
    return network, stores[0], (folder / EVENTS_FILE).read_bytes()


@pytest.fixture
def log(lived, tmp_path):
    path = tmp_path / EVENTS_FILE
    path.write_bytes(lived[2])
    return path


def test_every_incarnation_gives_the_same_blocks(lived, log):
    result = replay(log, lived[1])
    assert result.number == 0
    assert result.num_blocks == lived[1].height >= 6
    assert result.not_recorded == ()
    first, second = result.incarnations
    assert first.first_height == 1
    assert first.last_height + 1 == second.first_height > 3
    assert second.last_height == lived[1].height
    assert all(one.is_whole and one.num_events > 10 for one in result.incarnations)
    assert all(one.num_signatures >= 4 for one in result.incarnations)  # an update, a report and votes a round


def test_what_private_training_spent_is_recorded_with_it(lived, log):
    store = lived[1]
    events = [entry.event for entry in read_entries(log) if isinstance(entry, LoggedStep)]
    spent = {event.height: event.epsilon_micro for event in events if isinstance(event, LoggedTraining)}
    assert spent
    for height in range(1, store.height + 1):
        for signed in store.block(height).body.updates:
            assert signed.update.epsilon_micro == 1000 * height  # all train in all rounds
            assert signed.update.client or spent[height] == 1000 * height


def test_blobs_are_named_and_not_written(lived, log):
    blobs = [entry.event for entry in read_entries(log) if isinstance(entry, LoggedStep)]
    given = [event for event in blobs if isinstance(event, LoggedBlob)]
    assert given
    assert all(event.data == b"" for event in given)
    assert lived[1].get_blob(given[0].blob) is not None
    trained = [event for event in blobs if isinstance(event, LoggedTraining)]
    assert lived[1].get_blob(trained[0].model) is not None


def test_a_vote_that_was_not_recorded_is_noticed(lived, log):
    """Without the others' votes the node decides nothing, and signs other things than it did."""

    def change(entry):
        is_votes = isinstance(entry, LoggedStep) and isinstance(entry.event, MessageArrived)
        if is_votes and isinstance(entry.event.message.content, Gossip) and entry.event.message.content.votes:
            return None
        return entry

    rewrite(log, change)
    with pytest.raises(ReplayDiffers):
        replay(log, lived[1])


def test_a_changed_signature_is_noticed(lived, log):
    def change(entry):
        if isinstance(entry, LoggedStep) and entry.signatures:
            return LoggedStep(entry.now_ns, entry.utc_ms, entry.event, (bytes(64), *entry.signatures[1:]))
        return entry

    rewrite(log, change)
    with pytest.raises(
        ReplayDiffers, match=r"event \d+ of the incarnation from block 0: another .* for height 1 is signed"
    ):
        replay(log, lived[1])


def test_the_chain_of_another_is_noticed(lived, log, tmp_path):
    other = MemoryNetwork(tmp_path / "other", count=5)
    with pytest.raises(BrokenLog, match="another chain"):
        replay(log, other.memory_store())


def test_a_tail_that_was_cut_off_anywhere_costs_no_more_than_itself(lived, log):
    whole = log.read_bytes()
    num_entries = len(list(read_entries(log)))
    for cut in (1, 5, 9, 200, 3000):
        log.write_bytes(whole[:-cut])
        assert num_entries - 40 <= len(list(read_entries(log))) < num_entries
        assert replay(log, lived[1]).num_blocks >= 3
    log.write_bytes(whole[:-5])
    event_log.EventLog(log).close()  # the next incarnation cuts it off
    left = log.stat().st_size
    assert sum(event_log._HEAD.size + len(data) for data, _ in event_log._read_frames(log)) == left


def test_a_damaged_entry_ends_the_log(lived, log):
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    entries = list(read_entries(log))
    assert isinstance(entries[0], LogHeader)
    assert replay(log, lived[1]).not_recorded


def test_what_is_no_log_is_refused(lived, tmp_path):
    path = tmp_path / EVENTS_FILE
    with pytest.raises(BrokenLog, match="No such file"):
        replay(path, lived[1])
    path.write_bytes(b"hello")
    with pytest.raises(BrokenLog, match="empty"):
        replay(path, lived[1])
    data = encode(ManualNetwork().nodes[0].message(Gossip(1)))
    path.write_bytes(event_log._HEAD.pack(len(data), event_log.zlib.crc32(data)) + data)
    with pytest.raises(BrokenLog, match="the log of a node expected"):
        replay(path, lived[1])


def test_a_log_that_is_full_goes_on_in_another_with_an_incarnation_of_its_own(tmp_path):
    network = MemoryNetwork(tmp_path)
    stores = [network.memory_store() for _ in range(4)]
    live(network, 4, stores, tmp_path, max_log_bytes=10_000)
    log = tmp_path / EVENTS_FILE
    assert former_log(log).exists()
    assert os.listdir(tmp_path).count(EVENTS_FILE) == 1
    assert isinstance(next(read_entries(log)), LogHeader)
    result = replay(log, stores[0])
    assert result.num_blocks >= 1
    assert result.num_blocks + len(result.not_recorded) == stores[0].height


def test_no_height_fills_the_disk_and_the_next_is_recorded_again(tmp_path):
    """A member that floods while no block comes; what is left of the height is not recorded, and nothing differs."""
    max_bytes = 40_000
    network = MemoryNetwork(tmp_path)
    threads = [
        network.thread(number, folder=None if number else tmp_path, max_log_bytes=max_bytes, last_height=3)
        for number in range(4)
    ]
    log, first = tmp_path / EVENTS_FILE, threads[0]
    first.start()
    wait_until(lambda: first.link.is_open)
    assert first.node.status().is_recording
    forged = SignedUpdate(ModelUpdate(1, 1, 1, bytes(32), 0), bytes(64))
    flood = Message(first.node.state.chain.chain, 1, 1, Gossip(1, updates=(forged,)))
    num_sent = 0
    while first.node.status().is_recording:
        first.node.receive(flood)
        num_sent += 1
        assert num_sent < 10_000
    wait_until(lambda: not first.node.status().num_waiting)
    first.node._flush_log()
    assert max_bytes < log.stat().st_size <= 2 * max_bytes
    with running(*threads[1:]):
        wait_until(lambda: all(thread.node.state.end for thread in threads))
        assert first.node.status().is_recording
        first.stop()
    assert former_log(log).stat().st_size <= 2 * max_bytes
    result = replay(log, first.store)
    assert result.not_recorded == (1,)
    assert result.num_blocks == 2


def test_an_incarnation_that_grew_too_long_is_left_out_to_its_end(tmp_path):
    """Also what would fit again: after a gap nothing could be played."""
    network = MemoryNetwork(tmp_path)
    store = network.memory_store()
    chain = network.thread(0, store).node.state.chain
    began = log_beginning(network.context(0), chain, read_recovered(store, chain))
    log = EventLog(tmp_path / EVENTS_FILE, max_bytes=2_000)
    log.begin(began)
    log.append(1, 1, LoggedBlob(1, bytes(32), bytes(4_000)), ())
    log.append(2, 1, TimerFired(Timer.RESEND, 1, 1), ())
    assert not log.is_writing
    assert log.is_full
    log.begin(began)
    log.append(3, 1, TimerFired(Timer.RESEND, 1, 1), ())
    assert log.is_writing
    log.close()
    assert list(read_entries(former_log(tmp_path / EVENTS_FILE))) == [began]
    assert list(read_entries(tmp_path / EVENTS_FILE)) == [began, LoggedStep(3, 1, TimerFired(Timer.RESEND, 1, 1), ())]


def test_a_disk_that_takes_no_more_ends_the_log_and_not_the_node(tmp_path):
    log = EventLog(tmp_path / "missing" / EVENTS_FILE)
    assert not log.is_writing
    log.append(1, 1, TimerFired(Timer.RESEND, 1, 1), ())
    log.flush()
    log.close()


def test_a_refused_blob_is_written_down_with_its_bytes(tmp_path):
    network = ManualNetwork()
    network.start()
    node = network.nodes[0]
    state = node.state
    blob = node.context.cache.digest(b"wrong")
    arrived = BlobArrived(1, b"wrong")
    refused = type("State", (), {"refused": frozenset({blob})})()
    assert log_event(arrived, refused, node.context.cache) == LoggedBlob(1, blob, b"wrong")
    assert log_event(arrived, state, node.context.cache) == LoggedBlob(1, blob, b"")


def test_an_incarnation_begins_with_what_the_store_held(tmp_path):
    network = MemoryNetwork(tmp_path)
    store = network.memory_store()
    context = network.context(2, last_height=9)
    chain = network.thread(2, store).node.state.chain
    began = log_beginning(context, chain, read_recovered(store, chain))
    assert (began.number, began.height, began.last_height) == (2, 0, 9)
    assert began.public_key == network.signers[2].public_key
    assert float.fromhex(began.time_scale) == context.timing.time_scale
