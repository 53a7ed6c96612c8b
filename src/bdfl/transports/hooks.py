"""Interfaces of a simulated network: message delivery, Byzantine members and observers."""

from collections.abc import Sequence
from typing import Protocol

from bdfl.ledger.keeping import Store
from bdfl.protocol.events import Effect, Event
from bdfl.protocol.messages import Message
from bdfl.protocol.state import Context, NodeState


class Postman(Protocol):
    """The delivery of messages: their loss, delay and duplication."""

    def deliveries(self, now_ns: int, sender: int, receiver: int, message: Message) -> Sequence[int]:
        """Extra delay (ns) of each copy beyond the modelled one; empty: the message is lost."""
        ...


class Tamper(Protocol):
    """A Byzantine member: an honest node whose effects are changed before any of them is carried out."""

    def effects(
        self,
        now_ns: int,
        context: Context,
        before: NodeState,
        event: Event,
        after: NodeState,
        effects: tuple[Effect, ...],
    ) -> tuple[Effect, ...]: ...


class Observer:
    """A listener to everything that happens in a network; this base class ignores it."""

    def stepped(
        self,
        now_ns: int,
        number: int,
        before: NodeState,
        event: Event,
        after: NodeState,
        effects: tuple[Effect, ...],
    ) -> None:
        """Called after a node handled an event; `effects` are carried out next."""

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
