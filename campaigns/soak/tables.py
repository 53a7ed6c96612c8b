"""Results of a soak test as a table for a terminal of 80 columns, a figure and a page."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from bdfl.report.style import CYCLE, Picture, Sheet, house_style, new_figure
from bdfl.report.tables import new_table
from campaigns.soak.measurement import Growth, Moment, Soak

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 2**20
_KIB = 1024


def tabulate_soak(soak: Soak) -> Table:
    """Tabulate a row for each quantity."""
    table = new_table(
        f"{soak.rounds} rounds of {soak.num_nodes} nodes", ("a node's", "at first", "at last", "a round", "allowed")
    )
    for growth in soak.growths:
        name, first, last, per_round, allowed = _cells(growth)
        table.add_row(name, first, last, Text(per_round, style="" if growth.is_good else "bold red"), allowed)
    table.caption = "medians of the first and the last fifth of the rounds, the first 20 % apart"
    return table


def soak_markdown(soak: Soak, command: str, machine: str) -> str:
    """Return the results as a page of the documentation."""
    lines = [
        "# Many rounds",
        "",
        f"Nodes: {soak.num_nodes}; access points: {soak.num_access_points}; real processes on one machine."
        f" {soak.rounds} rounds of digits in {soak.moments[-1].seconds:.0f} s. {machine}; made by",
        "",
        "```",
        command,
        "```",
        "",
        "| a node's | at first | at last | a round | allowed |",
        "|---|--:|--:|--:|--:|",
        *("| " + " | ".join(_cells(growth)) + " |" for growth in soak.growths),
        "",
        "Means over all nodes; medians of the first and the last fifth of the rounds, after the first 20 %, in which",
        f"caches fill. On the disk a node has {soak.disk_bytes / _MIB:.0f} MiB at the end: chain, models, log of",
        "events (which begins anew at a size that is set). " + ("; ".join(soak.failures) or _ALL_IS_WELL),
        "",
        "![memory, open files and threads over rounds](soak.svg)",
        "",
    ]
    return "\n".join(lines)


_ALL_IS_WELL = "All chains are valid and the same bytes."


def draw_soak(soak: Soak) -> Picture:
    """Draw memory, open files and threads over rounds."""
    with house_style():
        figure = new_figure(9.6, 3.0)
        memory, files, threads = figure.subplots(1, 3)
        _draw(memory, soak, "a  Memory of a node (MiB)", lambda moment: moment.memory / _MIB, "itself", CYCLE[0])
        _draw(memory, soak, "", lambda moment: moment.work_memory / _MIB, "its training and mining", CYCLE[1])
        _draw(files, soak, "b  Its open files", lambda moment: moment.files, "", CYCLE[2])
        _draw(threads, soak, "c  Its threads", lambda moment: moment.threads, "", CYCLE[3])
        memory.legend(loc="lower right")
    header = ("height", "seconds", "memory_bytes", "work_memory_bytes", "files", "threads")
    rows = [
        (one.height, round(one.seconds, 3), one.memory, one.work_memory, one.files, one.threads) for one in soak.moments
    ]
    return Picture(figure, [Sheet(header, rows)])


def _draw(axes: "Axes", soak: Soak, title: str, choose: Callable[[Moment], float], label: str, colour: str) -> None:
    heights = [moment.height for moment in soak.moments]
    values = [choose(moment) for moment in soak.moments]
    axes.plot(heights, values, color=colour, linewidth=1.4, label=label or None)
    axes.set_ylim(0.0, max(1.15 * max(values), axes.get_ylim()[1] if title == "" else 0.0))
    axes.set_xlim(0, soak.rounds)
    axes.set_xlabel("round")
    if title:
        axes.set_title(title)


def _cells(growth: Growth) -> tuple[str, str, str, str, str]:
    if growth.name.startswith("memory"):
        return (
            growth.name,
            f"{growth.first / _MIB:.1f} MiB",
            f"{growth.last / _MIB:.1f} MiB",
            f"{growth.per_round / _KIB:+.2f} KiB",
            f"{growth.allowed / _KIB:.0f} KiB",
        )
    return growth.name, f"{growth.first:.1f}", f"{growth.last:.1f}", f"{growth.per_round:+.4f}", f"{growth.allowed:g}"
