"""Results of a sweep as one Parquet table, a row per point in order, and their times in another.

`points.parquet` is independent of workers and time: the same sweep gives the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bdfl import __version__
from bdfl.errors import BdflError, one_line, require
from bdfl.foreign_files import open_parquet
from bdfl.scenario.toml_text import Plain, toml_value
from bdfl.sweeps.folder import Done
from bdfl.sweeps.measures import MEASURES, Mode
from bdfl.sweeps.plan import Origin, Sweep
from bdfl.sweeps.points import Point

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

    temporary = path.with_name(f".{path.name}.tmp")
    pyarrow.parquet.write_table(table, temporary, compression="zstd")
    temporary.replace(path)
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
