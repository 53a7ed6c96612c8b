"""Chains of networks, nodes and windows: what is online, what was measured, and what goes away and comes back."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bdfl.encoding import encode
from bdfl.explorer import CannotOpen
from bdfl.explorer.documents import BackEvent, BlockEvent, GoneEvent, StatusEvent
from bdfl.explorer.library import open_library
from bdfl.ledger.block import chain_id
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.processes import NetworkFile, node_folder, write_network
from bdfl.node.http import Page, StatusServer
from bdfl.node.log import NodeLog
from bdfl.node.status import ServiceState, Snapshot
from bdfl.records.files import ModelledRound, RoundTimes
from tests.browser.folders import RunWriter, example_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunWriter(tmp_path_factory.mktemp("live") / "run").finish()


def snapshot(store: ChainStore, height: int) -> Snapshot:
    return Snapshot(
        number=2, name="example", chain=chain_id(store.genesis).hex(), version="0", pid=1, up_s=1.0, incarnation=1,
        height=height, last_height=None, phase="mining", attempt=1, is_training=False, is_mining=True, present=(0, 1),
        num_members=5, queues={}, counters={}, refused={}, last_block=None, accuracy=None, deadline_s=1.0,
        memory_bytes=1, num_threads=1, store_bytes=1, training_s=0.0, mining_s=0.0,
        state=ServiceState.WAITING, reason="2 of 5 votes can be reached",
    )  # fmt: skip


class FakeNode:
    """The window of a node whose chain is that of a finished run, up to some height."""

    def __init__(self, store: ChainStore, height: int) -> None:
        self.store = store
        self.height = height
        self.forge: Callable[[bytes], bytes] = lambda data: data

    def pages(self) -> dict[str, Callable[[], Page]]:
        pages: dict[str, Callable[[], Page]] = {
            "/status.json": lambda: Page(msgspec.json.encode(snapshot(self.store, self.height))),
            "/chain/genesis": lambda: Page(encode(self.store.genesis), "application/octet-stream"),
        }
        for height in range(1, self.store.height + 1):
            pages[f"/chain/blocks/{height}"] = lambda height=height: self._block(height)  # type: ignore[misc]
        return pages

    def _block(self, height: int) -> Page:
        if height > self.height:
            return Page(b"not here\n", "text/plain", HTTPStatus.NOT_FOUND)
        block, certificate = self.store.raw_block(height)
        return Page(msgspec.msgpack.encode([self.forge(block), certificate]), "application/octet-stream")


@contextmanager
def open_window(node: FakeNode, port: int = 0) -> Iterator[StatusServer]:
    window = StatusServer(node.pages(), port=port)
    try:
        yield window
    finally:
        window.close()


def test_a_node_behind_a_window_grows_goes_away_and_comes_back(run: Path) -> None:
    with ChainStore.open(run / "chain", read_only=True) as store:
        node = FakeNode(store, 3)
        with open_window(node) as window, open_library([], window.address) as library:
            overview = library.overview(0)
            assert (overview.kind, overview.height, overview.is_live) == ("node", 3, True)
            assert overview.problems == []
            assert overview.status is not None
            assert overview.status.nodes[0].is_mining
            assert overview.status.nodes[0].state == "waiting"
            assert overview.status.nodes[0].reason == "2 of 5 votes can be reached"
            library.poll(0)
            node.height = 5
            assert [one.rounds.round for one in library.poll(0) if isinstance(one, BlockEvent)] == [[4], [5]]
            assert library.block(0, 5).digest == store.block(5).digest.hex()
            window.close()
            assert GoneEvent in [type(one) for one in library.poll(0)]
            assert not library.overview(0).is_live
            assert library.rounds(0).num_rounds == 5
            with open_window(node, window.port):
                assert BackEvent in [type(one) for one in library.poll(0)]
            window.close = lambda: None  # type: ignore[method-assign]


def test_a_forged_block_from_afar_is_broken(run: Path) -> None:
    def forge(data: bytes) -> bytes:
        return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]

    with ChainStore.open(run / "chain", read_only=True) as store:
        node = FakeNode(store, 2)
        node.forge = forge
        with open_window(node) as window, open_library([], window.address) as library:
            assert [problem.height for problem in library.overview(0).problems] == [1, 2]


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:1"])
def test_an_address_without_a_node_is_one_line(address: str) -> None:
    with pytest.raises(CannotOpen), open_library([], address):
        pass


@pytest.fixture
def network(run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "network"
    path.mkdir()
    shutil.copy(run / "scenario.toml", path)
    for number in range(2):
        node_folder(path, number).mkdir()
        shutil.copytree(run / "chain", node_folder(path, number) / "chain")
    write_network(path, NetworkFile(scenario="example", chain="", num_nodes=5, num_access_points=1, blocks=20))
    return path


def test_a_network_that_is_over_has_its_chain_and_nobody_online(network: Path) -> None:
    with open_library([network]) as library:
        overview = library.overview(0)
        assert (overview.kind, overview.height, overview.planned_rounds) == ("network", 12, 20)
        assert not overview.is_live
        assert overview.status is not None
        assert [node.is_online for node in overview.status.nodes] == [False] * 5
        assert [node.state for node in overview.status.nodes] == ["stopped"] * 5
        assert [point.is_online for point in overview.status.access_points] == [False]
        news = library.poll(0)
        assert [type(one) for one in news] == [StatusEvent]
        assert library.poll(0) == []


def test_rounds_took_what_a_node_measured(network: Path) -> None:
    nothing = ModelledRound(0, 0, 0, 0, 0, 0)
    times = RoundTimes(
        node=0, round=2, attempt=1, num_updates=2, is_whole=True, time_scale=1.0, modelled=nothing, training_ns=None,
        computing_ns=0, hashing_ns=0, upload_ns={}, exchange_ns=4 * 10**9, mining_ns=10**9, voting_ns=5 * 10**8,
        delay_ns=55 * 10**8,
    )  # fmt: skip
    line = msgspec.json.encode(times) + b"\n"
    (node_folder(network, 0) / "rounds.jsonl").write_bytes(b"nonsense\n" + line + line[:20])
    NodeLog(node_folder(network, 1) / "node.log").info("accuracy", {"height": 3, "accuracy": 0.5})
    with open_library([network]) as library:
        rounds = library.rounds(0)
        assert rounds.delay_s[1] == 5.5
        assert rounds.training_s[1] + rounds.upload_s[1] == pytest.approx(4.0, rel=1e-5)  # type: ignore[operator]
        assert (rounds.mining_s[1], rounds.rest_s[1]) == (1.0, 0.5)
        assert rounds.time_s[2] == pytest.approx(sum(rounds.delay_s[:3]), rel=1e-5)  # type: ignore[arg-type]
        assert rounds.accuracy[2] == 0.5
        assert library.overview(0).summary.accuracy == 0.5


def test_models_are_as_good_as_a_nodes_log_says_and_a_loss_that_it_does_not_say_is_unknown(network: Path) -> None:
    log = NodeLog(node_folder(network, 0) / "node.log")
    for height, accuracy, loss in ((3, 0.5, 1.25), (4, 0.625, 1.0), (5, 0.75, float("nan"))):
        log.info("accuracy", {"height": height, "accuracy": accuracy, "loss": loss})
    with open_library([network]) as library:
        rounds, summary = library.rounds(0), library.overview(0).summary
        assert rounds.accuracy[2:5] == [0.5, 0.625, 0.75]
        np.testing.assert_array_equal(rounds.loss[2:5], [1.25, 1.0, np.nan])
        assert (summary.best_round, summary.accuracy) == (4, 0.75)


def test_a_node_folder_is_a_node(network: Path) -> None:
    with open_library([node_folder(network, 1)]) as library:
        overview = library.overview(0)
        assert (overview.kind, overview.height) == ("node", 12)
        assert overview.name == example_scenario().name
