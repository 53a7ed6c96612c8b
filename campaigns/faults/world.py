"""A federation small enough for thousands of networks: models of four numbers, trained by a formula.

Training or measuring a round twice gives different results, as in reality. A member that forgot a statement therefore
signs a different one.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from bdfl.environment import Purpose, RoundState, draw_federation, draw_rounds, stream
from bdfl.learning.weights import Layout, Vector, decode_weights, encode_weights
from bdfl.ledger.block import Admission, Conditions, Genesis, MembershipChange, Removal, chain_id
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.ledger.genesis import conditions_of, make_genesis, plan_first_round
from bdfl.ledger.member_set import quorum_size
from bdfl.ledger.schedule import idle_schedule
from bdfl.ledger.statements import make_change
from bdfl.scenario import Clients, Learning, Ledger, Mining, MiningMode, Scenario, SchedulerChoice
from bdfl.scenario.schema_learning import Aggregation, Behaviour
from bdfl.transports.cost_model import ScenarioCostModel
from bdfl.transports.faults import MESSAGES
from bdfl.transports.simulated import simulated_signer
from campaigns.faults.plan import FaultPlan, Offer

LAYOUT = Layout(("w",), ((4,),))
_HASHES = 8  # expected for a block
_MOST_ROUNDS = 400  # of conditions; more than any trial needs
_WAVER = 0.01  # added to every number of a model by each repeated training
_EXAGGERATION = np.float32(10.0)
_POISONS = frozenset({Behaviour.LAZY, Behaviour.LABEL_FLIP, Behaviour.SIGN_FLIP, Behaviour.SCALING, Behaviour.GAUSSIAN})


class TinyCostModel(ScenarioCostModel):
    """Cost model and training of one plan, with the genesis of its chain."""

    def __init__(self, plan: FaultPlan, cache: VerificationCache) -> None:
        scenario = tiny_scenario(plan)
        federation = draw_federation(scenario)
        self._states: Iterator[RoundState] = draw_rounds(scenario, federation)
        self._drawn: list[RoundState] = []
        self._poisons = {member: lie for member, lies in plan.liars for lie in lies if lie in _POISONS}
        self._tries: Counter[tuple[str, int, int]] = Counter()  # by activity, round and client
        self._num_nodes = plan.num_nodes
        self._quorum = quorum_size(plan.quorum, plan.num_nodes)
        super().__init__(scenario, self._train, self._find_conditions)
        self.initial_model = encode_weights(np.zeros(LAYOUT.num_parameters, np.float32), LAYOUT)
        self.signers = [simulated_signer(plan.seed, number) for number in range(plan.num_keys)]
        everybody = make_genesis(
            scenario,
            federation,
            np.full(plan.num_keys, 0.5),
            self._state(1),
            [signer.public_key for signer in self.signers],
            LAYOUT,
            self.initial_model,
            cache,
        )
        self._members = everybody.members
        self.genesis: Genesis = _without_newcomers(everybody, plan.num_nodes, cache)

    def make_change(self, offer: Offer) -> MembershipChange:
        """Make the offered change, signed by all founders or by too few of them."""
        member = offer.member
        change = Removal(member) if member < self._num_nodes else Admission(member, self._members[member])
        num_signers = self._num_nodes if offer.is_agreed else self._quorum - 1
        signers = dict(enumerate(self.signers[:num_signers]))
        return make_change(chain_id(self.genesis), change, offer.expires, signers)

    def _state(self, round: int) -> RoundState:
        while len(self._drawn) < round:
            self._drawn.append(next(self._states))
        return self._drawn[round - 1]

    def _find_conditions(self, round: int, client: int) -> Conditions | None:
        if round > _MOST_ROUNDS:
            return None
        found = conditions_of(self._state(round), client)
        return msgspec.structs.replace(found, gain_atto=found.gain_atto + self._count_earlier("measure", round, client))

    def _count_earlier(self, what: str, round: int, client: int) -> int:
        """Count earlier calls for this activity, round and client."""
        self._tries[what, round, client] += 1
        return self._tries[what, round, client] - 1

    def _train(self, client: int, chain: ChainState, model: bytes) -> bytes:
        parent = decode_weights(model, LAYOUT)
        trained = train_by_formula(parent, chain.height + 1, client)
        trained = trained + np.float32(_WAVER * self._count_earlier("train", chain.height + 1, client))
        lie = self._poisons.get(client)
        if lie is not None:
            other = train_by_formula(parent, chain.height + 1, (client + 1) % self._num_nodes)
            trained = poison(lie, parent, trained, other)
        return encode_weights(trained, LAYOUT)


def message_stream(seed: int) -> np.random.Generator:
    """Return the random stream of message faults for a seed."""
    return stream(seed, Purpose.FAULTS, 1, MESSAGES)


def _without_newcomers(everybody: Genesis, num_members: int, cache: VerificationCache) -> Genesis:
    """Remove all but the first members from a genesis."""
    if num_members == len(everybody.members):
        return everybody
    idle = idle_schedule(1, num_members, "not planned yet")
    draft = msgspec.structs.replace(everybody, members=everybody.members[:num_members], schedule=idle)
    return plan_first_round(draft, cache)


def tiny_scenario(plan: FaultPlan) -> Scenario:
    """Return the paper's radio and processors, with few samples and hardly any work."""
    difficulty = Mining().difficulty
    return Scenario(
        name="faults",
        rounds=_MOST_ROUNDS,
        seed=plan.seed,
        clients=Clients(count=plan.num_keys, min_selected=plan.min_selected, samples=300),
        mining=Mining(mode=MiningMode.SAMPLED),
        scheduler=SchedulerChoice(name=plan.scheduler),
        learning=Learning(aggregation=Aggregation(rule=plan.aggregation, faulty=plan.faulty, server=plan.server)),
        ledger=Ledger(quorum=plan.quorum, cycles_per_hash=difficulty / _HASHES),
    )


def train_by_formula(parent: Vector, round: int, client: int) -> Vector:
    """Return a client's model of a round, different for each client and round."""
    goal = np.array([client + 1, round, client * round % 7, 1.0], dtype=np.float32)
    moved: Vector = parent + (goal - parent) * np.float32(0.25)
    return moved


def poison(lie: Behaviour, parent: Vector, trained: Vector, other: Vector) -> Vector:
    """Return the poisoned model of a lying client; `other` is another client's model."""
    match lie:
        case Behaviour.LAZY:
            return other
        case Behaviour.SIGN_FLIP:
            flipped: Vector = parent - (trained - parent)
            return flipped
        case Behaviour.SCALING:
            scaled: Vector = parent + (trained - parent) * _EXAGGERATION
            return scaled
        case Behaviour.GAUSSIAN:
            noisy: Vector = parent + np.array([3.0, -1.0, 2.0, -4.0], np.float32) * _EXAGGERATION
            return noisy
    wrong: Vector = trained[::-1].copy()
    return wrong
