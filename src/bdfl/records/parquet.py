"""The records of a run as two Parquet tables: a row per round, and a row per round and client.

An aggregate run has a row per client instead. Column names contain the units; unknown values are null. A run without
training has no columns about learning. The metadata identify the run. The same records give the same bytes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from bdfl import __version__
from bdfl.errors import one_line
from bdfl.records.aggregate_run import AggregateRecord, AggregateRound, ClientTotals
from bdfl.records.learning import LEARNED_PER_CLIENT, LEARNED_PER_ROUND, LearningRecord
from bdfl.records.run import CLIENT_NAMES, NOBODY, ROUND_NAMES, InvalidRecord, RunHead, RunRecord
from bdfl.scheduling.problem import Status
from bdfl.scheduling.queues import drift_constant
from bdfl.storage import open_parquet

FORMAT = 1  # of both tables, written in their metadata
ROUNDS_FILE = "rounds.parquet"
CLIENTS_FILE = "clients.parquet"
CROWD_ROUNDS_FILE = "crowd_rounds.parquet"
CROWD_CLIENTS_FILE = "crowd_clients.parquet"

_OTHERS = ("round", "status", "reason", "slowest", "winner", "exchange_s")
_PER_ROUND = tuple(name for name in ROUND_NAMES if name not in (*CLIENT_NAMES, *_OTHERS))
_PER_CLIENT = tuple(name for name in ROUND_NAMES if name in CLIENT_NAMES)

_MAX_CELLS = 2**25  # of a table that is read whole
_ROWS_AT_A_TIME = 2**20  # of the client table: long runs are written in parts


def write_parquet(run: RunRecord, learning: LearningRecord | None, folder: Path) -> list[Path]:
    """Write both tables into `folder` and return their paths; `learning` is None for a run without training."""
    metadata = _metadata(run)
    step = max(1, _ROWS_AT_A_TIME // run.num_clients)
    starts = range(0, run.num_rounds, step)
    parts = {
        ROUNDS_FILE: iter((tabulate_rounds(run, learning),)),
        CLIENTS_FILE: (tabulate_clients(run, learning, slice(first, first + step)) for first in starts),
    }
    for name, tables in parts.items():
        first = next(tables).replace_schema_metadata(metadata)
        with pyarrow.parquet.ParquetWriter(folder / name, first.schema, compression="zstd") as writer:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table.replace_schema_metadata(metadata))
    return [folder / name for name in parts]


def write_crowd_parquet(crowd: AggregateRecord, folder: Path) -> list[Path]:
    """Write both tables into `folder`, a row per round and a row per client, and return their paths."""
    totals = crowd.clients
    num_clients = len(totals.participation)
    columns: dict[str, object] = {"client": np.arange(num_clients)}
    columns |= {name: getattr(totals, name) for name in ClientTotals.__dataclass_fields__}
    tables = {CROWD_ROUNDS_FILE: _crowd_rounds(crowd), CROWD_CLIENTS_FILE: pyarrow.table(columns)}
    for name, table in tables.items():
        described = table.replace_schema_metadata(_metadata(crowd))
        pyarrow.parquet.write_table(described, folder / name, compression="zstd")
    return [folder / name for name in tables]


def _crowd_rounds(crowd: AggregateRecord) -> pyarrow.Table:
    columns: dict[str, object] = {}
    for name in AggregateRound.__struct_fields__:
        cells = [getattr(row, name) for row in crowd.rounds]
        match name:
            case "status":
                columns[name] = [status.value for status in cells]
            case "reason":
                columns[name] = pyarrow.array(cells, type=pyarrow.string())
            case "slowest" | "winner":
                columns[name] = pyarrow.array(cells, type=pyarrow.int64())
            case _:
                columns[name] = _known(np.array(cells))
    return pyarrow.table(columns)


def _metadata(run: RunHead) -> dict[str, str]:
    return {
        "bdfl": __version__,
        "format": str(FORMAT),
        "scenario": run.scenario,
        "scenario_digest": run.scenario_digest,
        "scheduler": run.scheduler,
        "tradeoff": repr(run.tradeoff),
        "seed": str(run.seed),
    }


def read_run(folder: Path) -> RunRecord:
    """Read the run that `write_parquet` wrote into `folder`; raise `InvalidRecord` if a table is missing or invalid."""
    try:
        with (
            open_parquet(folder / ROUNDS_FILE, _MAX_CELLS) as rounds,
            open_parquet(folder / CLIENTS_FILE, _MAX_CELLS) as clients,
        ):
            return _read_columns(rounds.read(), clients.read())
    except OSError as error:
        raise InvalidRecord(f"{folder}: {one_line(error)}, the tables of a run expected") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, pyarrow.ArrowException) as error:
        raise InvalidRecord(f"{folder}: not the tables of a run, {one_line(repr(error))}") from None


def _read_columns(rounds: pyarrow.Table, clients: pyarrow.Table) -> RunRecord:
    shape = rounds.num_rows, clients.num_rows // rounds.num_rows
    facts = {key.decode(): value.decode() for key, value in (rounds.schema.metadata or {}).items()}
    columns = {name: _numbers(rounds, name) for name in _PER_ROUND if name != "delay_s"}
    columns |= {name: rounds[name].fill_null(NOBODY).to_numpy() for name in ("slowest", "winner")}
    columns |= {name: _numbers(clients, name).reshape(shape) for name in _PER_CLIENT if name != "energy_j"}
    rate = _numbers(clients, "participation_rate")[: shape[1]]
    return RunRecord(
        scenario=facts["scenario"],
        scenario_digest=facts["scenario_digest"],
        scheduler=facts["scheduler"],
        tradeoff=float(facts["tradeoff"]),
        seed=int(facts["seed"]),
        participation_rate=rate,
        drift_constant=drift_constant(rate),
        round=_numbers(rounds, "round"),
        status=tuple(map(Status, rounds["status"].to_pylist())),
        reason=tuple(rounds["reason"].to_pylist()),
        **columns,
    )


def _numbers(table: pyarrow.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers or booleans; raise `TypeError` for any other type."""
    values: NDArray[Any] = table[name].to_numpy()
    if values.dtype.kind not in "biuf":
        raise TypeError(f"column {name} of {table[name].type}, numbers expected")
    return values


def tabulate_rounds(run: RunRecord, learning: LearningRecord | None) -> pyarrow.Table:
    """Return a table with a row per round; `recall` is a list with one share per label."""
    columns: dict[str, object] = {
        "round": run.round,
        "status": [status.value for status in run.status],
        "reason": pyarrow.array(run.reason, type=pyarrow.string()),
        "num_selected": run.num_selected,
        "slowest": _clients(run.slowest),
        "winner": _clients(run.winner),
        "time_s": np.cumsum(run.delay_s),
    }
    columns |= {name: _known(getattr(run, name)) for name in _PER_ROUND}
    if learning is not None:
        columns |= {name: _known(getattr(learning, name)) for name in LEARNED_PER_ROUND}
        recall = [_known(row).to_pylist() if np.isfinite(row).any() else None for row in learning.recall]
        columns["recall"] = pyarrow.array(recall, type=pyarrow.list_(pyarrow.float64()))
    return pyarrow.table(columns)


def tabulate_clients(run: RunRecord, learning: LearningRecord | None, rows: slice = slice(None)) -> pyarrow.Table:
    """Return a table with a row per round and client, by round, then client, of the rounds in `rows` (default: all)."""
    rounds, num_clients = run.round[rows], run.num_clients
    columns: dict[str, object] = {
        "round": np.repeat(rounds, num_clients),
        "client": np.tile(np.arange(num_clients), len(rounds)),
    }
    if learning is not None:
        columns["samples"] = np.tile(learning.samples.astype(np.int64), len(rounds))
    columns["participation_rate"] = np.tile(run.participation_rate, len(rounds))
    columns |= {name: _known(getattr(run, name)[rows].ravel()) for name in _PER_CLIENT}
    if learning is not None:
        columns |= {name: _known(getattr(learning, name)[rows].ravel()) for name in ("outcome", *LEARNED_PER_CLIENT)}
    return pyarrow.table(columns)


def _known(values: NDArray[np.generic]) -> pyarrow.Array:
    """Return the values with null for NaN and for empty text."""
    if values.dtype.kind == "f":
        return pyarrow.array(values, mask=np.isnan(values))
    if values.dtype.kind == "U":
        return pyarrow.array(values.tolist(), type=pyarrow.string(), mask=values == "")
    return pyarrow.array(values)


def _clients(numbers: NDArray[np.int64]) -> pyarrow.Array:
    return pyarrow.array(numbers, mask=numbers == NOBODY)
