"""Whoever says what the protocol refuses may say less: the link is told who it was."""

from bdfl.transports.live.gate import Refusal
from bdfl.transports.live.observer import LiveObserver
from bdfl.transports.live.zenoh_link import ZenohLink

_BY_THE_LINK = frozenset(reason.value for reason in Refusal)  # which counted these itself


class BlameForRefused(LiveObserver):
    """Tells a link of what its node refused."""

    def __init__(self, link: ZenohLink) -> None:
        self._link = link

    def refused(self, sender: int | None, reason: str) -> None:
        if reason not in _BY_THE_LINK:
            self._link.blame(sender)
