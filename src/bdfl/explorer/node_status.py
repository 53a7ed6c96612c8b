"""Current status of the nodes and access points behind a chain."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bdfl.explorer.documents import AccessPointStatus, NodeStatus, Status
from bdfl.node.status import ServiceState, Snapshot, query_status, read_status

_EVERY_S = 1.0
_PATIENCE_S = 0.5
_SIDE_BY_SIDE = 8


class StatusPoller:
    """Poller of the status of processes, at most once a second."""

    def __init__(self, ask: Callable[[], Status]) -> None:
        self._ask = ask
        self._asked_s = float("-inf")
        self._status: Status | None = None

    def status(self) -> Status:
        now_s = time.monotonic()
        if self._status is None or now_s - self._asked_s >= _EVERY_S:
            self._status = self._ask()
            self._asked_s = time.monotonic()
        return self._status


def poll_folders(nodes: Sequence[Path], access_points: Sequence[Path]) -> StatusPoller:
    """Return a watcher of the processes that work in these folders."""

    def ask() -> Status:
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="look") as pool:  # a frozen node delays no other
            views = list(pool.map(lambda folder: read_status(folder, _PATIENCE_S), nodes))
        points = [read_status(folder, _PATIENCE_S) for folder in access_points]
        return _conclude(
            [
                _offline(number, view.state, view.reason) if view.snapshot is None else _of_snapshot(view.snapshot)
                for number, view in enumerate(views)
            ],
            [AccessPointStatus(name=Path(view.folder).name, is_online=view.is_up) for view in points],
        )

    return StatusPoller(ask)


def poll_node(address: str) -> StatusPoller:
    """Return a watcher of the node with a status server at this address."""
    number = 0

    def ask() -> Status:
        nonlocal number
        snapshot = query_status(address, _PATIENCE_S)
        if snapshot is None:
            return _conclude([_offline(number, None, "does not answer")], [])
        number = snapshot.number
        return _conclude([_of_snapshot(snapshot)], [])

    return StatusPoller(ask)


def _conclude(nodes: list[NodeStatus], access_points: list[AccessPointStatus]) -> Status:
    heights = [node.height for node in nodes if node.height is not None]
    height = max(heights, default=0)
    phases = [node.phase for node in nodes if node.phase is not None and node.height == height]
    return Status(
        nodes=nodes,
        access_points=access_points,
        phase=phases[0] if phases else None,
        round=height + 1 if heights else 0,
    )


def _of_snapshot(snapshot: Snapshot) -> NodeStatus:
    last = snapshot.last_block
    return NodeStatus(
        number=snapshot.number,
        name=f"client {snapshot.number}",
        is_online=True,
        height=snapshot.height,
        phase=snapshot.phase,
        attempt=snapshot.attempt,
        is_training=snapshot.is_training,
        is_mining=snapshot.is_mining,
        age_s=None if last is None or last.age_s is None else round(last.age_s, 1),
        state=snapshot.state,
        reason=snapshot.reason,
    )


def _offline(number: int, state: ServiceState | None, reason: str) -> NodeStatus:
    return NodeStatus(number=number, name=f"client {number}", is_online=False, state=state, reason=reason)
