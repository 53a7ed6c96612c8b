"""A run on a chain: its blocks, and the files and processes beside it."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bdfl.encoding import encode
from bdfl.errors import one_line
from bdfl.explorer import NotHere
from bdfl.explorer.block_page import list_rows, show_block, show_row, show_schedule
from bdfl.explorer.block_source import BlockSource, Found, ask_for_forgeries, find_block, find_forgery
from bdfl.explorer.columns import OUTSIDE, RESTING, UNKNOWN, Columns, summarise
from bdfl.explorer.documents import (
    FLAG_PROBLEM,
    AccessPointRow,
    BlockDocument,
    BlockList,
    BlockRow,
    ClientDocument,
    ClientRow,
    Kind,
    Overview,
    Problem,
    Status,
    Summary,
)
from bdfl.explorer.follower import Follower, Journal, Learning, MeasuredTimes, NodeLogs, is_member
from bdfl.explorer.node_status import StatusPoller
from bdfl.explorer.pages import MemberCounts, RoundView, show_member
from bdfl.explorer.worker_client import FindMining
from bdfl.ledger.block import Block, Conditions, Schedule, chain_id
from bdfl.ledger.chain_params import problem_of, read_decision
from bdfl.ledger.costs import ATTO, MICROWATT, NANO, NOISE
from bdfl.ledger.member_set import quorum_size
from bdfl.ledger.store import StoreError
from bdfl.records.learning import SCENARIO_FILE, LearningRound
from bdfl.scenario import MiningMode, Scenario
from bdfl.scheduling.problem import Decision, RoundProblem

_OPENING_S = 15.0  # to read a chain when it is opened; later blocks are read in steps
_STEP_S = 0.3
_CHECK_EVERY_S = 30.0  # interval of signature checks
_WITHOUT_RECEIPTS = 2  # last rounds of a run, whose receipts are in no block
_FRESH_S = 0.2  # least time between two reads
_MAX_PROBLEMS = 100  # listed at most


@dataclass(frozen=True, eq=False, kw_only=True)
class RunFiles:
    """Files and processes beside a chain."""

    folder: Path | None = None
    scenario: Scenario | None = None
    planned_rounds: int | None = None
    journal: Journal | None = None
    logs: NodeLogs | None = None
    times: MeasuredTimes | None = None
    watcher: StatusPoller | None = None
    is_worked_on: Callable[[], bool] = lambda: False  # true if a process writes to the chain
    problem: str | None = None  # with the files beside the chain

    @property
    def scenario_path(self) -> Path | None:
        """Path of the scenario; none: missing or unreadable."""
        return None if self.folder is None or self.scenario is None else self.folder / SCENARIO_FILE


class ChainRun:
    """One run on a chain; every method may be called from any thread."""

    def __init__(self, kind: Kind, source: BlockSource, surroundings: RunFiles) -> None:
        self.kind: Kind = kind
        self.source = source
        self.around = surroundings
        self.folder: Path | None = surroundings.folder
        self.scenario_path = surroundings.scenario_path
        self.genesis = source.genesis
        self.name = self.genesis.name or (surroundings.scenario.name if surroundings.scenario else "") or "chain"
        self.lock = threading.RLock()
        self.columns = Columns(len(self.genesis.members))
        self.follower = Follower(self.genesis)
        self._problems: dict[int, str] = {}
        self.gone: str | None = None  # why it cannot be read any more
        self.is_live = False
        self.tallies = MemberCounts()
        self._read_s = -math.inf
        self._summary: tuple[tuple[int, int], Summary] | None = None
        self._num_changes = 0  # of rows that were there before
        self._num_checked = 0  # blocks whose signatures were checked
        self._checked_s = -math.inf  # time of the last check; infinite: under way
        self._is_closed = False
        self._read(_OPENING_S)

    def close(self) -> None:
        self._is_closed = True
        with self.lock:
            self.source.close()

    @property
    def chain_path(self) -> Path | None:
        """Folder of its chain; none: not on this machine."""
        return self.source.folder

    # Following

    def read_all(self) -> None:
        """Read the whole chain, without a time limit."""
        with self.lock:
            self._read(math.inf)

    def refresh(self, *, at_once: bool = False) -> None:
        """Read new blocks and files."""
        with self.lock:
            if at_once or time.monotonic() - self._read_s >= _FRESH_S:
                self._read(_STEP_S)

    def _read(self, patience_s: float) -> None:
        """Read new blocks for at most `patience_s` seconds, then the files beside the chain."""
        try:
            self.is_live = self.around.is_worked_on()
            is_all = self._take_blocks(time.monotonic() + patience_s)
            self.is_live = self.is_live or not is_all
            self.gone = None
            if is_all:
                self._check_signatures()
        except StoreError as error:
            self.gone = one_line(error)
            self.is_live = False
        self._take_files()
        self._read_s = time.monotonic()

    def _check_signatures(self) -> None:
        """Start a process that checks the signatures of new blocks, unless one runs or ran recently."""
        path, first, last = self.chain_path, self._num_checked + 1, self.height
        is_due = time.monotonic() - self._checked_s >= _CHECK_EVERY_S
        if path is None or last < first or not is_due or self._is_closed:
            return
        self._checked_s = math.inf  # under way

        def check() -> None:
            forged = ask_for_forgeries(path, first, last)
            with self.lock:
                self._checked_s = time.monotonic()
                self._num_checked = self._num_checked if forged is None else last
                for height, what in (forged or {}).items():
                    self.note_problem(height, what)

        threading.Thread(target=check, daemon=True, name="signatures").start()

    def note_problem(self, height: int, what: str) -> None:
        """Record a problem of a block that was read."""
        if height not in self._problems and 1 <= height <= self.height:
            self._problems[height] = what
            self.columns["flags"][height - 1] |= FLAG_PROBLEM

    @property
    def height(self) -> int:
        return self.columns.num_rows

    def _take_blocks(self, until_s: float) -> bool:
        """Read blocks until `until_s`; return whether all were read."""
        journal = self.around.journal
        last = self.source.height()
        if journal is not None:
            journal.refresh()
            if self.is_live and journal.header is not None and journal.problem is None:
                last = min(last, journal.num_rounds)  # a round counts once its journal line is written
        while self.follower.height < last:
            if time.monotonic() > until_s:
                return False
            found = find_block(self.source, self.follower.height + 1)
            row, problem = self.follower.take(found)
            self.columns.append(row)
            if problem is not None:
                self._problems[found.height] = problem
            if found.block is not None:
                self.tallies.take(found)
                self._take_receipts(found.block)
            if self.chain_path is None:  # remote chain: check signatures here
                forged = find_forgery(found, self.follower.member_set)
                if forged is not None:
                    self.note_problem(found.height, forged)
        return True

    def _take_receipts(self, block: Block) -> None:
        """Set the mining time of the round before from its receipts, if mining is sampled."""
        if not self._is_sampled:
            return
        receipts = [signed.report.receipt for signed in block.body.reports]
        found_ns = [one.mining_ns for one in receipts if one is not None and one.round == block.header.height - 1]
        if found_ns and self.height >= 2:
            self.set_mining(self.height - 2, float(np.median(found_ns)) / NANO)

    @property
    def _is_sampled(self) -> bool:
        scenario = self.around.scenario
        return self.kind == "run" and scenario is not None and scenario.mining.mode is MiningMode.SAMPLED

    def unknown_mining(self) -> list[FindMining]:
        """Return requests for the sampled mining times of the last rounds, whose receipts are in no block."""
        if not self._is_sampled or self.scenario_path is None:
            return []
        races = []
        for height in range(max(1, self.height - _WITHOUT_RECEIPTS + 1), self.height + 1):
            block = self.find(height).block
            if block is None or not block.body.schedule.is_feasible or self.columns["is_measured"][height - 1]:
                continue
            races.append(
                FindMining(
                    scenario=str(self.scenario_path),
                    round=height,
                    mining_hz=[float(hz) for hz in block.body.schedule.mining_hz],
                    attempt=block.header.attempt,
                    proposer=block.header.proposer,
                )
            )
        return races

    def set_mining(self, place: int, mining_s: float) -> None:
        """Set the mining time of the round at `place` (from 0), and scale all clients' mining energy."""
        columns = self.columns
        training_s, upload_s = float(columns["training_s"][place]), float(columns["upload_s"][place])
        planned_s = float(columns["mining_s"][place])
        if not np.isfinite(training_s + upload_s) or planned_s <= 0:
            return
        columns.measure(place, training_s, upload_s, mining_s, float(columns["rest_s"][place]))
        paid_j = columns["client_mining_j"][place]
        paid_j *= mining_s / planned_s  # Eq. 12: at fixed frequencies energy is proportional to time
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

    # Data of all pages

    def clients(self) -> list[ClientRow]:
        roll = self.follower.member_set
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

    def problems(self) -> list[Problem]:
        """Return the problems found; height 0 is not about a block."""
        found = [Problem(height=height, what=what) for height, what in list(self._problems.items())[:_MAX_PROBLEMS]]
        journal = self.around.journal
        beside = (self.around.problem, None if journal is None else journal.problem, self.gone)
        return [Problem(height=0, what=what) for what in beside if what is not None] + found

    def overview(self) -> Overview:
        """Return the overview without its number among the open runs and without the status; hold the lock."""
        law, physics, model = self.genesis.law, self.genesis.physics, self.genesis.model
        return Overview(
            kind=self.kind,
            name=self.name,
            is_live=self.is_live,
            chain=chain_id(self.genesis).hex(),
            height=self.height,
            planned_rounds=self.around.planned_rounds,
            scheduler=self.genesis.scheduler.name,
            aggregation=law.aggregation,
            quorum_rule=law.quorum.value,
            work=law.work.value,
            model_bytes=model.size,
            num_parameters=sum(math.prod(tensor.shape) for tensor in model.tensors),
            tradeoff=physics.tradeoff_nano / NANO,
            min_clients=physics.min_clients,
            bandwidth_hz=float(physics.bandwidth_hz),
            clients=self.clients(),
            access_points=self.access_points(),
            problems=self.problems(),
            summary=self.summary(),
        )

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
            roll = self.follower.member_set
            num_members = sum(is_member(roll, number, height) for number in range(len(roll.members)))
            return show_block(
                found,
                genesis=self.genesis,
                roll=roll,
                height=self.height,
                problem=self._problems.get(height, found.problem),
                queue_nano=() if before is None else before.body.queue_nano,
                learned=self.learned(height),
                accuracy=self.accuracy(height),
                quorum=quorum_size(self.genesis.law.quorum, num_members),
            )

    def blocks(self, first: int | None, last: int | None) -> BlockList:
        """Return a page of blocks by descending height."""

        def show(height: int) -> BlockRow:
            found = self.find(height)
            return show_row(found, self._problems.get(height, found.problem), self.accuracy(height))

        with self.lock:
            return list_rows(self.height, first, last, show)

    def accuracy(self, height: int) -> float | None:
        """Return the accuracy of the model after a block; None if unknown."""
        return self.columns.known("accuracy", height)

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

    def raw_genesis(self) -> bytes:
        return encode(self.genesis)

    # Clients

    def client(self, number: int) -> ClientDocument:
        with self.lock:
            members = self.follower.member_set.members
            if not 0 <= number < len(members):
                raise NotHere(f"client {number}: no member of the chain, 0 to {len(members) - 1} expected")
            limits = members[number].limits
            is_mean = self.genesis.law.rule == "mean"
            return show_member(self.clients()[number], limits, self.columns, self.tallies, self.find, is_mean=is_mean)

    # Rounds

    @property
    def newest_round(self) -> int:
        """The round in progress; of a finished run, the last one."""
        planned = self.around.planned_rounds
        is_over = (planned is not None and self.height >= planned) or not self.follower.conditions
        return max(self.height, 1) if is_over else self.height + 1

    def view_round(self, round: int) -> RoundView:
        """Return the state of a round from 1 to the one after the newest block; raise `NotHere`."""
        with self.lock:
            schedule, conditions, block = self._read_round(round)
            members = self.follower.member_set.members
        gain = [float("nan")] * len(members)
        for client, found in conditions.items():
            if client < len(members):
                gain[client] = found.gain_atto / ATTO
        power_w = [member.limits.power_uw / MICROWATT for member in members]
        shown = show_schedule(schedule)
        for client in schedule.selected:
            if client < min(len(members), len(shown.power_w)):
                power_w[client] = shown.power_w[client]
        updates = () if block is None else block.body.updates
        physics = self.genesis.physics
        return RoundView(
            round=round,
            gain=gain,
            power_w=power_w,
            cpu_hz=shown.cpu_hz,
            mining_hz=shown.mining_hz,
            reachable=frozenset(client for client, found in conditions.items() if found.is_reachable),
            selected=frozenset(schedule.selected),
            delivered=frozenset(one.update.client for one in updates if not one.update.is_declined),
            winner=None if block is None else block.header.proposer,
            bandwidth_hz=float(physics.bandwidth_hz),
            noise_w_per_hz=physics.noise / NOISE,
        )

    def problem_at(self, round: int) -> tuple[RoundProblem, Decision | None]:
        """Return a round's problem and the decision on the chain; raise `NotHere`."""
        with self.lock:
            schedule, conditions, _ = self._read_round(round)
            is_next = round > self.height
            problem = self.follower.next_problem() if is_next else self._past_problem(round, schedule, conditions)
        if problem is None:
            raise NotHere(f"round {round}: its problem cannot be worked out from this chain")
        return problem, read_decision(schedule)

    def _read_round(self, round: int) -> tuple[Schedule, Mapping[int, Conditions], Block | None]:
        """Return the schedule of a round, the clients' reported conditions, and its block if it has one."""
        if not 1 <= round <= self.height + 1:
            raise NotHere(f"round {round}: 1 to {self.height + 1} expected")
        if round == self.height + 1:
            return self.follower.schedule, self.follower.conditions, None
        block = self.find(round).block
        if block is None:
            raise NotHere(f"round {round}: its block cannot be read")
        if round == 1:
            return block.body.schedule, dict(enumerate(one.conditions for one in self.genesis.members)), block
        before = self.find(round - 1).block
        if before is None:
            raise NotHere(f"round {round}: the block before it cannot be read")
        reports = {signed.report.client: signed.report.conditions for signed in before.body.reports}
        return block.body.schedule, reports, block

    def _past_problem(
        self, round: int, schedule: Schedule, conditions: Mapping[int, Conditions]
    ) -> RoundProblem | None:
        """Return the problem of a past round: candidates from the columns, queues from the block before."""
        num = len(schedule.mining_hz)
        base = self.follower.base(num)
        before = None if round == 1 else self.find(round - 1).block
        queue_nano = (0,) * num if before is None else before.body.queue_nano[:num]
        if base is None or len(queue_nano) != num:
            return None
        states = self.columns["client_state"][round - 1]
        candidates = {
            client: found
            for client, found in sorted(conditions.items())
            if client < num and states[client] not in (RESTING, OUTSIDE, UNKNOWN)
        }
        return problem_of(base, round, queue_nano, candidates)
