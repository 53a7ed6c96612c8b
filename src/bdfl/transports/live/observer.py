"""Who watches a live node: metrics, logs, round times."""

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.chain import ChainState
from bdfl.protocol.events import Effect, Event
from bdfl.protocol.state import NodeState


class LiveObserver:
    """Hears of everything that happens to a node, from the thread it happens in; this one does nothing about it.

    Whatever is called here returns soon and raises nothing.
    """

    def stepped(
        self, now_ns: int, before: NodeState, event: Event, after: NodeState, effects: tuple[Effect, ...]
    ) -> None:
        """The node took in an event."""

    def did(self, effect: Effect) -> None:
        """An effect was carried out; what is kept is durable."""

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        """A block is on the chain for good; `chain` is where the node stands after the event that decided it."""

    def refused(self, sender: int | None, reason: str) -> None:
        """Something that arrived was dropped."""


class Observers(LiveObserver):
    """Several who watch, in their order."""

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
