"""The zenoh session of a link: opening, subscriptions and sending of bytes. The link interprets them."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import zenoh

from bdfl.errors import BdflError, one_line
from bdfl.identity import Signer
from bdfl.ledger.block import MAX_MEMBERS
from bdfl.transports.live.admission import Bucket, Limits
from bdfl.transports.live.blob_transfer import PIECE_SIZE, Answer, Silence
from bdfl.transports.live.certificates import TlsFiles, member_name
from bdfl.transports.live.envelope import overhead
from bdfl.transports.live.subscriptions import Channel, Entity, Senders, SubscriptionRate, Subscriptions, new_channel
from bdfl.transports.live.timeouts import MOST_TIMES
from bdfl.transports.live.zenoh_config import Line, Role, chain_keys, max_sessions, session_config

_CLOSE_WAIT_S = 2.0
_MAX_RECEIVING = 128  # threads
_LATE_TIMES = 2 * MOST_TIMES  # the longest timeout twice over: late answers still count
_RELAYED_CAPACITY = 1024  # messages, for all clients of a relay
_RELAYED_TIMES = 10  # the rate of a single throttled name
_MAX_IGNORED = 64  # unauthentic answers to one request; then all are ignored
_URGENT = zenoh.Priority.INTERACTIVE_HIGH
_BULK = zenoh.Priority.DATA
_DROP = zenoh.CongestionControl.DROP
_OTHERS = zenoh.Locality.REMOTE

_Heard = TypeVar("_Heard")


class LinkError(BdflError):
    """The network cannot be opened: an address in use, a key that does not match its certificate."""


@dataclass(frozen=True)
class LinkSettings:
    """Settings of a link. Addresses are `host:port`."""

    number: int
    signer: Signer = field(repr=False)
    chain: bytes
    public_keys: Sequence[bytes | None]  # by member; None: no longer one
    incarnation: int  # restart counter: higher at each start of the node
    listen: tuple[str, ...]  # empty: a client of one of the peers, a listening member or an access point
    peers: tuple[str, ...]
    tls: TlsFiles | None  # None: plain TCP, for tests
    max_blob_size: int
    num_access_points: int = 0  # the roots name them
    fetch_s: float = 5.0
    lease_s: float = 3.0
    limits: Limits = field(default_factory=Limits)
    piece_size: int = PIECE_SIZE


@dataclass(frozen=True)
class SessionCallbacks:
    """Callbacks of a session: messages come from receiving threads, `presence` from zenoh's."""

    to_all: Callable[[zenoh.Sample], None]
    to_own: Callable[[zenoh.Sample], None]
    query: Callable[[zenoh.Query], None]
    presence: Callable[[zenoh.Sample], None]
    begin: Callable[[str], None]  # a session of that name is open
    end: Callable[[], None]  # the session is closed: no member is present
    wait: Callable[[int], None]  # a message of a throttled member has to wait


class ZenohSession:
    """A session that can be reopened. Close it after use."""

    def __init__(self, settings: LinkSettings, hearers: SessionCallbacks) -> None:
        self._settings = settings
        self._hearers = hearers
        self._keys = chain_keys(settings.chain)
        self._session: zenoh.Session | None = None  # set once everything is declared
        self._is_over = False
        self._num_failed = 0  # attempts of a client to open
        self._presence: list[Entity] = []
        self._token: Entity | None = None
        self._listenings: list[Subscriptions[zenoh.Sample] | Subscriptions[zenoh.Query]] = []
        self._relayed: list[Subscriptions[zenoh.Sample] | Subscriptions[zenoh.Query]] = []  # by relay
        self._own_keys = self._keys  # under which this member publishes
        self._lock = threading.Lock()
        self.members: frozenset[int] = frozenset()  # set by the link; used at the next opening
        self.heard = Senders(frozenset())  # current subscriptions

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def num_transports(self) -> int:
        session = self._session
        try:
            return 0 if session is None or session.is_closed() else len(session.info.transports())
        except zenoh.ZError:  # closed meanwhile
            return 0

    def open(self) -> None:
        """Open and subscribe to all members; raises `LinkError`. A client stays closed while no peer is reachable."""
        with self._lock:
            self._open()

    def _open(self) -> None:
        if self._session is not None or self._is_over:
            return
        settings = self._settings
        turn = self._num_failed % max(1, len(settings.peers))  # a client tries the first of its peers only
        config = session_config(
            Role.PEER if settings.listen else Role.CLIENT,
            settings.listen,
            settings.peers[turn:] + settings.peers[:turn],
            settings.tls,
            keys=self._keys,
            members=sorted(self.members),
            lease_s=settings.lease_s,
            max_payload=max(settings.limits.max_message_size, settings.piece_size) + overhead(MAX_MEMBERS),
            number=settings.number,
        )
        # With zenoh's two receiving threads, two blocked peers would block all. So there is one thread per possible
        # connection, up to a limit. Zenoh reads this once, when the process first opens a session.
        num_threads = min(max_sessions(len(self.members)), _MAX_RECEIVING)
        os.environ.setdefault("ZENOH_RUNTIME", f"(rx: (worker_threads: {num_threads}))")
        try:
            session = zenoh.open(config)
        except zenoh.ZError as error:
            if not settings.listen:
                self._num_failed += 1
                return
            where = ", ".join(settings.listen)
            raise LinkError(f"cannot open the network, listening on {where}: {one_line(error)}") from None
        self._own_keys = self._keys.via(self._find_relay(session))
        self._hearers.begin(str(session.info.zid()))  # first: the session also receives its own presence
        try:
            self._declare(session)
        except zenoh.ZError as error:
            self._undeclare()
            session.close()  # type: ignore[no-untyped-call]
            self._join()
            raise LinkError(f"cannot take part in the network: {one_line(error)}") from None
        self._session = session

    def follow_relay(self) -> None:
        """Publish under the prefix of a new relay if zenoh failed over to one; raises `LinkError`."""
        with self._lock:
            session = self._session
            if session is None or not _links_of(session):
                return
            keys = self._keys.via(self._find_relay(session))
            if keys == self._own_keys:
                return
            former, self._own_keys = self._own_keys, keys
            try:
                self._declare_token(session)
            except zenoh.ZError as error:
                self._own_keys = former  # retried by the link
                raise LinkError(f"cannot take part in the network: {one_line(error)}") from None

    def _find_relay(self, session: zenoh.Session) -> int | None:
        """Return the member that relays for this node; None if an access point does, or the node listens itself."""
        if self._settings.listen:
            return None
        names = {member_name(number): number for number in self.members}
        return next((names[link.auth_identifier] for link in _links_of(session) if link.auth_identifier in names), None)

    def _declare(self, session: zenoh.Session) -> None:
        number, keys, hearers = self._settings.number, self._keys, self._hearers
        # With access points several members may share one connection, which must never block.
        is_shared = not self._settings.listen or self._settings.num_access_points > 0

        def subscribe(key: str, is_slow: bool) -> "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]":
            channel: Channel[zenoh.Sample] = new_channel(is_slow=is_slow, drops=is_slow and is_shared)
            return session.declare_subscriber(key, channel, allowed_origin=_OTHERS)

        def subscribe_relayed(key: str) -> "zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]":
            channel: Channel[zenoh.Sample] = new_channel(drops=True, capacity=_RELAYED_CAPACITY)
            return session.declare_subscriber(key, channel, allowed_origin=_OTHERS)

        def serve(key: str, is_slow: bool) -> "zenoh.Queryable[zenoh.handlers.Handler[zenoh.Query]]":
            channel: Channel[zenoh.Query] = new_channel(is_slow=is_slow, drops=is_shared)  # some never read answers
            return session.declare_queryable(key, channel, allowed_origin=_OTHERS)

        self._listenings += (
            Subscriptions(
                "link-all", lambda who, slow: subscribe(keys.to_all(who), slow), hearers.to_all, self._pace_of
            ),
            Subscriptions(
                "link-own", lambda who, slow: subscribe(keys.to_one(number, who), slow), hearers.to_own, self._pace_of
            ),
            Subscriptions(
                "link-server",
                lambda who, slow: serve(keys.blob(number, who), slow),
                hearers.query,
                self._pace_of_requests,
            ),
        )
        self._relayed += (
            Subscriptions(
                "relay-all",
                lambda relay, _: subscribe_relayed(keys.via(relay).to_all("*")),
                hearers.to_all,
                self._pace_of_relay,
            ),
            Subscriptions(
                "relay-own",
                lambda relay, _: subscribe_relayed(keys.via(relay).to_one(number, "*")),
                hearers.to_own,
                self._pace_of_relay,
            ),
            Subscriptions(
                "relay-server",
                lambda relay, _: serve(keys.via(relay).blob(number, "*"), False),
                hearers.query,
                self._pace_of_relay,
            ),
        )
        self._listen_to(Senders(self.members))
        alive = session.liveliness()
        for path in (keys, keys.via("*")):
            on_presence = _direct(hearers.presence)
            self._presence.append(alive.declare_subscriber(path.here("*"), on_presence, history=True))
        self._declare_token(session)

    def _declare_token(self, session: zenoh.Session) -> None:
        """Declare this member's presence on its current path."""
        with suppress(zenoh.ZError):
            if self._token is not None:
                self._token.undeclare()
        self._token = session.liveliness().declare_token(
            self._own_keys.here(self._settings.number, str(session.info.zid()))
        )

    def _pace_of(self, member: int) -> SubscriptionRate[zenoh.Sample]:
        limits = self._settings.limits
        return self._new_pace(limits.slow_per_s, limits.slow_burst, partial(self._hearers.wait, member))

    def _pace_of_requests(self, member: int) -> SubscriptionRate[zenoh.Query]:
        limits = self._settings.limits
        return self._new_pace(limits.slow_requests_per_s, limits.slow_burst, partial(self._hearers.wait, member))

    def _pace_of_relay(self, _: int) -> SubscriptionRate[zenoh.Sample | zenoh.Query]:
        """Return a rate limit above the traffic of an honest relay's clients; waits are not reported."""
        limits = self._settings.limits
        return self._new_pace(_RELAYED_TIMES * limits.slow_per_s, _RELAYED_TIMES * limits.slow_burst, lambda: None)

    def _new_pace(
        self, per_s: int, burst: int, on_wait: Callable[[], None]
    ) -> SubscriptionRate[zenoh.Sample | zenoh.Query]:
        slow_bytes = self._settings.limits.slow_bytes

        def cost(heard: zenoh.Sample | zenoh.Query) -> float:
            return 1 + (0 if heard.payload is None else len(heard.payload)) / slow_bytes

        return SubscriptionRate(Bucket(per_s, burst), cost, on_wait)

    def reopen(self) -> None:
        """Reconnect with the current TLS files; raises `LinkError`. Messages meanwhile are lost."""
        with self._lock:
            self._disconnect()
            self._open()

    def listen_to(self, audience: Senders) -> None:
        """Subscribe to these members only."""
        with self._lock, suppress(zenoh.ZError):  # the session may be closed
            self._listen_to(audience)

    def _listen_to(self, audience: Senders) -> None:
        self.heard = audience
        for listening in self._listenings:
            listening.listen_to(audience.members, audience.slow)
        for listening in self._relayed:
            listening.listen_to(audience.relays, audience.relays)  # all throttled: the relay itself may flood

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            self._disconnect()

    def put(self, to: int | None, data: bytes) -> bool:
        """Send to one member or all others; return False if the session is closed."""
        session, keys, sender = self._session, self._own_keys, self._settings.number
        if session is None:
            return False
        key = keys.to_all(sender) if to is None else keys.to_one(to, sender)
        try:
            session.put(key, data, congestion_control=_DROP, priority=_URGENT, allowed_destination=_OTHERS)
        except zenoh.ZError:
            return False
        return True

    def ask(
        self,
        holder: int,
        request: bytes,
        read: Callable[[zenoh.Sample], Answer | None],
        on_answer: Callable[[Answer], None],
    ) -> None:
        """Request a piece; `on_answer` gets the first answer that `read` accepts, or `Silence`, once."""
        session = self._session
        answers = _Answers(read, on_answer)
        try:
            if session is None:
                raise zenoh.ZError("closed")
            session.get(
                self._own_keys.blob(holder, self._settings.number),
                _direct(answers.take, answers.end),
                payload=request,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                timeout=_LATE_TIMES * self._settings.fetch_s,
                congestion_control=_DROP,
                priority=_BULK,
                allowed_destination=_OTHERS,
            )
        except zenoh.ZError:
            answers.end()

    def reply(self, query: zenoh.Query, to: Line, answer: bytes, piece: bytes) -> None:
        """Answer a request, with a piece or an empty one.

        It inherits the request's congestion control: ours drop on a full line, a foreign request may make it block.
        """
        query.reply(self._keys.via(to.relay).blob(self._settings.number, to.member), piece, attachment=answer)

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        self._undeclare()
        if session is not None:
            session.close()  # type: ignore[no-untyped-call]
        self._join()
        self._hearers.end()

    def _undeclare(self) -> None:
        declared = [*self._presence, *([] if self._token is None else [self._token])]
        self._presence, self._token = [], None
        for entity in declared:
            with suppress(zenoh.ZError):
                entity.undeclare()
        for listening in (*self._listenings, *self._relayed):
            listening.end()

    def _join(self) -> None:
        """Join all receiving threads: zenoh entities left to interpreter shutdown could hang it."""
        deadline_s = time.monotonic() + _CLOSE_WAIT_S
        for listenings in (self._listenings, self._relayed):
            while listenings:
                listenings.pop().join(deadline_s)


class _Answers:
    """Passes on the holder's answer to one request; the end of the request without one is `Silence`.

    Then no holder is reachable, or zenoh dropped the request or answer on a full line. Other nodes can answer under the
    holder's name, and before it: any member can certify any name, and access points forward.
    """

    def __init__(self, read: Callable[[zenoh.Sample], Answer | None], on_answer: Callable[[Answer], None]) -> None:
        self._read = read
        self._on_answer: Callable[[Answer], None] | None = on_answer
        self._num_ignored = 0

    def take(self, reply: zenoh.Reply) -> None:
        if self._on_answer is None or self._num_ignored >= _MAX_IGNORED:
            return
        answer = None if reply.ok is None else self._read(reply.ok)
        if answer is None:
            self._num_ignored += 1
        else:
            self._pass(answer)

    def end(self) -> None:
        self._pass(Silence())

    def _pass(self, answer: Answer) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)


def _links_of(session: zenoh.Session | None) -> list[zenoh.Link]:
    """Return the session's current connections."""
    try:
        return [] if session is None or session.is_closed() else session.info.links()
    except zenoh.ZError:  # closed meanwhile
        return []


def _direct(
    callback: Callable[[_Heard], None], end: Callable[[], None] | None = None
) -> "zenoh.handlers.Callback[_Heard]":
    """Return a callback for zenoh's own thread: indirect ones cost a thread and an unbounded queue per entity."""
    return zenoh.handlers.Callback(callback, end, indirect=False)
