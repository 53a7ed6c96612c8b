"""Environment of simulated nodes: durations and receipts by the cost model, trained models, clients' conditions.

Durations follow from the chain by the cost model. A round without faults therefore lasts exactly [Li24, Eq. 13]: until
the slowest update has arrived, then until a block is found, then the votes.
"""

from collections import OrderedDict
from collections.abc import Callable

from bdfl.compute import mining_energy
from bdfl.encoding import INT_LIMIT
from bdfl.environment.draws import MiningRaces
from bdfl.ledger.block import Block, Conditions, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.ledger.chain_params import read_decision
from bdfl.ledger.costs import NANO, PICOJOULE
from bdfl.ledger.schedule import Prospect, round_problem
from bdfl.protocol.state import Timing
from bdfl.records.files import ModelledRound
from bdfl.scenario import Scenario
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.problem import RoundProblem

_ROUNDS_REMEMBERED = 16
_LEAST_WAIT_S = 1.0  # shortest timeout of a node
_RESENDS_PER_ATTEMPT = 2

Train = Callable[[int, ChainState, bytes], bytes | None]
Account = Callable[[int, ChainState], int]
FindConditions = Callable[[int, int], Conditions | None]


class ScenarioTimes:
    """Durations (ns) by a scenario's cost model, with random draws from its seed.

    Clients are asked about while they work on the block after `chain`.
    """

    def __init__(self, scenario: Scenario, find_conditions: FindConditions) -> None:
        """Set up the model; `find_conditions` returns a client's conditions, given round and client."""
        self._scenario = scenario
        self._find_conditions = find_conditions
        self._rounds: OrderedDict[bytes, _Round] = OrderedDict()  # by the tip before

    def training_ns(self, client: int, chain: ChainState) -> int:
        return self.round_of(chain).training_ns[client]

    def upload_ns(self, client: int, chain: ChainState) -> int:
        """Time from announcing an update until its upload has ended."""
        return self.round_of(chain).upload_ns[client]

    def finding_ns(self, client: int, chain: ChainState, attempt: int) -> int:
        """Time from the start of a search until the client finds a block; the same at every call."""
        return self.round_of(chain).finding_ns(client, attempt)

    def voting_ns(self, chain: ChainState) -> int:
        """Duration of both votes together."""
        return self.round_of(chain).voting_ns

    def modelled(self, client: int, chain: ChainState) -> ModelledRound:
        """The modelled durations of the round after `chain`, without faults."""
        return self.round_of(chain).modelled(client)

    def measure(self, client: int, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """The client's conditions in the round after the one worked on, and its receipt of the tip's round.

        None if the conditions are unknown; no receipt if the tip's round is not cached.
        """
        self.round_of(chain)  # cached, for its receipts
        conditions = self._find_conditions(chain.height + 2, client)
        if conditions is None:
            return None
        last = None if tip is None else self._rounds.get(tip.header.parent)
        return conditions, None if last is None or tip is None else last.receipt(client, tip)

    def round_of(self, chain: ChainState) -> "_Round":
        """The durations of the round after `chain`, cached."""
        found = self._rounds.get(chain.tip)
        if found is None:
            found = self._rounds[chain.tip] = _Round(self._scenario, chain)
            if len(self._rounds) > _ROUNDS_REMEMBERED:
                self._rounds.popitem(last=False)
        return found


class ScenarioCostModel(ScenarioTimes):
    """The world of a scenario, with training."""

    def __init__(
        self, scenario: Scenario, train: Train, find_conditions: FindConditions, account: Account | None = None
    ) -> None:
        """Set up the world; `account` returns the epsilon spent; none: training is not private.

        `train` returns a client's model after training the round; none if it diverged. It need not be deterministic: a
        node trains once per round, and again only if a crash lost the result.
        """
        super().__init__(scenario, find_conditions)
        self.train = train
        self._account = account

    def spent_micro(self, client: int, chain: ChainState) -> int:
        """Epsilon spent by the client after training the round, in 1e-6; 0 where training is not private."""
        return 0 if self._account is None else self._account(client, chain)


class _Round:
    """The durations of one round for every client."""

    def __init__(self, scenario: Scenario, chain: ChainState) -> None:
        self.round = chain.height + 1
        self._problem = scheduled_problem(chain)
        self._decision = read_decision(chain.schedule)
        self._outcome = evaluate(self._problem, self._decision)
        self.training_ns = [round(float(duration_s) * NANO) for duration_s in self._outcome.training_s]
        self.upload_ns = [round(float(duration_s) * NANO) for duration_s in self._outcome.upload_s]
        self._races = MiningRaces(scenario, self.round, self._decision.mining_hz, self._outcome.mining_s)
        self._before_ns = round((scenario.protocol.downlink_s + scenario.protocol.verification_s) * NANO)
        self.voting_ns = round(scenario.protocol.voting_s * NANO)
        if not self._decision.is_feasible:
            self._before_ns = self.voting_ns = 0  # nothing is sent in a round that does not take place

    def finding_ns(self, client: int, attempt: int) -> int:
        """Time until the client finds a block, including downlink and verification before the search."""
        return self._before_ns + round(self._races.finding_s(attempt)[client] * NANO)

    def modelled(self, client: int) -> ModelledRound:
        exchange_ns = round(self._outcome.exchange_s * NANO)
        mining_ns = round(min(self._races.finding_s(1)) * NANO)
        rest_ns = self._before_ns + self.voting_ns
        is_there = client < len(self.training_ns)  # else the client joins later
        return ModelledRound(
            training_ns=self.training_ns[client] if is_there else 0,
            upload_ns=self.upload_ns[client] if is_there else 0,
            exchange_ns=exchange_ns,
            mining_ns=mining_ns,
            rest_ns=rest_ns,
            delay_ns=exchange_ns + mining_ns + rest_ns,
        )

    def receipt(self, client: int, block: Block) -> Receipt | None:
        """Modelled cost of the round for a client, with the actual mining time; none: it was no member."""
        if client >= len(self.training_ns):
            return None
        mining_s = self._races.finding_s(block.header.attempt)[block.header.proposer]
        mining_j = mining_energy(self._problem.capacitance, mining_s, self._decision.mining_hz)[client]
        energy_j = self._outcome.training_j[client] + self._outcome.upload_j[client] + mining_j
        return Receipt(
            round=self.round,
            energy_pj=min(round(float(energy_j) * PICOJOULE), INT_LIMIT),  # a long search may overdraw any budget
            training_ns=self.training_ns[client],
            upload_ns=self.upload_ns[client],
            mining_ns=round(mining_s * NANO),
        )


def scheduled_problem(chain: ChainState) -> RoundProblem:
    """The scheduling problem of the next round, without the scheduler's memory."""
    prospect = Prospect(chain.tip, chain.height + 1, chain.queue_nano, chain.candidates, None)
    return round_problem(chain.params, prospect)


def simulated_timing(scenario: Scenario) -> Timing:
    """Timeouts of simulated nodes: just long enough that only lost messages and faults run into them.

    The grace is the longest of a second, four times the mean extra delay of messages, and twice the overhead of a
    round. An attempt waits four times as long, and re-broadcasts are twice as far apart.
    """
    protocol = scenario.protocol
    overhead_s = protocol.downlink_s + protocol.verification_s + protocol.voting_s
    wait_ns = round(max(_LEAST_WAIT_S, 4.0 * scenario.faults.delay_s, 2.0 * overhead_s) * NANO)
    return Timing(grace_ns=wait_ns, attempt_ns=4 * wait_ns, resend_ns=_RESENDS_PER_ATTEMPT * wait_ns)
