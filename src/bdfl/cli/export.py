"""`bdfl export`: tables of a run, a record, a sweep or a chain for other programs."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.audit.table_format import Format
from bdfl.cli.options import RESULTS, JsonOption
from bdfl.cli.terminal import print_json, progress, say, writing_to
from bdfl.errors import BdflError, require

if TYPE_CHECKING:
    from bdfl.audit.tables import Table
    from bdfl.ledger.store import ChainStore

_STANDARD_OUTPUT = Path("-")


class NoTable(BdflError):
    """A folder without tables, a table that is not there, or an output that cannot hold it."""


def export(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, records, a sweep, a node or a chain.")
    ],
    format: Annotated[Format, typer.Option("--format", help="File format.")] = Format.CSV,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Table to write, such as rounds or blocks. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the files, or - for standard output.", show_default="results/NAME-tables"
        ),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the tables and their columns.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tables of a run, sweep or chain as CSV, Parquet or JSON.

    A run has tables of rounds and clients, a chain of blocks and updates.

    Examples:
      bdfl export runs/quickstart-drc-0
      bdfl export runs/quickstart-drc-0 --table updates --format json --out -
      bdfl export runs/quickstart-drc-0/chain --format parquet --out tables
    """
    with ExitStack() as opened:
        chain = _open_chain(path, opened)
        tables = _choose(path, chain, table)
        if only_list:
            _show(tables, as_json=as_json)
        elif out == _STANDARD_OUTPUT:
            _print(tables, format)
        else:
            folder = out or RESULTS / f"{path.resolve().name}-tables"
            if folder.resolve() == path.resolve():
                raise NoTable(f"--out {folder}: where the tables are read from, another folder expected")
            _write(tables, format, folder, as_json=as_json)


def _open_chain(path: Path, opened: ExitStack) -> "ChainStore | None":
    from bdfl.cli.chain import NoChain, find_chain
    from bdfl.ledger.store import ChainStore

    if not path.is_dir():
        raise NoTable(f"{path}: not a folder, that of a run, records, a sweep, a node or a chain expected")
    try:
        found = find_chain(path)
    except NoChain:
        return None
    return opened.enter_context(ChainStore.open(found, read_only=True))


def _choose(path: Path, chain: "ChainStore | None", names: list[str] | None) -> "list[Table]":
    require("exporting tables", "pyarrow")
    from bdfl.audit.tables import find_tables

    found = find_tables(path, chain)
    if not found:
        raise NoTable(f"{path}: no table and no chain in it, the folder of a run, records, a sweep or a chain expected")
    for name in names or ():
        if name not in found:
            hint = f"; bdfl report {path} writes those of its rounds" if (path / "journal.jsonl").is_file() else ""
            raise NoTable(f"{path}: no table {name!r} in it, there are {', '.join(found)}{hint}")
    return [found[name] for name in names or found]


def _show(tables: "list[Table]", *, as_json: bool) -> None:
    if as_json:
        print_json({table.name: {field.name: str(field.type) for field in table.schema} for table in tables})
        return
    for table in tables:
        say(f"{table.name}: {', '.join(table.schema.names)}")


def _print(tables: "list[Table]", format: Format) -> None:
    from bdfl.audit.tables import write_table

    if len(tables) != 1 or format is Format.PARQUET:
        raise NoTable("--out -: standard output takes one --table, as csv or json")
    write_table(tables[0], format, sys.stdout.buffer)


def _write(tables: "list[Table]", format: Format, folder: Path, *, as_json: bool) -> None:
    from bdfl.audit.tables import write_table

    written: dict[str, int] = {}
    with writing_to(folder), progress(f"writing {folder}", "tables") as on_progress:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            path = folder / f"{table.name}.{format.value}"
            with path.open("wb") as file:
                rows = write_table(table, format, file, lambda _: on_progress(len(written), len(tables)))
            written[str(path)] = rows
    if as_json:
        print_json(written)
        return
    for name, rows in written.items():
        say(f"wrote {name}: {rows} rows")
