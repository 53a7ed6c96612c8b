"""Folder of a running process: its lock, its restart counter and its run file (pid, ports)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bdfl.errors import BdflError
from bdfl.storage import OWN_FOLDER, is_lock_held, lock_file, read_regular, replace_file

RUN_FILE = "run.json"
INCARNATION_FILE = "life"
LOCK_FILE = ".lock"
MAX_INCARNATION = 2**31 - 1
_FIRST_S = 1_767_225_600  # Unix time of the start of 2026
_MAX_RUN_BYTES = 2**20


class BadFolder(BdflError):
    """A folder in use by another process, or with damaged files."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Self-description of a process for others on this machine."""

    kind: str  # node or access point
    pid: int
    started: float  # Unix time, for display
    version: str
    chain: str  # its id
    number: int | None = None  # of the member
    listen: tuple[str, ...] = ()
    metrics: str | None = None  # host:port
    ended: float | None = None  # Unix time; none: running, or killed
    why: str = ""  # the reason for its end


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock inside the `with` block; the OS releases it if the process dies."""
    try:
        folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        taken = BadFolder(f"{folder}: another process works in it, one for each folder expected")
        with lock_file(folder / LOCK_FILE, taken):
            yield
    except OSError as error:
        if error.filename is None or Path(error.filename) not in (folder, folder / LOCK_FILE):
            raise
        raise BadFolder(f"{folder}: {error.strerror}, a writable folder expected") from None


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the folder's lock."""
    return is_lock_held(folder / LOCK_FILE)


def raise_incarnation(folder: Path, now_s: float | None = None) -> int:
    """Increment the restart counter and return it; written with fsync before use, since messages are numbered by it.

    In a new folder it starts at the wall clock's second. Peers reject anything not above the last number of this key,
    so a member that starts anew must not count from 1. Restarts are rarer than seconds, so the clock stays ahead.
    """
    path = folder / INCARNATION_FILE
    last = read_incarnation(folder)
    incarnation = last + 1 if last else max(1, int(time.time() if now_s is None else now_s) - _FIRST_S)
    if incarnation > MAX_INCARNATION:
        raise BadFolder(f"{path}: start number {incarnation}, at most {MAX_INCARNATION} expected; is the clock right?")
    replace_file(path, b"%d\n" % incarnation, durable=True)
    return incarnation


def read_incarnation(folder: Path) -> int:
    """Return the restart counter of the folder's node; 0: never started."""
    path = folder / INCARNATION_FILE
    if not path.exists():
        return 0
    content = _read(path)[:20].strip()
    if not content.isdigit():
        raise BadFolder(f"{path}: damaged, a whole number expected")
    return int(content)


def write_run(folder: Path, run: RunFile) -> None:
    replace_file(folder / RUN_FILE, msgspec.json.encode(run) + b"\n")


def forget_run(folder: Path) -> None:
    """Delete the run file of an earlier process."""
    (folder / RUN_FILE).unlink(missing_ok=True)


@contextmanager
def noting_end(folder: Path, run: RunFile, explain: Callable[[BaseException], str]) -> Iterator[None]:
    """Record in the run file when and why the process ended, unless it is killed."""
    why = "asked to stop"
    try:
        yield
    except BaseException as error:
        why = explain(error)
        raise
    finally:
        with suppress(OSError):  # the disk may have failed
            write_run(folder, msgspec.structs.replace(run, ended=time.time(), why=why))


def read_run(folder: Path) -> RunFile | None:
    """Read the run file of the folder's current or last process; None: never started."""
    path = folder / RUN_FILE
    try:
        return msgspec.json.decode(_read(path), type=RunFile) if path.exists() else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFolder(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_RUN_BYTES)
    except OSError as error:
        raise BadFolder(f"{path}: {error.strerror}, a readable file expected") from None
