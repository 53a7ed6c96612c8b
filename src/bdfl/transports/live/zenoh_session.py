"""The zenoh session of a link: how it opens, what it listens to, how bytes leave it; their meaning is the link's."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import zenoh
from msgspec import Meta

from bdfl.encoding import BadEncoding, Record, decode, encode, prepared
from bdfl.errors import BdflError, one_line
from bdfl.identity import Signer
from bdfl.transports.live.blob_pull import PIECE_SIZE, Absent, Answer, NotYet, Piece, Silence
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.ear import Entity, new_channel
from bdfl.transports.live.envelope import OVERHEAD
from bdfl.transports.live.limits import Limits
from bdfl.transports.live.listening import Listening
from bdfl.transports.live.zenoh_config import Role, chain_keys, session_config

_CLOSE_WAIT_S = 2.0
_MAX_NO_PIECE = 32
_URGENT = zenoh.Priority.INTERACTIVE_HIGH
_BULK = zenoh.Priority.DATA
_DROP = zenoh.CongestionControl.DROP
_OTHERS = zenoh.Locality.REMOTE

_Heard = TypeVar("_Heard")


class LinkError(BdflError):
    """The network cannot be used as asked: an address that is taken, a key that does not fit its certificate."""


@prepared
class _NoPiece(Record, frozen=True):
    """Why a piece does not come: there is none, or only after so many ns."""

    wait_ns: Annotated[int, Meta(ge=0, le=2**62)] | None


@dataclass(frozen=True)
class LinkSettings:
    """All that a link depends on. Addresses are `host:port`."""

    number: int
    signer: Signer = field(repr=False)
    chain: bytes
    public_keys: Sequence[bytes | None]  # by member; none: no longer one
    life: int  # higher at each start of the node
    listen: tuple[str, ...]  # none: a client of one of the peers, which then must be access points
    peers: tuple[str, ...]
    tls: TlsFiles | None  # none: plain TCP, for tests
    max_blob_size: int
    num_access_points: int = 0  # for a status; who they are is known by the roots
    fetch_s: float = 5.0
    lease_s: float = 3.0
    limits: Limits = field(default_factory=Limits)
    piece_size: int = PIECE_SIZE


@dataclass(frozen=True)
class Hearers:
    """What is called with what arrives, by threads of ours, and by zenoh's with who comes and goes."""

    to_all: Callable[[zenoh.Sample], None]
    to_own: Callable[[zenoh.Sample], None]
    query: Callable[[zenoh.Query], None]
    presence: Callable[[zenoh.Sample], None]
    end: Callable[[], None]  # nobody is present any more


class ZenohSession:
    """A session that can be opened again. To be closed."""

    def __init__(self, settings: LinkSettings, hearers: Hearers) -> None:
        self._settings = settings
        self._hearers = hearers
        self._keys = chain_keys(settings.chain)
        self._session: zenoh.Session | None = None
        self._presence: list[Entity] = []
        self._listenings: list[Listening[zenoh.Sample] | Listening[zenoh.Query]] = []
        self._lock = threading.Lock()
        self.num_members = 0  # set by the link; counts when it is next opened
        self.heard: frozenset[int] | None = None  # who is listened to; none: everybody

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def num_transports(self) -> int:
        session = self._session
        return 0 if session is None or session.is_closed() else len(session.info.transports())

    def open(self) -> None:
        """Begins to hear everybody; raises `LinkError`. A client stays closed while no access point is there."""
        settings = self._settings
        config = session_config(
            Role.PEER if settings.listen else Role.CLIENT,
            settings.listen,
            settings.peers,
            settings.tls,
            keys=self._keys,
            num_members=self.num_members,
            lease_s=settings.lease_s,
            max_payload=max(settings.limits.max_message_size, settings.piece_size) + OVERHEAD,
        )
        try:
            session = zenoh.open(config)
        except zenoh.ZError as error:
            if not settings.listen:
                return
            where = ", ".join(settings.listen)
            raise LinkError(f"cannot open the network, listening on {where}: {one_line(error)}") from None
        self._session = session
        number, keys, hearers = settings.number, self._keys, self._hearers

        def subscribe(key: str) -> "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]":
            return session.declare_subscriber(key, new_channel(), allowed_origin=_OTHERS)

        def serve(key: str) -> "zenoh.Queryable[zenoh.handlers.Handler[zenoh.Query]]":
            return session.declare_queryable(key, new_channel(), allowed_origin=_OTHERS)

        self.heard = None
        self._listenings = [
            Listening("link-all", lambda who: subscribe(keys.to_all(who)), hearers.to_all),
            Listening("link-own", lambda who: subscribe(keys.to_one(number, who)), hearers.to_own),
            Listening("link-server", lambda who: serve(keys.blob(number, who)), hearers.query),
        ]
        alive = session.liveliness()
        self._presence = [
            alive.declare_subscriber(keys.here("*"), _direct(hearers.presence), history=True),
            alive.declare_token(keys.here(number)),
        ]

    def reopen(self) -> None:
        """Connects anew, with the TLS files as they are now; what is said meanwhile is lost."""
        with self._lock:
            self._disconnect()
            self.open()

    def listen_to(self, members: frozenset[int] | None) -> None:
        """From now on to these only; none: to everybody."""
        with self._lock:
            self.heard = members
            with suppress(zenoh.ZError):  # the session may be over
                for listening in self._listenings:
                    listening.listen_to(members)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def put(self, to: int | None, data: bytes) -> bool:
        """Sends to one member or all others; whether the session was open."""
        session, sender = self._session, self._settings.number
        if session is None:
            return False
        key = self._keys.to_all(sender) if to is None else self._keys.to_one(to, sender)
        try:
            session.put(key, data, congestion_control=_DROP, priority=_URGENT, allowed_destination=_OTHERS)
        except zenoh.ZError:
            return False
        return True

    def ask(self, holder: int, request: bytes, length: int, on_answer: Callable[[Answer], None]) -> None:
        """Requests a piece of so many bytes; the answer comes by call, once."""
        session = self._session
        answers = _Answers(length, on_answer)
        try:
            if session is None:
                raise zenoh.ZError("closed")
            session.get(
                self._keys.blob(holder, self._settings.number),
                _direct(answers.take, answers.end),
                payload=request,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                timeout=self._settings.fetch_s,
                congestion_control=_DROP,
                priority=_BULK,
                allowed_destination=_OTHERS,
            )
        except zenoh.ZError:
            answers.end()

    def reply(self, query: zenoh.Query, to: int, piece: bytes) -> None:
        query.reply(self._keys.blob(self._settings.number, to), piece)

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        with suppress(zenoh.ZError):
            while self._presence:
                self._presence.pop().undeclare()
        while self._listenings:  # nothing of zenoh's may be left to Python's end, which it could hang
            self._listenings.pop().close(_CLOSE_WAIT_S)
        if session is not None:
            session.close()  # type: ignore[no-untyped-call]
        self._hearers.end()


def reply_no_piece(query: zenoh.Query, wait_ns: int | None) -> None:
    """Says that a piece comes only after so many ns; none: that there is none."""
    query.reply_err(encode(_NoPiece(wait_ns)))


class _Answers:
    """Passes the first answer to one request on; the request's end without any counts as absence."""

    def __init__(self, length: int, on_answer: Callable[[Answer], None]) -> None:
        self._length = length
        self._on_answer: Callable[[Answer], None] | None = on_answer

    def take(self, reply: zenoh.Reply) -> None:
        self._pass(_read_reply(reply, self._length))

    def end(self) -> None:
        self._pass(Absent())

    def _pass(self, answer: Answer) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)


def _read_reply(reply: zenoh.Reply, length: int) -> Answer:
    if reply.ok is not None:
        payload = reply.ok.payload
        return Piece(payload.to_bytes() if len(payload) == length else b"")
    if reply.err is None or len(reply.err.payload) > _MAX_NO_PIECE:
        return Silence()
    try:
        wait_ns = decode(reply.err.payload.to_bytes(), _NoPiece, _MAX_NO_PIECE).wait_ns
    except BadEncoding:  # zenoh's own word for time out
        return Silence()
    return Absent() if wait_ns is None else NotYet(wait_ns)


def _direct(
    callback: Callable[[_Heard], None], end: Callable[[], None] | None = None
) -> "zenoh.handlers.Callback[_Heard]":
    """Called in zenoh's own thread: a thread and an unbounded queue for each entity is what zenoh would add."""
    return zenoh.handlers.Callback(callback, end, indirect=False)
