"""The times of the paper's Table IV, and those of `exact` on the same rounds; nothing is trained."""

from collections.abc import Sequence

from bdfl.experiment.choices import show_choice
from bdfl.experiment.comparison import PAPER_SCHEDULERS, Comparison, SchedulerResult, compare
from bdfl.report.figures import TimePair, draw_times
from bdfl.reproduce.paper import DATA_SET_NAMES, DATA_SETS, PAPER_REDUCTION_PERCENT, PAPER_TIME_S
from bdfl.reproduce.results import Cell, NumberTable, Reproduction, Settings, Target, Verdict, finish, load_shipped

EXACT_TRADEOFFS = (40.0, 45.0, 50.0, 55.0, 60.0)
DRAWN_EXACT = "exact:tradeoff=50"
TIME_TOLERANCE_PERCENT = 3.0
REDUCTION_TOLERANCE_POINTS = 2.0
EXACT_REDUCTION_PERCENT = 14.0
EXACT_SHORTFALL = 0.01
EXACT_ABOVE_BOUND_PERCENT = 1.5


def reproduce_times(settings: Settings) -> Reproduction:
    rows: list[list[Cell]] = []
    exact_rows: list[list[Cell]] = []
    drawn: dict[str, list[SchedulerResult]] = {}
    verdicts: list[Verdict] = []
    for data_set in DATA_SETS:
        choices = (*PAPER_SCHEDULERS, *(f"exact:tradeoff={tradeoff:g}" for tradeoff in EXACT_TRADEOFFS))
        comparison = compare(
            load_shipped(f"paper-{data_set}", settings),
            choices,
            num_seeds=settings.num_seeds,
            frontier_tradeoffs=(),
            workers=settings.workers,
            on_progress=settings.on_progress,
        )
        name = DATA_SET_NAMES[data_set]
        published, ours = comparison.results[: len(PAPER_SCHEDULERS)], comparison.results[len(PAPER_SCHEDULERS) :]
        drawn[data_set] = [*published, _find(comparison, DRAWN_EXACT)]
        for result in published:
            paper_s = PAPER_TIME_S[data_set][result.scheduler]
            off = 100.0 * (result.total_s.mean / paper_s - 1.0)
            rows.append([name, result.scheduler, paper_s, result.total_s.mean, result.total_s.half_width, off])
        verdicts.append(_judge_times(name, rows[-len(published) :]))
        verdicts.append(_judge_reduction(name, data_set, _find(comparison, "drc")))
        exact_rows += [
            [
                name,
                show_choice(result.scheduler),
                result.total_s.mean,
                _reduction(result),
                result.shortfall.mean,
                result.worst_shortfall,
                None if result.above_bound_percent is None else result.above_bound_percent.mean,
            ]
            for result in ours
        ]
        verdicts += _judge_exact(name, ours)
    tables = [
        NumberTable(
            "times",
            f"Table IV: training time (s), {settings.num_seeds} seeds",
            ["data", "scheduler", "paper", "ours", "95 % +-", "off (%)"],
            rows,
        ),
        NumberTable(
            "exact",
            "Beyond the paper: exact",
            ["data", "scheduler", "time (s)", "below best baseline (%)", "shortfall", "worst seed", "above bound (%)"],
            exact_rows,
        ),
    ]
    picture = draw_times(
        [
            (
                DATA_SET_NAMES[data_set],
                [
                    TimePair(result.scheduler, PAPER_TIME_S[data_set].get(result.scheduler), result.total_s)
                    for result in shown
                ],
            )
            for data_set, shown in drawn.items()
        ]
    )
    return finish(Target.TABLE4, settings, tables, verdicts, {"table4": picture})


def _judge_times(name: str, rows: Sequence[Sequence[Cell]]) -> Verdict:
    off = max(abs(float(row[5] or 0.0)) for row in rows)
    return Verdict(
        f"{name}: all {len(rows)} times within {TIME_TOLERANCE_PERCENT:g} % of the paper's",
        off <= TIME_TOLERANCE_PERCENT,
        f"the worst is {off:.2f} % off",
    )


def _judge_reduction(name: str, data_set: str, drc: SchedulerResult) -> Verdict:
    found, paper = _reduction(drc), PAPER_REDUCTION_PERCENT[data_set]
    return Verdict(
        f"{name}: drc's reduction within {REDUCTION_TOLERANCE_POINTS:g} points of the paper's {paper:g} %",
        abs(found - paper) <= REDUCTION_TOLERANCE_POINTS,
        f"{found:.2f} %, {abs(found - paper):.2f} points off",
    )


def _judge_exact(name: str, results: Sequence[SchedulerResult]) -> list[Verdict]:
    """Judge the fastest V among those that serve every client in every seed."""
    fair = [result for result in results if result.worst_shortfall <= EXACT_SHORTFALL]
    claim = f"{name}: exact at its best V, shortfall at most {EXACT_SHORTFALL:g}"
    if not fair:
        return [Verdict(claim, False, "no V of those tried serves every client")]
    best = min(fair, key=lambda result: result.total_s.mean)
    shown = show_choice(best.scheduler)
    above = best.above_bound_percent
    return [
        Verdict(
            f"{claim}, is {EXACT_REDUCTION_PERCENT:g} % below the best baseline",
            _reduction(best) >= EXACT_REDUCTION_PERCENT,
            f"{shown}: {_reduction(best):.2f} % below, shortfall {best.worst_shortfall:.4f}",
        ),
        Verdict(
            f"{claim}, is within {EXACT_ABOVE_BOUND_PERCENT:g} % of the dual bound",
            above is not None and above.mean <= EXACT_ABOVE_BOUND_PERCENT,
            "no bound was computed" if above is None else f"{shown}: {above.mean:.2f} % above",
        ),
    ]


def _reduction(result: SchedulerResult) -> float:
    return float("nan") if result.reduction_percent is None else result.reduction_percent.mean


def _find(comparison: Comparison, scheduler: str) -> SchedulerResult:
    return next(result for result in comparison.results if result.scheduler == scheduler)
