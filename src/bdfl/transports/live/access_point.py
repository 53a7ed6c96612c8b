"""An access point: forwards between nodes that cannot reach each other, and has no part in what they agree on."""

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

import zenoh

from bdfl.errors import one_line
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.zenoh_config import Keys, Role, count_authorities, session_config
from bdfl.transports.live.zenoh_session import LinkError

_ANY_CHAIN = Keys("*")
_MAX_MESSAGE = 4 * 2**20  # to be forwarded; whom it is for has limits of its own
_PLAIN_MEMBERS = 64  # expected where no certificates say how many there are


class AccessPointSession:
    """A zenoh router. To be closed."""

    def __init__(self, session: zenoh.Session) -> None:
        self._session = session

    @property
    def num_transports(self) -> int:
        """How many nodes and other access points are connected."""
        return 0 if self._session.is_closed() else len(self._session.info.transports())

    def close(self) -> None:
        self._session.close()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        return AccessPointSession(zenoh.open(config))
    except zenoh.ZError as error:
        where = ", ".join(listen)
        raise LinkError(f"cannot open the access point, listening on {where}: {one_line(error)}") from None
