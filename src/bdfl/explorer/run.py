"""Opening of a path or an address: a run, a chain, a node, a network, a record, the status server of a live node."""

import time
from pathlib import Path
from typing import TypeAlias

from bdfl.errors import BdflError, one_line
from bdfl.explorer import CannotOpen
from bdfl.explorer.block_source import NetworkSource, NodeSource, StoreSource
from bdfl.explorer.chain_run import ChainRun, RunFiles
from bdfl.explorer.follower import Journal, MeasuredTimes, NodeLogs
from bdfl.explorer.node_status import poll_folders, poll_node
from bdfl.explorer.record_run import RecordRun, read_scenario
from bdfl.explorer.worker_client import WorkerClient
from bdfl.ledger.blob_store import LOCK_FILE as CHAIN_LOCK
from bdfl.ledger.sqlite_store import DATABASE_FILE
from bdfl.localnet.processes import NETWORK_FILE, access_point_folder, node_folder, read_network
from bdfl.node.run_file import is_locked
from bdfl.records.learning import CHAIN_FOLDER, FINAL_MODEL, JOURNAL_FILE, SCENARIO_FILE
from bdfl.storage import is_lock_held

RECORD_FILE = "rounds.parquet"
_FRESH_S = 30.0
_EXPECTED = "the folder of a run, a chain, a node, a network or a record expected"

Run: TypeAlias = ChainRun | RecordRun  # all methods are thread-safe


def open_path(path: Path, worker: WorkerClient) -> Run:
    """Open the run at a path; raise `CannotOpen`."""
    if not path.is_dir():
        raise CannotOpen(f"{path}: {'no folder' if path.exists() else 'not there'}, {_EXPECTED}")
    try:
        if (path / NETWORK_FILE).is_file():
            return _open_network(path)
        if (path / DATABASE_FILE).is_file():
            return ChainRun("chain", StoreSource(path), RunFiles(is_worked_on=lambda: is_lock_held(path / CHAIN_LOCK)))
        if (path / CHAIN_FOLDER / DATABASE_FILE).is_file():
            is_run = (path / SCENARIO_FILE).is_file()
            return _open_run(path) if is_run else _open_node_folder(path)
        if (path / RECORD_FILE).is_file():
            return RecordRun(path, worker)
    except BdflError as error:
        raise CannotOpen(one_line(error)) from None
    raise CannotOpen(f"{path}: {_EXPECTED}")


def open_node(address: str) -> ChainRun:
    """Open the chain of the node with a status server at host:port; raise `CannotOpen`."""
    try:
        source = NodeSource(address)
    except BdflError as error:
        raise CannotOpen(one_line(error)) from None
    watcher = poll_node(address)
    around = RunFiles(watcher=watcher, is_worked_on=lambda: any(one.is_online for one in watcher.status().nodes))
    return ChainRun("node", source, around)


def _open_run(path: Path) -> ChainRun:
    scenario, problem = read_scenario(path / SCENARIO_FILE, shown_as=SCENARIO_FILE)
    around = RunFiles(
        folder=path,
        scenario=scenario,
        planned_rounds=None if scenario is None else scenario.rounds,
        journal=Journal(path / JOURNAL_FILE),
        is_worked_on=lambda: is_locked(path) or _is_fresh(path),
        problem=problem,
    )
    return ChainRun("run", StoreSource(path / CHAIN_FOLDER), around)


def _open_node_folder(path: Path) -> ChainRun:
    watcher = poll_folders([path], [])
    around = RunFiles(
        folder=path,
        logs=NodeLogs([path]),
        times=MeasuredTimes([path]),
        watcher=watcher,
        is_worked_on=lambda: is_locked(path),
    )
    return ChainRun("node", StoreSource(path / CHAIN_FOLDER), around)


def _open_network(path: Path) -> ChainRun:
    network = read_network(path)
    nodes = [node_folder(path, number) for number in range(network.num_nodes)]
    points = [access_point_folder(path, number) for number in range(network.num_access_points)]
    scenario, problem = read_scenario(path / SCENARIO_FILE, shown_as=SCENARIO_FILE)
    around = RunFiles(
        folder=path,
        scenario=scenario,
        planned_rounds=network.blocks,
        logs=NodeLogs(nodes),
        times=MeasuredTimes(nodes),
        watcher=poll_folders(nodes, points),
        is_worked_on=lambda: is_locked(path),
        problem=problem,
    )
    return ChainRun("network", NetworkSource([node / CHAIN_FOLDER for node in nodes]), around)


def _is_fresh(path: Path) -> bool:
    """Return whether an unfinished run was written to recently."""
    try:
        age_s = time.time() - (path / JOURNAL_FILE).stat().st_mtime
    except OSError:
        return False
    return age_s < _FRESH_S and not (path / FINAL_MODEL).exists()
