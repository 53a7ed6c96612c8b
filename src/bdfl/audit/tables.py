"""A chain as tables for spreadsheets and data frames, and the tables of a folder as CSV, Parquet or JSON.

Column names contain the units. Digests, keys and signatures are hexadecimal text; missing values are null. A table is
read and written in parts, so it may be larger than memory. Needs pyarrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from bdfl.audit.export import Format
from bdfl.audit.lineage import describe_change, sample_weights, show_utc
from bdfl.audit.summary import summarise_members
from bdfl.errors import BdflError, one_line
from bdfl.ledger.block import Block
from bdfl.ledger.costs import ATTO, MICROWATT, NANO, PICOJOULE
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.ledger.store import Store
from bdfl.scenario.schema_learning import MICRO
from bdfl.storage import open_parquet

Cell = bool | int | float | str | list[int] | None
Row = dict[str, Cell]
Rows = Iterator[Row]

_KINDS = {
    "int": pyarrow.int64(),
    "ints": pyarrow.list_(pyarrow.int64()),
    "float": pyarrow.float64(),
    "text": pyarrow.string(),
    "flag": pyarrow.bool_(),
}
_COLUMNS = {
    "blocks": (
        "height:int digest:text parent:text time:text proposer:int attempt:int difficulty:int is_empty:flag "
        "num_updates:int num_reports:int num_votes:int offenders:ints change:text exchange_s:float "
        "mining_s:float delay_s:float energy_j:float objective:float reason:text model:text"
    ),
    "updates": (
        "height:int client:int samples:int size:int is_declined:flag weight:float epsilon:float model:text "
        "signature:text"
    ),
    "schedules": (
        "height:int member:int is_selected:flag cpu_hz:int power_w:float mining_hz:int energy_j:float next_queue:float"
    ),
    "reports": (
        "height:int client:int round:int gain:float energy_budget_j:float is_reachable:flag receipt_round:int "
        "receipt_energy_j:float receipt_training_s:float receipt_upload_s:float receipt_mining_s:float"
    ),
    "votes": (
        "height:int voter:int kind:text attempt:int mining_ms:int num_updates:int num_reports:int signature:text"
    ),
    "evidence": "height:int offender:int kind:text",
    "members": (
        "member:int public_key:text samples:int rate:float since:int until:int scheduled:int trained:int "
        "declined:int missing:int reports:int proposed:int in_certificates:int epsilon:float queue:float"
    ),
}
SCHEMAS: dict[str, pyarrow.Schema] = {
    name: pyarrow.schema([(column, _KINDS[kind]) for column, kind in (one.split(":") for one in columns.split())])
    for name, columns in _COLUMNS.items()
}


def chain_rows(chain: Store, table: str) -> Rows:
    """Return the rows of one of the tables in `SCHEMAS`, by height and then by member."""
    if table == "members":
        return (asdict(member) for member in summarise_members(chain, chain.height))
    rows_of = _ROWS[table]
    return (row for block in chain.blocks() for row in rows_of(chain, block))


def _block_row(chain: Store, block: Block) -> Rows:
    header, body = block.header, block.body
    yield {
        "height": header.height,
        "digest": block.digest.hex(),
        "parent": header.parent.hex(),
        "time": show_utc(header.time_ms),
        "proposer": header.proposer,
        "attempt": header.attempt,
        "difficulty": header.difficulty,
        "is_empty": body.is_empty,
        "num_updates": len(body.updates),
        "num_reports": len(body.reports),
        "num_votes": len(chain.certificate(header.height)),
        "offenders": [offender_of(evidence) for evidence in find_evidence(body.entries)],
        "change": describe_change(block) or None,
        "exchange_s": body.modelled.exchange_ns / NANO,
        "mining_s": body.modelled.mining_ns / NANO,
        "delay_s": body.modelled.delay_ns / NANO,
        "energy_j": sum(body.modelled.energy_pj) / PICOJOULE,
        "objective": body.schedule.objective_nano / NANO if body.schedule.is_feasible else None,
        "reason": body.schedule.reason or None,
        "model": body.model.hex(),
    }


def _update_rows(chain: Store, block: Block) -> Rows:
    weights = sample_weights(block) if chain.genesis.law.rule == "mean" else {}
    for signed in block.body.updates:
        update = signed.update
        yield {
            "height": block.header.height,
            "client": update.client,
            "samples": update.samples,
            "size": update.size,
            "is_declined": update.is_declined,
            "weight": weights.get(update.client),
            "epsilon": update.epsilon_micro / MICRO if update.epsilon_micro else None,
            "model": update.model.hex() or None,
            "signature": signed.signature.hex(),
        }


def _schedule_rows(_: Store, block: Block) -> Rows:
    body = block.body
    places = {member: place for place, member in enumerate(body.schedule.selected)}
    for member, mining_hz in enumerate(body.schedule.mining_hz):
        place = places.get(member)
        yield {
            "height": block.header.height,
            "member": member,
            "is_selected": place is not None,
            "cpu_hz": _at(body.schedule.cpu_hz, place),
            "power_w": _measure(_at(body.schedule.power_uw, place), MICROWATT),
            "mining_hz": mining_hz,
            "energy_j": _measure(_at(body.modelled.energy_pj, member), PICOJOULE),
            "next_queue": _measure(_at(body.queue_nano, member), NANO),
        }


def _at(values: Sequence[int], place: int | None) -> int | None:
    """Return the value at a place; None if an invalid chain has too few."""
    return None if place is None or place >= len(values) else values[place]


def _measure(count: int | None, per_one: int) -> float | None:
    return None if count is None else count / per_one


def _report_rows(_: Store, block: Block) -> Rows:
    for signed in block.body.reports:
        report, receipt = signed.report, signed.report.receipt
        yield {
            "height": block.header.height,
            "client": report.client,
            "round": report.round,
            "gain": report.conditions.gain_atto / ATTO,
            "energy_budget_j": report.conditions.energy_budget_pj / PICOJOULE,
            "is_reachable": report.conditions.is_reachable,
            "receipt_round": None if receipt is None else receipt.round,
            "receipt_energy_j": None if receipt is None else receipt.energy_pj / PICOJOULE,
            "receipt_training_s": None if receipt is None else receipt.training_ns / NANO,
            "receipt_upload_s": None if receipt is None else receipt.upload_ns / NANO,
            "receipt_mining_s": None if receipt is None else receipt.mining_ns / NANO,
        }


def _vote_rows(chain: Store, block: Block) -> Rows:
    for signed in chain.certificate(block.header.height):
        vote = signed.vote
        yield {
            "height": block.header.height,
            "voter": vote.voter,
            "kind": vote.kind.value,
            "attempt": vote.attempt,
            "mining_ms": vote.mining_ms,
            "num_updates": len(vote.updates),
            "num_reports": len(vote.reports),
            "signature": signed.signature.hex(),
        }


def _evidence_rows(_: Store, block: Block) -> Rows:
    for evidence in find_evidence(block.body.entries):
        kind = str(evidence.__struct_config__.tag)
        yield {"height": block.header.height, "offender": offender_of(evidence), "kind": kind}


_ROWS: dict[str, Callable[[Store, Block], Rows]] = {
    "blocks": _block_row,
    "updates": _update_rows,
    "schedules": _schedule_rows,
    "reports": _report_rows,
    "votes": _vote_rows,
    "evidence": _evidence_rows,
}


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
    texts = pyarrow.string()
    plain = pyarrow.schema([field.with_type(texts) if _is_list(field) else field for field in schema])
    with pyarrow.csv.CSVWriter(file, plain) as writer:
        for batch in batches:
            columns = [_as_json(column) if _is_list(column) else column for column in batch.columns]
            writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=plain))


def _is_list(column: pyarrow.Field | pyarrow.Array) -> bool:
    return bool(pyarrow.types.is_nested(column.type))


def _as_json(column: pyarrow.Array) -> pyarrow.Array:
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
