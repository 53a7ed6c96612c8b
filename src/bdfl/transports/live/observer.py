"""Observers of a live node, for metrics, logs and round times."""

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.chain import ChainState
from bdfl.protocol.events import Effect, Event
from bdfl.protocol.state import NodeState


class LiveObserver:
    """Base class of observers; ignores all events. Methods are called from the thread of the event.

    Implementations must return quickly and not raise.
    """

    def stepped(
        self, now_ns: int, before: NodeState, event: Event, after: NodeState, effects: tuple[Effect, ...]
    ) -> None:
        """Called after a step of the event loop."""

    def did(self, effect: Effect) -> None:
        """Called after an effect was carried out; its writes are durable."""

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        """Called after a block is durable; `chain` is the node's chain after the event that decided it."""

    def refused(self, sender: int | None, reason: str) -> None:
        """Called when an incoming message or request was dropped."""


class Observers(LiveObserver):
    """Forwards to several observers, in order."""

    def __init__(self, *observers: LiveObserver) -> None:
        self._observers = observers

    def stepped(
        self, now_ns: int, before: NodeState, event: Event, after: NodeState, effects: tuple[Effect, ...]
    ) -> None:
        for observer in self._observers:
            observer.stepped(now_ns, before, event, after, effects)

    def did(self, effect: Effect) -> None:
        for observer in self._observers:
            observer.did(effect)

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        for observer in self._observers:
            observer.committed(block, certificate, chain)

    def refused(self, sender: int | None, reason: str) -> None:
        for observer in self._observers:
            observer.refused(sender, reason)
