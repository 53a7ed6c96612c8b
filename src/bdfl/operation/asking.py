"""Asking processes on this machine how they are, through their windows."""

import http.client
from pathlib import Path

import msgspec

from bdfl.operation.run_file import BadFolder, is_locked, read_run
from bdfl.operation.snapshot import Snapshot

_MAX_ANSWER = 2**22  # bytes


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A process as its folder and its window show it."""

    folder: str
    is_up: bool
    pid: int | None
    snapshot: Snapshot | None  # none: a process that is down, does not answer, or is no node
    why: str | None = None  # it is not as it should be
    listen: tuple[str, ...] = ()  # where others reach it


def look_at(folder: Path, timeout_s: float = 1.0) -> NodeView:
    """What can be seen of a folder's process from outside."""
    try:
        run = read_run(folder)
    except BadFolder as error:
        return NodeView(folder=str(folder), is_up=is_locked(folder), pid=None, snapshot=None, why=str(error))
    is_up = is_locked(folder)
    if run is None or not is_up:
        why = "starting" if is_up else "not started yet" if run is None else "not running"
        return NodeView(folder=str(folder), is_up=is_up, pid=None, snapshot=None, why=why)
    if run.metrics is None:
        return NodeView(folder=str(folder), is_up=True, pid=run.pid, snapshot=None, listen=run.listen)
    found = ask_status(run.metrics, timeout_s)
    silence = "does not answer" if found is None else None
    return NodeView(folder=str(folder), is_up=True, pid=run.pid, snapshot=found, why=silence, listen=run.listen)


def ask_status(address: str, timeout_s: float = 1.0) -> Snapshot | None:
    """What the node behind a window at host:port says of itself; none: no answer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
    try:
        connection.request("GET", "/status.json")
        content = connection.getresponse().read(_MAX_ANSWER)
        return msgspec.json.decode(content, type=Snapshot)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
