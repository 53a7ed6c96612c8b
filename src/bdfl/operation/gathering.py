"""Beginning together: the first round of a chain waits for those who are still starting."""

import threading
import time
from collections.abc import Callable, Sequence

from bdfl.protocol.messages import Message
from bdfl.transports.live.ports import Link, Receiver

PATIENCE_S = 30.0  # with the last ones, once enough are there to agree on a block
_POLL_S = 0.05
_SAY_AFTER_S = 10.0  # and then half as often every time, or when somebody comes or goes


class GatheringLink:
    """A `Link` whose opening lasts until the others are there: all, or for some time already enough to go on."""

    def __init__(
        self,
        link: Link,
        *,
        num_others: int,
        num_enough: int,
        patience_s: float = PATIENCE_S,
        on_wait: Callable[[int], None] | None = None,
    ) -> None:
        """`num_enough` others make a quorum with this node; `on_wait` hears now and then how many are there."""
        self._link = link
        self._num_others = num_others
        self._num_enough = num_enough
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._is_left = threading.Event()

    def leave(self) -> None:
        """Waits no longer."""
        self._is_left.set()

    def open(self, receiver: Receiver) -> None:
        self._link.open(receiver)
        said_s, pause_s, num_said = time.monotonic(), _SAY_AFTER_S, -1
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
            is_due = now_s - said_s >= pause_s or (num_there != num_said >= 0)
            if self._on_wait is not None and is_due:
                said_s, pause_s, num_said = now_s, 2 * pause_s, num_there
                self._on_wait(num_there)

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
