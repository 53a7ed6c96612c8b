"""Growth of the paper's algorithm in the number of clients, against its O(T K U^2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bdfl.scheduling.drc import drc
from benchmarks.clock import best_time_s, growth_exponent
from benchmarks.results import Result, make_result
from benchmarks.rounds import Family, draw_round

SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
_FAMILIES = (Family.CELL, Family.CAPPED)  # without caps the alternation stalls, so K is 2


@dataclass(frozen=True)
class DrcRow:
    """One round of `drc`: its K and time, median over rounds, and what the time would be if U^2 held from 1,000 on."""

    rounds: str
    clients: int
    iterations: float | None
    most_iterations: int | None
    time_ms: float
    squared_ms: float | None


def measure_drc(sizes: Sequence[int], num_rounds: int, seed: int, report: Callable[[str], None]) -> list[Result]:
    """K and seconds over U, with the fitted exponent in the notes."""
    rows: list[DrcRow] = []
    notes = [
        "`iterations` is K of the paper's O(T K U^2), mean and most; `squared` is the time at 1,000 times (U/1,000)^2.",
        "P6 sorts by latency once and takes running sums, so a pass costs U log U instead of U^2.",
    ]
    for family in _FAMILIES:
        series: list[DrcRow] = []
        for num_clients in sizes:
            report(f"drc: {num_rounds} {family} rounds of {num_clients:,}")
            series.append(_measure_size(family, num_clients, num_rounds, seed, series))
        large = [row for row in series if row.clients >= 1000]
        exponent = growth_exponent([row.clients for row in large], [row.time_ms for row in large])
        notes.append(f"{family}: time grows like U^{exponent:.2f} from 1,000 clients on.")
        rows += series
    return [make_result("drc", "drc: growth with the number of clients", rows, notes)]


def _measure_size(family: Family, num_clients: int, num_rounds: int, seed: int, smaller: Sequence[DrcRow]) -> DrcRow:
    problems = [draw_round(family, num_clients, number, seed) for number in range(num_rounds)]
    iterations = [decision.iterations for decision in map(drc, problems) if decision.is_feasible]
    time_ms = 1e3 * float(np.median([best_time_s(partial(drc, problem), 3) for problem in problems]))
    base = next((row for row in smaller if row.clients == 1000), None)
    return DrcRow(
        rounds=str(family),
        clients=num_clients,
        iterations=float(np.mean(iterations)) if iterations else None,
        most_iterations=max(iterations, default=None),
        time_ms=time_ms,
        squared_ms=None if base is None else base.time_ms * (num_clients / base.clients) ** 2,
    )
