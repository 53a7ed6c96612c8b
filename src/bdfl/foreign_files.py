"""Safe access to untrusted files: only regular files of a bounded size, and no links out of a folder."""

import errno
import os
import stat
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

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
