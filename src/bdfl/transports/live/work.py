"""Training and mining of a live node, with measured and emulated durations.

Results are delivered when they are due, or when ready if that is later.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from bdfl.environment import draw_federation, draw_rounds
from bdfl.ledger.block import Block, Conditions, Header, Receipt, header_seal
from bdfl.ledger.chain import ChainState
from bdfl.ledger.costs import NANO
from bdfl.ledger.genesis import conditions_of
from bdfl.ledger.miner import Miner
from bdfl.records.files import ModelledRound
from bdfl.scenario import Scenario
from bdfl.transports.cost_model import FindConditions, ScenarioTimes
from bdfl.transports.live.training_process import Failed, Trained, TrainingProcess

AT_ONCE = 0
_HEIGHTS_REMEMBERED = 4

OnFailure = Callable[[str], None]


@dataclass(frozen=True)
class Spent:
    """Measured durations of the work for one height (ns)."""

    training_ns: int = 0
    upload_ns: int = 0  # of the own update
    hashing_ns: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.training_ns + other.training_ns,
            self.upload_ns + other.upload_ns,
            self.hashing_ns + other.hashing_ns,
        )


class WorkProcesses:
    """The part of a `Work` that is alike in every mode: a training process and a miner, both closed with it.

    Results are due at once unless a subclass says otherwise. Only `close` blocks.
    """

    time_scale = 1.0

    def __init__(
        self, number: int, times: ScenarioTimes, training: TrainingProcess, on_failure: OnFailure | None
    ) -> None:
        """`on_failure` gets a one-line reason when a training fails."""
        self.training = training
        self._number = number
        self._times = times
        self._miner = Miner()
        self._on_failure = on_failure
        self._trained = _Slot()
        self._found = _Slot()
        self._lock = threading.Lock()
        self._spent: OrderedDict[int, Spent] = OrderedDict()  # by height
        self._epsilon_micro: tuple[int, int] = 0, 0  # height and epsilon
        self._total = Spent()
        self._hashing: tuple[int, int] | None = None  # height and start (ns)

    def modelled(self, chain: ChainState) -> ModelledRound:
        """Return the modelled round after `chain`, without the time scale."""
        return self._times.modelled(self._number, chain)

    def training_due_ns(self, chain: ChainState) -> int:
        """Return the earliest time to deliver the model of the round after `chain`, whose training begins now."""
        return AT_ONCE

    def mining_due_ns(self, chain: ChainState, header: Header) -> int:
        """Return the earliest time to deliver a nonce for the header, whose search begins now."""
        return AT_ONCE

    def train(self, chain: ChainState, model: bytes, on_done: Callable[[bytes | None], None]) -> None:
        """Train the round after `chain`; deliver the model, None on failure, when it is due."""
        height, turn, due_ns = chain.height + 1, self._trained.begin(), self.training_due_ns(chain)

        def finish(answer: Trained | Failed) -> None:
            given = None
            if isinstance(answer, Trained):
                given = answer.model
                self.note(height, Spent(training_ns=answer.duration_ns))
                self._epsilon_micro = height, answer.epsilon_micro
            elif self._on_failure is not None:
                self._on_failure(answer.reason)
            self._trained.tell(turn, due_ns, lambda: on_done(given))

        self.training.train(model, height, finish, chain.rounds_scheduled)

    def spent_micro(self, chain: ChainState) -> int:
        """Return the epsilon (1e-6) spent up to the round after `chain`; 0 if its training failed or is not private."""
        height, epsilon_micro = self._epsilon_micro
        return epsilon_micro if height == chain.height + 1 else 0

    def stop_training(self) -> None:
        self._trained.leave()
        self.training.stop()

    def mine(self, chain: ChainState, header: Header, on_found: Callable[[bytes], None]) -> None:
        """Search a nonce for the header, replacing any earlier search; deliver it when it is due."""
        turn, due_ns = self._found.begin(), self.mining_due_ns(chain, header)
        self._note_hashing(header.height)

        def finish(nonce: bytes) -> None:
            self._note_hashing(None)
            self._found.tell(turn, due_ns, lambda: on_found(nonce))

        self._miner.start(chain.genesis.law.work, header_seal(header), header.difficulty, finish)

    def stop_mining(self) -> None:
        self._found.leave()
        self._note_hashing(None)
        self._miner.stop()

    def spent(self, height: int) -> Spent:
        """Return the durations of a height so far; zero for heights no longer remembered."""
        with self._lock:
            found = self._spent.get(height, Spent())
            if self._hashing is not None and self._hashing[0] == height:
                found += Spent(hashing_ns=time.monotonic_ns() - self._hashing[1])
            return found

    def total(self) -> Spent:
        """Return the durations of all work so far."""
        with self._lock:
            begun_ns = time.monotonic_ns() if self._hashing is None else self._hashing[1]
            return self._total + Spent(hashing_ns=time.monotonic_ns() - begun_ns)

    def close(self) -> None:
        self._trained.leave()
        self._found.leave()
        self.training.close()
        self._miner.close()

    def _note_hashing(self, height: int | None) -> None:
        """Switch the hashing clock to `height`, or stop it."""
        now_ns = time.monotonic_ns()
        with self._lock:
            last, self._hashing = self._hashing, None if height is None else (height, now_ns)
        if last is not None:
            self.note(last[0], Spent(hashing_ns=now_ns - last[1]))

    def note(self, height: int, spent: Spent) -> None:
        """Add to the durations of a height."""
        with self._lock:
            self._total += spent
            self._spent[height] = self._spent.get(height, Spent()) + spent
            if len(self._spent) > _HEIGHTS_REMEMBERED:
                self._spent.popitem(last=False)


class _Slot:
    """Delivers the result of one task at a time, once, when due; replaced or cancelled tasks deliver nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = 0
        self._timer: threading.Timer | None = None

    def begin(self) -> int:
        """Begin a task, cancelling the one before; return its number."""
        with self._lock:
            self._turn += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return self._turn

    def leave(self) -> None:
        """Cancel the current task."""
        self.begin()

    def tell(self, turn: int, due_ns: int, tell: Callable[[], None]) -> None:
        """Call `tell` at `due_ns`, or now if that has passed, unless the task is cancelled by then."""
        wait_ns = due_ns - time.monotonic_ns()
        with self._lock:
            if turn != self._turn:
                return
            if wait_ns > 0:
                self._timer = threading.Timer(wait_ns / NANO, self.tell, (turn, due_ns, tell))
                self._timer.daemon = True
                self._timer.start()
                return
            self._turn += 1
        tell()


# Real training and hashing with the durations of the scenario's cost model, times a factor.

_REACHING_NS = 300_000_000  # for a block to reach and be checked by all members, on a busy machine


def draw_conditions(scenario: Scenario, client: int) -> FindConditions:
    """Return a function that draws a client's conditions round by round from the seed.

    None in a round in which it is away, and after the last round.
    """
    states = draw_rounds(scenario, draw_federation(scenario))
    drawn: list[Conditions | None] = []

    def find(round: int, _: int) -> Conditions | None:
        drawn.extend(
            conditions_of(state, client) if state.available[client] else None
            for state in islice(states, max(0, round - len(drawn)))
        )
        return drawn[round - 1] if round <= len(drawn) else None

    return find


class EmulatedWork(WorkProcesses):
    """A `Work` with the durations, conditions and receipts of a simulated run, durations times `time_scale`.

    With a factor of 0 nothing waits.
    """

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        training: TrainingProcess,
        *,
        time_scale: float | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """`time_scale` defaults to the scenario's. The training process is closed with the work."""
        self.time_scale = scenario.live.time_scale if time_scale is None else time_scale
        self._num_drawn = scenario.clients.count
        super().__init__(number, ScenarioTimes(scenario, draw_conditions(scenario, number)), training, on_failure)
        self._uploaded: tuple[bytes, int] = b"", 0  # parent tip, and the end of the own upload (ns)
        self._search: tuple[bytes, int, int] = b"", 0, 0  # tip, attempt and end (ns) of a search

    def training_due_ns(self, chain: ChainState) -> int:
        return self._due_ns(time.monotonic_ns(), self._times.training_ns(self._number, chain))

    def mining_due_ns(self, chain: ChainState, header: Header) -> int:
        """Return the time of the attempt's search, which a better header does not restart, as it is memoryless.

        The search begins after the node's own upload. It includes the modelled voting time, because votes themselves
        are not delayed. The model's blocks reach all members at once. So a node that is not first by the model delays
        its block by the real propagation time: otherwise a round would have several blocks.
        """
        if self._search[:2] != (chain.tip, header.attempt):
            begin_ns = time.monotonic_ns()
            if self._uploaded[0] == chain.tip:
                begin_ns = max(begin_ns, self._uploaded[1])
            modelled_ns = self._times.finding_ns(self._number, chain, header.attempt) + self._times.voting_ns(chain)
            due_ns = self._due_ns(begin_ns, modelled_ns)
            if not self._is_first(chain, header.attempt):
                due_ns = max(due_ns, begin_ns) + _REACHING_NS
            self._search = chain.tip, header.attempt, due_ns
        return self._search[2]

    def _is_first(self, chain: ChainState, attempt: int) -> bool:
        """Return whether this node is the first to find a block by the model."""
        rivals = (self._times.finding_ns(client, chain, attempt) for client in chain.active)
        return self._times.finding_ns(self._number, chain, attempt) <= min(rivals)

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """Return the scenario's conditions; a member admitted after genesis keeps those of its admission."""
        if self._number >= self._num_drawn:
            return chain.members[self._number].conditions, None
        return self._times.measure(self._number, chain, tip)

    def upload(self, chain: ChainState) -> int:
        upload_ns = self._stretch(self._times.upload_ns(self._number, chain))
        self._uploaded = chain.tip, time.monotonic_ns() + upload_ns
        self.note(chain.height + 1, Spent(upload_ns=upload_ns))
        return upload_ns

    def _stretch(self, duration_ns: int) -> int:
        return round(duration_ns * self.time_scale)

    def _due_ns(self, begin_ns: int, modelled_ns: int) -> int:
        return begin_ns + self._stretch(modelled_ns) if self.time_scale else AT_ONCE
