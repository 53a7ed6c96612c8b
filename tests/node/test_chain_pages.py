"""A node's chain on its window: the stored bytes, while the node writes, and nothing else."""

import msgspec
import pytest

from bdfl.encoding import encode
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.node.http import ChainPages, NodeMetrics, serve_pages
from benchmarks.ledger.sample_chain import sample_chain
from tests.node.test_http import SNAPSHOT, ask

CHAIN = sample_chain(3, num_members=3)


def append(store, stage):
    for blob, data in stage.blobs.items():
        store.put_blob(blob, data)
    store.append(stage.block, stage.certificate)


@pytest.fixture
def opened(tmp_path):
    path = tmp_path / "chain"
    with ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        append(store, CHAIN.stages[0])
        with serve_pages(("127.0.0.1", 0), NodeMetrics(lambda: SNAPSHOT), path) as window:
            yield window, store


def test_genesis_and_blocks_are_the_stored_bytes(opened):
    window, store = opened
    assert ask(window, "/chain/genesis") == (200, encode(CHAIN.genesis))
    status, content = ask(window, "/chain/blocks/1")
    assert status == 200
    assert tuple(msgspec.msgpack.decode(content)) == store.raw_block(1)


def test_blocks_that_the_node_adds_are_there_at_once(opened):
    window, store = opened
    assert ask(window, "/chain/blocks/2")[0] == 404
    append(store, CHAIN.stages[1])
    status, content = ask(window, "/chain/blocks/2")
    assert status == 200
    assert msgspec.msgpack.decode(content)[0] == encode(CHAIN.stages[1].block)


@pytest.mark.parametrize(
    "path",
    [
        "/chain/blocks/0", "/chain/blocks/99", "/chain/blocks/", "/chain/blocks/-1", "/chain/blocks/x",
        "/chain/blocks/1/", "/chain/blocks/../genesis", "/chain/blocks/" + "9" * 5000, "/chain/blocks/%31",
        "/chain/", "/chain/chain.sqlite", "/chain/blocks/1.0",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(opened, path):
    window, _ = opened
    assert ask(window, path)[0] == 404


def test_foreign_names_and_other_methods_are_refused(opened):
    window, _ = opened
    assert ask(window, "/chain/blocks/1", host="example.org")[0] == 403
    assert ask(window, "/chain/genesis", method="POST")[0] == 405


def test_a_chain_that_cannot_be_read_is_said(tmp_path):
    assert ChainPages(tmp_path / "none").block(1).status == 503
    assert ChainPages(tmp_path / "none").genesis().status == 503
