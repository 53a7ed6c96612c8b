"""Nodes moved by hand: every message is handed over by the test, so each clause of the protocol can be provoked."""

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from bdfl.encoding import digest
from bdfl.environment import draw_federation, draw_rounds
from bdfl.identity import Meaning, Signer
from bdfl.learning.participation import draw_participation
from bdfl.learning.weights import Layout, encode_weights
from bdfl.ledger.block import Block, Kind, Seal, SignedVote, Vote, header_seal
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import start_chain
from bdfl.ledger.genesis import conditions_of, make_genesis
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.ledger.rules import make_header
from bdfl.protocol.events import (
    BlobArrived,
    Commit,
    FetchBlob,
    Measure,
    Measured,
    MessageArrived,
    Mine,
    NonceFound,
    Refused,
    Send,
    ServeDecided,
    SetTimer,
    Started,
    Store,
    TimerFired,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import Decided, Gossip, Message
from bdfl.protocol.node import begin, step
from bdfl.protocol.state import Context, Recovered, Timing
from bdfl.scenario import (
    Aggregation,
    Clients,
    Learning,
    Ledger,
    QuorumRule,
    Scenario,
    SchedulerChoice,
    ServerOptimizer,
)

LAYOUT = Layout(("w",), ((4,),))
TIMING = Timing(grace_ns=10**9, attempt_ns=10**9, resend_ns=10**9)


def signer(number):
    return Signer(digest(f"member {number}".encode()))


def model_bytes(*values):
    return encode_weights(np.array(values, dtype=np.float32), LAYOUT)


@dataclass
class ManualNode:
    """A node and what it did, in order."""

    context: Context
    state: object
    effects: list
    utc_ms: int = 0  # before the genesis: all blocks have the least time that is valid

    def give(self, event, now_ns=0):
        self.state, effects = step(self.context, self.state, event, now_ns, self.utc_ms)
        self.effects += effects
        return list(effects)

    def hear(self, message):
        return self.give(MessageArrived(message))

    def give_at(self, message, now_ns):
        return self.give(MessageArrived(message), now_ns)

    def receive_blob(self, data, holder=None, now_ns=0):
        return self.give(BlobArrived((self.number + 1) % 4 if holder is None else holder, data), now_ns)

    def fetched(self):
        """Blobs that it asked for, in order."""
        return [effect.blob for effect in self.did(FetchBlob)]

    def lose_patience(self, member, left_ns):
        """Leaves the node that much patience with a member."""
        self.state = replace(self.state, patience_ns={**self.state.patience_ns, member: left_ns})

    def did(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind):
        return [effect.message.content for effect in self.did(Send) if isinstance(effect.message.content, kind)]

    def votes(self, kind):
        """Own votes of a kind, in the order in which they were said for the first time."""
        said = [vote for content in self.sent(Gossip) for vote in content.votes if vote.vote.voter == self.number]
        return list(dict.fromkeys(vote.vote for vote in said if vote.vote.kind == kind))

    @property
    def number(self):
        return self.context.number

    def message(self, content, height=None):
        height = self.state.chain.height + 1 if height is None else height
        return Message(self.state.chain.chain, self.number, height, content)


class ManualNetwork:
    """A federation; `scheduler` all selects everybody. Nothing moves but what a test moves."""

    def __init__(
        self,
        num_members=4,
        quorum=QuorumRule.MAJORITY,
        last_height=None,
        rounds=12,
        samples=None,
        server=ServerOptimizer.NONE,
    ):
        self.scenario = Scenario(
            rounds=rounds,
            clients=Clients(count=num_members, min_selected=1),
            scheduler=SchedulerChoice(name="all"),
            ledger=Ledger(quorum=quorum, cycles_per_hash=1e7),
            learning=Learning(aggregation=Aggregation(server=server)),
        )
        federation = draw_federation(self.scenario, None if samples is None else np.array(samples, dtype=np.float64))
        self.rounds = list(draw_rounds(self.scenario, federation))
        self.initial = model_bytes(0.0, 0.0, 0.0, 0.0)
        self.genesis = make_genesis(
            self.scenario,
            federation,
            draw_participation(self.scenario, federation),
            self.rounds[0],
            [signer(number).public_key for number in range(num_members)],
            LAYOUT,
            self.initial,
        )
        self.cache = VerificationCache()
        self.last_height = last_height
        self.nodes = [self.node(number) for number in range(num_members)]
        self.blobs = {digest(self.initial): self.initial}
        self.decided = {}

    def node(self, number, recovered=None, chain=None, keep_blocks=0):
        context = Context(number, signer(number), TIMING, self.cache, self.last_height, keep_blocks=keep_blocks)
        chain = start_chain(self.genesis, self.cache) if chain is None else chain
        if recovered is None:
            recovered = Recovered(model=b"" if chain.params.server is None else self.initial)
        state = begin(context, chain, recovered)
        return ManualNode(context, state, [])

    def start(self):
        for node in self.nodes:
            node.give(Started())

    def train(self, node):
        """The node's update of its round: different for everybody."""
        height = node.state.chain.height + 1
        model = model_bytes(height, node.number, 1.0, -1.0)
        self.blobs[digest(model)] = model
        return node.give(TrainingFinished(height, node.state.chain.tip, model))

    def measure(self, node):
        round = node.state.chain.height + 2
        client = node.number % len(self.genesis.members)  # who joins later finds what a founder does
        return node.give(Measured(round, conditions_of(self.rounds[round - 1], client), None))

    def mine(self, node, now_ns=0):
        mined = node.state.mined
        nonce = search_nonce(self.genesis.law.work, header_seal(mined.header), mined.header.difficulty)
        return node.give(NonceFound(mined.header, nonce), now_ns)

    def fire(self, node, timer):
        """Fires the node's timer as it was last set."""
        found = [effect for effect in node.did(SetTimer) if effect.timer is timer][-1]
        return node.give(TimerFired(found.timer, found.height, found.attempt))

    def deliver(self, sender, effects, to=None, now_ns=0):
        """Hands what `effects` send to those nodes, and everything that follows from it, until nobody says more."""
        queue = [(sender, effect) for effect in effects]
        while queue:
            origin, effect = queue.pop(0)
            match effect:
                case Send(receiver, message):
                    for node in self.nodes if receiver is None else [self.nodes[receiver]]:
                        if node is not origin and (to is None or node in to):
                            queue += [(node, one) for one in node.give_at(message, now_ns)]
                case FetchBlob(blob, holder) if blob in self.blobs and self.is_known(origin, self.nodes[holder]):
                    queue += [(origin, one) for one in origin.receive_blob(self.blobs[blob], holder, now_ns)]
                case ServeDecided(receiver, height) if height in self.decided:
                    answer = self.nodes[receiver].give_at(
                        origin.message(Decided(*self.decided[height]), height), now_ns
                    )
                    queue += [(self.nodes[receiver], one) for one in answer]
                case Commit(block, certificate):
                    self.decided.setdefault(block.header.height, (block, certificate))

    def is_known(self, node, other):
        """Whether `other` knows the node's key."""
        return node.number < len(other.state.chain.public_keys)

    def collect(self):
        """Everybody trains and reports, everybody hears of it: all mine."""
        for node in self.nodes:
            self.deliver(node, self.train(node))
            if not (self.last_height and node.state.chain.height + 1 >= self.last_height):
                self.deliver(node, self.measure(node))

    def play_round(self, winner=0):
        self.collect()
        self.deliver(self.nodes[winner], self.mine(self.nodes[winner]))


def vote(node, kind, attempt, block, *, number=None):
    """A vote as member `number` would sign it at this node's height."""
    number = node.number if number is None else number
    content = Vote(kind, attempt, block, number, (), (), 0)
    return SignedVote(content, signer(number).sign(Meaning.VOTE, node.state.chain.place, content))


def say_votes(node, *votes):
    sender = next(vote.vote.voter for vote in votes if vote.vote.voter != node.number)
    return node.hear(replace_sender(node.message(Gossip(1, votes=tuple(votes))), sender))


def replace_sender(message, sender):
    return msgspec.structs.replace(message, sender=sender)


def make_block(node, *, attempt=1, proposer=None, change=None):
    """A block of this node's candidate as `proposer` signs and mines it, its body changed."""
    mined = node.state.mined
    proposer = node.number if proposer is None else proposer
    body = mined.body if change is None else msgspec.structs.replace(mined.body, **change)
    header = make_header(node.state.chain, attempt, proposer, body, 0)
    nonce = search_nonce(node.state.chain.genesis.law.work, header_seal(header), header.difficulty)
    signature = signer(proposer).sign(Meaning.BLOCK, header.place, Seal(header, nonce))
    return Block(header, nonce, signature, body)


__all__ = [
    "TIMING",
    "Kind",
    "ManualNetwork",
    "ManualNode",
    "Measure",
    "Mine",
    "Refused",
    "Store",
    "Train",
    "make_block",
    "model_bytes",
    "replace",
    "replace_sender",
    "say_votes",
    "signer",
    "vote",
]
