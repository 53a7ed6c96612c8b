"""Stores that go on where another one is: the past is the other's, what comes is their own."""

import pytest

from bdfl.ledger.store import MemoryStore, MisplacedBlock, OverlayStore
from benchmarks.ledger.sample_chain import sample_chain


@pytest.fixture
def chain():
    return sample_chain(4)


def put(store, stage):
    for blob, data in stage.blobs.items():
        store.put_blob(blob, data)
    store.append(stage.block, stage.certificate)


@pytest.fixture
def past(chain):
    store = MemoryStore(chain.genesis, chain.initial_model)
    for stage in chain.stages[:3]:
        put(store, stage)
    return store


@pytest.mark.parametrize("height", [0, 1, 2, 3])
def test_it_begins_after_any_block_of_the_past_and_goes_on_alone(chain, past, height):
    store = OverlayStore(past, height)
    assert store.height == height
    assert list(store.blocks()) == [stage.block for stage in chain.stages[:height]]
    for stage in chain.stages[height:]:
        put(store, stage)
    assert [stage.block for stage in chain.stages] == list(store.blocks())
    assert [store.certificate(place) for place in range(1, 5)] == [stage.certificate for stage in chain.stages]
    assert past.height == 3


def test_blobs_of_the_past_are_there(chain, past):
    store = OverlayStore(past, 1)
    for stage in chain.stages[:3]:
        for blob, data in stage.blobs.items():
            assert store.has_blob(blob)
            assert store.get_blob(blob) == data
    assert store.get_blob(bytes(32)) is None


def test_what_was_pruned_is_read_from_the_past(chain, past):
    store = OverlayStore(past, 1)
    for stage in chain.stages[1:]:
        put(store, stage)
        store.prune(1)
    old = next(iter(chain.stages[1].blobs))
    assert store.get_blob(old) == chain.stages[1].blobs[old]


def test_a_block_that_is_not_the_next_is_refused(chain, past):
    store = OverlayStore(past, 1)
    with pytest.raises(MisplacedBlock):
        put(store, chain.stages[2])
    with pytest.raises(MisplacedBlock, match="a chain of 3 blocks"):
        OverlayStore(past, 4)
