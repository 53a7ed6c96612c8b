"""Listening to members on one kind of key, to each by an ear of its own, and to some of them slowly.

One ear for everybody would have to be parted into all but one when that one floods: many declarations, of every node
to every other, at the very moment when they have least to spare. And whom nobody knows is not subscribed to at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bdfl.transports.live.ear import Ear, Entity, HeardChannel, Pace

_Heard = TypeVar("_Heard")
_Heard_co = TypeVar("_Heard_co", covariant=True)


class Declared(Entity, Protocol[_Heard_co]):
    """A subscriber or queryable whose channel can be emptied."""

    @property
    def handler(self) -> HeardChannel[_Heard_co]: ...


@dataclass(frozen=True)
class Audience:
    """To whom a node listens, each by an ear of its own."""

    members: frozenset[int]
    slow: frozenset[int] = frozenset()  # of these: those in whose name too much arrives
    relays: frozenset[int] = frozenset()  # members whose clients are heard through them


class Listening(Generic[_Heard]):
    """What arrives from members, handled in order of each. For one thread at a time; to be ended and joined."""

    def __init__(
        self,
        name: str,
        declare: Callable[[int, bool], Declared[_Heard]],
        handle: Callable[[_Heard], None],
        pace_of: Callable[[int], Pace[_Heard]],
    ) -> None:
        """`declare` begins to receive what one member sends or relays, slowly or not; `pace_of` is a slow one's."""
        self._name, self._declare, self._handle, self._pace_of = name, declare, handle, pace_of
        self._ears: dict[tuple[int, bool], Ear[_Heard]] = {}
        self._ending: list[Ear[_Heard]] = []  # those may still reply to somebody who does not read

    def listen_to(self, members: frozenset[int], slow: frozenset[int] = frozenset()) -> None:
        """From now on to these only. What is said meanwhile may come twice, and is not lost."""
        wanted = {(member, member in slow) for member in members}
        for who, is_slow in sorted(wanted - self._ears.keys()):
            declared = self._declare(who, is_slow)
            pace = self._pace_of(who) if is_slow else None
            self._ears[who, is_slow] = Ear(f"{self._name}-{who}", declared, declared.handler, self._handle, pace)
        for one in self._ears.keys() - wanted:
            self._end(one)

    def end(self) -> None:
        """Nothing more arrives; what already did is still handled."""
        for one in list(self._ears):
            self._end(one)

    def join(self, deadline_s: float) -> None:
        """Waits until all is handled, or until that time on the monotonic clock."""
        while self._ending:
            self._ending.pop().join(deadline_s)

    def _end(self, one: tuple[int, bool]) -> None:
        ear = self._ears.pop(one)
        ear.end()
        self._ending = [*(other for other in self._ending if not other.is_done), ear]
