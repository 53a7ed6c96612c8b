"""Files: locks, atomic replace, records that operators exchange, and reading of untrusted files within limits."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bdfl.encoding import BadEncoding, Record, decode, encode
from bdfl.errors import BdflError, other_format

OWN_FOLDER = 0o700  # owner only: messages, keys and models are private

# An advisory file lock (flock) that the system releases when its process ends.

_TRIES = 10
_WAIT_S = 0.02
_MAX_LOCK = 2**20  # bytes of a file that is a lock


@contextmanager
def lock_file(path: Path, taken: BdflError) -> Iterator[None]:
    """Hold the exclusive lock on a file, created if missing, inside the block; raise `taken` if a process holds it."""
    with path.open("ab") as file:
        for _ in range(_TRIES):  # a process that only tests the lock holds it for a moment
            if _try_lock(file):
                break
            time.sleep(_WAIT_S)
        else:
            raise taken
        yield


def is_lock_held(path: Path) -> bool:
    """Return whether a process holds the lock on a file."""
    try:
        with open_regular(path, _MAX_LOCK) as file:
            return not _try_lock(file)
    except OSError:
        return False


def _try_lock(file: BinaryIO) -> bool:
    """Take the exclusive lock without waiting and return whether that succeeded; always true without `fcntl`."""
    try:
        import fcntl
    except ImportError:  # Windows: operators must not share the file
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# Files that are whole or unchanged, and files of lines that may end in the middle of one.


@contextmanager
def replacing(path: Path, *, draft: Path | None = None, mode: int = 0o644, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` atomically at the end of the block, unless that raises.

    It is written as `draft`, by default beside `path`; `mode` applies from its creation, and `durable` adds fsync.
    """
    temporary = path.with_name(f".{path.name}.tmp") if draft is None else draft
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file atomically, see `replacing`."""
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content)


def sync_folder(path: Path) -> None:
    """fsync the folder, so that new names in it survive a crash of the machine."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def complete_lines(content: bytes) -> list[bytes]:
    """Split a file of lines, without line ends; a torn last line is left out."""
    return content.split(b"\n")[:-1]


def append_line(path: Path, line: bytes, max_bytes: int, num_old: int) -> None:
    """Append to a file of lines; one that would exceed `max_bytes` is rotated before."""
    if path.exists() and path.stat().st_size + len(line) > max_bytes:
        rotate(path, num_old)
    with path.open("ab") as file:
        file.write(line)


def rotate(path: Path, num_old: int) -> None:
    """Rename `path` to `path.1`, `path.1` to `path.2` and so on, overwriting the oldest."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, num_old + 1))]
    for younger, older in zip(names[-2::-1], names[:0:-1], strict=True):
        if younger.exists():
            os.replace(younger, older)


# Files that operators exchange before a network starts: one record each, canonically encoded. They are untrusted.

_Record = TypeVar("_Record", bound=Record)
FORMATS = {"draft": 1, "card": 1, "genesis": 3, "signature": 1, "change": 1}  # in files: "bdfl card 1"
_FORM = re.compile(rf"bdfl ({'|'.join(FORMATS)}) (\d+)".encode())
_HEAD = 32  # bytes that contain kind and format


class BadSetUpFile(BdflError):
    """A set-up file that cannot be read or written, or is invalid."""


def read_record(path: Path, kind: type[_Record], name: str, max_size: int) -> _Record:
    """Read a record of the named kind; raises `BadSetUpFile` if it is another kind, damaged or too large."""
    data = _read(path, max_size + 1)
    if len(data) > max_size:
        raise BadSetUpFile(f"{path}: more than {max_size} bytes, {_article(name)} file expected")
    found, number = _form_of(data)
    if found is not None and number != FORMATS[found]:
        raise BadSetUpFile(f"{path}: {other_format(number, FORMATS[found])}")
    if found != name:
        raise BadSetUpFile(f"{path}: {_article(found)}, {_article(name)} file expected")
    try:
        return decode(data, kind, max_size)
    except BadEncoding as error:
        raise BadSetUpFile(f"{path}: damaged or changed: {error}") from None


def find_kind(path: Path) -> str | None:
    """Return the kind a file claims to be; None: not a set-up file."""
    return _form_of(_read(path, _HEAD))[0]


def _form_of(data: bytes) -> tuple[str | None, int]:
    """Parse kind and format from a file's first bytes; None: not a set-up file."""
    form = _FORM.search(data[:_HEAD])
    return (None, 0) if form is None else (form[1].decode(), int(form[2]))


def write_record(path: Path, record: Record, *, replaces: bool = False) -> None:
    """Write a record atomically, with fsync; overwrite an existing file only if `replaces`."""
    try:
        if path.exists() and not replaces:
            raise BadSetUpFile(f"{path}: exists already, a new file expected")
        replace_file(path, encode(record), durable=True)
    except OSError as error:
        raise BadSetUpFile(f"{path}: {error.strerror}, a file in a writable folder expected") from None


def _read(path: Path, num_bytes: int) -> bytes:
    """Read at most so many bytes."""
    try:
        with path.open("rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise BadSetUpFile(f"{path}: {error.strerror}, a readable file expected") from None


def _article(kind: str | None) -> str:
    return "no file of a set-up" if kind is None else f"a {kind}"


# Safe access to untrusted files: only regular files of a bounded size, and no links out of a folder.

_MAX_TABLE = 2**40  # bytes
_MAX_THRIFT = 2**20  # parts of a table's metadata
_LEAST_CELLS = 2**22
_CELLS_PER_BYTE = 16  # of a table; ours have two


def open_regular(path: Path, max_bytes: int, *, follows: bool = True) -> BinaryIO:
    """Open a file for reading; raise `OSError` for a device, a pipe, a folder or more than `max_bytes`.

    Opening never blocks. A symbolic link at `path` is refused unless `follows`.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags | (0 if follows else getattr(os, "O_NOFOLLOW", 0))), "rb")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
        file.close()
        is_regular = stat.S_ISREG(found.st_mode)
        what = f"{found.st_size} bytes, at most {max_bytes} expected" if is_regular else "no regular file"
        raise OSError(errno.EINVAL, what, str(path))
    return file


def read_regular(path: Path, max_bytes: int, *, follows: bool = True) -> bytes:
    """Read a whole file that `open_regular` accepts."""
    with open_regular(path, max_bytes, follows=follows) as file:
        return file.read(max_bytes)


def find_stray(folder: Path, *, beside: frozenset[str] = frozenset()) -> Path | None:
    """Find a path in a folder that is neither folder nor regular file; none: all are.

    A link leads a writer out of the folder, and a pipe blocks it. Folders named in `beside` are not entered.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            mode = (found := Path(place, name)).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return found
        folders[:] = [name for name in folders if name not in beside]
    return None


def open_parquet(path: Path, max_cells: int | None = None) -> Any:
    """Open a Parquet file; raise `OSError` if its metadata claim a table larger than its bytes justify.

    A few bytes can encode a billion equal numbers. `max_cells` is for callers that read the whole table at once.
    """
    open_regular(path, _MAX_TABLE).close()
    file = import_module("pyarrow.parquet").ParquetFile(path, thrift_container_size_limit=_MAX_THRIFT)
    found, size = file.metadata, path.stat().st_size
    cells = found.num_rows * max(found.num_columns, 1)
    num_bytes = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
    most = _LEAST_CELLS + _CELLS_PER_BYTE * size
    if min(cells, num_bytes) < 0 or cells > min(most, max_cells or most) or num_bytes > 8 * most:
        file.close()
        expected = f"at most {min(most, max_cells or most)} expected"
        raise OSError(errno.EFBIG, f"{cells} cells in {num_bytes} bytes said to be in a file of {size}, {expected}")
    return file
