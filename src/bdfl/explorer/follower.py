"""Follow a growing chain, and the files beside it: a run's journal, a node's round times and log.

Reading continues at the last position, by complete lines: another process may be writing.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from bdfl.errors import BdflError
from bdfl.explorer.block_source import Found, find_problem
from bdfl.explorer.columns import (
    DECLINED,
    DELIVERED,
    IDLE,
    MISSED,
    OUTSIDE,
    RESTING,
    UNKNOWN,
    Columns,
    Row,
    Values,
)
from bdfl.explorer.documents import FLAG_CHANGE, FLAG_EVIDENCE, FLAG_INFEASIBLE, FLAG_PROBLEM
from bdfl.ledger.block import Block, Conditions, Genesis, Schedule, chain_id
from bdfl.ledger.chain_params import base_problem, problem_of, read_decision
from bdfl.ledger.costs import NANO, PICOJOULE
from bdfl.ledger.member_set import BINDS_AFTER, MemberSet, find_change, find_evidence, first_member_set, offender_of
from bdfl.ledger.schedule import find_candidates, settle_conditions, settle_misses
from bdfl.node.log import LOG_FILE
from bdfl.records.files import ROUNDS_FILE, RoundTimes, former_rounds
from bdfl.records.learning import JournalHeader, LearningRound, or_nan
from bdfl.scheduling.checker import Outcome, evaluate
from bdfl.scheduling.problem import RoundProblem
from bdfl.storage import open_regular

# Follow a chain block by block: the cost of each round by the cost model, and the state of each member.

_DIGEST_SHOWN = 12  # characters


def is_member(roll: MemberSet, number: int, height: int) -> bool:
    """Return whether that number is a member at a height."""
    last = roll.last_heights[number]
    return roll.first_heights[number] <= height and (last is None or height <= last)


class Follower:
    """State of all members after the blocks read so far; an unreadable block leaves it unchanged."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self.height = 0
        self.member_set: MemberSet = first_member_set(genesis)
        self.conditions: Mapping[int, Conditions] = {
            number: member.conditions for number, member in enumerate(genesis.members)
        }
        self.schedule = genesis.schedule  # of the next round
        num_members = len(genesis.members)
        self.queue_nano: tuple[int, ...] = (0,) * num_members
        self.misses: tuple[int, ...] = (0,) * num_members
        self.rests_until: tuple[int, ...] = (0,) * num_members
        self.offenders: frozenset[int] = frozenset()
        self.counts: Values = np.zeros(num_members, np.int32)
        self._parent: bytes | None = chain_id(genesis)  # none: the block before is invalid
        self._bases: dict[int, RoundProblem | None] = {}

    @property
    def num_members(self) -> int:
        """Number of members ever admitted, including those about to join."""
        return len(self.member_set.members)

    def take(self, found: Found) -> tuple[Row, str | None]:
        """Return the row of the next block, and its problem if it has one."""
        problem = find_problem(found, self.genesis, self.member_set, self._parent)
        self.height += 1
        block = found.block
        row = Row(client_count=self.counts, client_state=np.full(self.num_members, UNKNOWN, np.uint8))
        if block is not None:
            try:
                row = self._account(block)
            except (BdflError, ArithmeticError, IndexError, ValueError) as error:
                problem = problem or f"what it says cannot be followed: {type(error).__name__}"
        if problem is not None:
            row.flags |= FLAG_PROBLEM
        self._parent = None if block is None or problem is not None else block.digest
        return row, problem

    def next_problem(self) -> RoundProblem | None:
        """Return the scheduling problem of the next round; None if the genesis is invalid."""
        return self._problem(self.schedule, self.height + 1)

    def _problem(self, schedule: Schedule, round: int) -> RoundProblem | None:
        num_clients = len(schedule.mining_hz)
        base = self.base(num_clients)
        if base is None or len(self.queue_nano) < num_clients or len(self.rests_until) < num_clients:
            return None
        conditions = {client: one for client, one in self.conditions.items() if client < num_clients}
        candidates = find_candidates(conditions, self.rests_until, round, self.genesis.physics.min_clients)
        return problem_of(base, round, self.queue_nano[:num_clients], candidates)

    def base(self, num_clients: int) -> RoundProblem | None:
        """Return the constant part of a problem of the first `num_clients` members; None for an invalid genesis."""
        if num_clients not in self._bases:
            try:
                base = base_problem(self.genesis, self.member_set.members[:num_clients])
            except BdflError:
                base = None
            self._bases[num_clients] = base if base is not None and base.num_clients == num_clients else None
        return self._bases[num_clients]

    def _account(self, block: Block) -> Row:
        body, height = block.body, self.height
        problem = self._problem(body.schedule, height)
        outcome = None if problem is None else evaluate(problem, read_decision(body.schedule))
        row = self._cost(block, problem, outcome)
        heard = {signed.update.client for signed in body.updates}
        delivered = [signed.update.client for signed in body.updates if not signed.update.is_declined]
        counts = self.counts.copy()
        counts[delivered] += 1
        row.client_state = self._states(block, problem, heard, delivered)
        # Everything was checked: apply all changes of this block together.
        change = find_change(body.entries)
        roll = self.member_set if change is None else self.member_set.after(change.change, height + BINDS_AFTER)
        offenders = self.offenders.union(map(offender_of, find_evidence(body.entries)))
        newcomers = (0,) * (len(roll.members) - len(self.misses))
        misses, rests_until = settle_misses(body.schedule.selected, heard, self.misses, self.rests_until, height)
        staying = {number for number in range(len(roll.members)) if is_member(roll, number, height + 1)}
        self.conditions = settle_conditions(body.reports, staying, offenders)
        self.misses, self.rests_until = misses + newcomers, rests_until + newcomers
        self.member_set, self.offenders = roll, offenders
        self.counts = np.concatenate((counts, np.zeros(len(newcomers), np.int32)))
        self.queue_nano = body.queue_nano + (0,) * max(0, len(roll.members) - len(body.queue_nano))
        self.schedule = body.next_schedule
        row.client_count = counts
        return row

    def _cost(self, block: Block, problem: RoundProblem | None, outcome: Outcome | None) -> Row:
        """Return the costs of the round; as stated by the block if they cannot be computed here."""
        body, num = block.body, self.num_members
        modelled = body.modelled
        training_s, upload_s = np.nan, np.nan
        mining_s = modelled.mining_ns / NANO
        rest_s = (modelled.delay_ns - modelled.exchange_ns - modelled.mining_ns) / NANO
        delay_s = modelled.delay_ns / NANO
        energy_j = np.array(modelled.energy_pj, dtype=np.float64) / PICOJOULE
        parts: tuple[Values, ...] = (energy_j * np.nan,) * 5
        if outcome is not None and problem is not None and np.isfinite(outcome.delay_s):
            slowest = int(np.argmax(outcome.training_s + outcome.upload_s))
            training_s, upload_s = float(outcome.training_s[slowest]), float(outcome.upload_s[slowest])
            mining_s = outcome.mining_s
            rest_s = problem.overhead_s if body.schedule.is_feasible else 0.0
            delay_s = outcome.delay_s
            parts = outcome.training_j, outcome.upload_j, outcome.mining_j, outcome.training_s, outcome.upload_s
        queue = np.array(body.queue_nano, dtype=np.float64) / NANO
        flags = FLAG_EVIDENCE if find_evidence(body.entries) else 0
        flags |= FLAG_CHANGE if find_change(body.entries) is not None else 0
        flags |= 0 if body.schedule.is_feasible else FLAG_INFEASIBLE
        widened = [_widen(values, num) for values in parts]
        budget_j = np.full(num, np.nan)
        for client, found in self.conditions.items():
            if client < num:
                budget_j[client] = found.energy_budget_pj / PICOJOULE
        return Row(
            delay_s=delay_s,
            training_s=training_s,
            upload_s=upload_s,
            mining_s=mining_s,
            rest_s=rest_s,
            num_updates=sum(not signed.update.is_declined for signed in body.updates),
            num_selected=len(body.schedule.selected),
            proposer=block.header.proposer,
            attempt=block.header.attempt,
            is_empty=body.is_empty,
            flags=flags,
            digest=block.digest.hex()[:_DIGEST_SHOWN].encode(),
            mean_queue=float(np.mean(queue)) if queue.size else np.nan,
            objective=body.schedule.objective_nano / NANO if body.schedule.is_feasible else np.nan,
            client_training_j=widened[0],
            client_upload_j=widened[1],
            client_mining_j=widened[2],
            client_budget_j=budget_j,
            client_training_s=widened[3],
            client_upload_s=widened[4],
            client_queue=_widen(queue, num),
            client_count=self.counts,
            client_state=np.full(num, UNKNOWN, np.uint8),
        )

    def _states(self, block: Block, problem: RoundProblem | None, heard: set[int], delivered: list[int]) -> Values:
        state = np.full(self.num_members, RESTING, np.uint8)
        if problem is not None:
            state[: problem.num_clients][problem.reachable] = IDLE
        for client in block.body.schedule.selected:
            state[client] = DECLINED if client in heard else MISSED
        state[delivered] = DELIVERED
        for number in range(self.num_members):
            if not is_member(self.member_set, number, self.height):
                state[number] = OUTSIDE
        return state


def _widen(values: Values, num_clients: int) -> Values:
    """Return one value per client, NaN for missing ones."""
    full = np.full(num_clients, np.nan)
    kept = min(num_clients, len(values))
    full[:kept] = values[:kept]
    return full


_MAX_LINE = 2**24  # bytes
_MAX_FILE = 2**30

_ROUND = msgspec.json.Decoder(LearningRound)
_HEADER = msgspec.json.Decoder(JournalHeader)
_TIMES = msgspec.json.Decoder(RoundTimes)
_Line = TypeVar("_Line")


def _decode(decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line | None:
    """Return what a line says; None if it is damaged."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class LineTail:
    """Reader of the new lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0

    def read(self) -> tuple[bool, list[tuple[int, bytes]]]:
        """Return whether the file was replaced or truncated since the last call, and new complete lines by offset."""
        try:
            with open_regular(self.path, _MAX_FILE) as file:
                found = os.fstat(file.fileno())
                identity = found.st_dev, found.st_ino
                is_new = self._file is not None and (identity != self._file or found.st_size < self._offset)
                if is_new or self._file is None:
                    self._file, self._offset = identity, 0
                if found.st_size == self._offset:
                    return is_new, []
                file.seek(self._offset)
                lines = []
                for line in iter(lambda: file.readline(_MAX_LINE), b""):
                    if not line.endswith(b"\n"):
                        break
                    lines.append((self._offset, line))
                    self._offset += len(line)
                return is_new, lines
        except OSError:
            return False, []


class Learning:
    """Accuracy and loss of a run's models by round; new values are written into the columns once."""

    def __init__(self) -> None:
        self._known: list[tuple[float | None, float | None]] = []  # accuracy and loss by round
        self._num_told = 0
        self.best: tuple[int, float] | None = None  # round and accuracy, see `best_round`

    def note(self, round: int, accuracy: float | None, loss: float | None) -> None:
        while len(self._known) < round:
            self._known.append((None, None))
        self._known[round - 1] = accuracy, loss
        self._num_told = min(self._num_told, round - 1)
        highest = -np.inf if self.best is None else self.best[1]
        if accuracy is not None and loss is not None and np.isfinite(loss) and accuracy > highest:
            self.best = round, accuracy

    def tell(self, columns: Columns) -> None:
        """Write new values into the columns."""
        last = min(len(self._known), columns.num_rows)
        for place in range(self._num_told, last):
            accuracy, loss = self._known[place]
            columns["accuracy"][place], columns["loss"][place] = or_nan(accuracy), or_nan(loss)
        self._num_told = max(self._num_told, last)


class Journal:
    """The journal of a run folder."""

    def __init__(self, path: Path) -> None:
        self._tail = LineTail(path)
        self.header: JournalHeader | None = None
        self.problem: str | None = None
        self.learning = Learning()
        self._places: list[int] = []  # offsets of the rounds' lines

    @property
    def num_rounds(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        is_new, lines = self._tail.read()
        if is_new:
            self.header = self.problem = None
            self._places.clear()
            self.learning = Learning()
        for place, line in lines:
            self._take(place, line)

    def _take(self, place: int, line: bytes) -> None:
        if self.problem is not None:
            return  # lines after a damaged one have no number
        match _decode(_HEADER, line) if self.header is None else _decode(_ROUND, line):
            case None:
                self.problem = f"line {len(self._places) + 2} of the journal is damaged"
            case JournalHeader() as header:
                self.header = header
            case LearningRound(round=round) if round != len(self._places) + 1:
                self.problem = f"line {len(self._places) + 2} of the journal is not that of its round"
            case LearningRound() as row:
                self._places.append(place)
                self.learning.note(row.round, row.accuracy, row.loss)

    def row(self, round: int) -> LearningRound | None:
        """Return one round's line; None if missing."""
        if not 1 <= round <= len(self._places):
            return None
        try:
            with open_regular(self._tail.path, _MAX_FILE) as file:
                file.seek(self._places[round - 1])
                return _decode(_ROUND, file.readline(_MAX_LINE))
        except OSError:
            return None


class NodeLogs:
    """Accuracies and losses from the logs of evaluating nodes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.learning = Learning()
        self._tails = [LineTail(folder / LOG_FILE) for folder in folders]
        for tail in self._tails:
            for old in sorted(tail.path.parent.glob(f"{LOG_FILE}.[0-9]"), reverse=True):
                self._take(LineTail(old).read()[1])

    def refresh(self) -> None:
        for tail in self._tails:
            self._take(tail.read()[1])

    def _take(self, lines: Sequence[tuple[int, bytes]]) -> None:
        for _, line in lines:
            fact = _decode(_FACT, line) if b'"event":"accuracy"' in line else None
            if fact is not None and 1 <= fact.height <= _MAX_HEIGHT:
                self.learning.note(fact.height, fact.accuracy, fact.loss)


class _AccuracyFact(msgspec.Struct):
    height: int
    accuracy: float
    loss: float | None = None  # none: not finite


_MAX_HEIGHT = 10_000_000
_FACT = msgspec.json.Decoder(_AccuracyFact)


class MeasuredTimes:
    """Measured round times from the files of one or more nodes; the first file with a round counts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._tails = [LineTail(folder / ROUNDS_FILE) for folder in folders]
        self._waiting: dict[int, RoundTimes] = {}  # rounds that are not in the columns yet
        self._told: set[int] = set()
        for tail in self._tails:
            former = former_rounds(tail.path)
            if former.exists():
                self._take(LineTail(former).read()[1])

    def refresh(self, columns: Columns) -> None:
        """Write new values into the columns."""
        for tail in self._tails:
            self._take(tail.read()[1])
        for round in [one for one in self._waiting if one <= columns.num_rows]:
            times, place = self._waiting.pop(round), round - 1
            self._told.add(round)
            # the exchange is split into training and upload as modelled for the slowest client
            training_s, upload_s = float(columns["training_s"][place]), float(columns["upload_s"][place])
            share = training_s / (training_s + upload_s) if training_s + upload_s > 0 else 1.0
            exchange_s, mining_s, voting_s = times.exchange_ns / NANO, times.mining_ns / NANO, times.voting_ns / NANO
            columns.measure(place, share * exchange_s, (1.0 - share) * exchange_s, mining_s, voting_s)

    def _take(self, lines: Sequence[tuple[int, bytes]]) -> None:
        for _, line in lines:
            times = _decode(_TIMES, line)
            if times is not None and times.is_whole and times.round >= 1 and times.round not in self._told:
                self._waiting.setdefault(times.round, times)
