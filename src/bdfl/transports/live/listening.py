"""Subscriptions per member for one kind of key, some of them throttled.

One subscription per member, not one wildcard: excluding a flooding member from a wildcard would mean re-declaring all
others under load. Unknown senders are not subscribed to at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bdfl.transports.live.ear import Ear, Entity, HeardChannel, Pace

_Heard = TypeVar("_Heard")
_Heard_co = TypeVar("_Heard_co", covariant=True)


class Declared(Entity, Protocol[_Heard_co]):
    """A subscriber or queryable with a channel."""

    @property
    def handler(self) -> HeardChannel[_Heard_co]: ...


@dataclass(frozen=True)
class Audience:
    """The members to subscribe to, one subscription each."""

    members: frozenset[int]
    slow: frozenset[int] = frozenset()  # throttled ones among `members`
    relays: frozenset[int] = frozenset()  # members that relay their clients' messages


class Listening(Generic[_Heard]):
    """Subscriptions to members; each is handled in order. Not thread-safe. End and join it after use."""

    def __init__(
        self,
        name: str,
        declare: Callable[[int, bool], Declared[_Heard]],
        handle: Callable[[_Heard], None],
        pace_of: Callable[[int], Pace[_Heard]],
    ) -> None:
        """`declare` subscribes to a member or relay, throttled or not; `pace_of` gives a throttled one's rate limit."""
        self._name, self._declare, self._handle, self._pace_of = name, declare, handle, pace_of
        self._ears: dict[tuple[int, bool], Ear[_Heard]] = {}
        self._ending: list[Ear[_Heard]] = []  # may still be replying to a peer that does not read

    def listen_to(self, members: frozenset[int], slow: frozenset[int] = frozenset()) -> None:
        """Subscribe to these members only. Messages during the change may arrive twice but are not lost."""
        wanted = {(member, member in slow) for member in members}
        for who, is_slow in sorted(wanted - self._ears.keys()):
            declared = self._declare(who, is_slow)
            pace = self._pace_of(who) if is_slow else None
            self._ears[who, is_slow] = Ear(f"{self._name}-{who}", declared, declared.handler, self._handle, pace)
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
