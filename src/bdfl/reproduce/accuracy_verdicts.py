"""Verdicts of training runs on the paper's claims; claims that the runs cannot decide get no verdict."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.reproduce.figures import TIME_TOLERANCE_PERCENT
from bdfl.reproduce.results import PAPER_ACCURACY_PERCENT, PAPER_TIME_S, Verdict, delay_keys
from bdfl.reproduce.training import STEP_PERCENT, DataSetRuns, best_percent, final_percent, seconds_to, total_s
from bdfl.scheduling.registry import BASELINES, show_choice

ACCURACY_TOLERANCE_POINTS = 2.0  # of the paper's
BASELINE_TOLERANCE_POINTS = 1.0  # below the best baseline's


def judge_runs(found: DataSetRuns, levels: Sequence[float]) -> list[Verdict]:
    """Return all verdicts on one data set; `levels` are accuracies (%) that all runs reached."""
    return [*_judge_accuracy(found), *_judge_time(found), *_judge_baseline(found), *_judge_reach(found, levels),
            *_judge_noise(found)]  # fmt: skip


def _judge_accuracy(found: DataSetRuns) -> list[Verdict]:
    paper = PAPER_ACCURACY_PERCENT[found.data_set]
    off = {
        choice: float(np.mean(final_percent(runs))) - paper[choice]
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return []
    worst = max(off, key=lambda choice: float(np.nan_to_num(abs(off[choice]), nan=np.inf)))
    best = float(np.mean(best_percent(found.by_choice[worst])))
    return [
        Verdict(
            f"{found.name}: final accuracy within {ACCURACY_TOLERANCE_POINTS:g} points of the paper's"
            f" ({', '.join(off)})",
            all(abs(points) <= ACCURACY_TOLERANCE_POINTS for points in off.values()),
            f"furthest is {worst}, {off[worst]:+.2f} points; its best round {best - paper[worst]:+.2f}",
        )
    ]


def _judge_time(found: DataSetRuns) -> list[Verdict]:
    """Judge full-length runs with the shipped delays only: a part of a run does not compare with the paper's time."""
    paper = PAPER_TIME_S[found.data_set]
    if not found.is_full_length or delay_keys(found.used, found.shipped):
        return []
    off = {
        choice: 100.0 * (float(np.mean(total_s(runs))) / paper[choice] - 1.0)
        for choice, runs in found.by_choice.items()
        if choice in paper
    }
    if not off:
        return []
    worst = max(off, key=lambda choice: abs(off[choice]))
    return [
        Verdict(
            f"{found.name}: time within {TIME_TOLERANCE_PERCENT:g} % of the paper's ({', '.join(off)})",
            abs(off[worst]) <= TIME_TOLERANCE_PERCENT,
            f"furthest is {worst}, {off[worst]:+.2f} %",
        )
    ]


def _judge_baseline(found: DataSetRuns) -> list[Verdict]:
    """Compare with the best baseline, which is the stricter test."""
    final = {choice: float(np.mean(final_percent(runs))) for choice, runs in found.by_choice.items()}
    baselines = [choice for choice in final if choice.partition(":")[0] in BASELINES]
    others = [choice for choice in final if choice not in baselines]
    if not baselines or not others:
        return []
    best = max(baselines, key=lambda choice: float(np.nan_to_num(final[choice], nan=-np.inf)))
    shown = ", ".join(f"{show_choice(choice)} {final[choice] - final[best]:+.2f}" for choice in others)
    return [
        Verdict(
            f"{found.name}: {' and '.join(map(show_choice, others))} end at most"
            f" {BASELINE_TOLERANCE_POINTS:g} point below the best baseline's accuracy",
            all(final[choice] >= final[best] - BASELINE_TOLERANCE_POINTS for choice in others),
            f"against {best} with {final[best]:.2f} %: {shown} points",
        )
    ]


def _judge_reach(found: DataSetRuns, levels: Sequence[float]) -> list[Verdict]:
    """Compare the seconds to the highest accuracy that all runs reached."""
    exact = next((choice for choice in found.by_choice if choice.partition(":")[0] == "exact"), None)
    if exact is None or len(found.by_choice) < 2 or not levels:
        return []
    seconds = {choice: float(np.mean(seconds_to(runs, levels[-1]))) for choice, runs in found.by_choice.items()}
    return [
        Verdict(
            f"{found.name}: {show_choice(exact)} needs least simulated seconds to reach {levels[-1]:g} %",
            all(seconds[exact] < other_s for choice, other_s in seconds.items() if choice != exact),
            ", ".join(f"{show_choice(choice)} {time_s:.1f} s" for choice, time_s in seconds.items()),
        )
    ]


def _judge_noise(found: DataSetRuns) -> list[Verdict]:
    """Judge if accuracies differ; no verdict if the intervals are too wide to exclude a difference."""
    differences = _differences(found)
    if not differences or (not _any_differs(differences) and _widest(differences) > ACCURACY_TOLERANCE_POINTS):
        return []
    first = next(iter(found.by_choice))
    shown = ", ".join(
        f"{show_choice(choice)} {points.mean:+.2f} ± {points.half_width:.2f}" for choice, points in differences.items()
    )
    return [
        Verdict(
            f"{found.name}: no final accuracy differs from {show_choice(first)}'s beyond the noise of"
            f" {found.num_seeds} seeds ({len(differences)} comparisons at 95 %)",
            not _any_differs(differences),
            f"points: {shown}",
        )
    ]


def describe_unjudged(found: DataSetRuns, levels: Sequence[float]) -> list[str]:
    """Describe the claims without a verdict, and pairs of schedulers with the same training."""
    notes = [
        f"{found.name}: {show_choice(one)} and {show_choice(other)} trained the same clients in every round, so their"
        " models are the same: their accuracies are one measurement, not two"
        for one, other in combinations(found.by_choice, 2)
        if _is_same_training(found, one, other)
    ]
    if not levels:
        notes.append(
            f"{found.name}: no multiple of {STEP_PERCENT} % above the untrained models was reached by all runs,"
            " so there are no seconds to compare"
        )
    differences = _differences(found)
    if differences and not _judge_noise(found):
        notes.append(
            f"{found.name}: {found.num_seeds} seeds leave differences of accuracy uncertain by up to"
            f" {_widest(differences):.1f} points, so whether schedulers differ is not judged"
        )
    return notes


def _is_same_training(found: DataSetRuns, one: str, other: str) -> bool:
    pairs = zip(found.by_choice[one], found.by_choice[other], strict=True)
    return all(np.array_equal(left.record.selected, right.record.selected) for left, right in pairs)


def _differences(found: DataSetRuns) -> dict[str, Interval]:
    """Return final accuracy (points) minus the first scheduler's, paired over seeds; empty for a single seed.

    The reference is the first scheduler: one chosen by its result would bias every difference.
    """
    if found.num_seeds < 2:
        return {}
    first, *others = found.by_choice
    reference = final_percent(found.by_choice[first])
    return {choice: mean_interval(final_percent(found.by_choice[choice]) - reference) for choice in others}


def _any_differs(differences: Mapping[str, Interval]) -> bool:
    return any(abs(points.mean) > points.half_width for points in differences.values())


def _widest(differences: Mapping[str, Interval]) -> float:
    return max(points.half_width for points in differences.values())
