"""A node's link to the others over zenoh. The node never waits for it, and no peer can make it work for nothing.

What arrives is checked in the order of its cost: size, membership, budgets and seal by the threads that hear, so that
these never fall behind; encoding and content by another. One thread sends, one pulls blobs, and the one that hears
what a member asks for serves it: who asks and does not read keeps its own waiting only. All queues are bounded.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import zenoh

from bdfl.encoding import digest, encode
from bdfl.errors import BdflError
from bdfl.protocol.messages import Message, encode_message
from bdfl.transports.live.blob_pull import Absent, Answer, NotYet, Piece
from bdfl.transports.live.doorkeeper import Doorkeeper
from bdfl.transports.live.envelope import Keyring, PieceAnswer, PieceRequest, Purpose, Sealer
from bdfl.transports.live.gate import Gate, Refusal, Refused
from bdfl.transports.live.lane import Lane
from bdfl.transports.live.limits import Bucket
from bdfl.transports.live.listening import Audience
from bdfl.transports.live.mutes import Mutes, Pressed
from bdfl.transports.live.outbox import Outbox
from bdfl.transports.live.ports import Receiver
from bdfl.transports.live.puller import Puller
from bdfl.transports.live.zenoh_config import Line, line_of
from bdfl.transports.live.zenoh_session import Hearers, LinkSettings, ZenohSession

_CLOSE_WAIT_S = 2.0
_MUTE_SLACK_S = 0.01
_RETRY_S = 0.5
_MAX_SESSIONS = 4  # of one member that are remembered: it may have several while it connects anew
_TWIN_S = 60.0  # for which a connection in the node's own name is remembered
_PRESSING = (Refusal.RATE, Refusal.QUEUE, Refusal.SIZE)  # refused unread, each at the cost of having received it
_MAX_REFUSALS_PER_S = 100  # that the node hears of; all are counted


class ZenohLink:
    """The network as a node sees it: `ports.Link`. Opened and closed once."""

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._session = ZenohSession(
            settings,
            Hearers(
                self._hear_all,
                self._hear_own,
                self._hear_query,
                self._hear_presence,
                self._begin_session,
                self._end_session,
                self._press,
            ),
        )
        keyring = Keyring(settings.signer, settings.chain)
        self._sealer = Sealer(keyring, settings.number, settings.life, settings.public_keys)
        self._gate = Gate(keyring, settings.number, settings.limits)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refusals = Bucket(_MAX_REFUSALS_PER_S, _MAX_REFUSALS_PER_S)
        self._tokens: dict[Line, set[str]] = {}  # sessions in which members say that they are there
        self._twin_since_s: float | None = None
        self._presence_lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._mutes = Mutes(settings.limits)
        self._pressed = Pressed(settings.limits)
        self._mute_news = threading.Condition()
        self._doorkeeper = Doorkeeper(
            settings.listen,
            settings.number,
            self._gate,
            connected=self._session.connections,
            pressed=self._find_pressed,
            muted=self._find_muted,
            greet=self._greet,
            count=self._count,
        )
        self._muter: threading.Thread | None = None
        self._connector: threading.Thread | None = None
        self._closing = threading.Event()
        self._is_closed = False
        self.set_members(settings.public_keys)

    def open(self, receiver: Receiver) -> None:
        """Begins to receive; raises `LinkError`. Whether anybody is there shows later: see `num_transports`."""
        limits = self._settings.limits
        self._receiver = receiver
        self._sending = Outbox(self._send, limits)
        self._checking = Lane("link-checker", self._check, limits.pending * 64, limits.pending_bytes)
        self._puller = Puller(
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
        self._doorkeeper.start()

    def send(self, to: int | None, message: Message) -> None:
        """Sends to one member or all others. The queue is bounded: what does not fit is dropped and counted."""
        payload = encode_message(message)
        if len(payload) > self._settings.limits.max_message_size:
            self._count("unsent_size")
        elif not self._sending.put(to, payload):
            self._count("unsent_queue")

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Begins to pull a blob of so many bytes, from these members first; goes on until it is here or forgotten."""
        if 0 <= size <= self._settings.max_blob_size:
            self._puller.fetch(blob, size, [number for number in holders if self._gate.is_member(number)])
        else:
            self._count("fetches_too_large")

    def forget_fetches(self) -> None:
        """Ends all pulls."""
        self._puller.forget()

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Who may speak from now on, by member number; TLS lets them in, and others no more, from `reload` on."""
        self._gate.set_members(public_keys)
        self._sealer.set_members(public_keys)
        self._session.members = self._gate.members  # nobody else may speak in this one's name
        self._wake_muter()
        if self._session.is_open:
            self._notice()

    @property
    def present(self) -> frozenset[int]:
        return frozenset(line.member for line in tuple(self._tokens) if self._gate.is_member(line.member))

    @property
    def has_twin(self) -> bool:
        """Another node is this member: it says so for longer than an old session lingers, or came to connect.

        Presence and names of connections are not authenticated, so this is shown to people and changes nothing.
        """
        now_s, since_s, seen_s = time.monotonic(), self._twin_since_s, self._doorkeeper.own_name_s
        is_present = since_s is not None and now_s - since_s > 2 * self._settings.lease_s
        return is_present or (seen_s is not None and now_s - seen_s < _TWIN_S)

    @property
    def num_transports(self) -> int:
        """How many peers and access points the link is connected to; zenoh opens happily with none."""
        return self._session.num_transports

    def counters(self) -> dict[str, int]:
        """What happened since the link was made, by name; all only grow."""
        with self._lock:
            return dict(self._counts)

    @property
    def queued(self) -> dict[str, int]:
        """How much waits now, by queue, and how many are not listened to; nothing before the link is open."""
        if not self._session.is_open:
            return {}
        with self._mute_news:
            now_ns = time.monotonic_ns()
            num_muted, num_pressed = len(self._mutes.muted(now_ns)), len(self._pressed.pressed(now_ns))
        return {
            "sending": len(self._sending),
            "checking": len(self._checking),
            "fetching": self._puller.num_pulls,
            "muted": num_muted,  # members
            "slowed": num_pressed,  # members' names
        }

    def reload(self) -> None:
        """Connects anew, with the TLS files and members as they are now; what is said meanwhile is lost.

        Raises `LinkError` where that fails; it is tried again until it does not.
        """
        self._session.reopen()
        self._wake_muter()

    def blame(self, sender: int | None) -> None:
        """What that member sealed was looked into and refused: it costs its sender what it may send."""
        if sender is not None:
            self._gate.charge(sender, time.monotonic_ns())
            self._lose_patience(sender, 0)

    def charge_aside(self, sender: int, num_asides: int) -> None:
        """What that member said made so much work beside the present round: it costs its sender what it may say."""
        self._gate.charge_aside(sender, num_asides, time.monotonic_ns())

    def close(self) -> None:
        """Ends everything; nothing is called any more."""
        if self._is_closed or self._receiver is None:
            return
        self._is_closed = True
        self._closing.set()
        self._wake_muter()
        for thread in (self._connector, self._muter):
            if thread is not None:
                thread.join(_CLOSE_WAIT_S)
        self._doorkeeper.close(_CLOSE_WAIT_S)
        self._puller.close(_CLOSE_WAIT_S)
        self._sending.close(_CLOSE_WAIT_S)
        self._checking.close(_CLOSE_WAIT_S)
        self._session.close()

    def _stay_connected(self) -> None:
        """Opens a client once its relay or access point is there, and follows it where it fails over to another.

        Sessions that are open reconnect by themselves.
        """
        while not self._closing.wait(_RETRY_S):
            with suppress(BdflError):
                if self._session.is_open:
                    self._session.follow_relay()
                else:
                    self._session.open()
                    self._wake_muter()

    def _find_pressed(self) -> frozenset[int]:
        with self._mute_news:
            return self._pressed.pressed(time.monotonic_ns())

    def _find_muted(self) -> frozenset[int]:
        with self._mute_news:
            return self._mutes.muted(time.monotonic_ns())

    def _greet(self, member: int) -> None:
        """An empty message: its envelope says all."""
        self._sending.put(member, b"")

    def _begin_session(self, name: str) -> None:
        self._sealer.session = name

    def _end_session(self) -> None:
        with self._presence_lock:
            self._tokens.clear()
            self._puller.set_present(frozenset())
        self._doorkeeper.forget()

    def _send(self, to: int | None, payload: bytes) -> None:
        if not self._session.is_open:
            self._count("unsent_closed")
            return
        data = self._sealer.seal(Purpose.MESSAGE, to, payload)
        if not self._session.put(to, data):
            self._count("unsent_closed")
            return
        self._count("sent")
        self._count("sent_bytes", len(data))

    def _hear_all(self, sample: zenoh.Sample) -> None:
        self._hear(sample, None)

    def _hear_own(self, sample: zenoh.Sample) -> None:
        self._hear(sample, self._settings.number)

    def _hear(self, sample: zenoh.Sample, receiver: int | None) -> None:
        if self._is_closed:
            return
        line, size = line_of(sample.key_expr), len(sample.payload)
        self._count("heard")
        self._count("heard_bytes", size)
        try:
            line = self._gate.admit(line, size, time.monotonic_ns())
            payload = self._gate.open_message(line.member, receiver, sample.payload.to_bytes(), time.monotonic_ns())
        except Refused as refused:
            self._refuse(line, refused, size)
            return
        if not payload:  # a greeting
            self._gate.dismiss(line.member)
        elif not self._checking.put((line, payload), size):
            self._gate.dismiss(line.member)
            self._refuse(line, Refused(Refusal.QUEUE), size)

    def _check(self, item: tuple[Line, bytes]) -> None:
        line, payload = item
        self._gate.dismiss(line.member)
        try:
            message = self._gate.read_message(line.member, payload)
        except Refused as refused:
            self._refuse(line, refused, len(payload))
            return
        self._count("received")
        if not self._is_closed and self._receiver is not None:
            self._receiver.receive(message)

    def _hear_query(self, query: zenoh.Query) -> None:
        """Answers a request, in the thread of the one who asks: who does not read keeps its own waiting only."""
        line, size = line_of(query.key_expr), 0 if query.payload is None else len(query.payload)
        with query, suppress(zenoh.ZError):  # the one who asked may be gone
            if self._is_closed:
                return
            try:
                line = self._gate.admit_request(line, size, time.monotonic_ns())
                data = _to_bytes(query.payload)
                request = self._gate.read_request(line.member, data, time.monotonic_ns())
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
            envelope = self._sealer.seal(Purpose.ANSWER, line.member, encode(said))
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
            wait_ns = self._gate.serving_wait_ns(asker, request.length, now_ns)
        if wait_ns > 0:
            self._count("served_not_yet")
            return NotYet(wait_ns)
        return Piece(offer.data[request.offset : end])

    def _ask(self, holder: int, request: PieceRequest, on_answer: Callable[[Answer], None]) -> None:
        data = self._sealer.seal(Purpose.REQUEST, holder, encode(request))
        asked = digest(data)
        self._session.ask(holder, data, lambda sample: self._read_answer(holder, asked, sample), on_answer)
        self._count("asked")

    def _read_answer(self, holder: int, request: bytes, sample: zenoh.Sample) -> Answer | None:
        """What the holder says to a request; none: it is somebody else who answers, which is not held against it."""
        try:
            said = self._gate.read_answer(holder, request, _to_bytes(sample.attachment))
        except Refused:
            self._count("answers_ignored")
            return None
        if said.piece is None:
            return Absent() if said.wait_ns is None else NotYet(said.wait_ns)
        piece = sample.payload.to_bytes()
        if digest(piece) != said.piece:  # changed on its way
            self._count("answers_ignored")
            return None
        return Piece(piece)

    def _hear_presence(self, sample: zenoh.Sample) -> None:
        key = str(sample.key_expr)
        line, session = line_of(key), key.rpartition("/")[0].rpartition("/")[2]
        if self._is_closed or line is None or session == self._sealer.session:
            return
        known = self._gate.members | {self._settings.number}
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
            self._puller.set_present(present)
            if self._receiver is not None:
                self._receiver.notice(present)

    def _mute(self) -> None:
        """Listens to all but those of whom too much was refused, until they may speak again; to some slowly."""
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

    def _find_heard(self) -> Audience:
        """To whom the node should listen now. Under the muter's lock."""
        now_ns = time.monotonic_ns()
        members = self._gate.members
        muted, pressed = self._mutes.muted(now_ns) & members, self._pressed.pressed(now_ns) & members
        relays = {line.relay for line in tuple(self._tokens) if line.member in members and line.relay is not None}
        return Audience(members - muted, pressed - muted, frozenset(relays & (members | {self._settings.number})))

    def _wake_muter(self) -> None:
        with self._mute_news:
            self._mute_news.notify_all()

    def _lose_patience(self, sender: int, size: int) -> None:
        if not self._gate.is_member(sender):
            return
        with self._mute_news:
            if self._mutes.note(sender, size, time.monotonic_ns()):
                self._count("muted")
                self._pressed.note(sender, self._mutes.end_ns(sender))  # it may go on as before: slowly then
                self._mute_news.notify_all()

    def _press(self, sender: int) -> None:
        """More arrives in that name than is looked into: it is to be heard slowly."""
        if not self._gate.is_member(sender):
            return
        with self._mute_news:
            if self._pressed.note(sender, time.monotonic_ns()):
                self._count("slowed")
                self._mute_news.notify_all()

    def _refuse(self, line: Line | None, refused: Refused, size: int) -> None:
        """Counts it, against its sender only if that is who sealed it: its name is on the key of a forged one too.

        A line relayed by others is never slowed: other clients of that relay speak over it. This node's own clients are
        known by their certificates, so that one of them that floods can be told and cut.
        """
        reason, now_ns = refused.reason, time.monotonic_ns()
        sender, relay = (None, None) if line is None else line
        self._count(f"refused_{reason.value}")
        if refused.is_proven and sender is not None:
            if reason is not Refusal.RATE:  # its budget is used up already
                self._gate.charge(sender, now_ns)
            self._lose_patience(sender, size)
        elif reason in _PRESSING and sender is not None and relay in (None, self._settings.number):
            self._press(sender)
        if self._receiver is not None and not self._is_closed and self._refusals.take(1, now_ns):
            self._receiver.refuse(sender, reason.value)

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount


def _to_bytes(data: zenoh.ZBytes | None) -> bytes:
    return b"" if data is None else data.to_bytes()
