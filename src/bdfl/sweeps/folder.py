"""The folder of a sweep: its definition, a journal of the completed points, and in the end one table.

The journal has one JSON document per line: a header, then one for every computation of a point. A line counts once it
is complete, and the last line of a point is its result. So an interruption loses at most the points in progress.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from bdfl import __version__
from bdfl.errors import BdflError, one_line, other_format
from bdfl.experiment.run_folder import drop_cut_off, lock_folder, replace_file
from bdfl.foreign_files import read_regular
from bdfl.scenario.files import refuse_function, validate_allowed
from bdfl.scenario.learning import is_function
from bdfl.sweeps.computing import PointTimes
from bdfl.sweeps.drawing import Choice
from bdfl.sweeps.plan import SCENARIO_FILE, Sweep, dump_base, dump_sweep, load_sweep

FORMAT = 1
SWEEP_FILE = "sweep.toml"
JOURNAL_FILE = "journal.jsonl"
_NAMED = ("numpy", "scipy")

_MAX_JOURNAL = 2**28  # bytes
_Line = TypeVar("_Line")


class BadSweepFolder(BdflError):
    """A folder that is not a sweep's, is damaged, or belongs to another sweep."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sweep and software that all points of a journal were computed with."""

    format: int
    sweep: str  # digest
    software: dict[str, str]  # names and versions


class Done(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of one computation of a point."""

    point: str
    values: dict[str, float | None] | None = None
    error: str | None = None
    attempt: int = 1
    engine: str
    host: str
    times: PointTimes


class SweepFolder:
    """An open sweep on disk."""

    def __init__(self, path: Path, journal: BinaryIO, done: dict[str, Done]) -> None:
        self.path = path
        self.done = done  # the last line of every point
        self._journal = journal

    def append(self, lines: Sequence[Done]) -> None:
        """Append these results to the journal."""
        self._journal.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        self.done |= {line.point: line for line in lines}


@contextmanager
def open_sweep_folder(path: Path, sweep: Sweep) -> Iterator[SweepFolder]:
    """Open the folder of this sweep, or create it; the folder of another sweep is rejected and left unchanged."""
    if path.exists() and not path.is_dir():
        raise BadSweepFolder(f"{path}: not a folder, one for a sweep expected")
    if path.is_dir() and not (path / SWEEP_FILE).exists() and any(file.name[0] != "." for file in path.iterdir()):
        raise BadSweepFolder(f"{path}: holds something else, an empty folder or that of this sweep expected")
    path.mkdir(parents=True, exist_ok=True)
    with lock_folder(path, "sweep"):
        if not (path / JOURNAL_FILE).exists():
            replace_file(path / SWEEP_FILE, dump_sweep(sweep).encode())
            replace_file(path / SCENARIO_FILE, dump_base(sweep).encode())
            replace_file(path / JOURNAL_FILE, msgspec.json.encode(_make_header(sweep)) + b"\n")
        done = _read_journal(path / JOURNAL_FILE, _make_header(sweep))
        with (path / JOURNAL_FILE).open("ab", buffering=0) as journal:
            yield SweepFolder(path, journal, done)


def load_begun(path: Path, allowed: frozenset[str] = frozenset()) -> Sweep:
    """Load the sweep of an existing folder; functions named in its settings must be in `allowed`."""
    if not (path / SWEEP_FILE).is_file():
        raise BadSweepFolder(f"{path}: no {SWEEP_FILE} in it, the folder of a sweep expected")
    sweep = load_sweep(path / SWEEP_FILE)
    validate_allowed(sweep.base, allowed)
    drawn = [(key, drawing.values) for key, drawing in sweep.random if isinstance(drawing, Choice)]
    for key, values in (*sweep.grid, *drawn):
        for value in values:
            if key.startswith(("data.", "learning.")) and isinstance(value, str) and is_function(value):
                refuse_function(key, value, allowed)
    return sweep


def _make_header(sweep: Sweep) -> Header:
    software = {"bdfl": __version__} | {name: version(name) for name in _NAMED}
    return Header(format=FORMAT, sweep=sweep.digest(), software=software)


def _read_journal(path: Path, expected: Header) -> dict[str, Done]:
    drop_cut_off(path)
    lines = read_regular(path, _MAX_JOURNAL).splitlines()
    if not lines:
        raise BadSweepFolder(f"{path}: no header, a journal of a sweep expected")
    header = _decode(path, lines[0], 1, Header)
    if header.format != FORMAT:
        raise BadSweepFolder(f"{path}: {other_format(header.format, FORMAT)}")
    if header.sweep != expected.sweep:
        raise BadSweepFolder(
            f"{path.parent}: begun with another sweep ({header.sweep[:12]}, now {expected.sweep[:12]});"
            " choose another folder with --out"
        )
    _validate_software(path.parent, header.software, expected.software)
    done = [_decode(path, line, number, Done) for number, line in enumerate(lines[1:], start=2)]
    return {line.point: line for line in done}


def _validate_software(path: Path, begun: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name, found in now.items():
        if begun.get(name) != found:
            raise BadSweepFolder(
                f"{path}: begun with {name} {begun.get(name)}, now it is {found}: going on would not end in the same"
                " bytes"
            )


def _decode(path: Path, line: bytes, number: int, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSweepFolder(f"{path}: line {number} is damaged: {one_line(error)}") from None
