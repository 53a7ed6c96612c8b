"""Byzantine members: honest nodes whose effects are changed before they are carried out, with the member's own key.

One small class per misbehaviour, a `Misbehaviour`; a `ByzantineMember` is a member with one or several of them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from bdfl.encoding import digest
from bdfl.identity import Meaning, Place, Signer
from bdfl.learning.weights import InvalidWeights, Layout, decode_weights, encode_weights
from bdfl.ledger.block import MAX_ATTEMPT, Block, Kind, ModelUpdate, Seal, SignedReport, SignedUpdate, SignedVote, Vote
from bdfl.protocol.events import (
    Commit,
    Effect,
    Event,
    KeptBlob,
    MessageArrived,
    Send,
    ServeDecided,
    Store,
    Timer,
    TimerFired,
)
from bdfl.protocol.messages import Content, Decided, Gossip, Message, Proposal
from bdfl.protocol.state import Context, NodeState
from bdfl.transports.interfaces import Transition

_MESSAGES_REMEMBERED = 200
_BLOCKS_REMEMBERED = 3


@dataclass
class Memory:
    """A Byzantine member's memory: blobs by digest, its chain's newest blocks, others' messages."""

    blobs: dict[bytes, bytes] = field(default_factory=dict)
    blocks: deque[Block] = field(default_factory=lambda: deque(maxlen=_BLOCKS_REMEMBERED))
    heard: deque[Message] = field(default_factory=lambda: deque(maxlen=_MESSAGES_REMEMBERED))

    def note(self, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, MessageArrived):
            self.heard.append(event.message)
        for effect in effects:
            match effect:
                case Store(kept=KeptBlob(digest=name, data=data)):
                    self.blobs[name] = data
                case Commit(block=block):
                    self.blocks.append(block)


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of the honest node inside a Byzantine member."""

    now_ns: int
    context: Context
    before: NodeState
    event: Event
    after: NodeState
    memory: Memory

    @property
    def number(self) -> int:
        return self.context.number

    @property
    def signer(self) -> Signer:
        return self.context.signer

    @property
    def num_members(self) -> int:
        """Numbers ever assigned."""
        return self.after.chain.num_members

    def place(self, height: int) -> Place | None:
        """The signing context of that height, if it is worked on; else none."""
        for state in (self.after, self.before):
            if state.chain.height + 1 == height:
                return state.chain.place
        return None

    def say(self, to: int | None, content: Content, height: int | None = None) -> Send:
        """Send a message, by default about the current height."""
        about = self.after.chain.height + 1 if height is None else height
        return Send(to, Message(self.after.chain.chain, self.number, about, content))

    def sign_vote(self, vote: Vote, place: Place) -> SignedVote:
        return SignedVote(vote, self.signer.sign(Meaning.VOTE, place, vote))

    def sign_update(self, update: ModelUpdate, place: Place) -> SignedUpdate:
        return SignedUpdate(update, self.signer.sign(Meaning.UPDATE, place, update))

    def keep(self, data: bytes) -> bytes:
        """Keep a forged blob, to serve it, and return its digest."""
        name = digest(data)
        self.memory.blobs[name] = data
        return name


def each_receiver(moment: Moment, effect: Send) -> Iterator[Send]:
    """Split a broadcast into one message per receiver."""
    if effect.to is not None:
        yield effect
        return
    for receiver in range(moment.num_members):
        if receiver != moment.number:
            yield Send(receiver, effect.message)


class Misbehaviour(Protocol):
    """A misbehaviour: a function from the honest node's effects to those carried out instead."""

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]: ...


class OtherContent(ABC):
    """Tells other content than the honest node's to some receivers, or to all."""

    def __init__(self, receivers: frozenset[int] | None) -> None:
        self._receivers = receivers

    @abstractmethod
    def falsify(self, moment: Moment, content: Content, height: int) -> Content | None:
        """Return the content to tell about a height, the same object if nothing changes; None: nobody is told."""

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        return tuple(changed for effect in effects for changed in self._split(moment, effect))

    def _split(self, moment: Moment, effect: Effect) -> Iterator[Effect]:
        if not isinstance(effect, Send):
            yield effect
            return
        content = effect.message.content
        false = self.falsify(moment, content, effect.message.height)
        if false is content:
            yield effect
        elif false is not None:
            for send in each_receiver(moment, effect):
                is_told = self._receivers is None or send.to in self._receivers
                yield moment.say(send.to, false, effect.message.height) if is_told else send


class ByzantineMember:
    """A Byzantine member, as a `Tamper`: it applies its lies to the effects one after the other."""

    def __init__(self, lies: Sequence[Misbehaviour]) -> None:
        self._lies = tuple(lies)
        self._memory = Memory()

    def effects(self, now_ns: int, context: Context, done: Transition) -> tuple[Effect, ...]:
        """The effects to carry out instead of the honest node's."""
        effects = done.effects
        self._memory.note(done.event, effects)
        moment = Moment(now_ns, context, done.before, done.event, done.after, self._memory)
        for lie in self._lies:
            effects = lie.change(moment, effects)
        return effects

    def serve(self, blob: bytes, data: bytes | None) -> bytes | None:
        """The stored blob or one that it forged; none if it is silent."""
        if any(isinstance(lie, Silence) for lie in self._lies):
            return None
        return self._memory.blobs.get(blob) if data is None else data


# Byzantine behaviours in votes, updates and messages: silence, forgery, replay, equivocation, invalid blobs.

_REPLAYED_AT_ONCE = 6
_ATTEMPTS_AHEAD = 1000
_OVERSIZE = 2**16  # bytes beyond the model's


class Silence:
    """Sends and answers nothing."""

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        return tuple(effect for effect in effects if not isinstance(effect, Send | ServeDecided))


class Forgery:
    """Forges statements of all other members, signed with its own key."""

    def __init__(self) -> None:
        self._garbled: set[bytes] = set()  # blocks forwarded: once each, or two forgers would never stop

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        forged = (forged for effect in effects for forged in self._forge(moment, effect))
        return (*self._garble(moment), *effects, *forged)

    def _garble(self, moment: Moment) -> Iterator[Send]:
        """Forward another's block with a wrong signature, and with a changed body, under its unchanged digest."""
        event = moment.event
        if not isinstance(event, MessageArrived) or not isinstance(event.message.content, Proposal):
            return
        block = event.message.content.block
        if block.header.proposer == moment.number or block.digest in self._garbled:
            return
        self._garbled.add(block.digest)
        signature = moment.signer.sign(Meaning.BLOCK, block.header.place, Seal(block.header, block.nonce))
        yield moment.say(None, Proposal(msgspec.structs.replace(block, signature=signature)), event.message.height)
        body = msgspec.structs.replace(block.body, updates=())
        yield moment.say(None, Proposal(msgspec.structs.replace(block, body=body)), event.message.height)

    def _forge(self, moment: Moment, effect: Effect) -> Iterator[Send]:
        if not isinstance(effect, Send) or (place := moment.place(effect.message.height)) is None:
            return
        others = [member for member in range(moment.num_members) if member != moment.number]
        content, height = effect.message.content, effect.message.height
        if isinstance(content, Proposal) and content.block.header.proposer == moment.number:
            precommit = Vote(Kind.PRECOMMIT, content.block.header.attempt, content.block.digest, 0, (), (), 0)
            votes = tuple(self._vote(moment, precommit, place, member) for member in range(moment.num_members))
            yield moment.say(effect.to, Decided(content.block, votes), height)
            header = msgspec.structs.replace(content.block.header, proposer=others[0])
            yield moment.say(effect.to, Proposal(msgspec.structs.replace(content.block, header=header)), height)
        if not isinstance(content, Gossip):
            return
        mine = [signed.vote for signed in content.votes if signed.vote.voter == moment.number]
        votes = tuple(self._vote(moment, vote, place, member) for vote in mine for member in others)
        updates = tuple(
            self._update(moment, signed.update, place, member)
            for signed in content.updates
            if signed.update.client == moment.number
            for member in others
        )
        reports = tuple(
            self._report(moment, signed, place, member)
            for signed in content.reports
            if signed.report.client == moment.number
            for member in others
        )
        if votes or updates or reports:
            said = Gossip(content.attempt, updates=updates, reports=reports, votes=votes)
            yield moment.say(effect.to, said, height)

    def _vote(self, moment: Moment, vote: Vote, place: Place, voter: int) -> SignedVote:
        return moment.sign_vote(msgspec.structs.replace(vote, voter=voter), place)

    def _update(self, moment: Moment, update: ModelUpdate, place: Place, client: int) -> SignedUpdate:
        limits = moment.after.chain.members[client].limits
        return moment.sign_update(msgspec.structs.replace(update, client=client, samples=limits.samples), place)

    def _report(self, moment: Moment, signed: SignedReport, place: Place, client: int) -> SignedReport:
        report = msgspec.structs.replace(signed.report, client=client, receipt=None)
        return SignedReport(report, moment.signer.sign(Meaning.REPORT, place, report))


class Replay:
    """Replays other members' messages: unchanged, and as if they were of this height."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        is_due = isinstance(moment.event, TimerFired) and moment.event.timer is Timer.RESEND
        if not is_due or not moment.memory.heard:
            return effects
        chosen = self._rng.integers(len(moment.memory.heard), size=_REPLAYED_AT_ONCE)
        return (*effects, *(said for place in chosen for said in self._repeat(moment, moment.memory.heard[int(place)])))

    def _repeat(self, moment: Moment, message: Message) -> Iterator[Send]:
        yield Send(None, message)
        yield moment.say(None, message.content)


class TwoVotes(OtherContent):
    """Equivocates: its receivers get a vote for another block, its precommit too early, and one of a far attempt."""

    def falsify(self, moment: Moment, content: Content, height: int) -> Content:
        place = moment.place(height)
        if not isinstance(content, Gossip) or place is None:
            return content
        changed = tuple(self._other_votes(moment, content.votes, place))
        return content if changed == content.votes else msgspec.structs.replace(content, votes=changed)

    def _other_votes(self, moment: Moment, votes: Sequence[SignedVote], place: Place) -> Iterator[SignedVote]:
        for signed in votes:
            vote = signed.vote
            if vote.voter != moment.number:
                yield signed
                continue
            others = sorted(name for name in moment.after.candidates if name != vote.block)
            other = others[0] if others else digest(vote.block)  # a block that does not exist will do
            yield moment.sign_vote(msgspec.structs.replace(vote, block=other), place)
            if vote.kind is Kind.PREVOTE:
                yield moment.sign_vote(msgspec.structs.replace(vote, kind=Kind.PRECOMMIT, block=other), place)
                ahead = min(vote.attempt + _ATTEMPTS_AHEAD, MAX_ATTEMPT)
                yield moment.sign_vote(msgspec.structs.replace(vote, attempt=ahead), place)


ChangeModel = Callable[[bytes, Layout], bytes]


class OtherUpdate(OtherContent):
    """Sends another update than its own to some receivers, or to all, and serves its model."""

    def __init__(self, change: ChangeModel, receivers: frozenset[int] | None = None) -> None:
        super().__init__(receivers)
        self._change = change
        self._names: dict[bytes, bytes] = {}  # digests of false models, by that of the honest one

    def falsify(self, moment: Moment, content: Content, height: int) -> Content | None:
        if self._receivers is None and isinstance(content, Proposal) and content.block.header.proposer == moment.number:
            return None  # its block would contain the update that it did not send
        place = moment.place(height)
        if not isinstance(content, Gossip) or place is None:
            return content
        updates = tuple(self._other(moment, signed, place) for signed in content.updates)
        return content if updates == content.updates else msgspec.structs.replace(content, updates=updates)

    def _other(self, moment: Moment, signed: SignedUpdate, place: Place) -> SignedUpdate:
        update = signed.update
        model = moment.memory.blobs.get(update.model)
        if update.client != moment.number or model is None:
            return signed
        if update.model not in self._names:
            try:
                changed = self._change(model, moment.after.chain.layout)
            except InvalidWeights:
                return signed  # another behaviour of the member made it invalid already
            self._names[update.model] = moment.keep(changed)
        return moment.sign_update(msgspec.structs.replace(update, model=self._names[update.model]), place)


def negated_model(model: bytes, layout: Layout) -> bytes:
    """A valid model that differs from the honest one."""
    return encode_weights(-decode_weights(model, layout) - np.float32(1.0), layout)


def model_with_nan(model: bytes, layout: Layout) -> bytes:
    """The model with NaN as its last weight."""
    return model[:-4] + np.array([np.nan], "<f4").tobytes()


def misshapen_model(model: bytes, layout: Layout) -> bytes:
    """A model of the same size with one tensor renamed."""
    name = layout.names[0].encode()
    return model.replace(b'"' + name + b'"', b'"' + bytes(reversed(range(65, 65 + len(name)))) + b'"', 1)


def oversized_model(model: bytes, layout: Layout) -> bytes:
    return model + bytes(_OVERSIZE)


BAD_MODELS: tuple[ChangeModel, ...] = (model_with_nan, misshapen_model, oversized_model)
