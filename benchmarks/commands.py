"""Wall times of the commands and of importing the package, each in a fresh process."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.clock import best_time_s
from benchmarks.results import Result, make_result

_FOUR_PUBLISHED = "random,round-robin,channel-best,drc"
_FOUR_WITH_EXACT = "random,channel-best,drc,exact:tradeoff=50"


@dataclass(frozen=True)
class CommandRow:
    """One command from a fresh process to its last byte; `asked_s` is the time the project set itself."""

    command: str
    best_s: float
    asked_s: float | None
    repeats: int


def measure_compare(repeats: int, report: Callable[[str], None]) -> list[Result]:
    """`bdfl compare` with 4 schedulers x 20 seeds x 100 rounds on 2 workers, and as `make compare` calls it."""
    shape = ("--seeds", "20", "--rounds", "100", "--workers", "2")
    bare = ("--no-frontier", "--no-bound")
    commands: list[tuple[tuple[str, ...], float]] = [
        (("--schedulers", _FOUR_PUBLISHED, *shape, *bare), 10.0),
        (("--schedulers", _FOUR_WITH_EXACT, *shape, *bare), 10.0),
        (("--schedulers", _FOUR_WITH_EXACT, *shape), 30.0),
        ((), 30.0),
    ]
    rows = []
    for options, asked_s in commands:
        words = ("compare", "paper-cifar10", *options)
        report(f"compare: bdfl {' '.join(words)}")
        with tempfile.TemporaryDirectory() as folder:
            seconds = best_time_s(partial(_run_bdfl, *words, "--out", folder), repeats)
        rows.append(CommandRow(f"bdfl {' '.join(words)}", seconds, asked_s, repeats))
    notes = ["Includes starting Python and the workers, and writing figures and CSV files. The last is `make compare`."]
    return [make_result("compare", "bdfl compare: wall time", rows, notes)]


def measure_import(repeats: int, report: Callable[[str], None]) -> list[Result]:
    """`import bdfl` beside an interpreter that does nothing, and beside what the command line needs."""
    report("import: fresh interpreters")
    rows = [
        CommandRow(f'python -c "{statement}"', best_time_s(partial(_run_python, statement), repeats), asked_s, repeats)
        for statement, asked_s in (
            ("pass", None),
            ("import bdfl", 0.3),
            ("import bdfl.scheduling.exact", None),
            ("import bdfl.cli", None),
        )
    ]
    return [make_result("import", "import bdfl: wall time of a fresh interpreter", rows, [])]


def _run_python(code: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


def _run_bdfl(*arguments: str) -> None:
    _run_python("from bdfl.cli import main; main()", *arguments)
