"""Fault points: a store fails, or its process ends, at the very write that was named."""

import pytest

from bdfl.ledger.store import MemoryStore, NotKept
from benchmarks.ledger.sample_chain import sample_chain, sample_vote
from campaigns.live_faults.failing_store import (
    BadFaultPoint,
    FailingStore,
    FaultKind,
    FaultPoint,
    read_fault_point,
    with_fault_point,
)

CHAIN = sample_chain(3, num_members=2)


def fill(store, num_blocks=3):
    for stage in CHAIN.stages[:num_blocks]:
        for blob, data in stage.blobs.items():
            store.put_blob(blob, data)
        store.append(stage.block, stage.certificate)


def failing(point, kind):
    store, killed = MemoryStore(CHAIN.genesis, CHAIN.initial_model), []
    return store, FailingStore(store, FaultPoint(*point, kind), kill=lambda: killed.append(store.height)), killed


def test_the_disk_is_full_from_a_write_on():
    store, faulty, killed = failing(("append", 2), FaultKind.FULL)
    with pytest.raises(NotKept, match="append: No space left on device"):
        fill(faulty)
    assert store.height == faulty.height == 1
    with pytest.raises(NotKept, match="put_vote: No space left on device"):
        faulty.put_statement(2, sample_vote(2, 1, bytes(32), 0))
    assert killed == []


def test_a_process_is_killed_when_the_write_begins():
    store, faulty, killed = failing(("append", 2), FaultKind.KILL)
    fill(faulty)
    assert killed[0] == 1
    assert store.height == 3


def test_in_a_batch_the_writing_begins_at_the_end():
    _, faulty, killed = failing(("put_blob", 1), FaultKind.KILL)
    with faulty.batch():
        fill(faulty, 1)
        assert killed == []
    assert killed == [1]
    _, faulty, killed = failing(("batch", 2), FaultKind.KILL)
    for _ in range(2):
        assert killed == []
        with faulty.batch():
            pass
    assert killed == [0]


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("append:3", FaultPoint("append", 3)),
        ("put_blob:5:full", FaultPoint("put_blob", 5, FaultKind.FULL)),
        ("batch:1:read-only", FaultPoint("batch", 1, FaultKind.READ_ONLY)),
    ],
)
def test_a_fault_point_is_read_as_it_is_written(text, point):
    assert read_fault_point(text) == point


@pytest.mark.parametrize("text", ["", "append", "append:", "append:0", "append:x", "sing:1", "append:1:fire"])
def test_no_other_fault_point_is_taken(text):
    with pytest.raises(BadFaultPoint, match="expected"):
        read_fault_point(text)


def test_without_a_fault_point_the_store_stays_as_it_is():
    store = MemoryStore(CHAIN.genesis, CHAIN.initial_model)
    assert with_fault_point(store, {}) is store
    assert isinstance(with_fault_point(store, {"BDFL_FAULT": "append:1"}), FailingStore)
