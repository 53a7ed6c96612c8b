"""Live view of a training run: a few lines on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
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
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Scenario

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
    started_s: float = field(default_factory=time.monotonic)

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
        yield _Lines(view)
        return
    with Live(view, console=console, refresh_per_second=8, transient=True):
        yield view


class _Lines(RunView):
    """A view that writes a line as a round ends, at most one a second."""

    def __init__(self, view: RunView) -> None:
        super().__init__(view.scenario, view.done_before)
        self._said_s = time.monotonic()

    def recall_round(self, record: RoundRecord, row: LearningRound) -> None:
        super().recall_round(record, row)
        now = time.monotonic()
        if now - self._said_s >= _PATIENCE_S and row.round > self.done_before:
            self._said_s = now
            say(self.line(), err=True)


def show_duration(seconds: float) -> str:
    """Format seconds: 40 s, 12 min, 3.5 h."""
    if np.isnan(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _list_clients(clients: list[int]) -> str:
    shown = " ".join(map(str, clients[:_SHOWN_CLIENTS])) or "-"
    return shown + (f" and {len(clients) - _SHOWN_CLIENTS} more" if len(clients) > _SHOWN_CLIENTS else "")


def _energy_bars(record: RoundRecord) -> Table:
    """Draw each client's energy in the last round as a share of its budget; four to a line."""
    budget_j = record.energy_budget_j
    share = np.divide(record.energy_j, budget_j, out=np.zeros_like(budget_j), where=budget_j > 0)
    grid = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = []
    for client in range(min(len(share), _SHOWN_CLIENTS)):
        filled = round(_BAR_WIDTH * min(float(share[client]), 1.0))
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        style = "blue" if record.selected[client] else "dim"
        cells.append(Text(f"{client:>2} {bar} {100 * share[client]:>3.0f} %", style=style))
        if len(cells) == 4:
            grid.add_row(*cells)
            cells = []
    if cells:
        grid.add_row(*cells)
    if len(share) > _SHOWN_CLIENTS:
        grid.add_row(Text(f"{len(share) - _SHOWN_CLIENTS} more", style="dim"))
    return grid


def _curve(values: list[float]) -> str:
    """Draw the newest values as a row of bars, newest at the right."""
    shown = values[-_CURVE_WIDTH + 16 :]
    return "".join(_STEPS[min(int(value * len(_STEPS)), len(_STEPS) - 1)] for value in shown)
