"""The protocol of a run that the explorer shows, and its view of a round."""

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
from bdfl.explorer.worker_client import FindMining
from bdfl.scheduling.problem import Decision, RoundProblem

# One round: conditions, schedule and result of every client.


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """State of a round; lists have one entry per client, NaN where unknown."""

    round: int
    gain: list[float]
    power_w: list[float]  # transmit power, if it sends
    cpu_hz: list[float]
    mining_hz: list[float]
    reachable: frozenset[int]
    selected: frozenset[int]
    delivered: frozenset[int]
    winner: int | None
    bandwidth_hz: float | None
    noise_w_per_hz: float | None

    def is_there(self, client: ClientRow) -> bool:
        """Return whether the client is a member in this round."""
        return client.since <= self.round and (client.until is None or self.round <= client.until)


# Protocol of a run, for all kinds of sources.


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Constant facts of a run."""

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
    """One open run; all methods are thread-safe."""

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
        """Return a round from 1 to the one after the newest block."""
        ...

    def problem_at(self, round: int) -> tuple[RoundProblem, Decision | None]:
        """Return a round's problem and its recorded decision."""
        ...
