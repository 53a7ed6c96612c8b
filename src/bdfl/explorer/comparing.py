"""Comparison of runs: summaries, curves, and paired differences over common rounds."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from bdfl.explorer.columns import Columns, Values
from bdfl.explorer.documents import CompareDocument, ComparedRun, Curve, PairedDifference
from bdfl.explorer.orders import Pair, Paired
from bdfl.explorer.story import Window, rounded

_POINTS = 500
_MAX_RUNS = 8  # compared in pairs
_METRICS = (("accuracy", ""), ("loss", ""), ("delay_s", "s"), ("mining_s", "s"), ("mean_queue", ""))


def compare_runs(
    runs: Sequence[ComparedRun], columns: Sequence[Columns], pair: Callable[[Pair], Paired] | None
) -> CompareDocument:
    """Compare the runs; `pair` computes the intervals in the worker process, without it there are none."""
    wanted = [
        (a, b, metric, unit, found)
        for a, b in combinations(range(min(len(runs), _MAX_RUNS)), 2)
        for metric, unit in _METRICS
        if (found := _differences(columns[a], columns[b], metric)).size
    ]
    paired: list[PairedDifference] = []
    if wanted and pair is not None:
        answer = pair(Pair(differences=[found.tolist() for *_, found in wanted]))
        for (a, b, metric, unit, found), mean, half_width in zip(wanted, answer.means, answer.half_widths, strict=True):
            paired.append(
                PairedDifference(
                    a=runs[a].run,
                    b=runs[b].run,
                    metric=metric,
                    mean=mean,
                    half_width=half_width,
                    unit=unit,
                    n=found.size,
                )
            )
    curves = [_curve(one.run, found) for one, found in zip(runs, columns, strict=True)]
    return CompareDocument(runs=list(runs), curves=curves, paired=paired)


def _differences(first: Columns, second: Columns, metric: str) -> Values:
    """Return the differences by round, where both values are known."""
    last = min(first.num_rows, second.num_rows)
    found = first[metric][:last] - second[metric][:last]
    known: Values = found[np.isfinite(found)]
    return known


def _curve(run: int, columns: Columns) -> Curve:
    if not columns.num_rows:
        return Curve(run=run, round=[], time_s=[], accuracy=[], delay_s=[], mean_queue=[])
    window = Window(columns, 1, columns.num_rows, _POINTS)
    return Curve(
        run=run,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), 8),
        accuracy=rounded(window.latest(window.values("accuracy")), 5),
        delay_s=rounded(window.means(window.values("delay_s")), 5),
        mean_queue=rounded(window.means(window.values("mean_queue")), 5),
    )
