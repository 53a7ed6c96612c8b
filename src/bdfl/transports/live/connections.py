"""Detection of impostors: TLS connections under a member's name that are not the member's own.

Any member can certify any name, so a certificate does not prove identity. But each envelope carries its sender's zenoh
session under a MAC. Session ids can be copied too, so a connection is the member's own only if the member named its
session after the connection began.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

GRACE_S = 1.0  # for a restarted member to name its session, while its name is connected or flooded
SILENT_S = 10.0  # after which an unconfirmed connection is an impostor
_NEW_S = 5.0


@dataclass(frozen=True)
class Connection:
    """A connected session, with its address and the name in its certificate."""

    session: str
    name: str
    host: str
    port: int
    is_client: bool = False  # of this node, which relays for it


@dataclass(frozen=True)
class Heard:
    """The session that a member named last, and the time (s)."""

    session: str
    at_s: float


@dataclass(frozen=True)
class Impostor:
    """A connection to be cut."""

    connection: Connection
    is_proven: bool  # the member was connected before it


class Connections:
    """Connections with their start times. Time is the caller's monotonic clock, in s. Thread-safe."""

    def __init__(self) -> None:
        self._since_s: dict[Connection, float] = {}

    def note(self, there: Collection[Connection], now_s: float) -> None:
        """Replace the set of connections."""
        self._since_s = {one: self._since_s.get(one, now_s) for one in there}

    def remove(self, connection: Connection) -> None:
        """Remove a connection; if it is noted again, it counts as new."""
        self._since_s.pop(connection, None)

    def clear(self) -> None:
        self._since_s.clear()

    def newcomers(self, now_s: float) -> set[str]:
        """Return the names of recent connections: earlier messages may not have reached them."""
        return {one.name for one, since_s in list(self._since_s.items()) if now_s - since_s < _NEW_S}

    def find_impostors(
        self, heard_of: Callable[[str], Heard | None], is_pressed: Callable[[str], bool], now_s: float
    ) -> list[Impostor]:
        """Return connections that their named member did not confirm in time.

        The grace period is `SILENT_S`. It is `GRACE_S` if the member itself is connected or its name is flooded, and 0
        if both hold. A stale connection of the same member does not make the new one an impostor. `heard_of` and
        `is_pressed` take members' names.
        """
        named: dict[str, dict[Connection, float]] = {}
        for one, since_s in list(self._since_s.items()):
            named.setdefault(one.name, {})[one] = since_s
        found: list[Impostor] = []
        for name, there in named.items():
            heard = heard_of(name)
            own = {one: since_s for one, since_s in there.items() if heard is not None and _is_own(one, since_s, heard)}
            first_s = min(own.values(), default=math.inf)
            wait_s = (SILENT_S, GRACE_S, 0.0)[bool(own) + is_pressed(name)]
            others = ((one, since_s) for one, since_s in there.items() if one not in own)
            found += [Impostor(one, since_s >= first_s) for one, since_s in others if now_s - since_s >= wait_s]
        return found


def _is_own(connection: Connection, since_s: float, heard: Heard) -> bool:
    return connection.session == heard.session and since_s <= heard.at_s
