"""What the figures of a run that learned have in common: a picture that says how to read it, at one width."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bdfl.records import RunRecord
from bdfl.report.style import SOFT_INK, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.2  # inches: as wide as a telephone shows at the size of its own text
FEW_POINTS = 40  # a line of so few points shows them


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A picture with its file's name, its heading, how to read it, and what it shows to those who cannot see it."""

    name: str
    heading: str
    caption: str
    description: str
    picture: Picture


def say(axes: "Axes", text: str) -> None:
    """Writes into the middle of empty axes why they are empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT_INK)


def infeasible_text(run: RunRecord) -> str:
    """What the red columns of a figure are, if it has any."""
    return f" Red columns: {run.num_infeasible} infeasible rounds, which take no time." if run.num_infeasible else ""
