"""Hears what zenoh has received: its threads put it into a bounded channel, and one of ours empties that.

A callback would have zenoh's threads wait for Python's lock at each message, up to 5 ms while the node computes; here
all that waits is taken at once. A channel that is full makes zenoh read no more: then the peers wait, and memory does
not grow.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import zenoh

CAPACITY = 64

_Heard_co = TypeVar("_Heard_co", covariant=True)
_Heard = TypeVar("_Heard")


class HeardChannel(Protocol[_Heard_co]):
    """What was received and not yet handled."""

    def recv(self) -> _Heard_co: ...
    def try_recv(self) -> _Heard_co | None: ...


class Entity(Protocol):
    """Anything declared in a session."""

    def undeclare(self) -> None: ...


class Ear(Generic[_Heard]):
    """Handles everything that arrives for a subscriber or queryable, in order. To be closed."""

    def __init__(
        self, name: str, entity: Entity, channel: HeardChannel[_Heard], handle: Callable[[_Heard], None]
    ) -> None:
        self._entity, self._channel, self._handle = entity, channel, handle
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Nothing more arrives; what already did is still handled."""
        with suppress(zenoh.ZError):  # the session may be over
            self._entity.undeclare()
        self._thread.join(timeout_s)

    def _listen(self) -> None:
        try:
            while True:
                heard: _Heard | None = self._channel.recv()
                while heard is not None:
                    self._handle(heard)
                    heard = self._channel.try_recv()
        except zenoh.ZError:  # undeclared
            return


def new_channel() -> "zenoh.handlers.FifoChannel[_Heard]":
    """For a subscriber or queryable to be heard."""
    return zenoh.handlers.FifoChannel(CAPACITY)
