"""Progress in the terminal: a run in training, and the processes of a network."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bdfl.cli.terminal import Screen, say
from bdfl.experiment.simulation import PlannedRound
from bdfl.localnet.network import NetworkView
from bdfl.node.status import NodeView, ServiceState, Snapshot, show_duration
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Scenario

# Live view of a training run: a few lines on a terminal, plain lines elsewhere.

_PATIENCE_S = 1.0  # between plain lines
_SHOWN_CLIENTS = 12
_STEPS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 36
_BAR_WIDTH = 6


@dataclass
class RunView:
    """The state of a run so far, and its rendering."""

    scenario: Scenario
    done_before: int = 0  # rounds of a resumed run
    simulated_s: float = 0.0
    accuracies: list[float] = field(default_factory=list)
    best: tuple[float, int] | None = None  # accuracy, round
    planned: PlannedRound | None = None
    record: RoundRecord | None = None
    row: LearningRound | None = None
    num_diverged: int = 0
    is_plain: bool = False  # a line as a round ends, at most one a second
    started_s: float = field(default_factory=time.monotonic)
    said_s: float = field(default_factory=time.monotonic)

    def plan_round(self, planned: PlannedRound) -> None:
        """Set the clients that train now."""
        self.planned = planned

    def recall_round(self, record: RoundRecord, row: LearningRound) -> None:
        """Add a finished round."""
        self.record, self.row, self.planned = record, row, None
        self.simulated_s += record.delay_s
        self.num_diverged += sum(outcome == "diverged" for outcome in row.outcome)
        if row.accuracy is not None:
            self.accuracies.append(row.accuracy)
            if self.best is None or row.accuracy > self.best[0]:
                self.best = row.accuracy, row.round
        if self.is_plain and time.monotonic() - self.said_s >= _PATIENCE_S and row.round > self.done_before:
            self.said_s = time.monotonic()
            say(self.line(), err=True)

    def left_s(self) -> float:
        """Return the estimated seconds left, from the mean duration of a round; NaN before the first."""
        done = 0 if self.row is None else self.row.round - self.done_before
        elapsed_s = time.monotonic() - self.started_s
        return elapsed_s / done * (self.scenario.rounds - self.done_before - done) if done > 0 else float("nan")

    def line(self) -> str:
        """Return the last round in one line."""
        if self.row is None or self.record is None:
            return ""
        accuracy = "" if self.row.accuracy is None else f", accuracy {100 * self.row.accuracy:.1f} %"
        return (
            f"round {self.row.round} of {self.scenario.rounds}: clients {_list_clients(self.row.selected)},"
            f" {self.simulated_s:.2f} s simulated{accuracy}, {show_duration(self.left_s())} left"
        )

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        done = 0 if self.row is None else self.row.round
        bar = ProgressBar(total=self.scenario.rounds, completed=done, width=_CURVE_WIDTH)
        counted = Table.grid(padding=(0, 1))
        counted.add_row(bar, f"{done} of {self.scenario.rounds}, {show_duration(self.left_s())} left")
        table.add_row("rounds", counted)
        table.add_row("training", self._who())
        table.add_row("simulated", self._delays())
        table.add_row("accuracy", self._accuracy())
        if self.record is not None:
            table.add_row("energy", _energy_bars(self.record))
        title = f"{self.scenario.name}: {self.scenario.scheduler.name}, seed {self.scenario.seed}"
        return Group(Text(title, style="bold"), table)

    def _who(self) -> Text:
        clients = self.planned.clients if self.planned is not None else self.row.selected if self.row else []
        text = Text(f"clients {_list_clients(clients)}")
        if self.num_diverged:
            text.append(f"   {self.num_diverged} updates diverged", style="bold red")
        return text

    def _delays(self) -> str:
        if self.record is None:
            return "-"
        parts = f"training {self.record.training_s:.2f}, upload {self.record.upload_s:.2f}"
        return f"{self.simulated_s:.2f} s; last round {parts}, mining {self.record.mining_s:.2f}"

    def _accuracy(self) -> str:
        if self.best is None:
            return "-"
        best, round = self.best
        return f"{100 * self.accuracies[-1]:.1f} %, best {100 * best:.1f} % in round {round}  {_curve(self.accuracies)}"


@contextmanager
def show_run(view: RunView) -> Iterator[RunView]:
    """Show the view on stderr inside the block: live on a terminal, else as lines."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        view.is_plain = True
        yield view
        return
    with Live(view, console=console, refresh_per_second=8, transient=True):
        yield view


def _list_clients(clients: list[int]) -> str:
    shown = " ".join(map(str, clients[:_SHOWN_CLIENTS])) or "-"
    return shown + (f" and {len(clients) - _SHOWN_CLIENTS} more" if len(clients) > _SHOWN_CLIENTS else "")


def _energy_bars(record: RoundRecord) -> Table:
    """Draw each client's energy in the last round as a share of its budget; four to a line."""
    budget_j = record.energy_budget_j
    share = np.divide(record.energy_j, budget_j, out=np.zeros_like(budget_j), where=budget_j > 0)
    grid = Table.grid(padding=(0, 1))
    cells = []
    for client in range(min(len(share), _SHOWN_CLIENTS)):
        filled = round(_BAR_WIDTH * min(float(share[client]), 1.0))
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        style = "blue" if record.selected[client] else "dim"
        cells.append(Text(f"{client:>2} {bar} {100 * share[client]:>3.0f} %", style=style))
    for start in range(0, len(cells), 4):
        grid.add_row(*cells[start : start + 4])
    if len(share) > _SHOWN_CLIENTS:
        grid.add_row(Text(f"{len(share) - _SHOWN_CLIENTS} more", style="dim"))
    return grid


def _curve(values: list[float]) -> str:
    """Draw the newest values as a row of bars, newest at the right."""
    shown = values[-_CURVE_WIDTH + 16 :]
    return "".join(_STEPS[min(int(value * len(_STEPS)), len(_STEPS) - 1)] for value in shown)


# Live view of a local network: a table of its processes on a terminal, plain lines elsewhere.

_LINE_EVERY_S = 5.0

ShowView = Callable[[NetworkView], None]
SayMore = Callable[[], str]


@contextmanager
def show_network(title: str, *, is_plain: bool, say_more: SayMore = lambda: "") -> Iterator[ShowView]:
    """Yield a function that shows a network on stderr: a live table on a terminal, else lines.

    `say_more` returns an additional line, or an empty text.
    """
    console = Screen(stderr=True)
    if is_plain or not console.is_terminal:
        yield _network_lines(title, say_more)
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


def _network_lines(title: str, say_more: SayMore) -> ShowView:
    """Return a function that writes plain lines: one for a change, at most every five seconds."""
    said_more, said, said_s = "", "", -_LINE_EVERY_S
    say(title, err=True)

    def show(view: NetworkView) -> None:
        nonlocal said_more, said, said_s
        more = say_more()
        if more != said_more:
            said_more = more
            say(more, err=True)
        line, now_s = "; ".join([summarise_view(view), *list_troubles(view)]), time.monotonic()
        if line != said and now_s - said_s >= _LINE_EVERY_S:
            said, said_s = line, now_s
            say(line, err=True)

    return show


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
    known = [node.snapshot.accuracy for node in view.nodes if node.snapshot is not None]
    accuracy = next((one for one in known if one is not None), None)
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
