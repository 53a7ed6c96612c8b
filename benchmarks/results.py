"""What a benchmark found, as tables for the terminal, Markdown and CSV."""

import csv
import os
import platform
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from datetime import date
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from rich.table import Table

import bdfl
from bdfl.report.tables import new_table

Cell = str | int | float | None

_COMPARED = ("objective", "bound")


class Row(Protocol):
    """A frozen dataclass of cells; field names are the columns, units last."""

    __dataclass_fields__: ClassVar[dict[str, Field[Cell]]]


@dataclass(frozen=True)
class Result:
    """One table: columns in the order of the fields of its rows; `notes` say what the numbers mean."""

    name: str
    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def make_result(
    name: str, title: str, rows: Sequence[Row], notes: Sequence[str], without: Sequence[str] = ()
) -> Result:
    """A table of `rows`, leaving out the columns `without`."""
    columns = tuple(item.name for item in fields(rows[0]) if item.name not in without)
    cells = tuple(tuple(getattr(row, column) for column in columns) for row in rows)
    return Result(name, title, columns, cells, tuple(notes))


def heading(column: str) -> str:
    """A column's name in words: `worst_gap` is `worst gap`."""
    return column.replace("_", " ")


def cell_text(column: str, cell: Cell) -> str:
    """A cell for people: three digits (objectives, which are to be compared, more), `-` for nothing."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return "-"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if column.endswith(_COMPARED):
            return f"{cell:.8g}"
        return f"{cell:,.0f}" if 1e3 <= abs(cell) < 1e9 else f"{cell:.3g}"
    return cell


def tabulate(result: Result) -> Table:
    """The table for a terminal."""
    num_words = 0
    while num_words < len(result.columns) and isinstance(result.cells[0][num_words], str):
        num_words += 1
    table = new_table(result.title, [heading(column) for column in result.columns], text_columns=num_words)
    for row in result.cells:
        table.add_row(*map(cell_text, result.columns, row))
    return table


def describe_run(command: str, seed: int) -> list[str]:
    """What somebody needs to know to compare: command, versions, machine, seed and day."""
    return [
        f"Command: `{command}`",
        f"bdfl {bdfl.__version__}, Python {platform.python_version()}, numpy {np.__version__}",
        f"Machine: {_processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}",
        f"Seed {seed}, {date.today().isoformat()}",
    ]


def write_results(folder: Path, results: Sequence[Result], description: Sequence[str]) -> list[Path]:
    """Writes `benchmarks.md` and `benchmarks.csv`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown, values = folder / "benchmarks.md", folder / "benchmarks.csv"
    markdown.write_text(_markdown(results, description), encoding="utf-8")
    with values.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "row", "column", "value"))
        for result in results:
            for number, row in enumerate(result.cells, start=1):
                for column, cell in zip(result.columns, row, strict=True):
                    writer.writerow((result.name, number, column, "" if cell is None else cell))
    return [markdown, values]


def _markdown(results: Sequence[Result], description: Sequence[str]) -> str:
    lines = ["# Benchmarks", "", "Written by the command below; wall times, so other machines give others.", ""]
    lines += [f"- {line}" for line in description]
    for result in results:
        lines += ["", f"## {result.title}", ""]
        lines += ["| " + " | ".join(heading(column) for column in result.columns) + " |"]
        lines += ["|" + "---|" * len(result.columns)]
        lines += ["| " + " | ".join(map(cell_text, result.columns, row)) + " |" for row in result.cells]
        lines += ["", *(f"- {note}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def _processor() -> str:
    """Model of the processor, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"
