"""Draws docs/figures/stall.svg and .png: round 10 of the paper's CIFAR-10 scenario, scheduled by `drc` until then.

The alternation of the paper's Algorithm 1 between mining and computing frequencies, and where it stalls.
Run from the root of the repository: python -m docs.figures.make_stall
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.records import PerRound, PerRoundClient
from bdfl.report.style import (
    COLOURS,
    CYCLE,
    SOFT_INK,
    Picture,
    Sheet,
    house_style,
    label_ends,
    new_figure,
    save_picture,
)
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.drc import drc, iterate_drc, start_mining
from bdfl.scheduling.exact import exact
from bdfl.scheduling.problem import Decision, RoundProblem
from bdfl.scheduling.queues import next_queue
from bdfl.types import PerClientMask

STARTS_HZ = (2.1e9, 1.5e9, 0.9e9)
NUM_PASSES = 10
_OPTIMUM = COLOURS["exact"]
_START_COLOURS = (CYCLE[2], COLOURS["drc"], CYCLE[3])


@dataclass(frozen=True, eq=False)
class StallTrace:
    """The alternation from one start: the set it ends with, F before the first and after every pass, and the delay."""

    start_hz: float
    selected: PerClientMask
    mining_hz: PerRoundClient  # (1 + passes, clients)
    delay_s: PerRound  # (passes,)


def trace_alternation(problem: RoundProblem, start_hz: float, num_passes: int = NUM_PASSES) -> StallTrace:
    """The first passes of P4, P5 and P6 where everybody begins mining at `start_hz`; the round must be feasible."""
    started = replace(problem, initial_mining_hz=np.full(problem.num_clients, start_hz))
    iterates = list(islice(iterate_drc(started), num_passes))
    decisions = [
        Decision(
            selected=iterate.selected,
            cpu_hz=np.where(iterate.selected, iterate.cpu_hz, 0.0),
            mining_hz=iterate.mining_hz,
            power_w=np.where(iterate.selected, problem.power_w, 0.0),
        )
        for iterate in iterates
    ]
    return StallTrace(
        start_hz,
        iterates[-1].selected,
        np.array([start_mining(started), *(decision.mining_hz for decision in decisions)]),
        np.array([evaluate(started, decision).delay_s for decision in decisions]),
    )


def best_frequencies(problem: RoundProblem, members: PerClientMask) -> Decision:
    """The optimum if exactly `members` train: all of them are needed, and nobody else gets a processor."""
    num_members = int(np.count_nonzero(members))
    return exact(replace(problem, cpu_max_hz=np.where(members, problem.cpu_max_hz, 0.0), min_clients=num_members))


def draw_stall(problem: RoundProblem, starts_hz: Sequence[float] = STARTS_HZ) -> Picture:
    """F and round delay over the passes of the alternation from several starts, beside the optimum for the same set.

    Starts that end with another set than the first are left out, so that only frequencies differ.
    """
    traces = [trace_alternation(problem, start_hz) for start_hz in starts_hz]
    members = traces[0].selected
    traces = [trace for trace in traces if np.array_equal(trace.selected, members)]
    decision = best_frequencies(problem, members)
    delay_s = evaluate(problem, decision).delay_s
    with house_style():
        figure = new_figure(9.6, 3.4)
        frequencies, delays = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        _draw_frequencies(frequencies, traces, decision)
        _draw_delays(delays, traces, delay_s)
    return Picture(figure, [_sheet(traces, decision, delay_s)])


def _draw_frequencies(axes: Axes, traces: Sequence[StallTrace], decision: Decision) -> None:
    num_passes = len(traces[0].delay_s)
    for trace, colour in zip(traces, _START_COLOURS, strict=False):
        axes.plot(trace.mining_hz / 1e9, color=colour, marker="o", markersize=2.8, linewidth=1.2)
    beside = num_passes + 2.0
    axes.axvspan(num_passes + 0.75, num_passes + 3.25, color="#f4f4f4", linewidth=0, zorder=0)
    for members, filled in ((decision.selected, _OPTIMUM), (~decision.selected, "white")):
        values = np.sort(decision.mining_hz[members]) / 1e9
        axes.plot(_spread_ties(values) + beside, values, "o", markersize=5.0, color=_OPTIMUM, markerfacecolor=filled)
    ticks = list(range(0, num_passes + 1, 2))
    axes.set_xticks([*ticks, beside], [*map(str, ticks), "optimum"])
    axes.set_xlim(-0.4, num_passes + 3.25)
    axes.set_ylim(0.0, 1.12 * float(decision.mining_hz.max()) / 1e9)
    axes.grid(visible=False, axis="x")
    axes.set(title="a  Mining frequency of every client", xlabel="pass of the alternation", ylabel="F (GHz)")
    for trace, colour in zip(traces, _START_COLOURS, strict=False):
        axes.annotate(
            f"all {len(decision.selected)} clients, started at {trace.start_hz / 1e9:g} GHz",
            xy=(0.0, trace.start_hz / 1e9),
            xytext=(0.0, 4.0),
            textcoords="offset points",
            color=colour,
            fontsize=8.0,
        )
    marks = [
        Line2D([], [], marker="o", linestyle="none", markersize=5.0, color=_OPTIMUM, markerfacecolor=filled)
        for filled in (_OPTIMUM, "white")
    ]
    axes.legend(marks, ["clients that train", "clients that only mine"], loc="upper left", handletextpad=0.2)


def _draw_delays(axes: Axes, traces: Sequence[StallTrace], delay_s: float) -> None:
    passes = np.arange(1, len(traces[0].delay_s) + 1)
    for trace, colour in zip(traces, _START_COLOURS, strict=False):
        axes.plot(passes, trace.delay_s, color=colour, marker="o", markersize=2.8, linewidth=1.2)
    axes.axhline(delay_s, color=_OPTIMUM, linewidth=1.5)
    axes.set_xlim(0.6, len(passes) + 0.4)
    slowest_s = max(float(trace.delay_s.max()) for trace in traces)
    margin_s = 0.15 * (slowest_s - delay_s)
    axes.set_ylim(delay_s - margin_s, slowest_s + margin_s)
    axes.set_xticks(range(2, len(passes) + 1, 2))
    axes.grid(visible=False, axis="x")
    axes.set(title="b  Delay of the round", xlabel="pass of the alternation", ylabel="delay (s)")
    last = axes.get_xlim()[1]
    ends = [
        (last, float(trace.delay_s[-1]), f"{trace.delay_s[-1]:.3f} s from {trace.start_hz / 1e9:g} GHz", colour)
        for trace, colour in zip(traces, _START_COLOURS, strict=False)
    ]
    ends.append((last, delay_s, f"{delay_s:.3f} s optimum", _OPTIMUM))
    label_ends(axes, ends)
    nearest_s = min(float(trace.delay_s[-1]) for trace in traces)
    middle = 0.5 * (1 + len(passes))
    axes.annotate("", (middle, delay_s), (middle, nearest_s), arrowprops={"arrowstyle": "<->", "color": SOFT_INK})
    axes.text(
        middle + 0.2,
        0.5 * (nearest_s + delay_s),
        f"{100 * (1 - delay_s / nearest_s):.1f} % that no pass gains",
        color=SOFT_INK,
        fontsize=8.0,
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _spread_ties(values: PerRound) -> PerRound:
    """Sideways offsets that keep points of nearly equal height apart; `values` ascend."""
    offsets = np.zeros(len(values))
    for group in np.split(np.arange(len(values)), np.flatnonzero(np.diff(values) > 0.05) + 1):
        offsets[group] = 0.45 * (np.arange(len(group)) - 0.5 * (len(group) - 1))
    return offsets


def _sheet(traces: Sequence[StallTrace], decision: Decision, delay_s: float) -> Sheet:
    rows: list[tuple[str, int, int, float, float]] = []
    for trace in traces:
        for number, mining_hz in enumerate(trace.mining_hz):
            delay = float(trace.delay_s[max(number - 1, 0)])
            rows += [
                (f"start {trace.start_hz:g} Hz", number, client, float(value), delay)
                for client, value in enumerate(mining_hz)
            ]
    rows += [("optimum", 0, client, float(value), delay_s) for client, value in enumerate(decision.mining_hz)]
    return Sheet(("curve", "pass", "client", "mining_hz", "delay_s"), rows)


ROUND = 10


def stall_problem() -> RoundProblem:
    """The round that the figure shows, with the queues that `drc` left."""
    scenario = load_scenario(find_scenario("paper-cifar10"), [f"rounds={ROUND}"])
    problems = round_problems(scenario, draw_run(scenario))
    queue = np.zeros(scenario.clients.count)
    for problem in problems[:-1]:
        queue = next_queue(queue, problem.participation_rate, drc(replace(problem, queue=queue)).selected)
    return replace(problems[-1], queue=queue)


if __name__ == "__main__":
    for path in save_picture(draw_stall(stall_problem()), Path(__file__).parent, "stall"):
        print(f"wrote {path}")
