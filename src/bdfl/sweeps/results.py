"""The folder of a sweep: its definition, a journal of the completed points, in the end tables, and their summary.

The journal has one JSON document per line: a header, then one for every computation of a point. A line counts once it
is complete, and the last line of a point is its result. So an interruption loses at most the points in progress.

`points.parquet`, a row per point in order, is independent of workers and time: the same sweep gives the same bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec

from bdfl import __version__
from bdfl.errors import BdflError, one_line, other_format, require
from bdfl.experiment.run_folder import decode_line, drop_cut_off
from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.records.learning import LOCK_FILE
from bdfl.scenario import dump_scenario
from bdfl.scenario.files import refuse_function, validate_allowed
from bdfl.scenario.schema_learning import is_function
from bdfl.scenario.validation import Plain, toml_value
from bdfl.storage import lock_file, open_parquet, read_regular, replace_file, replacing
from bdfl.sweeps.plan import MEASURES, SCENARIO_FILE, Choice, Mode, Origin, Sweep, dump_sweep, load_sweep
from bdfl.sweeps.points import Point, PointTimes

FORMAT = 1
SWEEP_FILE = "sweep.toml"
JOURNAL_FILE = "journal.jsonl"
_NAMED = ("numpy", "scipy")

_MAX_JOURNAL = 2**28  # bytes


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
    with lock_file(path / LOCK_FILE, BadSweepFolder(f"{path}: another process is at work on this sweep")):
        if not (path / JOURNAL_FILE).exists():
            replace_file(path / SWEEP_FILE, dump_sweep(sweep).encode())
            replace_file(path / SCENARIO_FILE, dump_scenario(sweep.base).encode())
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
    header = decode_line(path, lines[0], 1, Header, BadSweepFolder)
    if header.format != FORMAT:
        raise BadSweepFolder(f"{path}: {other_format(header.format, FORMAT)}")
    if header.sweep != expected.sweep:
        raise BadSweepFolder(
            f"{path.parent}: begun with another sweep ({header.sweep[:12]}, now {expected.sweep[:12]});"
            " choose another folder with --out"
        )
    for name, found in expected.software.items():
        if header.software.get(name) != found:
            raise BadSweepFolder(
                f"{path.parent}: begun with {name} {header.software.get(name)}, now it is {found}: going on would not"
                " end in the same bytes"
            )
    told = enumerate(lines[1:], start=2)
    done = [decode_line(path, line, number, Done, BadSweepFolder) for number, line in told]
    return {line.point: line for line in done}


POINTS_FILE = "points.parquet"
TIMES_FILE = "timings.parquet"
OK, FAILED = "ok", "failed"
_FIXED = ("point", "scheduler", "seed", "status", "error")
_MAX_ROWS = 10_000_000  # of an untrusted table
_MAX_CELLS = 2**25


class BadTable(BdflError):
    """A file that is not the table of a sweep."""


class PointTable(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep's table as columns of plain values."""

    name: str
    mode: Mode
    varied: dict[str, Origin]
    measures: tuple[str, ...]
    columns: dict[str, list[Any]]

    @property
    def num_rows(self) -> int:
        return len(self.columns["point"])


def write_points(sweep: Sweep, points: Sequence[Point], done: Mapping[str, Done], path: Path) -> Path:
    """Write the table: settings, scheduler, seed and measures of every point, null if not known."""
    import pyarrow

    rows = [done[point.id] for point in points]
    columns: dict[str, Any] = {
        "point": pyarrow.array([point.id for point in points], type=pyarrow.string()),
        **{
            key: _column([point.settings[place][1] for point in points])
            for place, key in enumerate(dict(points[0].settings))
        },
        "scheduler": pyarrow.array([point.choice for point in points], type=pyarrow.string()),
        "seed": pyarrow.array([point.seed for point in points], type=pyarrow.int64()),
        "status": [OK if row.error is None else FAILED for row in rows],
        "error": pyarrow.array([row.error for row in rows], type=pyarrow.string()),
    }
    for name in sweep.measures:
        values = [None if row.values is None else row.values[name] for row in rows]
        columns[name] = pyarrow.array(values, type=pyarrow.float64())
    varied = {key: origin.value for key, origin in sweep.varied.items()}
    metadata = {
        "bdfl": __version__,
        "sweep": sweep.name,
        "sweep_digest": sweep.digest(),
        "mode": sweep.mode.value,
        "varied": msgspec.json.encode(varied).decode(),
        "measures": msgspec.json.encode(sweep.measures).decode(),
    }
    return _write(pyarrow.table(columns).replace_schema_metadata(metadata), path)


def write_times(points: Sequence[Point], done: Mapping[str, Done], path: Path) -> Path:
    """Write the table of times, which differ between runs of the same sweep."""
    import pyarrow

    rows = [done[point.id] for point in points]
    columns: dict[str, Any] = {
        "point": [row.point for row in rows],
        "engine": [row.engine for row in rows],
        "host": [row.host for row in rows],
        "attempt": [row.attempt for row in rows],
    }
    columns |= {name: [getattr(row.times, name) for row in rows] for name in rows[0].times.__struct_fields__}
    return _write(pyarrow.table(columns), path)


def read_points(path: Path) -> PointTable:
    """Read the table of a sweep from its folder or file; raise `BadTable` for anything else."""
    require("the table of a sweep", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = path / POINTS_FILE if path.is_dir() else path
    try:
        with open_parquet(path, _MAX_CELLS) as file:
            if file.metadata.num_rows > _MAX_ROWS:
                raise BadTable(f"{path}: {file.metadata.num_rows} rows, at most {_MAX_ROWS} expected")
            table = file.read()
    except FileNotFoundError:
        raise BadTable(f"{path}: not there, the {POINTS_FILE} of a finished sweep expected") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise BadTable(f"{path}: {one_line(error)[:200]}, the table of a sweep expected") from None
    facts = {key.decode(): value for key, value in (table.schema.metadata or {}).items()}
    try:
        mode = Mode(facts["mode"].decode())
        varied = msgspec.json.decode(facts["varied"], type=dict[str, Origin])
        measures = msgspec.json.decode(facts["measures"], type=tuple[str, ...])
        name = facts["sweep"].decode()
    except (KeyError, ValueError, RecursionError, msgspec.DecodeError):
        raise BadTable(f"{path}: no sweep's metadata, the {POINTS_FILE} of a sweep expected") from None
    missing = [column for column in (*_FIXED, *varied, *measures) if column not in table.column_names]
    unknown = [measure for measure in measures if measure not in MEASURES[Mode.RUN]]
    if missing or unknown or not table.num_rows:
        found = f"no column {missing[0]}" if missing else f"measure {unknown[0]}" if unknown else "no rows"
        raise BadTable(f"{path}: {found}, the {POINTS_FILE} of a sweep expected")
    columns = {column: table[column].to_pylist() for column in table.column_names}
    return PointTable(name=name, mode=mode, varied=varied, measures=measures, columns=columns)


def _write(table: Any, path: Path) -> Path:
    """Write the file by an atomic replace."""
    import pyarrow.parquet

    with replacing(path) as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return path


def _column(values: Sequence[Plain]) -> Any:
    """Return a column of one type: booleans, integers, numbers, texts, or TOML for mixed values."""
    import pyarrow

    kinds = {type(value) for value in values}
    if kinds <= {int, float} and kinds != {int}:
        return pyarrow.array(list(values), type=pyarrow.float64())
    if kinds == {bool} or kinds == {str} or kinds == {int}:
        return pyarrow.array(list(values))
    return pyarrow.array([toml_value(value) for value in values], type=pyarrow.string())


# Summary of a sweep: means over seeds with 95 % intervals along one key, one line for each other setting.

Value: TypeAlias = bool | int | float | str

SCHEDULER = "scheduler"
MOST_LINES = 12
_FIRST = ("final_accuracy", "mean_delay_s", "worst_shortfall", "mean_energy_use")  # shown by default
_LOGARITHMIC = 20.0  # ratio of greatest to least value from which on an axis is logarithmic


class InvalidPlot(BdflError):
    """A plot that a table cannot provide: an unknown key, no points left, or too many lines."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One position on a line."""

    x: Value
    num_points: int
    measures: dict[str, Interval]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """All points with equal values of the keys that distinguish lines."""

    settings: dict[str, Value]
    places: list[Place]  # ascending, or in the order of the table if x is not numeric


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a sweep, reduced to lines."""

    name: str
    x: str
    is_numeric: bool  # whether x has an order and a distance
    is_connected: bool  # whether consecutive positions may be joined: not for random draws
    is_logarithmic: bool
    by: list[str]  # keys that distinguish lines
    pooled: list[str]  # keys that vary within a position
    measures: list[str]
    num_seeds: int
    num_failed: int
    lines: list[Line]


def summarise_points(
    table: PointTable,
    *,
    x: str | None = None,
    by: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    where: Mapping[str, str] | None = None,
    logarithmic: bool | None = None,
) -> SweepSummary:
    """Average the points that did not fail.

    Defaults: x is the key with most values, numbers before words; every scheduler and every other grid key has its own
    lines; the measures are the most common ones.
    """
    rows = _keep_rows(table, where or {})
    columns = {key: [table.columns[key][row] for row in rows] for key in (*table.varied, SCHEDULER)}
    varying = {key: values for key, values in columns.items() if len(_distinct(values)) > 1}
    along = _choose_x(varying, table) if x is None else _known(x, columns, "x")
    lines_by = _choose_by(varying, table, along) if by is None else [_known(key, columns, "by") for key in by]
    shown = _choose_measures(table, rows) if measures is None else [_known(m, table.measures, "y") for m in measures]
    ok_rows = [row for row in rows if table.columns["status"][row] == OK]
    if not ok_rows:
        raise InvalidPlot(f"{table.name}: all {len(rows)} points failed, nothing to show")
    lines = _collect(table, ok_rows, along, lines_by, shown)
    if len(lines) > MOST_LINES:
        raise InvalidPlot(
            f"{len(lines)} lines for {', '.join(lines_by)}, at most {MOST_LINES} expected: choose with --by or --where"
        )
    values = _distinct(table.columns[along][row] for row in ok_rows)
    is_numeric = all(map(_is_number, values))
    return SweepSummary(
        name=table.name,
        x=along,
        is_numeric=is_numeric,
        is_connected=is_numeric and table.varied.get(along) is not Origin.RANDOM,
        is_logarithmic=_is_logarithmic(values) if logarithmic is None and is_numeric else bool(logarithmic),
        by=lines_by,
        pooled=[
            key
            for key in varying
            if key != along
            and key not in lines_by
            and not (table.varied.get(key) is table.varied.get(along) is Origin.RANDOM)
        ],
        measures=list(shown),
        num_seeds=len(_distinct(table.columns["seed"][row] for row in ok_rows)),
        num_failed=len(rows) - len(ok_rows),
        lines=lines,
    )


def _keep_rows(table: PointTable, where: Mapping[str, str]) -> list[int]:
    """Return the rows with these values, written as in TOML or bare."""
    kept = list(range(table.num_rows))
    for key, text in where.items():
        values = table.columns[_known(key, [*table.varied, SCHEDULER, "seed"], "where")]
        found = [row for row in kept if text in _writings(values[row])]
        if not found:
            there = ", ".join(map(_shown, _distinct(values)[:8]))
            raise InvalidPlot(f"where: {key} is nowhere {text!r}, there are {there}")
        kept = found
    return kept


def _writings(value: Value) -> set[str]:
    return {_shown(value), str(value)} | ({f"{value:g}"} if _is_number(value) else set())


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _known(key: str, allowed: Mapping[str, object] | Sequence[str], option: str) -> str:
    if key not in allowed:
        raise InvalidPlot(f"{option}: {key!r} given, allowed: {', '.join(allowed)}")
    return key


def _distinct(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))


def _choose_x(varying: Mapping[str, Sequence[Value]], table: PointTable) -> str:
    keys = [key for key in varying if key != SCHEDULER]

    def rank(key: str) -> tuple[bool, int]:
        values = varying[key]
        return all(map(_is_number, values)), len(_distinct(values))

    return max(keys, key=rank) if keys else SCHEDULER


def _choose_by(varying: Mapping[str, Sequence[Value]], table: PointTable, along: str) -> list[str]:
    gridded = [key for key in varying if table.varied.get(key) is Origin.GRID and key != along]
    schedulers = [SCHEDULER] if SCHEDULER in varying and along != SCHEDULER else []
    return [*schedulers, *gridded]


def _choose_measures(table: PointTable, rows: Sequence[int]) -> list[str]:
    known = [name for name in table.measures if any(table.columns[name][row] is not None for row in rows)] or list(
        table.measures
    )
    return [name for name in _FIRST if name in known] or known[:3]


def _collect(
    table: PointTable, rows: Sequence[int], along: str, by: Sequence[str], measures: Sequence[str]
) -> list[Line]:
    places: dict[tuple[Value, ...], dict[Value, list[int]]] = {}
    for row in rows:
        line = tuple(table.columns[key][row] for key in by)
        places.setdefault(line, {}).setdefault(table.columns[along][row], []).append(row)
    order = _distinct(table.columns[along][row] for row in rows)
    if all(isinstance(value, (int, float)) for value in order):
        order = sorted(order, key=float)
    return [
        Line(
            settings=dict(zip(by, line, strict=True)),
            places=[_summarise(table, value, found[value], measures) for value in order if value in found],
        )
        for line, found in places.items()
    ]


def _summarise(table: PointTable, x: Value, rows: Sequence[int], measures: Sequence[str]) -> Place:
    values = {name: [table.columns[name][row] for row in rows] for name in measures}
    return Place(
        x=x,
        num_points=len(rows),
        measures={
            name: mean_interval([math.nan if value is None else value for value in found])
            for name, found in values.items()
        },
    )


def _is_logarithmic(values: Sequence[Value]) -> bool:
    numbers = [float(value) for value in values]
    return min(numbers) > 0 and max(numbers) / min(numbers) >= _LOGARITHMIC
