"""Files that operators exchange before a network starts: one record each, canonically encoded.

They are untrusted: size and format are checked before anything is used.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from bdfl.encoding import BadEncoding, Record, decode, encode
from bdfl.errors import BdflError, other_format

OWN_FOLDER = 0o700  # owner only: messages, keys and models are private

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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not replaces:
            raise BadSetUpFile(f"{path}: exists already, a new file expected")
        with temporary.open("wb") as file:
            file.write(encode(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
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
