"""An access point: forwards between nodes that cannot reach each other, and has no part in what they agree on.

When routers connect while one of them is busy, zenoh may drop what one declares to the other, for good: they are
connected and forward nothing (eclipse-zenoh/zenoh issue 1886, seen with zenoh 1.10). So each access point says that it
is there, and one that is connected to another without hearing of it connects anew.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import zenoh

from bdfl.errors import BdflError, one_line
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.ear import Entity
from bdfl.transports.live.zenoh_config import Keys, Role, access_point_names, count_authorities, session_config
from bdfl.transports.live.zenoh_session import LinkError

_ANY_CHAIN = Keys("*")
_NO_CHAIN = Keys("access-points")
_MAX_MESSAGE = 4 * 2**20  # to be forwarded; whom it is for has limits of its own
_PLAIN_MEMBERS = 64  # expected where no certificates say how many there are
_LOOK_EVERY_S = 0.25
_PATIENCE_S = 3.0
_MAX_PATIENCE_S = 3600.0  # with one that never says that it is there, and would have all clients dropped each time
_FORGIVEN_AFTER = 10
_MAX_UNREAD = 1024  # of what others said of their being there
_CLOSE_WAIT_S = 10.0


class Unheard:
    """Who is connected and was not heard of, and for how long. Time is the caller's monotonic clock, in s."""

    def __init__(self, patience_s: float = _PATIENCE_S, max_patience_s: float = _MAX_PATIENCE_S) -> None:
        self._first_patience_s = self._patience_s = patience_s
        self._max_patience_s = max_patience_s
        self._since_s: dict[str, float] = {}
        self._last_s = -math.inf  # when it was too long

    def is_too_long(self, connected: Iterable[str], heard: Collection[str], now_s: float) -> bool:
        """Whether somebody is unheard for longer than patience lasts; then it lasts twice as long from now on.

        It is short again when all went well for ten times as long: whoever comes and goes must not make it so.
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


class AccessPointSession:
    """A zenoh router that connects anew where it has to. To be closed."""

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
        """How many nodes and other access points are connected."""
        router = self._router
        return 0 if router is None else len(router.transports())

    def close(self) -> None:
        """Forwards no more."""
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
        with suppress(BdflError):  # such as an address that somebody took meanwhile: it is tried again
            self._router = self._open_router()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Router:
    """An open session, and which others were heard of in it. No callbacks: zenoh never waits for Python's lock."""

    def __init__(self, session: zenoh.Session, names: Collection[str] | None) -> None:
        """`names` are those in access points' certificates; none: there are no certificates, and anybody may be one."""
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
        """Those that are connected, by zenoh's id: what it calls a router is what somebody says it is."""
        routers = {str(one.zid) for one in self.transports() if one.whatami == zenoh.WhatAmI.ROUTER}
        if self._names is None or not routers:
            return sorted(routers)
        links = self._session.info.links()
        return sorted(routers & {str(link.zid) for link in links if link.auth_identifier in self._names})

    def heard(self) -> set[str]:
        """Those that said that they are there and not that they are gone, connected or not."""
        while (sample := self._others.try_recv()) is not None:
            who = str(sample.key_expr).rpartition("/")[2]
            if sample.kind == zenoh.SampleKind.PUT:
                self._heard.add(who)
            else:
                self._heard.discard(who)
        return self._heard

    def close(self) -> None:
        declared: tuple[Entity, ...] = (self._token, self._others)
        for entity in declared:  # nothing of zenoh's may be left to Python's end
            with suppress(zenoh.ZError):
                entity.undeclare()
        self._session.close()  # type: ignore[no-untyped-call]


def open_access_point(
    listen: Sequence[str],
    peers: Sequence[str],
    tls: TlsFiles | None,
    *,
    members: Collection[int] | None = None,
    lease_s: float = 3.0,
    max_message_size: int = _MAX_MESSAGE,
) -> AccessPointSession:
    """Begins to forward between all whose certificates the roots cover; addresses are `host:port`.

    `members` are heard; none: as many as there are authorities, from 0 on. `peers` are other access points; a ring of
    them goes on without any one of them. Raises `LinkError`.
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
            lease_s=lease_s,
            max_payload=max_message_size,
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
