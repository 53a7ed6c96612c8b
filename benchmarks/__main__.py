"""The command: measures what was asked for, shows tables, writes them where `--out` says."""

import importlib.util
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import commands, drc_growth, exact_speed, general_solver, long_run
from benchmarks.ledger import mining, storing
from benchmarks.results import Result, describe_run, tabulate, write_results

_LEAST_WIDTH = 150  # columns; narrower would cut the numbers


class Part(StrEnum):
    """What can be measured by itself."""

    EXACT = "exact"
    SCIP = "scip"
    COMPARE = "compare"
    DRC = "drc"
    IMPORT = "import"
    LEARNING = "learning"
    LOOP = "loop"
    LEDGER = "ledger"
    VERIFY = "verify"
    CHAIN = "chain"
    LIVE = "live"
    IDLE = "idle"
    EXPLORER = "explorer"
    SCALE = "scale"
    FLOWER = "flower"
    SWEEP = "sweep"
    LONG_RUN = "long-run"


_ASKED_FOR = (
    Part.LEARNING,
    Part.LOOP,
    Part.VERIFY,
    Part.CHAIN,
    Part.LIVE,
    Part.IDLE,
    Part.EXPLORER,
    Part.SCALE,
    Part.FLOWER,
    Part.SWEEP,
    Part.LONG_RUN,
)  # long, or with environments of its own: only by name


def measure(
    part: Part, seed: int, quick: bool, report: Callable[[str], None], minutes: float | None = None
) -> list[Result]:
    """The tables of one part; `minutes` says how long to look at an idle network."""
    match part:
        case Part.EXACT:
            return exact_speed.measure_exact(exact_speed.plan_cases(quick=quick), seed, report)
        case Part.SCIP:
            num_rounds, limit_s = (1, 20.0) if quick else (4, 120.0)
            return general_solver.measure_scip(general_solver.SIZES, num_rounds, limit_s, seed, report)
        case Part.COMPARE:
            return commands.measure_compare(1 if quick else 3, report)
        case Part.DRC:
            sizes = drc_growth.SIZES[:-1] if quick else drc_growth.SIZES
            return drc_growth.measure_drc(sizes, 3 if quick else 9, seed, report)
        case Part.IMPORT:
            return commands.measure_import(3 if quick else 10, report)
        case Part.LEARNING:
            from benchmarks.learning.speed import measure_learning  # needs torch

            return measure_learning(quick=quick, seed=seed, report=report)
        case Part.LOOP:
            from benchmarks.learning.speed import measure_loop  # needs torch

            return measure_loop(quick=quick, seed=seed, report=report)
        case Part.LEDGER:
            plan, num_blocks = (mining.QUICK, 5) if quick else (mining.FULL, 25)
            return [*mining.measure_mining(plan, report), *storing.measure_storing(num_blocks, report)]
        case Part.VERIFY:
            from benchmarks.ledger.verify_speed import measure_verify  # needs safetensors

            return measure_verify(10 if quick else 100, 3, seed, report)
        case Part.CHAIN:
            from benchmarks.ledger.round_cost import measure_chain  # needs torch

            return measure_chain(quick=quick, seed=seed, report=report)
        case Part.LIVE:
            from benchmarks.live.overhead import measure_live  # needs zenoh and torch

            return measure_live(quick=quick, report=report)
        case Part.IDLE:
            from benchmarks.live.idle import MINUTES, measure_idle  # needs zenoh and torch

            return measure_idle(minutes or (1.0 if quick else MINUTES), report)
        case Part.EXPLORER:
            from benchmarks.explorer import speed  # needs playwright and a browser

            return speed.measure(speed.QUICK if quick else speed.FULL, report)
        case Part.SCALE:
            from benchmarks.scale.speed import FULL, QUICK, measure_scale  # needs torch, in children

            return measure_scale(QUICK if quick else FULL, report)
        case Part.FLOWER:
            from benchmarks.flower.speed import measure_flower  # needs torch and flwr

            return measure_flower(quick=quick, seed=seed, report=report)
        case Part.SWEEP:
            from benchmarks.sweep_share import measure_sweep  # needs Ray

            return measure_sweep(quick=quick, report=report)
        case Part.LONG_RUN:
            return long_run.measure_long_run(2 if quick else 20, seed + long_run.HELD_OUT, report)


def main(
    only: Annotated[
        list[Part] | None,
        typer.Option(
            "--only",
            help="Measure this alone; some of them, such as learning or flower, are measured only so. Repeatable.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller rounds: minutes instead of an hour.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.1, help="How long idle networks are watched, 10 unless given.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="All rounds are drawn from it.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for benchmarks.md and benchmarks.csv.")] = None,
) -> None:
    """Measure how fast schedulers, learning and the ledger are, and others beside them. Nothing else should run."""
    parts = only or [part for part in Part if part not in _ASKED_FOR]
    if Part.SCIP in parts and importlib.util.find_spec("pyscipopt") is None:
        typer.echo("error: part scip needs pyscipopt: pip install -c constraints.txt -e '.[bench]'", err=True)
        raise typer.Exit(2)
    if {Part.LEARNING, Part.LOOP, Part.CHAIN, Part.SCALE} & set(parts) and importlib.util.find_spec("torch") is None:
        typer.echo("error: learning needs PyTorch: pip install -c constraints.txt -e '.[learn]'", err=True)
        raise typer.Exit(2)
    options = [f" --only {part}" for part in only or ()] + [" --quick"] * quick + [f" --seed {seed}"]
    options += [] if minutes is None else [f" --minutes {minutes:g}"]
    results: list[Result] = []
    console = Console(highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    for part in parts:
        found = measure(part, seed, quick, lambda line: typer.echo(line, err=True), minutes)
        for result in found:
            console.print(tabulate(result))
            console.print(*(f"- {note}" for note in result.notes), "", sep="\n")
        results += found
    if out is not None:
        for path in write_results(out, results, describe_run(f"python -m benchmarks{''.join(options)}", seed)):
            typer.echo(f"wrote {path}")


if __name__ == "__main__":
    typer.run(main)
