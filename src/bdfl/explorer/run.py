"""The protocol of a run that the explorer shows."""

import math
import threading
from pathlib import Path
from typing import Protocol

from bdfl.explorer.columns import Columns
from bdfl.explorer.documents import (
    AccessPointRow,
    BlockDocument,
    BlockList,
    ClientDocument,
    ClientRow,
    Kind,
    Overview,
    Problem,
    Status,
    Summary,
)
from bdfl.explorer.pages import RoundView
from bdfl.explorer.worker_client import FindMining
from bdfl.scheduling.problem import Decision, RoundProblem

PAGE = 50  # blocks in a list


def last_known(columns: Columns, name: str, height: int) -> float | None:
    """Return a value of the round at a height; None if unknown."""
    found = float(columns[name][height - 1]) if 1 <= height <= columns.num_rows else math.nan
    return found if math.isfinite(found) else None


class Run(Protocol):
    """One open run; all methods are thread-safe."""

    kind: Kind
    name: str
    lock: "threading.RLock"  # held while columns are read
    columns: Columns
    folder: Path | None
    scenario_path: Path | None
    gone: str | None  # why it cannot be read any more
    is_live: bool

    @property
    def height(self) -> int: ...

    @property
    def newest_round(self) -> int:
        """The round in progress; of a finished run, the last one."""
        ...

    @property
    def chain_path(self) -> Path | None:
        """Folder of its chain; none: not on this machine."""
        ...

    def read_all(self) -> None:
        """Read the whole run, without a time limit."""
        ...

    def open_races(self) -> list[FindMining]:
        """Return requests for sampled mining times of the last rounds; empty if known or unavailable."""
        ...

    def set_mining(self, place: int, mining_s: float) -> None:
        """Set the mining time of the round at `place` (from 0)."""
        ...

    def refresh(self, *, at_once: bool = False) -> None: ...

    def close(self) -> None: ...

    def clients(self) -> list[ClientRow]: ...

    def access_points(self) -> list[AccessPointRow]: ...

    def problems(self) -> list[Problem]:
        """Return the problems found; height 0 is not about a block."""
        ...

    def overview(self) -> Overview:
        """Return the overview without its number among the open runs and without the status; hold the lock."""
        ...

    def summary(self) -> Summary: ...

    def status(self) -> Status | None: ...

    def accuracy(self, height: int) -> float | None: ...

    def block(self, height: int) -> BlockDocument: ...

    def blocks(self, first: int | None, last: int | None) -> BlockList: ...

    def raw_block(self, height: int) -> bytes: ...

    def raw_genesis(self) -> bytes: ...

    def client(self, number: int) -> ClientDocument: ...

    def view_round(self, round: int) -> RoundView:
        """Return a round from 1 to the one after the newest block."""
        ...

    def problem_at(self, round: int) -> tuple[RoundProblem, Decision | None]:
        """Return a round's problem and its recorded decision."""
        ...
