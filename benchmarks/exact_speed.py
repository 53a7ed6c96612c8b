"""`exact` from 8 to a million clients: time, proven gap, memory and growth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bdfl.scheduling.checker import decision_status, evaluate, find_violations, optimality_gap
from bdfl.scheduling.drc import drc
from bdfl.scheduling.exact import exact
from bdfl.scheduling.problem import OPTIMAL_GAP, Status
from benchmarks.clock import best_time_s, growth_exponent, pass_time_s, peak_bytes
from benchmarks.results import Result, make_result
from benchmarks.rounds import Family, draw_round

GROWTH_FROM = 1000  # clients; below, fixed costs dominate


@dataclass(frozen=True)
class Case:
    """Rounds of one family and size, solved to one gap; `asked_ms` is the time the project set itself."""

    family: Family
    num_clients: int
    target_gap: float
    num_rounds: int
    repeats: int
    asked_ms: float | None = None


@dataclass(frozen=True)
class ExactRow:
    """What one case took; times are the best of the repeats, median and worst over the rounds."""

    rounds: str
    clients: int
    target_gap: float
    worst_gap: float
    proven: str
    median_ms: float
    worst_ms: float
    asked_ms: float | None
    evaluations: int
    passes: float
    drc_ms: float
    selected: str
    peak_mb: float
    bytes_per_client: float


def plan_cases(*, quick: bool) -> list[Case]:
    """The cases of a full or quick run, small ones first."""
    few = [
        Case(family, 8, OPTIMAL_GAP, 10 if quick else 100, 20, 1.0)
        for family in (Family.PAPER, Family.CELL, Family.WIDE, Family.CAPPED)
    ]
    many = [
        Case(family, num_clients, target_gap, 3 if quick else 9, 3 if quick else 5, asked_ms)
        for family in (Family.CELL, Family.WIDE, Family.CAPPED)
        for num_clients, target_gap, asked_ms in (
            (100, OPTIMAL_GAP, None),
            (1000, 1e-6, 20.0),
            (1000, 1e-3, None),
            (1000, 5e-2, None),
        )
    ]
    crowds = [
        Case(family, num_clients, target_gap, 3, 1 if quick or num_clients > 100_000 else 3, asked_ms)
        for num_clients, target_gap, asked_ms in (
            (10_000, 1e-3, None),
            (10_000, 5e-2, None),
            (100_000, 1e-3, 2000.0),
            (100_000, 5e-2, 500.0),
            (1_000_000, 1e-3, 24_000.0),
            (1_000_000, 5e-2, 6000.0),
        )
        for family in (Family.CELL, Family.WIDE)
        if not quick or num_clients <= 100_000
    ]
    return few + many + crowds


def measure_case(case: Case, seed: int) -> ExactRow:
    """One row; raises if a decision breaks a constraint, since a wrong answer has no speed."""
    problems = [draw_round(case.family, case.num_clients, number, seed) for number in range(case.num_rounds)]

    solve = partial(exact, target_gap=case.target_gap)
    times_s, drc_s, gaps, statuses, evaluations, shares = [], [], [], [], [], []
    for problem in problems:
        decision = solve(problem)
        violations = find_violations(problem, decision)
        if violations:
            raise AssertionError(f"{case}: {violations[0]}")
        outcome = evaluate(problem, decision)
        statuses.append(decision_status(problem, decision, outcome))
        if decision.is_feasible:
            gaps.append(optimality_gap(problem, outcome, decision.bound))
            shares.append(float(np.mean(decision.selected)))
        evaluations.append(decision.iterations)
        times_s.append(best_time_s(partial(solve, problem), case.repeats))
        drc_s.append(best_time_s(partial(drc, problem), case.repeats))
    peak = peak_bytes(partial(solve, problems[0]))
    median_s = float(np.median(times_s))
    return ExactRow(
        rounds=str(case.family),
        clients=case.num_clients,
        target_gap=case.target_gap,
        worst_gap=max(gaps, default=float("nan")),
        proven=_count_statuses(statuses),
        median_ms=1e3 * median_s,
        worst_ms=1e3 * max(times_s),
        asked_ms=case.asked_ms,
        evaluations=int(np.median(evaluations)),
        passes=median_s / pass_time_s(case.num_clients, max(case.repeats, 3)),
        drc_ms=1e3 * float(np.median(drc_s)),
        selected=f"{100 * min(shares):.0f}-{100 * max(shares):.0f} %" if shares else "-",
        peak_mb=peak / 1e6,
        bytes_per_client=peak / case.num_clients,
    )


def _count_statuses(statuses: Sequence[Status]) -> str:
    counts = [(sum(status is wanted for status in statuses), wanted) for wanted in Status]
    return ", ".join(f"{count} {wanted.value}" for count, wanted in counts if count)


@dataclass(frozen=True)
class GrowthRow:
    """How time and memory grow over the sizes from GROWTH_FROM on: value ~ clients^exponent."""

    rounds: str
    target_gap: float
    sizes: str
    time_exponent: float
    memory_exponent: float


def fit_growth(rows: Sequence[ExactRow]) -> list[GrowthRow]:
    """One row for every family and gap that was measured at two sizes or more."""
    growth = []
    for family, target_gap in dict.fromkeys((row.rounds, row.target_gap) for row in rows):
        series = [
            row for row in rows if (row.rounds, row.target_gap) == (family, target_gap) and row.clients >= GROWTH_FROM
        ]
        sizes = [row.clients for row in series]
        if len(sizes) > 1:
            growth.append(
                GrowthRow(
                    rounds=family,
                    target_gap=target_gap,
                    sizes=f"{min(sizes):,} to {max(sizes):,}",
                    time_exponent=growth_exponent(sizes, [row.median_ms for row in series]),
                    memory_exponent=growth_exponent(sizes, [row.peak_mb for row in series]),
                )
            )
    return growth


def measure_exact(cases: Sequence[Case], seed: int, report: Callable[[str], None]) -> list[Result]:
    """Speed, cost and growth tables."""
    rows = []
    for case in cases:
        report(f"exact: {case.num_rounds} {case.family} rounds of {case.num_clients:,}, gap {case.target_gap:g}")
        rows.append(measure_case(case, seed))
    growth = fit_growth(rows)
    speed = make_result(
        "exact-speed",
        "exact: time and proven gap",
        rows,
        [
            "Times of one round: best of the repeats, then median and worst over the rounds; `asked` is our own limit.",
            "`evaluations` (median) are passes of the certificate; 0 where all sets were enumerated.",
            "`proven` counts the rounds by status: optimal is a proven gap of at most 1e-9.",
        ],
        without=("passes", "drc_ms", "selected", "peak_mb", "bytes_per_client"),
    )
    cost = make_result(
        "exact-cost",
        "exact: against one pass over the data, against drc, and its memory",
        rows,
        [
            "`passes` is the median time over that of a cube root and a few operations for every client.",
            "`selected` is the range of the share of clients that train.",
            "Memory is the peak during one solve, beyond the problem itself.",
        ],
        without=("worst_gap", "proven", "worst_ms", "asked_ms", "evaluations"),
    )
    if not growth:
        return [speed, cost]
    return [speed, cost, make_result("exact-growth", "exact: growth with the number of clients", growth, [])]
