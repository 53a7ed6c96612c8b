"""Byzantine members: honest nodes whose effects are changed before they are carried out, with the member's own key.

One small class per misbehaviour, a `Lie`; a `Liar` is a member with one or several of them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bdfl.encoding import digest
from bdfl.identity import Meaning, Place, Signer
from bdfl.ledger.block import Block, ModelUpdate, SignedUpdate, SignedVote, Vote
from bdfl.protocol.events import Commit, Effect, Event, KeptBlob, MessageArrived, Send, Store
from bdfl.protocol.messages import BlobWanted, Content, Message
from bdfl.protocol.state import Context, NodeState

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

    def say(self, to: int | None, content: Content, height: int | None = None, sender: int | None = None) -> Send:
        """Send a message, by default about the current height and as this member."""
        about = self.after.chain.height + 1 if height is None else height
        return Send(to, Message(self.after.chain.chain, self.number if sender is None else sender, about, content))

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


def wanted_blob(event: Event) -> tuple[int, bytes] | None:
    """The sender and the digest of a request for a blob; none for any other event."""
    if isinstance(event, MessageArrived) and isinstance(event.message.content, BlobWanted):
        return event.message.sender, event.message.content.blob
    return None


class Lie(Protocol):
    """A misbehaviour: a function from the honest node's effects to those carried out instead."""

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]: ...


class Liar:
    """A Byzantine member, as a `Tamper`: it applies its lies to the effects one after the other."""

    def __init__(self, lies: Sequence[Lie]) -> None:
        self._lies = tuple(lies)
        self._memory = Memory()

    def effects(
        self,
        now_ns: int,
        context: Context,
        before: NodeState,
        event: Event,
        after: NodeState,
        effects: tuple[Effect, ...],
    ) -> tuple[Effect, ...]:
        """The effects to carry out instead of the honest node's."""
        self._memory.note(event, effects)
        moment = Moment(now_ns, context, before, event, after, self._memory)
        for lie in self._lies:
            effects = lie.change(moment, effects)
        return effects
