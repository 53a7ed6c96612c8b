"""Barrier before the first round of a chain, for members that are still starting."""

import threading
import time
from collections.abc import Sequence

from bdfl.protocol.messages import Message
from bdfl.transports.live.ports import Link, Receiver

PATIENCE_S = 30.0  # with the last ones, once enough are there to agree on a block
_POLL_S = 0.05


class GatheringLink:
    """A `Link` whose opening lasts until the others are there: all, or for some time already enough to go on."""

    def __init__(
        self,
        link: Link,
        *,
        num_others: int,
        num_enough: int,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`num_enough` others make a quorum with this node."""
        self._link = link
        self._num_others = num_others
        self._num_enough = num_enough
        self._patience_s = patience_s
        self._is_left = threading.Event()

    def leave(self) -> None:
        """Waits no longer."""
        self._is_left.set()

    def open(self, receiver: Receiver) -> None:
        self._link.open(receiver)
        enough_s: float | None = None  # since when
        while not self._is_left.wait(_POLL_S):
            num_there, now_s = len(self._link.present), time.monotonic()
            if num_there >= self._num_others:
                return
            if num_there < self._num_enough:
                enough_s = None
            elif enough_s is None:
                enough_s = now_s
            elif now_s - enough_s >= self._patience_s:
                return

    def send(self, to: int | None, message: Message) -> None:
        self._link.send(to, message)

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        self._link.fetch(blob, size, holders)

    def forget_fetches(self) -> None:
        self._link.forget_fetches()

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        self._link.set_members(public_keys)

    @property
    def present(self) -> frozenset[int]:
        return self._link.present

    def close(self) -> None:
        self._link.close()
