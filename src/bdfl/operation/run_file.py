"""The folder of a running process: who may work in it, the number of its start, and how to reach whoever does."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bdfl.errors import BdflError
from bdfl.file_lock import lock_patiently, try_lock
from bdfl.foreign_files import open_regular, read_regular

RUN_FILE = "run.json"
LIFE_FILE = "life"
LOCK_FILE = ".lock"
OWN_FOLDER = 0o700  # what a node says, hears and keeps is nobody else's on this machine
MAX_LIFE = 2**31 - 1
_FIRST_S = 1_767_225_600  # the wall clock at the beginning of 2026, since 1970
_MAX_RUN_BYTES = 2**20


class BadFolder(BdflError):
    """A folder that another process works in, or whose files are not what they should be."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself to others on this machine."""

    kind: str  # node or access point
    pid: int
    started: float  # seconds since 1970, for people
    version: str
    chain: str  # its id
    number: int | None = None  # of the member
    listen: tuple[str, ...] = ()
    metrics: str | None = None  # host:port
    ended: float | None = None  # seconds since 1970; none: it runs, or was killed
    why: str = ""  # it ended

    @property
    def status_url(self) -> str | None:
        return None if self.metrics is None else f"http://{self.metrics}/status.json"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Inside, the folder is this process's; the lock ends with the process, however it ends."""
    try:
        folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        with (folder / LOCK_FILE).open("ab") as file:
            if not lock_patiently(file):
                raise BadFolder(f"{folder}: another process works in it, one for each folder expected")
            yield
    except OSError as error:
        if error.filename is None or Path(error.filename) not in (folder, folder / LOCK_FILE):
            raise
        raise BadFolder(f"{folder}: {error.strerror}, a writable folder expected") from None


def is_locked(folder: Path) -> bool:
    """Whether a process works in the folder now."""
    try:
        with open_regular(folder / LOCK_FILE, _MAX_RUN_BYTES) as file:
            return not try_lock(file)
    except OSError:
        return False


def raise_life(folder: Path, now_s: float | None = None) -> int:
    """The number of this start, one more than the last; on the disk before it is used: messages are numbered by it.

    In a new folder it is the wall clock's second, since others refuse what is not above all they heard of this key: a
    member that begins anew must not count from 1 again. Nobody starts a node every second, so the clock stays ahead.
    """
    path = folder / LIFE_FILE
    last = read_life(folder)
    life = last + 1 if last else max(1, int(time.time() if now_s is None else now_s) - _FIRST_S)
    if life > MAX_LIFE:
        raise BadFolder(f"{path}: start number {life}, at most {MAX_LIFE} expected; is the clock right?")
    replace_file(path, b"%d\n" % life, durable=True)
    return life


def read_life(folder: Path) -> int:
    """The number of the last start of the folder's node; 0: there was none."""
    path = folder / LIFE_FILE
    if not path.exists():
        return 0
    content = _read(path)[:20].strip()
    if not content.isdigit():
        raise BadFolder(f"{path}: damaged, a whole number expected")
    return int(content)


def write_run(folder: Path, run: RunFile) -> None:
    replace_file(folder / RUN_FILE, msgspec.json.encode(run) + b"\n")


def forget_run(folder: Path) -> None:
    """What an earlier process said of itself counts no more."""
    (folder / RUN_FILE).unlink(missing_ok=True)


@contextmanager
def noting_end(folder: Path, run: RunFile, explain: Callable[[BaseException], str]) -> Iterator[None]:
    """Leaves in the folder when and why a process ended, unless it is killed."""
    why = "asked to stop"
    try:
        yield
    except BaseException as error:
        why = explain(error)
        raise
    finally:
        with suppress(OSError):  # the disk may be what failed
            write_run(folder, msgspec.structs.replace(run, ended=time.time(), why=why))


def read_run(folder: Path) -> RunFile | None:
    """What the process that works in the folder, or did, says of itself; none if none ever did."""
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


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Writes a file such that there is never half of it, and nobody else ever reads what is not for them."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable and os.name != "nt":  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
