"""A thread that watches connections: it names this node's session to new ones and cuts unwanted ones.

Unwanted are impostors, clients that flood the peers they are relayed to, and hosts with too many pending connections.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence

from bdfl.transports.live.certificates import member_name
from bdfl.transports.live.connections import Connection, Connections, Heard, Impostor
from bdfl.transports.live.door import Door
from bdfl.transports.live.gate import Gate

_LOOK_EVERY_S = 0.1
_CALM_EVERY_S = 0.5  # after `_CALM_AFTER_S` without a change or cut
_CALM_AFTER_S = 10.0


class Doorkeeper:
    """The connection monitor of a link that listens on `host:port` addresses. Started and closed once."""

    def __init__(
        self,
        listen: Sequence[str],
        number: int,
        gate: Gate,
        *,
        connected: Callable[[], Collection[Connection]],
        pressed: Callable[[], Collection[int]],
        muted: Callable[[], Collection[int]],
        greet: Callable[[int], None],
        count: Callable[[str, int], None],
    ) -> None:
        """`connected` returns current connections, `pressed` members whose names are flooded, `muted` muted members."""
        self._door = Door([int(address.rpartition(":")[2]) for address in listen])
        self._own_name = member_name(number)  # any other connection under it is an impostor
        self._gate = gate
        self._connected, self._pressed, self._muted, self._greet, self._count = connected, pressed, muted, greet, count
        self._connections = Connections()
        self.own_name_s: float | None = None  # last time an impostor used it
        self._there: frozenset[Connection] = frozenset()
        self._stirred_s = time.monotonic()  # last change or cut
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="link-doorkeeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def forget(self) -> None:
        """Forget all connections and unblock all hosts: the session has ended."""
        self._connections.clear()
        self._door.close()

    def close(self, wait_s: float) -> None:
        """Stop the thread; it unblocks all hosts."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _keep(self) -> None:
        try:
            while not self._closing.wait(self._pause_s()):
                self._look(time.monotonic())
        finally:
            self._door.close()

    def _pause_s(self) -> float:
        return _CALM_EVERY_S if time.monotonic() - self._stirred_s > _CALM_AFTER_S else _LOOK_EVERY_S

    def _look(self, now_s: float) -> None:
        there = frozenset(self._connected())
        if there != self._there:
            self._there, self._stirred_s = there, now_s
        self._connections.note([one for one in there if one.name != self._own_name], now_s)
        members = {member_name(member): member for member in self._gate.members}
        for name in self._connections.newcomers(now_s) & members.keys():
            self._greet(members[name])
        impostors = [Impostor(one, is_proven=True) for one in there if one.name == self._own_name]
        if impostors:
            self.own_name_s = now_s
        for one in impostors + self._find_impostors(members, now_s):
            where = one.connection
            if self._door.turn_away(where.host, where.port, now_s, bars=one.is_proven):
                self._connections.remove(where)
                self._count("turned_away", 1)
                self._stirred_s = now_s
        flooding = {member_name(member) for member in {*self._muted(), *self._pressed()}}
        for client in there:  # zenoh relays a client's flood to all: a relay can only disconnect it
            is_flooding = client.is_client and client.name in flooding
            if is_flooding and self._door.turn_away(client.host, client.port, now_s, bars=False):
                self._count("clients_cut", 1)
                self._stirred_s = now_s
        if (num_barred := self._door.thin_out({(one.host, one.port) for one in there}, now_s)) > 0:
            self._count("crowds_barred", num_barred)
            self._stirred_s = now_s
        self._door.let_in(now_s)

    def _find_impostors(self, members: dict[str, int], now_s: float) -> list[Impostor]:
        pressed = self._pressed()

        def heard_of(name: str) -> Heard | None:
            return self._gate.heard_of(members[name]) if name in members else None

        def is_pressed(name: str) -> bool:
            return members.get(name) in pressed

        found = self._connections.find_impostors(heard_of, is_pressed, now_s)
        return [one for one in found if one.connection.name in members]
