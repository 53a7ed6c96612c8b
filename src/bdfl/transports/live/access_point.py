"""A zenoh router that forwards between nodes that cannot reach each other. It has no part in consensus.

When routers connect while one of them is busy, zenoh may drop declarations for good. The routers are then connected
but forward nothing (eclipse-zenoh/zenoh issue 1886, seen with zenoh 1.10). So each access point declares a liveliness
token, and reopens its session when a connected access point's token does not arrive.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress

import zenoh

from bdfl.errors import BdflError, one_line
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.subscriptions import Entity
from bdfl.transports.live.zenoh_config import Keys, Role, access_point_names, count_authorities, session_config
from bdfl.transports.live.zenoh_session import LinkError

_ANY_CHAIN = Keys("*")
_NO_CHAIN = Keys("access-points")
_MAX_MESSAGE = 4 * 2**20  # forwarded; receivers have limits of their own
_LEASE_S = 3.0
_PLAIN_MEMBERS = 64  # assumed where no certificates tell the number
_LOOK_EVERY_S = 0.25
_PATIENCE_S = 3.0
_MAX_PATIENCE_S = 3600.0  # back-off for a peer without a token: each reopening drops all clients
_FORGIVEN_AFTER = 10
_MAX_UNREAD = 1024  # liveliness samples
_CLOSE_WAIT_S = 10.0


class Unheard:
    """Back-off timer for connected peers without a liveliness token. Time is the caller's monotonic clock, in s."""

    def __init__(self, patience_s: float = _PATIENCE_S, max_patience_s: float = _MAX_PATIENCE_S) -> None:
        self._first_patience_s = self._patience_s = patience_s
        self._max_patience_s = max_patience_s
        self._since_s: dict[str, float] = {}
        self._last_s = -math.inf  # time of the last timeout

    def is_too_long(self, connected: Iterable[str], heard: Collection[str], now_s: float) -> bool:
        """Return whether a connected peer has been unheard for longer than the timeout; if so, double the timeout.

        The timeout is reset after ten times its length without a further one, not when the peer disconnects.
        """
        self._since_s = {one: self._since_s.get(one, now_s) for one in connected if one not in heard}
        if now_s - self._last_s > _FORGIVEN_AFTER * self._patience_s:
            self._patience_s = self._first_patience_s
        if not self._since_s or now_s - min(self._since_s.values()) < self._patience_s:
            return False
        self._since_s.clear()
        self._last_s = now_s
        self._patience_s = min(2 * self._patience_s, self._max_patience_s)
        return True


class AccessPointSession(AbstractContextManager["AccessPointSession"]):
    """A zenoh router that reopens its session when a peer stays unheard. Close it after use."""

    def __init__(self, open_router: "Callable[[], Router]") -> None:
        """`open_router` may raise `LinkError` and other `BdflError`."""
        self._open_router = open_router
        self._router: Router | None = open_router()
        self._closing = threading.Event()
        self.num_reopened = 0
        self._watcher = threading.Thread(target=self._watch, name="access-point", daemon=True)
        self._watcher.start()

    @property
    def num_transports(self) -> int:
        """Number of connected nodes and other access points."""
        router = self._router
        return 0 if router is None else len(router.transports())

    def close(self) -> None:
        """Stop forwarding and close the session."""
        self._closing.set()
        self._watcher.join(_CLOSE_WAIT_S)

    def _watch(self) -> None:
        unheard = Unheard()
        while not self._closing.wait(_LOOK_EVERY_S):
            router = self._router
            if router is None:
                self._open()
            elif unheard.is_too_long(router.access_points(), router.heard(), time.monotonic()):
                self._router = None
                router.close()
                self.num_reopened += 1
                self._open()
        if self._router is not None:
            self._router.close()
            self._router = None

    def _open(self) -> None:
        with suppress(BdflError):  # for example an address in use: the watcher tries again
            self._router = self._open_router()

    def __exit__(self, *_: object) -> None:
        self.close()


class Router:
    """An open session and the access points heard in it. No callbacks: zenoh never waits for the GIL."""

    def __init__(self, session: zenoh.Session, names: Collection[str] | None) -> None:
        """`names` are the common names of access points; None without TLS: then any router counts as one."""
        self._session, self._names = session, names
        self._heard: set[str] = set()
        alive = session.liveliness()
        self._token = alive.declare_token(_NO_CHAIN.here(str(session.info.zid()), "router"))
        self._others = alive.declare_subscriber(
            _NO_CHAIN.here("*", "router"), zenoh.handlers.RingChannel(_MAX_UNREAD), history=True
        )

    def transports(self) -> list[zenoh.Transport]:
        return [] if self._session.is_closed() else self._session.info.transports()

    def access_points(self) -> list[str]:
        """Zenoh ids of connected access points. A peer claims the role itself, so its certificate is checked too."""
        routers = {str(one.zid) for one in self.transports() if one.whatami == zenoh.WhatAmI.ROUTER}
        if self._names is None or not routers:
            return sorted(routers)
        links = self._session.info.links()
        return sorted(routers & {str(link.zid) for link in links if link.auth_identifier in self._names})

    def heard(self) -> set[str]:
        """Zenoh ids of access points with a live token, connected or not."""
        while (sample := self._others.try_recv()) is not None:
            who = str(sample.key_expr).rpartition("/")[2]
            if sample.kind == zenoh.SampleKind.PUT:
                self._heard.add(who)
            else:
                self._heard.discard(who)
        return self._heard

    def close(self) -> None:
        declared: tuple[Entity, ...] = (self._token, self._others)
        for entity in declared:  # entities left to interpreter shutdown could hang it
            with suppress(zenoh.ZError):
                entity.undeclare()
        self._session.close()  # type: ignore[no-untyped-call]


def open_access_point(
    listen: Sequence[str],
    peers: Sequence[str],
    tls: TlsFiles | None,
    *,
    members: Collection[int] | None = None,
) -> AccessPointSession:
    """Open an access point that forwards between all holders of a certificate under the roots.

    Addresses are `host:port`. `members` may send; None: as many as there are authorities, from 0 on. `peers` are other
    access points; a ring of them survives the loss of any one. Raises `LinkError`.
    """

    names = None if tls is None else access_point_names(tls)

    def open_router() -> Router:
        config = session_config(
            Role.ACCESS_POINT,
            listen,
            peers,
            tls,
            keys=_ANY_CHAIN,
            members=range(_PLAIN_MEMBERS if tls is None else count_authorities(tls)) if members is None else members,
            lease_s=_LEASE_S,
            max_payload=_MAX_MESSAGE,
        )
        try:
            session = zenoh.open(config)
        except zenoh.ZError as error:
            raise LinkError(
                f"cannot open the access point, listening on {', '.join(listen)}: {one_line(error)}"
            ) from None
        try:
            return Router(session, names)
        except zenoh.ZError as error:
            session.close()  # type: ignore[no-untyped-call]
            raise LinkError(f"cannot take part as an access point: {one_line(error)}") from None

    return AccessPointSession(open_router)
