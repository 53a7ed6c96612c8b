"""Distribution of data: a figure with a cell for each client and label, beside sizes and rates beta, and a table.

Few clients are in order, with numbers in the cells. Many clients are sorted by their main label, so that similar ones
are adjacent. The cells then have colours only, and a row of the image may be the mean of several adjacent clients.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from rich.table import Table

from bdfl.learning.participation import DataSummary
from bdfl.report.style import (
    HOLLOW,
    INK,
    SOFT_INK,
    TRAINING,
    UPLOAD,
    Cell,
    Picture,
    Sheet,
    drawing,
    title_figure,
)
from bdfl.report.tables import count_more, new_table, number

_MOST_ROWS = 40  # clients that get a row each, in order
_MOST_NUMBERS = 16  # clients and labels whose counts are written into the cells
_MOST_LINES = 400  # rows of the image if clients are sorted
_MOST_NAMES = 30  # labels that are named
_SHADES = LinearSegmentedColormap.from_list("held", [HOLLOW, TRAINING, "#00273d"])


def summarise_data(holdings: DataSummary) -> Picture:
    """Draw the share of each label in each client's data, the sizes |D_i| and the participation rates beta_i."""
    order = _order_clients(holdings)
    is_sorted = holdings.num_clients > _MOST_ROWS
    num_rows, num_labels = holdings.num_clients, len(holdings.label_names)
    with drawing(10.4, 1.9 + (5.2 if is_sorted else max(0.27 * num_rows, 1.2))) as figure:
        cells, sizes, rates = figure.subplots(1, 3, sharey=True, width_ratios=(3.4, 1.0, 1.0))
        _draw_cells(figure, cells, holdings, order)
        _draw_sizes(sizes, holdings.samples[order], is_sorted=is_sorted)
        _draw_rates(rates, holdings.participation_rate[order], is_sorted=is_sorted)
        cells.set_ylim(num_rows - 0.5, -0.5)
        if is_sorted:
            cells.set_yticks([])
            cells.set_ylabel(f"{num_rows} clients, sorted by their main label")
        else:
            cells.set_yticks(range(num_rows))
            cells.set_ylabel("client")
        if num_labels > _MOST_NAMES:
            cells.xaxis.set_major_locator(MaxNLocator(integer=True))
        title_figure(
            figure,
            f"{holdings.data} for {holdings.scenario}: {holdings.method}, {holdings.sizes.value} sizes, "
            f"seed {holdings.seed}; {holdings.samples.sum():,} of {holdings.train_samples:,} training samples held",
        )
    return Picture(figure, [_sheet(holdings)])


def _order_clients(holdings: DataSummary) -> NDArray[np.int64]:
    """Return the clients from top to bottom: as numbered, or by main label, then by its share, without data last."""
    if holdings.num_clients <= _MOST_ROWS:
        return np.arange(holdings.num_clients)
    shares = holdings.label_shares
    order: NDArray[np.int64] = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1), holdings.samples == 0))
    return order


def _draw_cells(figure: Figure, axes: Axes, holdings: DataSummary, order: NDArray[np.int64]) -> None:
    shares, counts = holdings.label_shares[order], holdings.label_counts[order]
    num_rows, num_labels = shares.shape
    greatest = float(shares.max()) or 1.0
    scale = Normalize(0.0, greatest)
    axes.imshow(
        shares
        if num_rows <= _MOST_LINES
        else np.array([part.mean(axis=0) for part in np.array_split(shares, _MOST_LINES)]),
        aspect="auto",
        interpolation="nearest",
        cmap=_SHADES,
        norm=scale,
        extent=(-0.5, num_labels - 0.5, num_rows - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for edge in np.arange(0.5, num_labels - 0.5) if num_labels <= _MOST_NAMES else ():
        axes.axvline(edge, color="white", linewidth=1.2)
    for edge in np.arange(0.5, num_rows - 0.5) if num_rows <= _MOST_ROWS else ():
        axes.axhline(edge, color="white", linewidth=1.2)
    if max(num_rows, num_labels) <= _MOST_NUMBERS:
        for (row, label), count in np.ndenumerate(counts):
            colour = "white" if shares[row, label] > 0.4 * greatest else INK
            if count:
                axes.text(label, row, f"{count}", ha="center", va="center", fontsize=7.5, color=colour)
    num_empty = int(np.count_nonzero(holdings.samples == 0))
    if num_empty and num_rows > _MOST_ROWS:  # they come last
        words = f"{num_empty} client{'s' if num_empty > 1 else ''} without data"
        middle = num_rows - 0.5 - num_empty / 2
        axes.text((num_labels - 1) / 2, middle, words, ha="center", va="center", fontsize=8.0, color=SOFT_INK)
    if num_labels <= _MOST_NAMES:
        is_long = num_labels * max(map(len, holdings.label_names)) > 70
        axes.set_xticks(range(num_labels), holdings.label_names, rotation=45 if is_long else 0)
        if is_long:
            for text in axes.get_xticklabels():
                text.set(ha="right", rotation_mode="anchor")
    title = "a  Share of each label in a client's data"
    axes.set(title=title + ("; numbers are samples" if max(num_rows, num_labels) <= _MOST_NUMBERS else ""))
    axes.set_xlabel("label")
    bar = figure.colorbar(ScalarMappable(scale, _SHADES), ax=axes, location="left", pad=0.02, fraction=0.025, aspect=30)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    bar.outline.set_visible(False)


def _draw_sizes(axes: Axes, samples: NDArray[np.int64], *, is_sorted: bool) -> None:
    rows = np.arange(len(samples))
    if is_sorted:  # a bar each would be thinner than a pixel
        axes.fill_betweenx(rows, samples, step="mid", color=UPLOAD, linewidth=0)
    else:
        axes.barh(rows, samples, height=0.55, color=UPLOAD)
    axes.set(title="b  Samples", xlabel="|D$_i$|")
    axes.set_xlim(0, 1.08 * max(int(samples.max()), 1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _draw_rates(axes: Axes, rates: NDArray[np.float64], *, is_sorted: bool) -> None:
    rows = np.arange(len(rates))
    mean = float(rates.mean())
    axes.axvline(mean, color=SOFT_INK, linewidth=0.8)
    if is_sorted:
        axes.scatter(rates, rows, s=3, color=TRAINING, alpha=0.5, linewidths=0)
    else:
        axes.hlines(rows, mean, rates, color=TRAINING, linewidth=1.4)
        axes.scatter(rates, rows, s=26, color=TRAINING, zorder=3)
    axes.set(title=f"c  Owed, mean {100 * mean:.0f} %", xlabel=r"$\beta_i$, share of rounds")
    least, greatest = float(rates.min()), float(rates.max())
    margin = max(0.12 * (greatest - least), 0.02)
    axes.set_xlim(max(least - margin, 0.0), min(greatest + margin, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _sheet(holdings: DataSummary) -> Sheet:
    """Return a row for each client, in order: size, divergence, rate and samples of every label."""
    labels = tuple(f"label_{name}" for name in holdings.label_names)
    rows: list[list[Cell]] = [
        [
            client,
            int(holdings.samples[client]),
            float(holdings.divergence[client]),
            float(holdings.participation_rate[client]),
            *holdings.label_counts[client].tolist(),
        ]
        for client in range(holdings.num_clients)
    ]
    return Sheet(("client", "samples", "divergence", "participation_rate", *labels), rows)


# Table of the data distribution for a terminal of 80 columns.

_SHOWN_CLIENTS = 20
_LABELS_WIDTH = 49  # columns of the terminal that labels may take
_NAME_WIDTH = 4  # columns that a name may take if its numbers need fewer
_BARS = " ▁▂▃▄▅▆▇█"  # from a share of 0 to the greatest


def tabulate_holdings(holdings: DataSummary) -> list[Table]:
    """Tabulate the data and their partition, then each client: label counts if they fit, else bars."""
    return [_tabulate_data(holdings), _tabulate_clients(holdings)]


def _tabulate_data(holdings: DataSummary) -> Table:
    rates = holdings.participation_rate
    row = (
        "x".join(map(str, holdings.input_shape)),
        str(len(holdings.label_names)),
        str(holdings.train_samples),
        str(holdings.samples.sum()),
        str(holdings.test_samples),
        str(holdings.num_clients),
        str(np.count_nonzero(holdings.samples == 0)),
        f"{rates.min():.3f} to {rates.max():.3f}",
    )
    partition = f"{holdings.method}, {holdings.sizes.value} sizes, seed {holdings.seed}"
    columns = ("sample", "labels", "training", "held", "test", "clients", "without data", "beta")
    return new_table(f"{holdings.data} for {holdings.scenario}: {partition}", columns, [row], text_columns=0)


def _tabulate_clients(holdings: DataSummary) -> Table:
    heading, *labels = _label_cells(holdings)
    rows = (
        (
            str(client),
            str(holdings.samples[client]),
            cell,
            number(holdings.divergence[client]),
            number(holdings.participation_rate[client]),
        )
        for client, cell in enumerate(labels)
    )
    notes = [
        "apart: distance of a client's label shares from everybody's, 0 to 2",
        count_more(holdings.num_clients, _SHOWN_CLIENTS, "clients: --json or the CSV file"),
    ]
    columns = ("client", "holds", heading, "apart", "beta")
    return new_table("Clients", columns, rows, words=(2,), caption="\n".join(filter(None, notes)))


def _label_cells(holdings: DataSummary) -> list[str]:
    """Return a heading and each client's labels: as numbers, bars, or the main label, as the width allows."""
    names = holdings.label_names
    counts, shares = holdings.label_counts[:_SHOWN_CLIENTS], holdings.label_shares[:_SHOWN_CLIENTS]
    width = max(len(str(counts.max())), min(max(map(len, names)), _NAME_WIDTH))
    if len(names) * (width + 1) <= _LABELS_WIDTH + 1:
        rows = [[name[:width] for name in names], *([str(count) if count else "." for count in row] for row in counts)]
        return [" ".join(cell.rjust(width) for cell in row) for row in rows]
    if len(names) <= _LABELS_WIDTH:
        greatest = float(shares.max()) or 1.0
        return [f"share of each label, up to {100 * greatest:.0f} %", *(_bars(row / greatest) for row in shares)]
    return ["labels held, and most of which", *map(_main_label, counts, shares, [names] * len(counts))]


def _main_label(counts: NDArray[np.int64], shares: NDArray[np.float64], names: tuple[str, ...]) -> str:
    if not counts.any():
        return "none"
    main = int(np.argmax(counts))
    return f"{np.count_nonzero(counts)}, {100 * shares[main]:.0f} % {names[main][:20]}"


def _bars(heights: NDArray[np.float64]) -> str:
    """Return one bar for each number from 0 to 1; only 0 is blank."""
    return "".join(_BARS[int(np.ceil(height * (len(_BARS) - 1)))] for height in heights)
