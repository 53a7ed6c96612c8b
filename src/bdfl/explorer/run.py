"""What every run can be asked, whatever it is read from."""

import threading
from dataclasses import dataclass
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
    Problem,
    Status,
    Summary,
)
from bdfl.explorer.orders import MinedIn
from bdfl.explorer.round_view import RoundView
from bdfl.scheduling.problem import Decision, RoundProblem


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What stays the same all run long."""

    chain: str | None
    planned_rounds: int | None
    scheduler: str
    aggregation: str | None
    quorum_rule: str | None
    work: str | None
    model_bytes: int | None
    num_parameters: int | None
    tradeoff: float | None
    min_clients: int | None
    bandwidth_hz: float | None


class Run(Protocol):
    """One open run; every method may be called from any thread."""

    kind: Kind
    name: str
    lock: "threading.RLock"  # held while columns are read
    columns: Columns
    facts: Facts
    folder: Path | None
    scenario_path: Path | None
    gone: str | None  # why it cannot be read any more
    is_live: bool

    @property
    def height(self) -> int: ...

    @property
    def newest_round(self) -> int:
        """The one that is being played; of a run that is over, the last one."""
        ...

    @property
    def chain_path(self) -> Path | None:
        """The folder of its chain; none: it has none on this machine."""
        ...

    @property
    def pruned_to(self) -> int: ...

    def read_all(self) -> None:
        """Takes in all that there is, however long that takes."""
        ...

    def open_races(self) -> list[MinedIn]:
        """What tells how long mining took in the last rounds; none: it is known, or nothing does."""
        ...

    def set_mining(self, place: int, mining_s: float) -> None:
        """The round at `place` (from 0) took so long to mine."""
        ...

    def refresh(self, *, at_once: bool = False) -> None: ...

    def close(self) -> None: ...

    def clients(self) -> list[ClientRow]: ...

    def access_points(self) -> list[AccessPointRow]: ...

    def told_problems(self) -> list[Problem]: ...

    def summary(self) -> Summary: ...

    def status(self) -> Status | None: ...

    def accuracy(self, height: int) -> float | None: ...

    def block(self, height: int) -> BlockDocument: ...

    def blocks(self, first: int | None, last: int | None) -> BlockList: ...

    def raw_block(self, height: int) -> bytes: ...

    def raw_genesis(self) -> bytes: ...

    def client(self, number: int) -> ClientDocument: ...

    def view_round(self, round: int) -> RoundView:
        """Round 1 to the one after the newest block."""
        ...

    def problem_at(self, round: int) -> tuple[RoundProblem, Decision | None]:
        """A round's problem, and what was decided."""
        ...
