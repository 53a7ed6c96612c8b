"""Nodes that only look like some: their windows, folders and locks, over a chain that a test writes."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from bdfl.experiment.run_folder import CHAIN_FOLDER, SCENARIO_FILE
from bdfl.ledger.block import chain_id
from bdfl.localnet.processes import NetworkFile, access_point_folder, node_folder, write_network
from bdfl.node.http import NodeMetrics, serve_pages
from bdfl.node.run_file import RunFile, lock_folder, write_run
from bdfl.node.status import ServiceState, Snapshot
from bdfl.scenario import dump_scenario
from tests.browser.folders import NUM_CLIENTS, RunWriter, read_genesis


def make_snapshot(number: int, chain: str, height: int, state: ServiceState, reason: str) -> Snapshot:
    """A node that is mining, or finished."""
    return Snapshot(
        number=number, name=f"node {number}", chain=chain, version="0", pid=os.getpid(), up_s=60.0, incarnation=1,
        height=height, last_height=None, phase="done" if state is ServiceState.FINISHED else "mining", attempt=1,
        is_training=number % 2 == 0, is_mining=True,
        present=tuple(range(NUM_CLIENTS)), num_members=NUM_CLIENTS, queues={}, counters={}, refused={},
        last_block=None, accuracy=None, deadline_s=10.0, memory_bytes=1, num_threads=1, store_bytes=1,
        training_s=1.0, mining_s=1.0, state=state, reason=reason,
    )  # fmt: skip


class FakeNode:
    """The window of a node whose chain is written elsewhere; it can go away and come back at the same address."""

    def __init__(self, number: int, run: Path, height: Callable[[], int], folder: Path | None = None) -> None:
        self._run, self._folder = run, folder
        self._chain = chain_id(read_genesis(run)).hex()
        self._number, self._height = number, height
        self._open = ExitStack()
        self._port = 0
        self.address = ""
        self.state, self.reason = ServiceState.WORKING, "all votes can be reached"

    def come(self) -> None:
        """Begins to answer."""
        metrics = NodeMetrics(lambda: make_snapshot(self._number, self._chain, self._height(), self.state, self.reason))
        window = self._open.enter_context(serve_pages(("127.0.0.1", self._port), metrics, self._run / CHAIN_FOLDER))
        assert window is not None
        self._port, self.address = window.port, window.address
        if self._folder is not None:
            self._open.enter_context(_working_in(self._folder, self._chain, self._number, window.address))

    def go(self) -> None:
        """Is heard of no more."""
        self._open.close()

    def __enter__(self) -> Self:
        self.come()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go()


@contextmanager
def _working_in(folder: Path, chain: str, number: int | None, metrics: str | None) -> Iterator[None]:
    """A process, this one, seems to work in a folder."""
    kind = "access point" if number is None else "node"
    with lock_folder(folder):
        told = RunFile(
            kind=kind, pid=os.getpid(), started=0.0, version="0", chain=chain, number=number, metrics=metrics
        )
        write_run(folder, told)
        yield


@contextmanager
def fake_network(folder: Path) -> Iterator[tuple[RunWriter, list[FakeNode]]]:
    """The folder of a network under way: node 0 has the chain, all have windows, and there is one access point."""
    folder.mkdir(parents=True)
    with ExitStack() as running:
        writer = running.enter_context(RunWriter(folder / "written"))
        writer.write_round()
        chain = chain_id(read_genesis(writer.path)).hex()
        for number in range(NUM_CLIENTS):
            node_folder(folder, number).mkdir()
        (node_folder(folder, 0) / CHAIN_FOLDER).symlink_to(writer.path / CHAIN_FOLDER)
        (folder / SCENARIO_FILE).write_text(dump_scenario(writer.scenario), encoding="utf-8")
        running.enter_context(_working_in(access_point_folder(folder, 0), chain, None, None))
        network = NetworkFile(
            scenario=writer.scenario.name, chain=chain, num_nodes=NUM_CLIENTS, num_access_points=1, blocks=12,
            pid=os.getpid(),
        )  # fmt: skip
        write_network(folder, network)
        running.enter_context(lock_folder(folder))
        nodes = [
            running.enter_context(FakeNode(number, writer.path, lambda: writer.height, node_folder(folder, number)))
            for number in range(NUM_CLIENTS)
        ]
        yield writer, nodes
