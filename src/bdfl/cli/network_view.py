"""Live view of a local network: a table of its processes on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bdfl.cli.live import show_duration
from bdfl.cli.terminal import Screen, say
from bdfl.operation.local_network import NetworkView
from bdfl.operation.status import NodeView, ServiceState, Snapshot

_LINE_EVERY_S = 5.0

ShowView = Callable[[NetworkView], None]
SayMore = Callable[[], str]


def _say_nothing() -> str:
    return ""


@contextmanager
def show_network(title: str, *, is_plain: bool, say_more: SayMore = _say_nothing) -> Iterator[ShowView]:
    """Yield a function that shows a network on stderr: a live table on a terminal, else lines.

    `say_more` returns an additional line, or an empty text.
    """
    console = Screen(stderr=True)
    if is_plain or not console.is_terminal:
        yield _Lines(title, say_more).show
        return
    picture = _Picture(title, say_more)
    with Live(picture, console=console, refresh_per_second=4, transient=True):
        yield picture.show


class _Picture:
    """A live table of the newest view."""

    def __init__(self, title: str, say_more: SayMore) -> None:
        self._title = title
        self._say_more = say_more
        self._began_s = time.monotonic()
        self._view: NetworkView | None = None

    def show(self, view: NetworkView) -> None:
        self._view = view

    def __rich__(self) -> RenderableType:
        more = self._say_more()
        title = Text(self._title, style="bold").append(f"\n{more}" if more else "", style="not bold")
        if self._view is None:
            return Group(title, Text("starting", style="dim"))
        elapsed = show_duration(time.monotonic() - self._began_s)
        troubles = [Text(line, style="yellow") for line in list_troubles(self._view)]
        return Group(title, tabulate_network(self._view), *troubles, Text(f"{elapsed}; Ctrl-C stops all", style="dim"))


class _Lines:
    """Plain lines: one for a change, at most every five seconds."""

    def __init__(self, title: str, say_more: SayMore) -> None:
        self._say_more = say_more
        self._more = ""
        self._last = ""
        self._said_s = -_LINE_EVERY_S
        say(title, err=True)

    def show(self, view: NetworkView) -> None:
        more = self._say_more()
        if more != self._more:
            self._more = more
            say(more, err=True)
        line, now_s = "; ".join([summarise_view(view), *list_troubles(view)]), time.monotonic()
        if line == self._last or now_s - self._said_s < _LINE_EVERY_S:
            return
        self._last, self._said_s = line, now_s
        say(line, err=True)


def summarise_view(view: NetworkView) -> str:
    """Return a network in one line."""
    num_up = sum(node.is_up for node in view.nodes)
    parts = [f"{num_up} of {len(view.nodes)} nodes up"]
    if view.access_points:
        parts.append(f"{sum(point.is_up for point in view.access_points)} of {len(view.access_points)} access points")
    heights = view.heights
    if heights:
        low, high = min(heights), max(heights)
        goal = "" if view.blocks is None else f" of {view.blocks}"
        parts.append(f"block {low if low == high else f'{low} to {high}'}{goal}")
    accuracy = _accuracy_of(view)
    if accuracy is not None:
        parts.append(f"accuracy {100 * accuracy:.1f} %")
    return ", ".join(parts)


def list_troubles(view: NetworkView) -> list[str]:
    """Return a line for every unhealthy state: its nodes, and the reason of the first."""
    if view.is_up and not view.heights:  # still starting
        return []
    troubles: dict[str, list[int]] = {}
    for number, node in enumerate(view.nodes):
        if node.state is None or not node.state.is_well:
            troubles.setdefault(node.state or "unknown", []).append(number)
    return [
        f"node {' '.join(map(str, numbers))} {state}: {view.nodes[numbers[0]].reason}"
        for state, numbers in troubles.items()
    ]


def tabulate_network(view: NetworkView) -> Table:
    """Return a table with a row for every process, in at most 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (
        ("node", "left"), ("block", "right"), ("doing", "left"), ("peers", "right"), ("by", "right"),
        ("round", "right"), ("accuracy", "right"), ("memory", "right"), ("dropped", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for number, node in enumerate(view.nodes):
        is_well = node.state is not None and node.state.is_well
        table.add_row(str(number), *_cells_of(node), style=None if is_well else "red")
    for number, point in enumerate(view.access_points):
        state = "forwards" if point.is_up else point.state or "unknown"
        table.add_row(f"ap {number}", "", state, *[""] * 6, style=None if point.is_up else "red")
    return table


def _cells_of(node: NodeView) -> list[str]:
    found = node.snapshot
    if found is None:
        return ["", node.state or "unknown", *[""] * 6]
    last = found.last_block
    accuracy = "" if found.accuracy is None else f"{100 * found.accuracy:.1f} %"
    round_s = "" if last is None or last.round_s is None else f"{last.round_s:.1f} s"
    goal = "" if found.last_height is None else f"/{found.last_height}"
    return [
        f"{found.height}{goal}",
        _doing(found),
        f"{len(found.present)}/{found.num_members - 1}",
        "" if last is None else str(last.proposer),
        round_s,
        accuracy,
        f"{found.memory_bytes / 2**20:.0f} MB",
        str(sum(found.refused.values()) or ""),
    ]


def _doing(found: Snapshot) -> str:
    """Return the state of a node, or the activity of a working one."""
    if found.state is not ServiceState.WORKING:
        return found.state
    if found.is_training and found.phase == "collecting":
        return "trains"
    if found.is_mining and found.phase == "mining":
        return "mines"
    attempt = f" {found.attempt}" if found.attempt > 1 else ""
    return {"collecting": "collects", "mining": "waits", "voting": "votes"}.get(found.phase, found.phase) + attempt


def _accuracy_of(view: NetworkView) -> float | None:
    known = [node.snapshot.accuracy for node in view.nodes if node.snapshot is not None]
    return next((accuracy for accuracy in known if accuracy is not None), None)
