"""The tables of a folder, written as CSV, Parquet or JSON.

A table is read and written in parts, so it may be larger than memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from bdfl.audit.chain_columns import SCHEMAS, chain_rows
from bdfl.audit.table_format import Format
from bdfl.errors import BdflError, one_line
from bdfl.foreign_files import open_parquet
from bdfl.ledger.keeping import Store

_ROWS_AT_A_TIME = 2**14


class BadTable(BdflError):
    """A file that is not a table, or a table that cannot be written."""


@dataclass(frozen=True)
class Table:
    """A table: its columns and a function that reads the rows in parts, any number of times."""

    name: str
    schema: pyarrow.Schema
    read: Callable[[], Iterator[pyarrow.RecordBatch]]


def find_tables(folder: Path, chain: Store | None) -> dict[str, Table]:
    """Return every Parquet file in a folder by its name, and the tables of a chain."""
    found = {path.stem: _parquet_table(path) for path in sorted(folder.glob("*.parquet"))}
    if chain is not None:
        found = {name: _chain_table(chain, name) for name in SCHEMAS} | found
    return found


def write_table(table: Table, format: Format, file: BinaryIO, on_rows: Callable[[int], None] | None = None) -> int:
    """Write a table and return its number of rows; call `on_rows` with the number written so far."""
    num_rows = 0
    write = {Format.CSV: _write_csv, Format.PARQUET: _write_parquet, Format.JSON: _write_json}[format]

    def counted() -> Iterator[pyarrow.RecordBatch]:
        nonlocal num_rows
        for batch in table.read():
            yield batch
            num_rows += batch.num_rows
            if on_rows is not None:
                on_rows(num_rows)

    try:
        write(table.schema, counted(), file)
    except (pyarrow.ArrowException, ValueError, msgspec.EncodeError) as error:
        raise BadTable(f"table {table.name}: {one_line(error)}") from None
    return num_rows


def _parquet_table(path: Path) -> Table:
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise BadTable(f"{path}: {one_line(error)}, a Parquet table expected") from None

    def read() -> Iterator[pyarrow.RecordBatch]:
        with open_parquet(path) as file:
            yield from file.iter_batches(_ROWS_AT_A_TIME)

    return Table(path.stem, schema, read)


def _chain_table(chain: Store, name: str) -> Table:
    def read() -> Iterator[pyarrow.RecordBatch]:
        rows = chain_rows(chain, name)
        while part := list(islice(rows, _ROWS_AT_A_TIME)):
            yield pyarrow.RecordBatch.from_pylist(part, schema=SCHEMAS[name])

    return Table(name, SCHEMAS[name], read)


def _write_parquet(schema: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch], file: BinaryIO) -> None:
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(schema: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch], file: BinaryIO) -> None:
    """Write CSV: null is an empty cell, text is in quotes, a list is JSON."""
    plain = pyarrow.schema([_csv_field(field) for field in schema])
    with pyarrow.csv.CSVWriter(file, plain) as writer:
        for batch in batches:
            columns = [_csv_column(column) for column in batch.columns]
            writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=plain))


def _csv_field(field: pyarrow.Field) -> pyarrow.Field:
    return field.with_type(pyarrow.string()) if pyarrow.types.is_nested(field.type) else field


def _csv_column(column: pyarrow.Array) -> pyarrow.Array:
    if not pyarrow.types.is_nested(column.type):
        return column
    texts = [None if value is None else msgspec.json.encode(value).decode() for value in column.to_pylist()]
    return pyarrow.array(texts, type=pyarrow.string())


def _write_json(_: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch], file: BinaryIO) -> None:
    """Write a JSON list of objects, one per line."""
    file.write(b"[")
    between = b"\n"
    for batch in batches:
        for row in batch.to_pylist():
            file.write(between + msgspec.json.encode(row))
            between = b",\n"
    file.write(b"\n]\n")
