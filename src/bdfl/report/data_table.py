"""Table of the data distribution for a terminal of 80 columns."""

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bdfl.learning.holdings import Holdings
from bdfl.report.tables import new_table, number

_SHOWN_CLIENTS = 20
_LABELS_WIDTH = 49  # columns of the terminal that labels may take
_NAME_WIDTH = 4  # columns that a name may take if its numbers need fewer
_BARS = " ▁▂▃▄▅▆▇█"  # from a share of 0 to the greatest


def tabulate_holdings(holdings: Holdings) -> list[Table]:
    """Tabulate the data and their partition, then each client: label counts if they fit, else bars."""
    return [_tabulate_data(holdings), _tabulate_clients(holdings)]


def _tabulate_data(holdings: Holdings) -> Table:
    table = new_table(
        f"{holdings.data} for {holdings.scenario}: {holdings.method}, {holdings.sizes.value} sizes, "
        f"seed {holdings.seed}",
        ("sample", "labels", "training", "held", "test", "clients", "without data", "beta"),
        text_columns=0,
    )
    rates = holdings.participation_rate
    table.add_row(
        "x".join(map(str, holdings.input_shape)),
        str(len(holdings.label_names)),
        str(holdings.train_samples),
        str(holdings.samples.sum()),
        str(holdings.test_samples),
        str(holdings.num_clients),
        str(np.count_nonzero(holdings.samples == 0)),
        f"{rates.min():.3f} to {rates.max():.3f}",
    )
    return table


def _tabulate_clients(holdings: Holdings) -> Table:
    labels = _label_cells(holdings)
    table = new_table("Clients", ("client", "holds", labels[0], "apart", "beta"))
    table.columns[2].justify = "left"
    for client, cell in enumerate(labels[1:]):
        table.add_row(
            str(client),
            str(holdings.samples[client]),
            cell,
            number(holdings.divergence[client]),
            number(holdings.participation_rate[client]),
        )
    notes = ["apart: distance of a client's label shares from everybody's, 0 to 2"]
    if holdings.num_clients > _SHOWN_CLIENTS:
        notes.append(f"{holdings.num_clients - _SHOWN_CLIENTS} more clients: --json or the CSV file")
    table.caption = "\n".join(notes)
    return table


def _label_cells(holdings: Holdings) -> list[str]:
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
