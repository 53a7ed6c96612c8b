"""A captioned figure of a training run's report, all of one width."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bdfl.records import RunRecord
from bdfl.report.style import SOFT_INK, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.2  # inches: readable on a phone
FEW_POINTS = 40  # a line of at most so many points shows them


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A picture with its file name, heading, caption and alternative text."""

    name: str
    heading: str
    caption: str
    description: str
    picture: Picture


def say(axes: "Axes", text: str) -> None:
    """Write a reason into the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT_INK)


def infeasible_text(run: RunRecord) -> str:
    """Explain the red columns of a figure; empty if it has none."""
    return f" Red columns: {run.num_infeasible} infeasible rounds, which take no time." if run.num_infeasible else ""
