"""Draws docs/results/scale/scale.svg and .png, with the numbers beside it: committees and aggregation trees.

Run from the root of the repository: python -m docs.figures.make_scale
"""

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from bdfl.report.style import BOUND, CYCLE, DASHES, SOFT_INK, Picture, Sheet, house_style, new_figure, save_picture
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scenario.schema_learning import QuorumRule
from docs.figures.scaling import (
    CommitteePoint,
    ExchangePoint,
    TrafficPoint,
    study_committees,
    study_exchange,
    study_traffic,
)

_PER_MB = 1e6


def draw_scaling(
    committees: Sequence[CommitteePoint],
    traffic: Sequence[TrafficPoint],
    growing: Sequence[ExchangePoint],
    fanning: Sequence[ExchangePoint],
) -> Picture:
    """Committee sizes, bytes heard, and the exchange of models over members (`growing`) and fan-outs (`fanning`)."""
    with house_style():
        figure = new_figure(10.4, 7.4)
        panels = figure.subplot_mosaic([["committee", "traffic"], ["members", "fan"]])
        _draw_committees(panels["committee"], committees)
        _draw_traffic(panels["traffic"], traffic)
        _draw_growing(panels["members"], growing)
        _draw_fanning(panels["fan"], fanning)
    sheets = [
        _sheet(committees, "committees"),
        _sheet(traffic, "traffic"),
        _sheet(growing, "exchange"),
        _sheet(fanning, "fan-out"),
    ]
    return Picture(figure, sheets)


def _draw_committees(axes: Axes, points: Sequence[CommitteePoint]) -> None:
    for colour, members in zip(CYCLE, sorted({point.members for point in points}), strict=False):
        found = [(point.liar_share, point.size) for point in points if point.members == members]
        there = [(share, size) for share, size in found if size is not None]
        axes.plot(*zip(*there, strict=True), marker=".", color=colour, label=f"{members:,} members")
    axes.axvline(1 / 3, color=BOUND, linewidth=1.0, linestyle=DASHES)
    axes.annotate("a third", (1 / 3, 0.06), xycoords=("data", "axes fraction"), ha="right", fontsize=8, rotation=90)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    risk = f"{points[0].risk:.0e}".replace("e-0", "e-")
    axes.set(
        title=f"a  Least committee that liars break with probability {risk}",
        xlabel="share of liars among the members",
        ylabel="members of the committee",
    )
    axes.legend(loc="upper left")


def _draw_traffic(axes: Axes, points: Sequence[TrafficPoint]) -> None:
    members = [point.members for point in points]
    axes.plot(members, [point.all_bytes / _PER_MB for point in points], marker=".", color=CYCLE[1], label="all vote")
    few = [point.committee_bytes / _PER_MB for point in points]
    axes.plot(members, few, marker=".", color=CYCLE[0], label="a committee votes; a fifth lie")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(title="b  What a member hears in a round", xlabel="members", ylabel="MB")
    axes.legend(loc="upper left")


def _draw_growing(axes: Axes, points: Sequence[ExchangePoint]) -> None:
    for colour, fan_out in zip((CYCLE[1], *CYCLE[2:], CYCLE[0]), sorted({one.fan_out for one in points}), strict=False):
        curve = [(one.members, one.delay_s) for one in points if one.fan_out == fan_out]
        label = f"tree, fan-out {fan_out}" if fan_out else "all to all"
        axes.plot(*zip(*curve, strict=True), marker=".", color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(title="c  Until all have the global model", xlabel="members, all of whom train", ylabel="s")
    axes.legend(loc="upper left")


def _draw_fanning(axes: Axes, points: Sequence[ExchangePoint]) -> None:
    for colour, members in zip(CYCLE, sorted({one.members for one in points}), strict=False):
        curve = [(one.fan_out, one.delay_s) for one in points if one.members == members and one.fan_out]
        axes.plot(*zip(*curve, strict=True), marker=".", color=colour, label=f"{members:,} members")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    axes.set(title="d  The same, by the tree's fan-out", xlabel="fan-out", ylabel="s")
    axes.legend(loc="upper left", labelcolor=SOFT_INK)


def _sheet(points: Sequence[CommitteePoint] | Sequence[TrafficPoint] | Sequence[ExchangePoint], part: str) -> Sheet:
    header = tuple(item.name for item in fields(points[0]))
    return Sheet(header, [tuple("" if cell is None else cell for cell in astuple(point)) for point in points], part)


RISK = 1e-9
LIAR_SHARE = 0.2
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.28, 0.3)
SIZES = (10, 32, 100, 316, 1000, 2000, 4000)
CROWD = 100_000
FAN_OUTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
SELECTED = 20
MODEL_BYTES = 5_000  # of the scenario thousand-nodes


def make_scale() -> Picture:
    """The figure, from the radio and the processors of the scenario of a million clients."""
    crowd = load_scenario(find_scenario("million"), [f"clients.count={CROWD}"])
    return draw_scaling(
        study_committees((100, 1000, 1_000_000), SHARES, RISK, QuorumRule.BFT),
        study_traffic(SIZES, SELECTED, MODEL_BYTES, LIAR_SHARE, RISK),
        study_exchange(crowd, (10, 100, 1000, 10_000, CROWD), (4, 16)),
        study_exchange(crowd, (100, 1000, CROWD), FAN_OUTS),
    )


if __name__ == "__main__":
    for path in save_picture(make_scale(), Path(__file__).parents[1] / "results" / "scale", "scale"):
        print(f"wrote {path}")
