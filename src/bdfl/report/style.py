"""Common style of all figures: fonts, colours, axes, non-overlapping labels and reproducible files.

Matplotlib is used through its object interface: no pyplot, no window, no state shared between figures. It is imported
only where something is drawn, so that tables do not need it.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdfl.experiment.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, distinguishable with any colour vision; the paper's algorithm is blue, ours vermilion.
COLOURS = {
    "random": "#7f7f7f",
    "round-robin": "#e69f00",
    "channel-best": "#56b4e9",
    "all": "#cc79a7",
    "drc": "#0072b2",
    "exact": "#d55e00",
    "exact-power": "#009e73",
    "steady": "#332288",
    "fastest-k": "#8c6d31",
    "energy-greedy": "#66a61e",
    "age-of-update": "#7570b3",
    "power-of-choice": "#a6761d",
    "oort": "#882255",
}
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
INK = "#222222"
SOFT_INK = "#6b6b6b"
AXIS = "#9a9a9a"
GRID = "#e4e4e4"
HOLLOW = "#eef2f6"  # empty cells
BOUND = "#222222"
INFEASIBLE = "#b2182b"
TRAINING, UPLOAD, MINING = "#0072b2", "#e69f00", "#009e73"

DPI = 200
DASHES = (0, (4, 3))  # of bounds and limits
_FONT = "DejaVu Sans"  # shipped with Matplotlib
_SETTINGS = {
    "font.family": _FONT,
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "text.color": INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "bdfl",
}

Cell = str | int | float
Column = NDArray[Any] | Sequence[Cell]


@dataclass(frozen=True, eq=False)
class Sheet:
    """Rows of a CSV file; `part` is added to the file's name."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    part: str = ""

    @classmethod
    def of_columns(cls, columns: Mapping[str, Column], part: str = "") -> "Sheet":
        """Return a sheet with these columns, of equal lengths."""
        values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
        return cls(tuple(columns), list(zip(*values, strict=True)), part)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure and the numbers it shows."""

    figure: "Figure"
    sheets: Sequence[Sheet]

    @cached_property
    def svg(self) -> bytes:
        """The figure as a reproducible SVG document."""
        buffer = BytesIO()
        with house_style():
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()


def save_picture(picture: Picture, folder: Path, name: str) -> list[Path]:
    """Write SVG, PNG and CSV files into `folder`, reproducible byte for byte, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    svg.write_bytes(picture.svg)
    with house_style():
        picture.figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    names = [f"{name}-{sheet.part}" if sheet.part else name for sheet in picture.sheets]
    tables = [save_sheet(sheet, folder / f"{name}.csv") for sheet, name in zip(picture.sheets, names, strict=True)]
    return [svg, png, *tables]


def save_sheet(sheet: Sheet, path: Path) -> Path:
    """Write a CSV file with one header line and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(sheet.header)
        writer.writerows(sheet.rows)
    return path


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the house style to figures made and saved inside the context."""
    from matplotlib import style

    with style.context(_SETTINGS):
        yield


def new_figure(width_inch: float, height_inch: float) -> "Figure":
    """Return an empty figure with automatic layout; call it inside `house_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inch, height_inch), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def drawing(width_inch: float, height_inch: float) -> "Iterator[Figure]":
    """Yield an empty figure, in the house style inside the context."""
    with house_style():
        yield new_figure(width_inch, height_inch)


def draw_interval(
    axes: "Axes", found: Interval, height: float, colour: str, *, size: float, cap: float, line: float, fill: str = ""
) -> None:
    """Draw a mean as a dot with its interval, if it has one, along the x axis."""
    half_width = 0.0 if math.isnan(found.half_width) else found.half_width
    axes.errorbar(
        found.mean, height, xerr=half_width, color=colour, marker="o", markersize=size, markerfacecolor=fill or colour,
        capsize=cap, linewidth=line,
    )  # fmt: skip


def colour_of(scheduler: str, place: int = 0) -> str:
    """Return the colour of a scheduler, the same in every figure; `place` chooses one for other names."""
    return COLOURS.get(scheduler.partition(":")[0], CYCLE[place % len(CYCLE)])


def drawable(text: str, *, otherwise: str, longest: int = 60) -> str:
    """Return user text as a figure can show it: truncated, and never parsed as a formula.

    `otherwise` replaces empty text and text with characters that the font does not have.
    """
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    if not cut.strip() or any(ord(character) not in _characters() for character in cut):
        return otherwise
    return cut.replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(code for code in get_font(findfont(_FONT)).get_charmap() if code >= ord(" "))


def title_figure(figure: "Figure", title: str) -> None:
    """Write the title of all panels above them."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def write_beside(
    axes: "Axes", text: str, at: tuple[float, float], colour: str, offset: tuple[float, float] = (6, 0)
) -> None:
    """Write small text at an offset (points) from a point: right of it, or centred if the offset is vertical."""
    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", ha="left" if offset[0] else "center", va="center",
        fontsize=7.5, color=colour, annotation_clip=False,
    )  # fmt: skip


def label_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]], gap: float = 0.055) -> None:
    """Write (x, y, text, colour) to the right of each line's end, moved apart where labels would overlap.

    `gap` is the least distance between two labels, as a share of the axes' height. Call it when limits are final.
    """
    to_axes = axes.transData + axes.transAxes.inverted()  # works for any scale
    heights = spread([float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends], gap)
    for (x, y, text, colour), height in zip(ends, heights, strict=True):
        at = to_axes.inverted().transform((0.0, height))[1]
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(x + 0.03 * (axes.get_xlim()[1] - axes.get_xlim()[0]), at),
            color=colour,
            fontsize=8.0,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return positions as close as possible to `heights`, in the same order, at least `gap` apart and within 0 to 1.

    With `gap` per label subtracted, this is isotonic regression: adjacent positions out of order share their mean.
    """
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    blocks: list[list[float]] = []
    for rank, place in enumerate(order):
        blocks.append([heights[place] - rank * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    highest = max(1.0 - (len(heights) - 1) * gap, 0.0)
    levels = [min(max(_mean(block), 0.0), highest) for block in blocks for _ in block]
    placed = [0.0] * len(heights)
    for rank, place in enumerate(order):
        placed[place] = levels[rank] + rank * gap
    return placed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
