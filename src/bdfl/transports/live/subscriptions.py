"""Subscriptions per member, some throttled, each with a receiving thread and back-pressure by a bounded channel.

A callback would make zenoh's threads wait for the GIL at each message, up to 5 ms while the node computes. Here one
thread takes all waiting messages at once. A full channel stops zenoh from reading: peers wait and memory stays bounded.
So a throttled subscription slows its sender at no cost to this node.

One subscription per member, not one wildcard: excluding a flooding member from a wildcard would mean re-declaring all
others under load. Unknown senders are not subscribed to at all.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import zenoh

from bdfl.transports.live.admission import Bucket

CAPACITY = 64
SLOW_CAPACITY = 20  # small: queued messages of a throttled sender delay later ones

_Heard_co = TypeVar("_Heard_co", covariant=True)
_Heard = TypeVar("_Heard")
_Heard_contra = TypeVar("_Heard_contra", contravariant=True)


Channel: TypeAlias = "zenoh.handlers.FifoChannel[_Heard] | zenoh.handlers.RingChannel[_Heard]"


class HeardChannel(Protocol[_Heard_co]):
    """A channel of messages received but not yet handled."""

    def recv(self) -> _Heard_co: ...
    def try_recv(self) -> _Heard_co | None: ...


class Entity(Protocol):
    """A zenoh entity declared in a session."""

    def undeclare(self) -> None: ...


@dataclass(frozen=True, eq=False)
class SubscriptionRate(Generic[_Heard_contra]):
    """Rate limit of a subscription: a token bucket with a cost per message."""

    bucket: Bucket
    cost: Callable[[_Heard_contra], float]
    on_wait: Callable[[], None]  # called for each message that has to wait

    def wait(self, heard: _Heard_contra, is_over: threading.Event) -> None:
        """Block until the message may pass or `is_over` is set."""
        cost = self.cost(heard)
        while not self.bucket.take(cost, time.monotonic_ns()) and not is_over.is_set():
            self.on_wait()
            wait_ns = self.bucket.wait_ns(math.inf, time.monotonic_ns())  # until the bucket is full: fewer wake-ups
            if wait_ns == 0:  # costs more than the burst: later messages wait for the debt
                self.bucket.owe(cost, time.monotonic_ns())
                return
            is_over.wait(wait_ns / 1e9)


@dataclass(eq=False, repr=False)
class Subscription(Generic[_Heard]):
    """A thread that handles all messages of a subscriber or queryable, in order. End and join it after use."""

    name: str
    entity: Entity
    channel: HeardChannel[_Heard]
    handle: Callable[[_Heard], None]
    pace: SubscriptionRate[_Heard] | None  # None: no rate limit

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=self.name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Undeclare the entity; messages already received are still handled."""
        self._is_over.set()
        with suppress(zenoh.ZError):  # the session may be closed
            self.entity.undeclare()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, deadline_s: float) -> None:
        """Wait until all messages are handled, or until the deadline on the monotonic clock."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def _listen(self) -> None:
        try:
            while True:
                heard: _Heard | None = self.channel.recv()
                while heard is not None:
                    if self.pace is not None:
                        self.pace.wait(heard, self._is_over)
                    self.handle(heard)
                    heard = self.channel.try_recv()
        except zenoh.ZError:  # undeclared
            return


def new_channel(*, is_slow: bool = False, drops: bool = False, capacity: int = CAPACITY) -> "Channel[_Heard]":
    """Return a bounded channel for a subscriber or queryable; `is_slow` for a throttled one.

    With `drops` it drops the oldest instead of blocking: other members' messages share the connection.
    """
    capacity = SLOW_CAPACITY if is_slow else capacity
    return zenoh.handlers.RingChannel(capacity) if drops else zenoh.handlers.FifoChannel(capacity)


class Declared(Entity, Protocol[_Heard_co]):
    """A subscriber or queryable with a channel."""

    @property
    def handler(self) -> HeardChannel[_Heard_co]: ...


@dataclass(frozen=True)
class Senders:
    """The members to subscribe to, one subscription each."""

    members: frozenset[int]
    slow: frozenset[int] = frozenset()  # throttled ones among `members`
    relays: frozenset[int] = frozenset()  # members that relay their clients' messages


@dataclass(eq=False, repr=False)
class Subscriptions(Generic[_Heard]):
    """Subscriptions to members; each is handled in order. Not thread-safe. End and join it after use."""

    name: str
    declare: Callable[[int, bool], Declared[_Heard]]  # subscribes to a member or relay, throttled or not
    handle: Callable[[_Heard], None]
    pace_of: Callable[[int], SubscriptionRate[_Heard]]  # rate limit of a throttled one

    def __post_init__(self) -> None:
        self._ears: dict[tuple[int, bool], Subscription[_Heard]] = {}
        self._ending: list[Subscription[_Heard]] = []  # may still be replying to a peer that does not read

    def listen_to(self, members: frozenset[int], slow: frozenset[int] = frozenset()) -> None:
        """Subscribe to these members only. Messages during the change may arrive twice but are not lost."""
        wanted = {(member, member in slow) for member in members}
        for who, is_slow in sorted(wanted - self._ears.keys()):
            declared = self.declare(who, is_slow)
            pace = self.pace_of(who) if is_slow else None
            self._ears[who, is_slow] = Subscription(f"{self.name}-{who}", declared, declared.handler, self.handle, pace)
        for one in self._ears.keys() - wanted:
            self._end(one)

    def end(self) -> None:
        """End all subscriptions; messages already received are still handled."""
        for one in list(self._ears):
            self._end(one)

    def join(self, deadline_s: float) -> None:
        """Wait until all messages are handled, or until the deadline on the monotonic clock."""
        while self._ending:
            self._ending.pop().join(deadline_s)

    def _end(self, one: tuple[int, bool]) -> None:
        ear = self._ears.pop(one)
        ear.end()
        self._ending = [*(other for other in self._ending if not other.is_done), ear]
