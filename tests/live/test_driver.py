"""Live nodes on a real clock: they agree, and they stop and begin again without losing what they said."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bdfl.ledger.store import NotKept
from bdfl.ledger.verify import verify_chain
from bdfl.protocol.events import Commit
from bdfl.protocol.messages import Hearsay
from bdfl.transports.interfaces import LiveObserver, recover
from bdfl.transports.live.event_log import EVENTS_FILE, read_entries
from bdfl.transports.live.replay import replay
from campaigns.live_faults.failing_store import FailingStore, FaultKind, FaultPoint
from tests.live.village import Village, running, wait_until

ROOT = Path(__file__).parents[2]


def blocks_of(store):
    return list(store.blocks())


def end_of(*houses):
    """Whether these are done."""
    return lambda: all(house.node.status().end for house in houses)


def height_of(house):
    return house.node.status().height


def votes_said(link, number):
    """A member's own votes that went out, by height."""
    said = {}
    for _, message in link.sent:
        if isinstance(message.content, Hearsay):
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
    village = Village(tmp_path, num_parameters=num_parameters)
    houses = [
        village.house(number, village.open_store(number), last_height=4, num_threads=num_threads) for number in range(4)
    ]
    with running(*houses):
        wait_until(end_of(*houses))
    assert [house.error for house in houses] == [None] * 4
    chains = [blocks_of(house.store) for house in houses]
    assert len(chains[0]) == 4
    assert chains[1:] == chains[:1] * 3
    assert all(len(block.body.updates) == 4 for block in chains[0])
    for house in houses:
        assert verify_chain(house.store).height == 4
        assert house.node.status().num_dropped == 0
        assert house.node.status().last_commit_ns is not None
        assert sum(house.node.status().proposers.values()) == 4
        assert house.link.members == [[signer.public_key for signer in village.signers]]
        assert house.link.num_forgotten == 4
        assert house.work.is_over.is_set()
        house.store.close()


def test_wall_clocks_before_the_genesis_that_go_back_all_the_time_halt_nobody(tmp_path, monkeypatch):
    readings = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(readings)))
    village = Village(tmp_path)
    houses = [village.house(number, last_height=2) for number in range(4)]
    with running(*houses):
        wait_until(end_of(*houses))
    assert len({house.store.block(2).digest for house in houses}) == 1
    assert houses[0].store.block(2).header.time_ms > village.genesis.time_ms


def test_a_node_whose_clock_is_a_day_ahead_is_told_so_and_the_others_are_not(tmp_path, monkeypatch):
    village, right, day_ms = Village(tmp_path), time.time, 24 * 3600 * 1000
    houses = [village.house(number, last_height=3) for number in range(4)]
    wrong = houses[3]
    assert wrong.node.status().clock_offset_ms is None
    monkeypatch.setattr(
        time, "time", lambda: right() + (day_ms / 1000 if threading.current_thread() is wrong._thread else 0)
    )
    with running(*houses):
        wait_until(end_of(*houses))
    assert all(abs(time.time() - block.header.time_ms / 1000) < 3600 for block in blocks_of(houses[0].store))
    assert wrong.node.status().clock_offset_ms == pytest.approx(day_ms, abs=60_000)
    assert all(house.node.status().clock_offset_ms in (0, None) for house in houses[:3])


def test_the_rest_go_on_without_a_member(tmp_path):
    village = Village(tmp_path)
    houses = [village.house(number, last_height=2) for number in range(3)]
    with running(*houses):
        wait_until(end_of(*houses))
    blocks = blocks_of(houses[0].store)
    assert [len(block.body.updates) for block in blocks] == [3, 3]
    assert blocks_of(houses[1].store) == blocks


def test_who_was_away_longer_than_updates_are_kept_comes_back(tmp_path):
    """It says what it took on trust, also after a restart, and its recorded life can be played again."""
    village = Village(tmp_path)
    options = {"keep_blocks": 2}
    others = [village.house(number, village.open_store(number), **options) for number in range(3)]
    first = village.house(3, village.open_store(3), **options)
    with running(*others):
        with running(first):
            wait_until(lambda: height_of(first) >= 1)
        first.store.close()
        left = height_of(first)
        wait_until(lambda: others[0].store.checkpoint >= left + 2)
        second = village.house(3, village.open_store(3), folder=tmp_path, **options)
        assert second.node.status().num_trusted == 0
        with running(second):
            wait_until(lambda: second.store.checkpoint > left and height_of(second) >= max(map(height_of, others)))
            wait_until(lambda: any(height > left for height in votes_said(second.link, 3)))
    assert [house.error for house in (*others, first, second)] == [None] * 5
    trusted = second.store.trusted
    assert trusted[0] == left + 1
    assert second.node.status().num_trusted == len(trusted)
    found = verify_chain(second.store)
    assert found.is_valid, found.failure
    assert found.trusted == [height for height in trusted if not second.store.block(height).body.is_empty]
    validate_votes(votes_said(first.link, 3), votes_said(second.link, 3))
    began = next(read_entries(tmp_path / EVENTS_FILE))
    if all(map(second.store.has_blob, began.blobs)):  # else what it began with is pruned by now
        assert replay(tmp_path / EVENTS_FILE, second.store).lives[0].first_height == left + 1
    second.store.close()
    with village.open_store(3) as store:
        assert store.trusted == trusted
        assert village.house(3, store, **options).node.status().num_trusted == len(trusted)
    for house in others:
        house.store.close()


def test_a_node_that_was_stopped_goes_on_where_it_was(tmp_path):
    village = Village(tmp_path)
    others = [village.house(number, last_height=7) for number in range(3)]
    first = village.house(3, village.open_store(3), last_height=7)
    with running(*others):
        first.start()
        wait_until(lambda: height_of(first) >= 2)
        first.stop()
        tip, height = first.node.status().tip, height_of(first)
        first.store.close()
        store = village.open_store(3)
        assert (store.height, store.block(height).digest) == (height, tip)
        again = village.house(3, store, last_height=7)
        assert again.node.status().tip == tip
        with running(again):
            wait_until(end_of(again, *others))
    assert first.error is None
    assert blocks_of(store) == blocks_of(others[0].store)
    validate_votes(votes_said(first.link, 3), votes_said(again.link, 3))
    store.close()


@pytest.mark.parametrize("kind", [FaultKind.FULL, FaultKind.READ_ONLY])
@pytest.mark.parametrize("point", ["put_vote", "append", "put_blob"])
def test_a_node_whose_disk_fails_stops_with_the_reason_and_says_nothing_more(tmp_path, kind, point):
    village = Village(tmp_path)
    others = [village.house(number, last_height=4) for number in range(3)]
    disk = village.open_store(3)
    failing = village.house(3, FailingStore(disk, FaultPoint(point, 3, kind)), last_height=4)
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
        store = village.open_store(3)
        again = village.house(3, store, last_height=4)
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
    village = Village(tmp_path)
    stores = [village.open_store(number) for number in range(4)]
    for number, height, vote in said:
        assert vote in [kept.signature.hex() for kept in stores[int(number)].read_round(int(height)).votes]
    recovered = [recover(village.context(number), store) for number, store in enumerate(stores)]
    assert [state.chain.height for state in recovered] == [store.height for store in stores]
    houses = [village.house(number, store, last_height=4) for number, store in enumerate(stores)]
    with running(*houses):
        wait_until(end_of(*houses))
    assert len({tuple(block.digest for block in store.blocks()) for store in stores}) == 1
    for store in stores:
        store.close()


_NETWORK = """
import os
import sys
from bdfl.protocol.messages import Hearsay
from campaigns.live_faults.failing_store import with_fault_point
from tests.live.village import MemoryLink, Village, running, wait_until

send = MemoryLink.send

def telling_send(self, to, message):
    if isinstance(message.content, Hearsay):
        for vote in message.content.votes:
            if vote.vote.voter == self.number:
                os.write(1, f"{self.number} {message.height} {vote.signature.hex()}\\n".encode())
    send(self, to, message)

MemoryLink.send = telling_send
village = Village(sys.argv[1])
stores = [village.open_store(number) for number in range(4)]
stores[1] = with_fault_point(stores[1], {"BDFL_FAULT": sys.argv[2]})
houses = [village.house(number, store, last_height=30) for number, store in enumerate(stores)]
with running(*houses):
    wait_until(lambda: all(house.node.status().end for house in houses))
"""


class _Diary(LiveObserver):
    def __init__(self):
        self.stepped_events, self.effects, self.blocks, self.refusals = [], [], [], []

    def stepped(self, now_ns, before, event, after, effects):
        self.stepped_events.append((now_ns, event))

    def did(self, effect):
        self.effects.append(effect)

    def committed(self, block, certificate, chain):
        self.blocks.append((block, chain.height))

    def refused(self, sender, reason):
        self.refusals.append((sender, reason))


def test_an_observer_hears_of_everything(tmp_path):
    village = Village(tmp_path)
    diary = _Diary()
    houses = [village.house(number, last_height=2, observer=diary if number == 0 else None) for number in range(4)]
    with running(*houses):
        wait_until(end_of(*houses))
        wait_until(lambda: len(diary.blocks) == 2)
        houses[0].node.refuse(3, "too large: 9 bytes")
    times = [now_ns for now_ns, _ in diary.stepped_events]
    assert times == sorted(times)
    assert [block for block, _ in diary.blocks] == blocks_of(houses[0].store)
    assert sum(isinstance(effect, Commit) for effect in diary.effects) == 2
    assert diary.refusals[-1] == (3, "too large: 9 bytes")
    assert houses[0].node.status().refused["too"] == 1


def test_a_blob_that_nobody_asked_for_is_dropped(tmp_path):
    village = Village(tmp_path)
    house = village.house(0)
    with running(house):
        wait_until(lambda: house.link.is_open)
        house.node.receive_blob(1, b"x" * 100)
        wait_until(lambda: house.node.status().refused.get("blob") == 1)


def test_blobs_are_fetched_from_all_who_tell_of_them(tmp_path):
    """The one who trained it serves nothing here; who repeats its update is asked as well."""
    village = Village(tmp_path)
    houses = [village.house(number, last_height=1) for number in range(4)]
    houses[0].node.offer = lambda to, blob: None if to == 3 else type(houses[0].node).offer(houses[0].node, to, blob)
    with running(*houses):
        wait_until(end_of(*houses))
    model = next(update.update.model for update in houses[3].store.block(1).body.updates if update.update.client == 0)
    asked = [holders for blob, _, holders in houses[3].link.fetches if blob == model]
    assert set(sum(asked, ())) - {0}


def test_a_full_log_is_begun_anew_and_the_node_goes_on(tmp_path):
    village = Village(tmp_path)
    houses = [
        village.house(number, last_height=4, folder=tmp_path if number == 0 else None, max_log_bytes=2000)
        for number in range(4)
    ]
    with running(*houses):
        wait_until(end_of(*houses))
        assert houses[0].node.status().is_recording
    assert (tmp_path / "events.log.1").exists()
    assert blocks_of(houses[0].store) == blocks_of(houses[1].store)


def test_a_node_that_is_told_of_a_failure_ends_with_the_first(tmp_path):
    house = Village(tmp_path).house(0)
    house.start()
    wait_until(lambda: house.link.is_open)
    house.node.fail(ValueError("deaf"))
    house.node.fail(ValueError("mute"))
    house.wait()
    assert str(house.error) == "deaf"
    assert house.node.status().stopped_by == "deaf"


def test_a_node_may_stop_when_all_is_done(tmp_path):
    village = Village(tmp_path)
    houses = [village.house(number, last_height=1) for number in range(3)]
    last = village.house(3, last_height=1, stops_when_done=True)
    with running(*houses):
        last.start()
        last.wait()
    assert last.error is None
    assert last.store.height == 1
