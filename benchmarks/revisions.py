"""Two revisions side by side in one run: `python -m benchmarks.revisions f13a492 --only import --only chain --turns 3`.

Each revision runs its own benchmarks in its own working tree, in turns, with the packages of this environment. Ratios
compare the best turn of each, which other work disturbs least.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.results import Result, describe_run, tabulate, write_results

ROOT = Path(__file__).parents[1]
_UNITS = ("_s", "_ms", "_us")  # of columns that are times
_LIMIT_S = 3600.0

Values = dict[tuple[str, str, str], str]  # by table, row and column


def main(
    base: Annotated[str, typer.Argument(help="The older revision: a commit, branch or tag.")],
    only: Annotated[list[str], typer.Option("--only", help="Part of the benchmarks to run. Repeatable.")],
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns of each revision.")] = 3,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Columns to compare.  [default: (all times)]")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Run the benchmarks without --quick.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for benchmarks.md and benchmarks.csv.")] = None,
) -> None:
    """Compare times of this working tree with those of an older revision."""
    found: dict[str, list[Values]] = {"base": [], "here": []}
    with tempfile.TemporaryDirectory(prefix="bdfl-revision-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(tree), base)
        try:
            for turn in range(turns):
                order = ("base", "here") if turn % 2 == 0 else ("here", "base")
                for side in order:
                    typer.echo(f"turn {turn + 1} of {turns}: {side}", err=True)
                    measured = Path(folder) / f"{side}-{turn}"
                    found[side].append(_measure(tree if side == "base" else ROOT, only, measured, full=full))
        finally:
            _git("worktree", "remove", "--force", str(tree))
    result = _compare(found, column, base)
    console = Console(highlight=False)
    console.width = max(console.width, 150)
    console.print(tabulate(result))
    if out is not None:
        command = f"python -m benchmarks.revisions {base} {' '.join(f'--only {part}' for part in only)} --turns {turns}"
        for path in write_results(out, [result], describe_run(command + " --full" * full, 0)):
            typer.echo(f"wrote {path}")


def _measure(tree: Path, parts: list[str], out: Path, *, full: bool) -> Values:
    """Run a tree's own benchmarks; return its cells."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--out",
        str(out),
        *(word for part in parts for word in ("--only", part)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree)))}
    subprocess.run(
        command + ["--quick"] * (not full), cwd=tree, env=environment, check=True, stdout=sys.stderr, timeout=_LIMIT_S
    )
    with (out / "benchmarks.csv").open(encoding="utf-8", newline="") as file:
        return {(row["table"], row["row"], row["column"]): row["value"] for row in csv.DictReader(file)}


def _compare(found: dict[str, list[Values]], columns: list[str] | None, base: str) -> Result:
    """Best times and ratios of all cells that both revisions have."""
    cells = []
    for table, row, column in found["here"][0]:
        key = (table, row, column)
        is_wanted = column in columns if columns else column.endswith(_UNITS) and not column.startswith("asked")
        if not is_wanted or any(not values.get(key) for side in found.values() for values in side):
            continue
        before, here = (min(float(values[key]) for values in found[side]) for side in ("base", "here"))
        name = found["here"][0].get((table, row, _first_column(found["here"][0], table, row)), "")
        cells.append((table, name, column, before, here, here / before if before else float("nan")))
    if not cells:
        raise typer.BadParameter("no column that both revisions measured")
    notes = (f"before: {base}; best of {len(found['here'])} turns of each, in one run",)
    return Result(
        "revisions", f"Times beside {base}", ("table", "row", "column", "before", "here", "ratio"), tuple(cells), notes
    )


def _first_column(values: Values, table: str, row: str) -> str:
    return next(column for found, number, column in values if (found, number) == (table, row))


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True)


if __name__ == "__main__":
    typer.run(main)
