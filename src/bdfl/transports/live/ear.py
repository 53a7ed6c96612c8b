"""Hears what zenoh has received: its threads put it into a bounded channel, and one of ours empties that.

A callback would have zenoh's threads wait for Python's lock at each message, up to 5 ms while the node computes; here
all that waits is taken at once. A channel that is full makes zenoh read no more: then the peers wait, and memory does
not grow. So an ear that takes its time slows down whoever sends, at no cost to this node.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeAlias, TypeVar

import zenoh

from bdfl.transports.live.limits import Bucket

CAPACITY = 64
SLOW_CAPACITY = 20  # what waits at a paced ear is ahead of what comes next

_Heard_co = TypeVar("_Heard_co", covariant=True)
_Heard = TypeVar("_Heard")
_Heard_contra = TypeVar("_Heard_contra", contravariant=True)


Channel: TypeAlias = "zenoh.handlers.FifoChannel[_Heard] | zenoh.handlers.RingChannel[_Heard]"


class HeardChannel(Protocol[_Heard_co]):
    """What was received and not yet handled."""

    def recv(self) -> _Heard_co: ...
    def try_recv(self) -> _Heard_co | None: ...


class Entity(Protocol):
    """Anything declared in a session."""

    def undeclare(self) -> None: ...


class Pace(Generic[_Heard_contra]):
    """How fast an ear takes things: at a rate, by what each costs."""

    def __init__(
        self,
        bucket: Bucket,
        cost: Callable[[_Heard_contra], float],
        on_wait: Callable[[], None],
    ) -> None:
        """`on_wait` hears of everything that has to wait for its turn."""
        self._bucket, self._cost, self._on_wait = bucket, cost, on_wait

    def wait(self, heard: _Heard_contra, is_over: threading.Event) -> None:
        """Returns when it is this one's turn, or all is over."""
        cost = self._cost(heard)
        while not self._bucket.take(cost, time.monotonic_ns()) and not is_over.is_set():
            self._on_wait()
            wait_ns = self._bucket.wait_ns(math.inf, time.monotonic_ns())  # till many can be taken: to wake up costs
            if wait_ns == 0:  # it costs more than ever comes together: those after it wait for the rest
                self._bucket.owe(cost, time.monotonic_ns())
                return
            is_over.wait(wait_ns / 1e9)


class Ear(Generic[_Heard]):
    """Handles everything that arrives for a subscriber or queryable, in order. To be ended and joined."""

    def __init__(
        self,
        name: str,
        entity: Entity,
        channel: HeardChannel[_Heard],
        handle: Callable[[_Heard], None],
        pace: Pace[_Heard] | None = None,
    ) -> None:
        """Without a pace, as fast as it goes."""
        self._entity, self._channel, self._handle, self._pace = entity, channel, handle, pace
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nothing more arrives; what already did is still handled."""
        self._is_over.set()
        with suppress(zenoh.ZError):  # the session may be over
            self._entity.undeclare()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, deadline_s: float) -> None:
        """Waits until all is handled, or until that time on the monotonic clock."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def _listen(self) -> None:
        try:
            while True:
                heard: _Heard | None = self._channel.recv()
                while heard is not None:
                    if self._pace is not None:
                        self._pace.wait(heard, self._is_over)
                    self._handle(heard)
                    heard = self._channel.try_recv()
        except zenoh.ZError:  # undeclared
            return


def new_channel(*, is_slow: bool = False, drops: bool = False, capacity: int = CAPACITY) -> "Channel[_Heard]":
    """For a subscriber or queryable to be heard, perhaps slowly.

    `drops`: what comes too fast is dropped and not waited for, since others' messages come over the same connection.
    """
    capacity = SLOW_CAPACITY if is_slow else capacity
    return zenoh.handlers.RingChannel(capacity) if drops else zenoh.handlers.FifoChannel(capacity)
