"""The paper's figures 2 to 4 and its Table IV: our numbers beside the paper's, with verdicts that are computed.

Every curve is a scenario that ships with the package. Nothing here changes a parameter of it, except V of `exact`,
which the paper does not have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.choices import show_choice
from bdfl.experiment.comparison import PAPER_SCHEDULERS, Comparison, SchedulerResult, compare
from bdfl.experiment.measures import cumulative_delay, energy_curves, mean_backlog, mean_curves, running_mean
from bdfl.experiment.sweep import Progress, map_runs
from bdfl.records import RunRecord
from bdfl.report.figures import Curve, Panel, TimePair, draw_curves, draw_times
from bdfl.report.style import CYCLE, INK, MINING, TRAINING, UPLOAD, Picture, Sheet, colour_of, save_picture, save_sheet
from bdfl.scenario import Scenario, describe_scenario, load_scenario
from bdfl.scenario.shipped import find_scenario, shipped_scenarios

DATA_SETS = ("svhn", "cifar10")
DATA_SET_NAMES = {"svhn": "SVHN", "cifar10": "CIFAR-10"}

# [Li24, Table IV]: training time (s); SVHN's are those of 200 rounds by our reading.
PAPER_TIME_S = {
    "svhn": {"random": 219.128, "round-robin": 222.479, "channel-best": 207.962, "drc": 188.750},
    "cifar10": {"random": 108.310, "round-robin": 109.658, "channel-best": 103.929, "drc": 90.964},
}
PAPER_REDUCTION_PERCENT = {"svhn": 9.24, "cifar10": 12.47}

EXACT_TRADEOFFS = (40.0, 45.0, 50.0, 55.0, 60.0)
DRAWN_EXACT = "exact:tradeoff=50"
TIME_TOLERANCE_PERCENT = 3.0
REDUCTION_TOLERANCE_POINTS = 2.0
EXACT_REDUCTION_PERCENT = 14.0
EXACT_SHORTFALL = 0.01
EXACT_ABOVE_BOUND_PERCENT = 1.5
SETTLED_SHARE = 0.15  # of the backlog: how far the last quarter's mean may be from the quarter's before


class Target(StrEnum):
    """What can be reproduced."""

    FIG2 = "fig2"
    FIG3 = "fig3"
    FIG4 = "fig4"
    TABLE4 = "table4"


class UnknownTarget(BdflError):
    """Something to reproduce that is not in the paper."""


Result = TypeVar("Result")
Cell = str | float | int | None


class NumberTable(msgspec.Struct, frozen=True):
    """Numbers in rows, as they are printed and written; `part` is added to the file's name."""

    part: str
    title: str
    header: list[str]
    rows: list[list[Cell]]


class Verdict(msgspec.Struct, frozen=True):
    """A claim, whether our numbers bear it out, and the numbers."""

    claim: str
    holds: bool
    found: str


class Reproduction(msgspec.Struct, frozen=True):
    """What came out for one figure or table of the paper."""

    target: Target
    num_seeds: int
    tables: list[NumberTable]
    verdicts: list[Verdict]
    files: list[str]
    calibrated: list[str]  # keys of its scenarios with values that the paper does not give: chosen by us


@dataclass(frozen=True)
class Settings:
    """How to reproduce, not what: none of it changes a number but `num_seeds`."""

    folder: Path = Path("results")
    num_seeds: int = 20
    workers: int | None = None
    on_progress: Progress | None = None
    max_rounds: int | None = None  # shorter runs than the paper's, to try things out


def parse_targets(what: str) -> list[Target]:
    """The targets that `what` names: one of them, or `all`."""
    if what == "all":
        return list(Target)
    if what not in list(Target):
        raise UnknownTarget(f"reproduce: {what!r} given, allowed are {', '.join(Target)} and all")
    return [Target(what)]


def reproduce(target: Target, settings: Settings) -> Reproduction:
    """One figure or table of the paper, computed, drawn, written and judged."""
    match target:
        case Target.FIG2:
            return _reproduce_fig2(settings)
        case Target.FIG3:
            return _reproduce_fig3(settings)
        case Target.FIG4:
            return _reproduce_fig4(settings)
        case Target.TABLE4:
            return _reproduce_table4(settings)


# Figure 2: mean queue backlog.


def _reproduce_fig2(settings: Settings) -> Reproduction:
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    verdicts: list[Verdict] = []
    for letter, data_set in zip("ab", DATA_SETS, strict=True):
        scenarios = sorted(_curves(f"fig2-{data_set}-v", settings), key=lambda one: one.scheduler.tradeoff)
        runs = _play(scenarios, mean_backlog, settings)
        curves, halves, settled = [], [], []
        for place, (scenario, backlogs) in enumerate(zip(scenarios, runs, strict=True)):
            backlog = np.mean(backlogs, axis=0)
            quarters = [float(np.mean(part)) for part in np.array_split(backlog, 4)]
            change = abs(quarters[3] - quarters[2]) / max(quarters[3], quarters[2], 1e-12)
            label = f"V = {scenario.scheduler.tradeoff:g}"
            curves.append(Curve(label, CYCLE[place], backlog))
            halves.append(float(np.mean(quarters[2:])))
            settled.append(change)
            rows.append([DATA_SET_NAMES[data_set], label, *quarters, 100.0 * change])
        panels.append(Panel(f"{letter}  {DATA_SET_NAMES[data_set]}", curves))
        verdicts += [
            Verdict(
                f"{DATA_SET_NAMES[data_set]}: the larger V, the larger the backlog",
                all(lower < higher for lower, higher in pairwise(halves)),
                f"second-half means {', '.join(f'{half:.2f}' for half in halves)}",
            ),
            Verdict(
                f"{DATA_SET_NAMES[data_set]}: the backlog settles",
                all(change <= SETTLED_SHARE for change in settled),
                f"last two quarters differ by up to {100 * max(settled):.0f} %, allowed {100 * SETTLED_SHARE:.0f} %",
            ),
        ]
    table = NumberTable(
        "quarters",
        "Figure 2: mean queue backlog, by quarters of the run",
        ["data", "V", "1st", "2nd", "3rd", "4th", "change (%)"],
        rows,
    )
    picture = draw_curves(panels, value_label="mean queue backlog (rounds owed)", value_column="mean_backlog")
    return _finish(Target.FIG2, settings, [table], verdicts, {"fig2": picture})


# Figure 3: energy.


def _reproduce_fig3(settings: Settings) -> Reproduction:
    scenarios = sorted(_curves("fig3a-e", settings), key=_budget_j)
    energies = [mean_curves(runs) for runs in _play(scenarios, energy_curves, settings)]
    parts_scenario = _curves("fig3b-e", settings)
    parts = mean_curves(_play(parts_scenario, energy_curves, settings)[0])
    limit_j = _budget_j(parts_scenario[0])
    limits = [_budget_j(scenario) for scenario in scenarios]
    curves = [
        Curve(f"{limit:g} J", CYCLE[place], energy.total_j)
        for place, (limit, energy) in enumerate(zip(limits, energies, strict=True))
    ]
    so_far = [
        Curve(f"{limit:g} J, all clients so far", CYCLE[place], running_mean(energy.all_clients_j), thin=True)
        for place, (limit, energy) in enumerate(zip(limits, energies, strict=True))
    ]
    picture_a = draw_curves(
        [Panel("Energy by budget", [*curves, *so_far], key=("clients that train", "all clients, mean so far"))],
        value_label="mean energy per client (J)",
        value_column="mean_energy_j",
    )
    picture_b = draw_curves(
        [
            Panel(
                f"Energy of a client that trains, budget {limit_j:g} J",
                [
                    Curve("total", INK, parts.total_j),
                    Curve("training", TRAINING, parts.training_j),
                    Curve("upload", UPLOAD, parts.upload_j),
                    Curve("mining", MINING, parts.mining_j),
                ],
            )
        ],
        value_label="mean energy per client (J)",
        value_column="mean_energy_j",
    )
    shares = [float(np.mean(energy.total_j)) / limit for limit, energy in zip(limits, energies, strict=True)]
    highest = max(float(np.max(energy.highest_share)) for energy in energies)
    table = NumberTable(
        "means",
        "Figure 3: mean energy per client and round (J)",
        ["budget", "training", "upload", "mining", "total", "of budget (%)", "all clients"],
        [
            [
                f"{limit:g} J",
                *(
                    float(np.mean(part))
                    for part in (energy.training_j, energy.upload_j, energy.mining_j, energy.total_j)
                ),
                100.0 * share,
                float(np.mean(energy.all_clients_j)),
            ]
            for limit, energy, share in zip(limits, energies, shares, strict=True)
        ],
    )
    by_parts = [float(np.mean(part)) for part in (parts.training_j, parts.upload_j, parts.mining_j)]
    verdicts = [
        Verdict(
            "no client exceeds its budget in any round (C3)",
            highest <= 1.0 + 1e-9,
            f"highest share of a budget {100 * highest:.4f} %",
        ),
        Verdict(
            "clients that train come near their budget, for every budget",
            min(shares) >= 0.9,
            f"at least {100 * min(shares):.1f} % of it",
        ),
        Verdict(
            "the three parts add up to the budget in the long run",
            abs(sum(by_parts) / limit_j - 1.0) <= 0.1,
            f"{by_parts[0]:.3f} + {by_parts[1]:.3f} + {by_parts[2]:.3f} J of {limit_j:g} J",
        ),
    ]
    return _finish(Target.FIG3, settings, [table], verdicts, {"fig3a": picture_a, "fig3b": picture_b})


def _budget_j(scenario: Scenario) -> float:
    budget_j = scenario.energy.budget_j
    if not isinstance(budget_j, float):
        raise BdflError(f"scenario {scenario.name}: energy.budget_j is {budget_j!r}, figure 3 needs one number")
    return budget_j


# Figure 4: cumulative delay.


def _reproduce_fig4(settings: Settings) -> Reproduction:
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    verdicts: list[Verdict] = []
    for letter, data_set in zip("ab", DATA_SETS, strict=True):
        scenarios = [_shipped(f"fig4-{data_set}-{scheduler}", settings) for scheduler in PAPER_SCHEDULERS]
        runs = _play(scenarios, cumulative_delay, settings)
        curves = {scheduler: np.mean(delays, axis=0) for scheduler, delays in zip(PAPER_SCHEDULERS, runs, strict=True)}
        panels.append(
            Panel(
                f"{letter}  {DATA_SET_NAMES[data_set]}",
                [Curve(scheduler, colour_of(scheduler), curve) for scheduler, curve in curves.items()],
                marks=[
                    (len(curve), PAPER_TIME_S[data_set][scheduler], colour_of(scheduler))
                    for scheduler, curve in curves.items()
                ],
                mark_name="paper's time",
            )
        )
        others = [curve for scheduler, curve in curves.items() if scheduler != "drc"]
        lead = np.min(others, axis=0) - curves["drc"]
        rows += [
            [
                DATA_SET_NAMES[data_set],
                scheduler,
                *(float(curve[len(curve) * part // 4 - 1]) for part in (1, 2, 3, 4)),
                PAPER_TIME_S[data_set][scheduler],
            ]
            for scheduler, curve in curves.items()
        ]
        name = DATA_SET_NAMES[data_set]
        quarters = [float(lead[len(lead) * part // 4 - 1]) for part in (1, 2, 3, 4)]
        best = min(("random", "round-robin", "channel-best"), key=lambda scheduler: float(curves[scheduler][-1]))
        verdicts += [
            Verdict(
                f"{name}: drc is ahead, and ever more so",
                quarters[0] > 0 and all(early < late for early, late in pairwise(quarters)),
                f"by {', '.join(f'{lead_s:.1f}' for lead_s in quarters)} s at the quarters of the run",
            ),
            Verdict(
                f"{name}: channel-best is the fastest baseline", best == "channel-best", f"fastest baseline is {best}"
            ),
        ]
    table = NumberTable(
        "quarters",
        "Figure 4: cumulative delay (s) at the quarters of the run",
        ["data", "scheduler", "1/4", "2/4", "3/4", "end", "paper's end"],
        rows,
    )
    picture = draw_curves(panels, value_label="cumulative delay (s)", value_column="cumulative_delay_s")
    return _finish(Target.FIG4, settings, [table], verdicts, {"fig4": picture})


# Table IV: times.


def _reproduce_table4(settings: Settings) -> Reproduction:
    rows: list[list[Cell]] = []
    exact_rows: list[list[Cell]] = []
    drawn: dict[str, list[SchedulerResult]] = {}
    verdicts: list[Verdict] = []
    for data_set in DATA_SETS:
        choices = (*PAPER_SCHEDULERS, *(f"exact:tradeoff={tradeoff:g}" for tradeoff in EXACT_TRADEOFFS))
        comparison = compare(
            _shipped(f"paper-{data_set}", settings),
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
    return _finish(Target.TABLE4, settings, tables, verdicts, {"table4": picture})


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
    """Of all V that serve every client in every seed, the fastest is judged."""
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


# Shared by all targets.


def _curves(prefix: str, settings: Settings) -> list[Scenario]:
    """The shipped scenarios whose names begin with `prefix`: one per curve."""
    return [_shipped(name, settings) for name in shipped_scenarios() if name.startswith(prefix)]


def _shipped(name: str, settings: Settings) -> Scenario:
    scenario = load_scenario(find_scenario(name))
    rounds = min(scenario.rounds, settings.max_rounds or scenario.rounds)
    return msgspec.structs.replace(scenario, rounds=rounds)


def _play(
    scenarios: Sequence[Scenario], reduce: Callable[[RunRecord], Result], settings: Settings
) -> list[list[Result]]:
    """For every scenario, `reduce` of its runs over all seeds."""
    groups = [
        [msgspec.structs.replace(scenario, seed=scenario.seed + offset)]
        for scenario in scenarios
        for offset in range(settings.num_seeds)
    ]
    runs = [run for (run,) in map_runs(groups, reduce, workers=settings.workers, on_progress=settings.on_progress)]
    return [runs[start : start + settings.num_seeds] for start in range(0, len(runs), settings.num_seeds)]


def _finish(
    target: Target,
    settings: Settings,
    tables: Sequence[NumberTable],
    verdicts: Sequence[Verdict],
    pictures: Mapping[str, Picture],
) -> Reproduction:
    files = [path for name, picture in pictures.items() for path in save_picture(picture, settings.folder, name)]
    for table in tables:
        rows = [["" if cell is None else cell for cell in row] for row in table.rows]
        path = settings.folder / f"{target.value}-{table.part}.csv"
        files.append(save_sheet(Sheet(tuple(table.header), rows), path))
    calibrated = [row.key for row in describe_scenario(Scenario()) if row.source == "calibrated"]
    paths = [str(path) for path in files]
    return Reproduction(target, settings.num_seeds, list(tables), list(verdicts), paths, calibrated)
