"""A run on a chain: followed as far as it goes, with all that files and processes beside it tell."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from bdfl.errors import one_line
from bdfl.explorer.block_page import show_block, show_row
from bdfl.explorer.chain_view import BlockSource, Found, find_block
from bdfl.explorer.columns import Columns
from bdfl.explorer.documents import (
    AccessPointRow,
    BlockDocument,
    BlockList,
    BlockRow,
    ClientRow,
    Kind,
    Problem,
    Status,
    Summary,
)
from bdfl.explorer.errors import NotHere
from bdfl.explorer.following import Follower, is_member
from bdfl.explorer.side_files import Journal, Learning, MeasuredTimes, NodeLogs
from bdfl.explorer.story import summarise
from bdfl.explorer.watching import Watcher
from bdfl.ledger.block import Block, chain_id
from bdfl.ledger.keeping import StoreError
from bdfl.ledger.roll import quorum_size
from bdfl.ledger.units import NANO
from bdfl.records.learning import LearningRound
from bdfl.scenario import MiningMode, Scenario

PAGE = 50  # blocks in a list
_FRESH_S = 0.2  # what was read so recently is not read again
_MAX_PROBLEMS = 100  # that are told of one by one


@dataclass(frozen=True, eq=False, kw_only=True)
class Surroundings:
    """What there is beside a chain."""

    folder: Path | None = None
    scenario: Scenario | None = None
    planned_rounds: int | None = None
    journal: Journal | None = None
    logs: NodeLogs | None = None
    times: MeasuredTimes | None = None
    watcher: Watcher | None = None
    is_worked_on: Callable[[], bool] = lambda: False  # whether a process writes to it
    problem: str | None = None  # with what is beside the chain


class OwnedSource(BlockSource, Protocol):
    """A source that is closed in the end."""

    def close(self) -> None: ...


class ChainRun:
    """One run on a chain; every method may be called from any thread."""

    def __init__(self, kind: Kind, source: OwnedSource, surroundings: Surroundings) -> None:
        self.kind: Kind = kind
        self.source: BlockSource = source
        self.around = surroundings
        self.genesis = source.genesis
        self.name = self.genesis.name or (surroundings.scenario.name if surroundings.scenario else "") or "chain"
        self.lock = threading.RLock()
        self.columns = Columns(len(self.genesis.members))
        self.follower = Follower(self.genesis)
        self.problems: dict[int, str] = {}
        self.gone: str | None = None  # why it cannot be read any more
        self.is_live = False
        self._close = source.close
        self._read_s = float("-inf")
        self._summary: tuple[tuple[int, int], Summary] | None = None
        self._num_changes = 0  # of rows that were there before
        self.refresh()

    def close(self) -> None:
        self._close()

    # Following

    def refresh(self, *, at_once: bool = False) -> None:
        """Takes in what is new."""
        with self.lock:
            now_s = time.monotonic()
            if not at_once and now_s - self._read_s < _FRESH_S:
                return
            try:
                self.is_live = self.around.is_worked_on()
                self._take_blocks()
                self.gone = None
            except StoreError as error:
                self.gone = one_line(error)
                self.is_live = False
            self._take_files()
            self._read_s = time.monotonic()

    @property
    def height(self) -> int:
        return self.columns.num_rows

    def _take_blocks(self) -> None:
        journal = self.around.journal
        last = self.source.height()
        if journal is not None:
            journal.refresh()
            if self.is_live and journal.is_begun and journal.problem is None:
                last = min(last, journal.num_rounds)  # a round counts once its line is there
        while self.follower.height < last:
            found = find_block(self.source, self.follower.height + 1)
            row, problem = self.follower.take(found)
            self.columns.append(row)
            if problem is not None:
                self.problems[found.height] = problem
            if found.block is not None:
                self._take_receipts(found.block)

    def _take_receipts(self, block: Block) -> None:
        """Where mining is drawn, the receipts of the round before say how long it took."""
        scenario = self.around.scenario
        if self.kind != "run" or scenario is None or scenario.mining.mode is not MiningMode.SAMPLED:
            return
        receipts = [signed.report.receipt for signed in block.body.reports]
        found_ns = [one.mining_ns for one in receipts if one is not None and one.round == block.header.height - 1]
        if found_ns and self.height >= 2:
            self.set_mining(self.height - 2, float(np.median(found_ns)) / NANO)

    def set_mining(self, place: int, mining_s: float) -> None:
        """The round at `place` (from 0) took so long to mine; everybody paid for it."""
        columns = self.columns
        training_s, upload_s = float(columns["training_s"][place]), float(columns["upload_s"][place])
        planned_s = float(columns["mining_s"][place])
        if not np.isfinite(training_s + upload_s) or planned_s <= 0:
            return
        columns.measure(place, training_s, upload_s, mining_s, float(columns["rest_s"][place]))
        paid_j = columns["client_mining_j"][place]
        paid_j *= mining_s / planned_s  # Eq. 12: at the same frequencies energy goes with time
        self._num_changes += 1

    def _take_files(self) -> None:
        around = self.around
        if around.logs is not None:
            around.logs.refresh()
        if self.learning is not None:
            self.learning.tell(self.columns)
        if around.times is not None:
            around.times.refresh(self.columns)

    @property
    def learning(self) -> Learning | None:
        around = self.around
        if around.journal is not None:
            return around.journal.learning
        return None if around.logs is None else around.logs.learning

    # What all pages need

    def clients(self) -> list[ClientRow]:
        roll = self.follower.roll
        return [
            ClientRow(
                client=number,
                name=f"client {number}",
                samples=member.limits.samples,
                rate=member.limits.rate_nano / NANO,
                public_key=member.public_key.hex(),
                since=roll.first_heights[number],
                until=roll.last_heights[number],
            )
            for number, member in enumerate(roll.members)
        ]

    def access_points(self) -> list[AccessPointRow]:
        named = [AccessPointRow(name=one.name) for one in self.genesis.access_points]
        if named or self.around.scenario is None:
            return named
        count = len(self.around.scenario.geometry.access_points_m)
        return [AccessPointRow(name=f"access point {number}") for number in range(count)]

    def told_problems(self) -> list[Problem]:
        """What is wrong, and where; height 0 is not about a block."""
        found = [Problem(height=height, what=what) for height, what in list(self.problems.items())[:_MAX_PROBLEMS]]
        journal = self.around.journal
        beside = (self.around.problem, None if journal is None else journal.problem, self.gone)
        return [Problem(height=0, what=what) for what in beside if what is not None] + found

    def summary(self) -> Summary:
        learning = self.learning
        best = None if learning is None or learning.best is None else learning.best[0]
        best = best if best is not None and best <= self.height else None
        num_known = int(np.count_nonzero(np.isfinite(self.columns["accuracy"])))
        key = self.height, self._num_changes + num_known + int(self.columns["is_measured"].sum())
        if self._summary is None or self._summary[0] != key:
            self._summary = key, summarise(self.columns, self.clients(), best)
        return self._summary[1]

    def status(self) -> Status | None:
        return None if self.around.watcher is None else self.around.watcher.status()

    @property
    def chain(self) -> str | None:
        return chain_id(self.genesis).hex()

    # Blocks

    def find(self, height: int) -> Found:
        if not 1 <= height <= self.height:
            expected = f"1 to {self.height}" if self.height else "none is there yet"
            raise NotHere(f"block {height}: not on the chain, {expected}")
        return find_block(self.source, height)

    def block(self, height: int) -> BlockDocument:
        with self.lock:
            found = self.find(height)
            before = self.find(height - 1).block if height > 1 else None
            num_members = sum(is_member(self.follower.roll, number, height) for number in range(self.num_members))
            return show_block(
                found,
                genesis=self.genesis,
                roll=self.follower.roll,
                height=self.height,
                problem=self.problems.get(height, found.problem),
                queue_nano=() if before is None else before.body.queue_nano,
                learned=self.learned(height),
                accuracy=self.accuracy(height),
                quorum=quorum_size(self.genesis.law.quorum, num_members),
            )

    @property
    def num_members(self) -> int:
        return len(self.follower.roll.members)

    def blocks(self, first: int | None, last: int | None) -> BlockList:
        """By falling height."""
        with self.lock:
            last = self.height if last is None else min(last, self.height)
            first = max(1, last - PAGE + 1 if first is None else max(first, last - PAGE + 1))
            rows: list[BlockRow] = []
            for height in range(last, first - 1, -1):
                found = self.find(height)
                rows.append(show_row(found, self.problems.get(height, found.problem), self.accuracy(height)))
            return BlockList(first=first, last=max(last, 0), height=self.height, blocks=rows)

    def accuracy(self, height: int) -> float | None:
        """Of the model after a block; none: not known."""
        if not 1 <= height <= self.height:
            return None
        found = float(self.columns["accuracy"][height - 1])
        return found if np.isfinite(found) else None

    def learned(self, height: int) -> LearningRound | None:
        journal = self.around.journal
        return None if journal is None else journal.row(height)

    def raw_block(self, height: int) -> bytes:
        if not 1 <= height <= self.height:
            raise NotHere(f"block {height}: not on the chain")
        try:
            stored = self.source.read(height)
        except StoreError as error:
            raise NotHere(f"block {height}: {one_line(error)}") from None
        return msgspec.msgpack.encode([stored.block, stored.certificate])
