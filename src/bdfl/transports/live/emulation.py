"""Real training and hashing with the durations of the scenario's cost model, times a factor."""

import time
from collections import OrderedDict
from collections.abc import Callable

from bdfl.environment import RoundState, draw_federation, draw_rounds
from bdfl.ledger.block import Block, Conditions, Header, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.ledger.genesis import conditions_of
from bdfl.ledger.miner import Miner
from bdfl.scenario import Scenario
from bdfl.transports.live.training_process import TrainingProcess
from bdfl.transports.live.workshop import AT_ONCE, OnFailure, Spent, Workshop
from bdfl.transports.world import ModelledRound, ScenarioTimes

_ROUNDS_KEPT = 4
_REACHING_NS = 300_000_000  # for a block to reach and be checked by all members, on a busy machine


class DrawnConditions:
    """Conditions of all clients, drawn round by round from the scenario's seed."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._federation = draw_federation(scenario)
        self._begin()

    def __call__(self, round: int, client: int) -> Conditions | None:
        """Return a client's conditions in a round; None after the last."""
        if round not in self._kept and round < self._next:
            self._begin()  # no longer cached: the draw is deterministic
        while self._next <= round:
            state = next(self._rounds, None)
            if state is None:
                return None
            self._kept[self._next] = state
            self._next += 1
            if len(self._kept) > _ROUNDS_KEPT:
                self._kept.popitem(last=False)
        return conditions_of(self._kept[round], client)

    def _begin(self) -> None:
        self._rounds = draw_rounds(self._scenario, self._federation)
        self._kept: OrderedDict[int, RoundState] = OrderedDict()
        self._next = 1


class EmulatedWork:
    """A `Work` with the durations, conditions and receipts of a simulated run, durations times `time_scale`.

    Time beyond the model is overhead, reported by `spent`. With a factor of 0 nothing waits.
    """

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        training: TrainingProcess,
        *,
        miner: Miner | None = None,
        time_scale: float | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """`time_scale` defaults to the scenario's. The training process and the miner are closed with the work."""
        self.time_scale = scenario.live.time_scale if time_scale is None else time_scale
        self._number = number
        self._num_drawn = scenario.clients.count
        self._workshop = Workshop(training, miner, on_failure=on_failure)
        self._times = ScenarioTimes(scenario, DrawnConditions(scenario))
        self._uploaded: tuple[bytes, int] = b"", 0  # parent tip, and the end of the own upload (ns)
        self._search: tuple[bytes, int, int] = b"", 0, 0  # tip, attempt and end (ns) of a search

    @property
    def training(self) -> TrainingProcess:
        return self._workshop.training

    def train(self, chain: ChainState, model: bytes, on_done: Callable[[bytes | None], None]) -> None:
        due_ns = self._due_ns(time.monotonic_ns(), self._times.training_ns(self._number, chain))
        self._workshop.train(chain, model, due_ns, on_done)

    def spent_micro(self, chain: ChainState) -> int:
        return self._workshop.spent_micro(chain)

    def stop_training(self) -> None:
        self._workshop.stop_training()

    def mine(self, chain: ChainState, header: Header, on_found: Callable[[bytes], None]) -> None:
        """Search a nonce; a better header does not restart the attempt's search, which is memoryless.

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
        self._workshop.mine(chain, header, self._search[2], on_found)

    def _is_first(self, chain: ChainState, attempt: int) -> bool:
        """Return whether this node is the first to find a block by the model."""
        rivals = (self._times.finding_ns(client, chain, attempt) for client in chain.active)
        return self._times.finding_ns(self._number, chain, attempt) <= min(rivals)

    def stop_mining(self) -> None:
        self._workshop.stop_mining()

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """Return the scenario's conditions; a member admitted after genesis keeps those of its admission."""
        if self._number >= self._num_drawn:
            return chain.members[self._number].conditions, None
        return self._times.measure(self._number, chain, tip)

    def upload(self, chain: ChainState) -> int:
        upload_ns = self._stretch(self._times.upload_ns(self._number, chain))
        self._uploaded = chain.tip, time.monotonic_ns() + upload_ns
        self._workshop.note(chain.height + 1, Spent(upload_ns=upload_ns))
        return upload_ns

    def modelled(self, chain: ChainState) -> ModelledRound:
        """Return the modelled round after `chain`, without the time scale."""
        return self._times.modelled(self._number, chain)

    def spent(self, height: int) -> Spent:
        """Return the time that work for a height has taken so far."""
        return self._workshop.spent(height)

    def close(self) -> None:
        self._workshop.close()

    def _stretch(self, duration_ns: int) -> int:
        return round(duration_ns * self.time_scale)

    def _due_ns(self, begin_ns: int, modelled_ns: int) -> int:
        return begin_ns + self._stretch(modelled_ns) if self.time_scale else AT_ONCE
