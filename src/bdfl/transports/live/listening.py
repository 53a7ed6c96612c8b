"""Listening to all members on one kind of key, or to all but some."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from bdfl.transports.live.ear import Ear, Entity, HeardChannel

EVERYBODY = "*"
_CLOSE_WAIT_S = 2.0

_Heard = TypeVar("_Heard")
_Heard_co = TypeVar("_Heard_co", covariant=True)


class Declared(Entity, Protocol[_Heard_co]):
    """A subscriber or queryable whose channel can be emptied."""

    @property
    def handler(self) -> HeardChannel[_Heard_co]: ...


class Listening(Generic[_Heard]):
    """What arrives from members, handled in order of each. For one thread at a time; to be closed."""

    def __init__(
        self,
        name: str,
        declare: Callable[[int | str], Declared[_Heard]],
        handle: Callable[[_Heard], None],
    ) -> None:
        """`declare` begins to receive what one member sends, or everybody."""
        self._name, self._declare, self._handle = name, declare, handle
        self._ears: dict[int | str, Ear[_Heard]] = {}
        self.listen_to(None)

    def listen_to(self, members: frozenset[int] | None) -> None:
        """From now on to these only; none: to everybody. What is said meanwhile may come twice, and is not lost."""
        wanted: frozenset[int | str] = frozenset((EVERYBODY,)) if members is None else frozenset(members)
        for who in wanted - self._ears.keys():
            declared = self._declare(who)
            self._ears[who] = Ear(f"{self._name}-{who}", declared, declared.handler, self._handle)
        for who in self._ears.keys() - wanted:
            self._ears.pop(who).close(_CLOSE_WAIT_S)

    def close(self, timeout_s: float) -> None:
        """Nothing more arrives; what already did is still handled."""
        while self._ears:
            self._ears.popitem()[1].close(timeout_s)
