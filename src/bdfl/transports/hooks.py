"""Where others take part in a simulated network: what becomes of messages, who lies, who watches."""

from collections.abc import Sequence
from typing import Protocol

from bdfl.ledger.keeping import Store
from bdfl.protocol.events import Effect, Event
from bdfl.protocol.messages import Message
from bdfl.protocol.state import Context, NodeState


class Postman(Protocol):
    """What becomes of messages on their way."""

    def deliveries(self, now_ns: int, sender: int, receiver: int, message: Message) -> Sequence[int]:
        """How much later than modelled (ns) each copy arrives; none: the message is lost."""
        ...


class Tamper(Protocol):
    """A member that lies: an honest node whose effects are changed before any of them is carried out."""

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
    """Hears of everything that happens; this one does nothing about it."""

    def stepped(
        self,
        now_ns: int,
        number: int,
        before: NodeState,
        event: Event,
        after: NodeState,
        effects: tuple[Effect, ...],
    ) -> None:
        """A node took in an event; `effects` are those that it goes about now."""

    def did(self, now_ns: int, number: int, effect: Effect) -> None:
        """An effect of a node is about to be carried out."""

    def crashed(self, now_ns: int, number: int) -> None:
        """A node lost everything but its store."""

    def restarted(self, now_ns: int, number: int, state: NodeState, store: Store) -> None:
        """A node begins again with what its store holds."""

    def froze(self, now_ns: int, number: int) -> None:
        """A node stands still."""

    def thawed(self, now_ns: int, number: int) -> None:
        """A node goes on; what happened to it meanwhile comes now."""
