"""Which connections in a member's name are not the member's own.

A member certifies any name it likes, so somebody else may be connected in that name. But whatever a member seals says
over which session it speaks. Anybody can give its session another's name, too: so a connection is a member's own only
if the member was heard to say so after the connection began.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

GRACE_S = 1.0  # in which a member that starts again says which session is its own, where it is pressing
SILENT_S = 10.0  # after which whoever has not said so is taken for somebody else
_NEW_S = 5.0


@dataclass(frozen=True)
class Connection:
    """A session that is connected from an address, with a certificate in some name."""

    session: str
    name: str
    host: str
    port: int
    is_client: bool = False  # that this node relays for


@dataclass(frozen=True)
class Heard:
    """Over which session a member said last that it speaks, and when (s)."""

    session: str
    at_s: float


@dataclass(frozen=True)
class Impostor:
    """A connection to be cut."""

    connection: Connection
    is_proven: bool  # the member itself was connected before it: whoever came later is somebody else


class Connections:
    """Who is connected since when. Time is the caller's monotonic clock, in s; for any thread."""

    def __init__(self) -> None:
        self._since_s: dict[Connection, float] = {}

    def note(self, there: Collection[Connection], now_s: float) -> None:
        """Those and no others are connected."""
        self._since_s = {one: self._since_s.get(one, now_s) for one in there}

    def remove(self, connection: Connection) -> None:
        """That one is over; if it is noted again, it is a new one."""
        self._since_s.pop(connection, None)

    def clear(self) -> None:
        self._since_s.clear()

    def newcomers(self, now_s: float) -> set[str]:
        """Names in which somebody connected not long ago: it may not have heard yet what was said to it first."""
        return {one.name for one, since_s in list(self._since_s.items()) if now_s - since_s < _NEW_S}

    def find_impostors(
        self, heard_of: Callable[[str], Heard | None], is_pressed: Callable[[str], bool], now_s: float
    ) -> list[Impostor]:
        """Those that are not of the member they name: whoever does not say in time that it is the member.

        Time is short where that one is connected, or where too much comes in its name; where both are so there is none.
        What is left of a former connection of the member's is no proof against anybody. `heard_of` and `is_pressed`
        know members by their names.
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
