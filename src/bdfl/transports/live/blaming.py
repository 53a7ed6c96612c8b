"""Penalties: charge senders of refused or outdated messages against their rate limits."""

from bdfl.protocol.events import Effect, Event, MessageArrived, ServeDecided
from bdfl.protocol.state import NodeState
from bdfl.transports.live.gate import Refusal
from bdfl.transports.live.observer import LiveObserver
from bdfl.transports.live.zenoh_link import ZenohLink

_BY_THE_LINK = frozenset(reason.value for reason in Refusal)  # already counted by the link


class BlameForRefused(LiveObserver):
    """An observer that reports to the link refused messages and work outside the current round."""

    def __init__(self, link: ZenohLink) -> None:
        self._link = link

    def stepped(
        self, now_ns: int, before: NodeState, event: Event, after: NodeState, effects: tuple[Effect, ...]
    ) -> None:
        if not isinstance(event, MessageArrived):
            return
        message = event.message
        num_asides = int(message.height <= before.chain.height)
        num_asides += sum(isinstance(effect, ServeDecided) for effect in effects)
        if num_asides:
            self._link.charge_aside(message.sender, num_asides)

    def refused(self, sender: int | None, reason: str) -> None:
        if reason not in _BY_THE_LINK:
            self._link.blame(sender)
