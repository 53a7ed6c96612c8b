"""A node's `Link` over zenoh: non-blocking, with bounded queues, rate limits and penalties for refused messages.

Each member's messages are checked (size, membership, budgets, MAC, cheapest first), decoded and given to the node in
that member's receiving threads, and its requests are served there: a member that floods, or does not read its answers,
delays only itself. One thread sends, one downloads blobs.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import zenoh

from bdfl.encoding import digest, encode
from bdfl.errors import BdflError
from bdfl.protocol.events import MessageArrived, ServeDecided
from bdfl.protocol.messages import Message, encode_message
from bdfl.transports.interfaces import LiveObserver, Receiver, Transition
from bdfl.transports.live.admission import AdmissionControl, Bucket, MutedSenders, Refusal, Refused, ThrottledSenders
from bdfl.transports.live.blob_client import BlobClient
from bdfl.transports.live.blob_transfer import Absent, Answer, NotYet, Piece
from bdfl.transports.live.envelope import EnvelopeWriter, Keyring, PieceAnswer, PieceRequest, Purpose
from bdfl.transports.live.queues import Outbox
from bdfl.transports.live.subscriptions import Senders
from bdfl.transports.live.zenoh_config import Line, line_of
from bdfl.transports.live.zenoh_session import LinkSettings, SessionCallbacks, ZenohSession

_CLOSE_WAIT_S = 2.0
_MUTE_SLACK_S = 0.01
_RETRY_S = 0.5
_MAX_SESSIONS = 4  # remembered per member: it may have several while reconnecting
_PRESSING = (Refusal.RATE, Refusal.SIZE)  # refused undecoded: only receiving them costs
_MAX_REFUSALS_PER_S = 100  # reported to the node; all are counted


class ZenohLink:
    """A `Link` over zenoh. Opened and closed once."""

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._session = ZenohSession(
            settings,
            SessionCallbacks(
                partial(self._hear, receiver=None),
                partial(self._hear, receiver=settings.number),
                self._hear_query,
                self._hear_presence,
                self._begin_session,
                self._end_session,
                self._press,
            ),
        )
        keyring = Keyring(settings.signer, settings.chain)
        self._writer = EnvelopeWriter(keyring, settings.number, settings.incarnation, settings.public_keys)
        self._admission = AdmissionControl(keyring, settings.number, settings.limits)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refusals = Bucket(_MAX_REFUSALS_PER_S, _MAX_REFUSALS_PER_S)
        self._tokens: dict[Line, set[str]] = {}  # live sessions of members
        self._twin_since_s: float | None = None
        self._presence_lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._mutes = MutedSenders(settings.limits)
        self._pressed = ThrottledSenders(settings.limits)
        self._mute_news = threading.Condition()
        self._muter: threading.Thread | None = None
        self._connector: threading.Thread | None = None
        self._closing = threading.Event()
        self._is_closed = False
        self.set_members(settings.public_keys)

    def open(self, receiver: Receiver) -> None:
        """Start receiving; raises `LinkError`. Peers connect later: see `num_transports`."""
        limits = self._settings.limits
        self._receiver = receiver
        self._sending = Outbox(self._send, limits)
        self._blob_client = BlobClient(
            self._ask, receiver.receive_blob, self._count, self._settings.fetch_s, self._settings.piece_size
        )
        try:
            self._session.open()
        except BaseException:
            self.close()
            raise
        self._muter = threading.Thread(target=self._mute, name="link-muter", daemon=True)
        self._muter.start()
        self._connector = threading.Thread(target=self._stay_connected, name="link-connector", daemon=True)
        self._connector.start()

    def send(self, to: int | None, message: Message) -> None:
        """Queue a message to one member or all others. If it is too large or the queue is full, drop and count it."""
        payload = encode_message(message)
        if len(payload) > self._settings.limits.max_message_size:
            self._count("unsent_size")
        elif not self._sending.put(to, payload):
            self._count("unsent_queue")

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Download a blob of `size` bytes, preferably from these members, until it is complete or forgotten."""
        if 0 <= size <= self._settings.max_blob_size:
            self._blob_client.fetch(blob, size, [number for number in holders if self._admission.is_member(number)])
        else:
            self._count("fetches_too_large")

    def forget_fetches(self) -> None:
        """Cancel all downloads."""
        self._blob_client.forget()

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Set the members by number; None: no longer a member. TLS follows at the next `reload`."""
        self._admission.set_members(public_keys)
        self._writer.set_members(public_keys)
        self._session.members = self._admission.members  # excludes this node: no session may send under its name
        self._wake_muter()
        if self._session.is_open:
            self._notice()

    @property
    def present(self) -> frozenset[int]:
        return frozenset(line.member for line in tuple(self._tokens) if self._admission.is_member(line.member))

    @property
    def has_twin(self) -> bool:
        """True if another node runs as this member: it is present for more than twice the lease.

        Presence is not authenticated, so this is only shown to operators.
        """
        since_s = self._twin_since_s
        return since_s is not None and time.monotonic() - since_s > 2 * self._settings.lease_s

    @property
    def num_transports(self) -> int:
        """Number of connected peers and access points; zenoh also opens with none."""
        return self._session.num_transports

    def counters(self) -> dict[str, int]:
        """Return monotonic counters since the link was created, by name."""
        with self._lock:
            return dict(self._counts)

    @property
    def queued(self) -> dict[str, int]:
        """Queue lengths, and the numbers of muted and throttled members; empty before the link is open."""
        if not self._session.is_open:
            return {}
        with self._mute_news:
            now_ns = time.monotonic_ns()
            num_muted, num_pressed = len(self._mutes.members(now_ns)), len(self._pressed.members(now_ns))
        return {
            "sending": len(self._sending),
            "fetching": self._blob_client.num_pulls,
            "muted": num_muted,  # members
            "slowed": num_pressed,  # members' names
        }

    def reload(self) -> None:
        """Reconnect with the current TLS files and members; messages meanwhile are lost.

        Raises `LinkError` on failure; retries continue until one succeeds.
        """
        self._session.reopen()
        self._wake_muter()

    def blame(self, sender: int | None) -> None:
        """Charge a member for an authenticated message that the node refused."""
        if sender is not None:
            self._admission.charge(sender, time.monotonic_ns())
            self._lose_patience(sender, 0)

    def charge_aside(self, sender: int, num_asides: int) -> None:
        """Charge a member for messages and answers outside the current round."""
        self._admission.charge_aside(sender, num_asides, time.monotonic_ns())

    def close(self) -> None:
        """Close the session and end all threads; no callback is called afterwards."""
        if self._is_closed or self._receiver is None:
            return
        self._is_closed = True
        self._closing.set()
        self._wake_muter()
        for thread in (self._connector, self._muter):
            if thread is not None:
                thread.join(_CLOSE_WAIT_S)
        self._blob_client.close(_CLOSE_WAIT_S)
        self._sending.close(_CLOSE_WAIT_S)
        self._session.close()

    def _stay_connected(self) -> None:
        """Open a closed session once a peer is reachable, and follow a client's fail-over to another relay.

        Open sessions reconnect by themselves.
        """
        while not self._closing.wait(_RETRY_S):
            with suppress(BdflError):
                if self._session.is_open:
                    self._session.follow_relay()
                else:
                    self._session.open()
                    self._wake_muter()

    def _begin_session(self, name: str) -> None:
        self._writer.session = name

    def _end_session(self) -> None:
        with self._presence_lock:
            self._tokens.clear()
            self._blob_client.set_present(frozenset())

    def _send(self, to: int | None, payload: bytes) -> None:
        if not self._session.is_open:
            self._count("unsent_closed")
            return
        data = self._writer.write(Purpose.MESSAGE, to, payload)
        if not self._session.put(to, data):
            self._count("unsent_closed")
            return
        self._count("sent")
        self._count("sent_bytes", len(data))

    def _hear(self, sample: zenoh.Sample, receiver: int | None) -> None:
        if self._is_closed:
            return
        line, size = line_of(sample.key_expr), len(sample.payload)
        self._count("heard")
        self._count("heard_bytes", size)
        try:
            line = self._admission.admit(line, size, time.monotonic_ns())
            message = self._admission.read_message(
                line.member, receiver, sample.payload.to_bytes(), time.monotonic_ns()
            )
        except Refused as refused:
            self._refuse(line, refused, size)
            return
        self._count("received")
        if not self._is_closed and self._receiver is not None:
            self._receiver.receive(message)

    def _hear_query(self, query: zenoh.Query) -> None:
        """Answer a request, in the asking member's receiving thread."""
        line, size = line_of(query.key_expr), 0 if query.payload is None else len(query.payload)
        with query, suppress(zenoh.ZError):  # the asking member may be gone
            if self._is_closed:
                return
            try:
                line = self._admission.admit_request(line, size, time.monotonic_ns())
                data = _to_bytes(query.payload)
                request = self._admission.read_request(line.member, data, time.monotonic_ns())
            except Refused as refused:
                self._refuse(line, refused, size)
                return
            answer = self._find_answer(line.member, request)
            piece = answer.data if isinstance(answer, Piece) else None
            said = PieceAnswer(
                request=digest(data),
                piece=None if piece is None else digest(piece),
                wait_ns=answer.wait_ns if isinstance(answer, NotYet) else None,
            )
            envelope = self._writer.write(Purpose.ANSWER, line.member, encode(said))
            self._session.reply(query, line, envelope, piece or b"")
            if piece is not None:
                self._count("served")
                self._count("served_bytes", len(piece))

    def _find_answer(self, asker: int, request: PieceRequest) -> Piece | NotYet | Absent:
        assert self._receiver is not None
        offer = self._receiver.offer(asker, request.blob)
        end = request.offset + request.length
        if offer is None or end > len(offer.data) or request.length > self._settings.piece_size:
            self._count("served_absent")
            return Absent()
        now_ns = time.monotonic_ns()
        wait_ns = offer.ready_ns(end) - now_ns
        if wait_ns <= 0:
            wait_ns = self._admission.serving_wait_ns(asker, request.length, now_ns)
        if wait_ns > 0:
            self._count("served_not_yet")
            return NotYet(wait_ns)
        return Piece(offer.data[request.offset : end])

    def _ask(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None:
        data = self._writer.write(Purpose.REQUEST, holder, encode(request))
        asked = digest(data)
        self._session.ask(holder, data, lambda sample: self._read_answer(holder, asked, sample), on_answer)
        self._count("asked")

    def _read_answer(self, holder: int, request: bytes, sample: zenoh.Sample) -> Answer | None:
        """Return the holder's answer to a request; None if it is not authentic, which is not charged to the holder."""
        try:
            said = self._admission.read_answer(holder, request, _to_bytes(sample.attachment))
        except Refused:
            self._count("answers_ignored")
            return None
        if said.piece is None:
            return Absent() if said.wait_ns is None else NotYet(said.wait_ns)
        piece = sample.payload.to_bytes()
        if digest(piece) != said.piece:  # altered in transit
            self._count("answers_ignored")
            return None
        return Piece(piece)

    def _hear_presence(self, sample: zenoh.Sample) -> None:
        key = str(sample.key_expr)
        line, session = line_of(key), key.rpartition("/")[0].rpartition("/")[2]
        if self._is_closed or line is None or session == self._writer.session:
            return
        known = self._admission.members | {self._settings.number}
        if line.member not in known or (line.relay is not None and line.relay not in known):
            return
        with self._presence_lock:
            before = set(self._tokens)
            sessions = self._tokens.setdefault(line, set())
            if sample.kind != zenoh.SampleKind.PUT:
                sessions.discard(session)
            elif len(sessions) < _MAX_SESSIONS:
                sessions.add(session)
            if not sessions:
                del self._tokens[line]
            is_news = before != self._tokens.keys()
            if not any(one.member == self._settings.number for one in self._tokens):
                self._twin_since_s = None
            elif self._twin_since_s is None:
                self._twin_since_s = time.monotonic()
        if is_news and line.relay is not None:
            self._wake_muter()
        if is_news:
            self._notice()

    def _notice(self) -> None:
        with self._presence_lock:
            present = self.present
            self._blob_client.set_present(present)
            if self._receiver is not None:
                self._receiver.notice(present)

    def _mute(self) -> None:
        """Update subscriptions as members are muted or throttled, until closed."""
        while not self._is_closed:
            with self._mute_news:
                wanted = self._find_heard()
            if wanted != self._session.heard:
                self._session.listen_to(wanted)
            with self._mute_news:
                now_ns = time.monotonic_ns()
                if self._find_heard() == self._session.heard and not self._is_closed:
                    ends_ns = (self._mutes.next_end_ns(now_ns), self._pressed.next_end_ns(now_ns))
                    end_ns = min((one for one in ends_ns if one is not None), default=None)
                    self._mute_news.wait(None if end_ns is None else (end_ns - now_ns) / 1e9 + _MUTE_SLACK_S)

    def _find_heard(self) -> Senders:
        """Return the members to subscribe to now. The caller holds `_mute_news`."""
        now_ns = time.monotonic_ns()
        members = self._admission.members
        muted, pressed = self._mutes.members(now_ns) & members, self._pressed.members(now_ns) & members
        relays = {line.relay for line in tuple(self._tokens) if line.member in members and line.relay is not None}
        return Senders(members - muted, pressed - muted, frozenset(relays & (members | {self._settings.number})))

    def _wake_muter(self) -> None:
        with self._mute_news:
            self._mute_news.notify_all()

    def _lose_patience(self, sender: int, size: int) -> None:
        if not self._admission.is_member(sender):
            return
        with self._mute_news:
            if self._mutes.note(sender, size, time.monotonic_ns()):
                self._count("muted")
                self._pressed.note(sender, self._mutes.end_ns(sender))  # it may flood again: throttle it after the mute
                self._mute_news.notify_all()

    def _press(self, sender: int) -> None:
        """Throttle a name under which more arrives than is checked."""
        if not self._admission.is_member(sender):
            return
        with self._mute_news:
            if self._pressed.note(sender, time.monotonic_ns()):
                self._count("slowed")
                self._mute_news.notify_all()

    def _refuse(self, line: Line | None, refused: Refused, size: int) -> None:
        """Count a refusal; charge the named sender only if its MAC was valid, since key expressions can be forged.

        A relayed line is not throttled by name: the relay's other clients share its rate limit.
        """
        reason, now_ns = refused.reason, time.monotonic_ns()
        sender, relay = (None, None) if line is None else line
        self._count(f"refused_{reason.value}")
        if refused.is_proven and sender is not None:
            if reason is not Refusal.RATE:  # its budget is already empty
                self._admission.charge(sender, now_ns)
            self._lose_patience(sender, size)
        elif reason in _PRESSING and sender is not None and relay is None:
            self._press(sender)
        if self._receiver is not None and not self._is_closed and self._refusals.take(1, now_ns):
            self._receiver.refuse(sender, reason.value)

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount


def _to_bytes(data: zenoh.ZBytes | None) -> bytes:
    return b"" if data is None else data.to_bytes()


# Penalties: charge senders of refused or outdated messages against their rate limits.

_BY_THE_LINK = frozenset(reason.value for reason in Refusal)  # already counted by the link


class Penalties(LiveObserver):
    """An observer that reports to the link refused messages and work outside the current round."""

    def __init__(self, link: ZenohLink) -> None:
        self._link = link

    def stepped(self, now_ns: int, done: Transition) -> None:
        if not isinstance(done.event, MessageArrived):
            return
        message = done.event.message
        num_asides = int(message.height <= done.before.chain.height)
        num_asides += sum(isinstance(effect, ServeDecided) for effect in done.effects)
        if num_asides:
            self._link.charge_aside(message.sender, num_asides)

    def refused(self, sender: int | None, reason: str) -> None:
        if reason not in _BY_THE_LINK:
            self._link.blame(sender)
