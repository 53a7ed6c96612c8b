"""Protocols of the drivers (Link, Work, Observer, Tamper, network faults), and recovery from a store.

No call of `Link`, `Receiver` or `Work` blocks. Times are those of `time.monotonic_ns`, never of the wall clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bdfl.ledger.block import Block, Certificate, Conditions, Header, ModelUpdate, Receipt
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block, start_chain
from bdfl.ledger.store import Store
from bdfl.protocol.events import Effect, Event, Kept, KeptBlob, KeptProgress, KeptStatement
from bdfl.protocol.messages import Message
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, NodeState, Recovered

# Interfaces of a simulated network: message delivery, Byzantine members and observers.


@dataclass(frozen=True)
class BlobRequest:
    """A member's request for a blob, at the height it works on."""

    sender: int
    height: int
    blob: bytes


@dataclass(frozen=True)
class BlobReply:
    """The blob that a member was asked for, at the height it works on."""

    sender: int
    height: int
    data: bytes


Parcel: TypeAlias = Message | BlobRequest | BlobReply


class Delivery(Protocol):
    """The delivery of messages and blobs: their loss, delay and duplication."""

    def deliveries(self, now_ns: int, sender: int, receiver: int, parcel: Parcel) -> Sequence[int]:
        """Extra delay (ns) of each copy beyond the modelled one; empty: it is lost."""
        ...


@dataclass(frozen=True, eq=False)
class Transition:
    """An event that a node handled: its states before and after, and the effects."""

    before: NodeState
    event: Event
    after: NodeState
    effects: tuple[Effect, ...]


class Tamper(Protocol):
    """A Byzantine member: an honest node whose effects and served blobs are changed before they leave it."""

    def effects(self, now_ns: int, context: Context, done: Transition) -> tuple[Effect, ...]: ...

    def serve(self, blob: bytes, data: bytes | None) -> bytes | None:
        """Return the answer to a request for a blob, where the honest node's is `data`; none: no answer."""
        ...


class Observer:
    """A listener to everything that happens in a network; this base class ignores it."""

    def stepped(self, now_ns: int, number: int, done: Transition) -> None:
        """Called after a node handled an event; its effects are carried out next."""

    def did(self, now_ns: int, number: int, effect: Effect) -> None:
        """Called before an effect of a node is carried out."""

    def crashed(self, now_ns: int, number: int) -> None:
        """Called when a node crashed: it lost everything but its store."""

    def restarted(self, now_ns: int, number: int, state: NodeState, store: Store) -> None:
        """Called when a node restarts from its store."""

    def froze(self, now_ns: int, number: int) -> None:
        """Called when a node freezes."""

    def thawed(self, now_ns: int, number: int) -> None:
        """Called when a node resumes; events held back meanwhile follow."""


# Observers of a live node, for metrics, logs and round times.


class LiveObserver:
    """Base class of observers; ignores all events. Methods are called from the thread of the event.

    Implementations must return quickly and not raise.
    """

    def stepped(self, now_ns: int, done: Transition) -> None:
        """Called after a step of the event loop."""

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        """Called after a block is durable; `chain` is the node's chain after the event that decided it."""

    def refused(self, sender: int | None, reason: str) -> None:
        """Called when an incoming message or request was dropped."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A blob to serve. Its bytes become available linearly from `begun_ns` to `done_ns`, as in an upload."""

    data: bytes
    begun_ns: int = 0
    done_ns: int = 0

    def ready_ns(self, end: int) -> int:
        """Return the time at which the bytes up to offset `end` are available."""
        return self.begun_ns + (self.done_ns - self.begun_ns) * end // max(1, len(self.data))


class Receiver(Protocol):
    """The node as seen by the network. Called from any thread; never blocks."""

    def receive(self, message: Message) -> None:
        """Take a message of this chain that is authenticated and within its sender's limits."""
        ...

    def receive_blob(self, holder: int, data: bytes) -> None:
        """Take a fetched blob with a verified digest."""
        ...

    def offer(self, to: int, blob: bytes) -> Offer | None:
        """Return the blob to serve to a member under that digest; None if absent."""
        ...

    def notice(self, present: frozenset[int]) -> None:
        """Take the set of other members that are present now."""
        ...

    def refuse(self, sender: int | None, reason: str) -> None:
        """Take note of a dropped message or request."""
        ...


class Link(Protocol):
    """The network as seen by a node."""

    def open(self, receiver: Receiver) -> None:
        """Start receiving."""
        ...

    def send(self, to: int | None, message: Message) -> None:
        """Queue a message to one member or all others. If the bounded queue is full it is dropped and counted."""
        ...

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Download a blob of `size` bytes, preferably from these members, until it is complete or forgotten.

        A second call for the same blob adds holders.
        """
        ...

    def forget_fetches(self) -> None:
        """Cancel all downloads: their height is decided."""
        ...

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Set the members by number; None: no longer a member."""
        ...

    @property
    def present(self) -> frozenset[int]: ...

    def close(self) -> None: ...


class Work(Protocol):
    """Training and mining of a node. Results come by callback, from any thread, at most once."""

    def train(self, chain: ChainState, model: bytes, on_done: Callable[[bytes | None], None]) -> None:
        """Train the round after `chain`; `on_done` gets the new model, or None if training gave none."""
        ...

    def spent_micro(self, chain: ChainState) -> int:
        """Return the epsilon spent up to the finished training of the round after `chain`, in 1e-6."""
        ...

    def stop_training(self) -> None: ...

    def mine(self, chain: ChainState, header: Header, on_found: Callable[[bytes], None]) -> None:
        """Search a nonce for the header; replaces any earlier search."""
        ...

    def stop_mining(self) -> None: ...

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """Return the node's conditions in the round after the current one, and its receipt of the tip's round."""
        ...

    def upload(self, chain: ChainState) -> int:
        """Return the upload time (ns), from now, of the node's own update."""
        ...

    def close(self) -> None: ...


# Persistence and recovery of a node: storing what it asks to be kept, and restarting from the store alone.


def keep(store: Store, kept: Kept) -> None:
    match kept:
        case KeptBlob(digest, data):
            store.put_blob(digest, data)
        case KeptStatement(height, statement):
            store.put_statement(height, statement)
        case KeptProgress(height, attempt, lock):
            store.put_progress(height, attempt, lock)


def recover(context: Context, store: Store) -> NodeState:
    """Recover the state of a node from its store alone."""
    chain = recover_chain(store, context.cache)
    return begin(context, chain, read_recovered(store, chain))


def recover_chain(store: Store, cache: VerificationCache) -> ChainState:
    """Replay the blocks of a store and return the chain at its tip."""
    chain = start_chain(store.genesis, cache)
    for block in store.blocks():
        chain = apply_block(chain, block, cache)
    return chain


def read_recovered(store: Store, chain: ChainState) -> Recovered:
    """Read the stored data of the open height; `chain` is the store's chain at its tip."""
    kept = store.read_round(chain.height + 1)
    updates: list[ModelUpdate] = [signed.update for signed in kept.updates]
    updates += [signed.update for block in kept.candidates for signed in block.body.updates]
    blobs = {update.model: store.get_blob(update.model) for update in updates if update.model}
    return Recovered(
        certificate=store.certificate(chain.height) if chain.height else (),
        update=kept.updates[0] if kept.updates else None,
        report=kept.reports[0] if kept.reports else None,
        blocks=kept.candidates,
        votes=kept.votes,
        progress=KeptProgress(kept.height, kept.attempt, kept.lock) if kept.attempt else None,
        blobs={name: data for name, data in blobs.items() if data is not None},
        lacks_model=not store.has_blob(chain.model),
        model=parent_model(store, chain),
    )


def parent_model(store: Store, chain: ChainState) -> bytes:
    """Read the model that a server's optimizer goes on from; empty if the chain has none, or the store lacks it."""
    return b"" if chain.params.server is None else store.get_blob(chain.model) or b""
