"""Admission of messages, token buckets per member, muted and throttled senders.

Checks come cheapest first: size, membership, rate limits, replay window, MAC, encoding. A message under a member's name
may be forged: any member can certify any name, and access points and relays forward. So there are two kinds of buckets.
One bounds unauthenticated checks per line, a member's name on one path. The other bounds a member, and only messages
with its MAC take from it or count towards muting it, since otherwise any member could have another one muted.

Unsubscribing from a muted member is cheaper than rejecting: zenoh then drops its traffic, often at the source.
Unauthenticated floods under a name only throttle it: back-pressure slows their sender, and the member is still heard.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bdfl.encoding import BadEncoding, decode
from bdfl.errors import BdflError
from bdfl.ledger.costs import NANO
from bdfl.protocol.messages import Message, decode_message
from bdfl.transports.live.envelope import (
    CounterWindow,
    Envelope,
    Keyring,
    PieceAnswer,
    PieceRequest,
    Purpose,
    is_authentic,
    overhead,
    read_envelope,
)
from bdfl.transports.live.zenoh_config import Line

_MESSAGE_BYTES = 256 * 1024  # base limit of a message
_BYTES_PER_PAIR = 256  # added per pair of members: a block holds votes of all on updates of all


def message_limit(num_members: int) -> int:
    """Return the size limit of a message (bytes), far above honest ones: a block of 24 members has some 50 kB."""
    return _MESSAGE_BYTES + _BYTES_PER_PAIR * num_members**2


@dataclass(frozen=True)
class Limits:
    """Limits per member, far above honest rounds. Messages over a limit are dropped and counted.

    One of 24 members sends some 10 messages a round, and a few hundred a second while others sync from it.
    """

    max_message_size: int = message_limit(64)  # of an encoded message
    checks_per_s: int = 500  # MAC checks per line
    checks_burst: int = 2_000
    slow_per_s: int = 200  # messages of a throttled name, broadcast and direct each
    slow_requests_per_s: int = 50  # each also costs an answer
    slow_burst: int = 20
    slow_bytes: int = 64 * 1024  # of payload cost as much as a message
    slow_s: float = 10.0  # throttling after the last wait
    messages_per_s: int = 200  # authenticated
    messages_burst: int = 2_000
    bytes_per_s: int = 8 * 2**20
    bytes_burst: int = 32 * 2**20
    requests_per_s: int = 150  # for pieces: more than the 128 of 512 KiB that `served_per_s` allows
    requests_burst: int = 1_000
    served_per_s: int = 64 * 2**20  # bytes of blobs
    served_burst: int = 1024 * 2**20
    refused_cost: int = 16  # in messages, of an authenticated one that was refused
    aside_cost: int = 3  # in messages, of one about a past round, and of a block sent in answer
    patience: int = 1_000  # refused messages (plus one per 4 kB) before a member is muted
    patience_per_s: int = 20  # refill rate
    mute_s: float = 5.0  # the first time, then doubled each time
    max_mute_s: float = 60.0
    outgoing: int = 4_096  # broadcasts waiting to be sent
    outgoing_bytes: int = 128 * 2**20
    answers: int = 64  # to one member, waiting to be sent
    answers_bytes: int = 8 * 2**20


class Bucket:
    """A token bucket. Time is the caller's monotonic clock, in ns."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens = float(burst)
        self._at_ns = 0

    def take(self, amount: float, now_ns: int) -> bool:
        """Take `amount` tokens if available; return whether they were."""
        self._refill(now_ns)
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def drain(self, amount: float, now_ns: int) -> None:
        """Take `amount` tokens, or all if there are fewer."""
        self._refill(now_ns)
        self._tokens = max(0.0, self._tokens - amount)

    def owe(self, amount: float, now_ns: int) -> None:
        """Take `amount` tokens, going into debt if there are fewer."""
        self._refill(now_ns)
        self._tokens -= amount

    def wait_ns(self, amount: float, now_ns: int) -> int:
        """Return the time (ns) until `amount` tokens are available; amounts above the burst count as the burst."""
        self._refill(now_ns)
        return max(0, int((min(amount, self._burst) - self._tokens) / self._per_s * NANO))

    def _refill(self, now_ns: int) -> None:
        passed_s = max(0, now_ns - self._at_ns) / NANO
        self._tokens = min(self._burst, self._tokens + passed_s * self._per_s)
        self._at_ns = max(self._at_ns, now_ns)


class LineAllowance:
    """Budgets of one line, before authentication."""

    def __init__(self, limits: Limits) -> None:
        self.checks = Bucket(limits.checks_per_s, limits.checks_burst)
        self.bytes = Bucket(limits.bytes_per_s, limits.bytes_burst)
        self.request_checks = Bucket(limits.requests_per_s, limits.requests_burst)


class Allowance:
    """Budgets of one member, for authenticated messages and requests."""

    def __init__(self, limits: Limits) -> None:
        self.messages = Bucket(limits.messages_per_s, limits.messages_burst)
        self.requests = Bucket(limits.requests_per_s, limits.requests_burst)
        self.served = Bucket(limits.served_per_s, limits.served_burst)


MAX_REQUEST_SIZE = 64  # of an encoded request for a piece
MAX_ANSWER_SIZE = 96  # of an encoded answer, without the piece


class Refusal(StrEnum):
    """Reason for dropping an incoming message or request."""

    SIZE = "size"  # too many bytes
    STRANGER = "stranger"  # sender or relay is no member
    RATE = "rate"  # over a member's rate limit, or the check limit of its line
    REPLAY = "replay"  # counter already seen
    MAC = "mac"  # wrong MAC
    ENCODING = "encoding"
    ADDRESS = "address"  # sender, receiver or chain differ from its key expression


class Refused(BdflError):
    """An incoming message or request was rejected."""

    def __init__(self, reason: Refusal, *, is_proven: bool = False) -> None:
        """`is_proven`: the MAC was valid, so the sender is authenticated."""
        super().__init__(reason.value)
        self.reason, self.is_proven = reason, is_proven


@dataclass
class _Member:
    public_key: bytes
    key: bytes | None  # shared with this node; None: it cannot be authenticated
    allowance: Allowance
    lines: dict[int | None, LineAllowance] = field(default_factory=dict)  # by relay
    window: CounterWindow = field(default_factory=CounterWindow)


class AdmissionControl:
    """Members with their rate limits, MAC keys and replay windows. Thread-safe."""

    def __init__(self, keyring: Keyring, number: int, limits: Limits) -> None:
        self._keyring, self._number, self._limits = keyring, number, limits
        self._members: dict[int, _Member] = {}
        self._num_macs = 0  # of a broadcast
        self._lock = threading.Lock()

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Set the members by number; a member with an unchanged key keeps its budgets."""
        with self._lock:
            members: dict[int, _Member] = {}
            for number, public_key in enumerate(public_keys):
                if public_key is None or number == self._number:
                    continue
                member = self._members.get(number)
                if member is None or member.public_key != public_key:
                    member = _Member(public_key, self._keyring.key_with(public_key), Allowance(self._limits))
                members[number] = member
            self._members, self._num_macs = members, len(public_keys)  # atomic: some readers take no lock

    @property
    def members(self) -> frozenset[int]:
        """Numbers of all other members."""
        return frozenset(self._members)

    def is_member(self, number: int | None) -> bool:
        """Return whether that is another member."""
        return number in self._members

    def admit(self, line: Line | None, size: int, now_ns: int) -> Line:
        """Return the line if a message of `size` bytes on it may be checked; raises `Refused`."""
        if size > self._limits.max_message_size + overhead(self._num_macs):
            raise Refused(Refusal.SIZE)
        with self._lock:
            known, allowance = self._line(line)
            if not allowance.checks.take(1, now_ns) or not allowance.bytes.take(size, now_ns):
                raise Refused(Refusal.RATE)
        return known

    def read_message(self, sender: int, receiver: int | None, data: bytes, now_ns: int) -> Message:
        """Authenticate and decode a message under a sender's key expression; raises `Refused`."""
        envelope = self._read(data, self._limits.max_message_size, self._num_macs)
        if envelope.sender != sender or envelope.receiver != receiver:
            raise Refused(Refusal.ADDRESS)
        self._spend(self._validate(envelope, Purpose.MESSAGE).messages, now_ns)
        try:
            message = decode_message(envelope.payload)
        except BadEncoding:
            raise Refused(Refusal.ENCODING, is_proven=True) from None
        if message.sender != sender or message.chain != self._keyring.chain:
            raise Refused(Refusal.ADDRESS, is_proven=True)
        return message

    def admit_request(self, line: Line | None, size: int, now_ns: int) -> Line:
        """Return the line if a request of `size` bytes on it may be checked; raises `Refused`."""
        if size > MAX_REQUEST_SIZE + overhead(1):
            raise Refused(Refusal.SIZE)
        with self._lock:
            known, allowance = self._line(line)
            if not allowance.request_checks.take(1, now_ns):
                raise Refused(Refusal.RATE)
        return known

    def read_request(self, sender: int, data: bytes, now_ns: int) -> PieceRequest:
        """Authenticate and decode a request under a sender's key expression; raises `Refused`."""
        envelope = self._read(data, MAX_REQUEST_SIZE, 1)
        if envelope.sender != sender or envelope.receiver != self._number:
            raise Refused(Refusal.ADDRESS)
        self._spend(self._validate(envelope, Purpose.REQUEST).requests, now_ns)
        try:
            return decode(envelope.payload, PieceRequest, MAX_REQUEST_SIZE)
        except BadEncoding:
            raise Refused(Refusal.ENCODING, is_proven=True) from None

    def read_answer(self, holder: int, request: bytes, data: bytes) -> PieceAnswer:
        """Authenticate and decode a holder's answer to the request with that digest; raises `Refused`, uncharged."""
        envelope = self._read(data, MAX_ANSWER_SIZE, 1)
        try:
            answer = decode(envelope.payload, PieceAnswer, MAX_ANSWER_SIZE)
        except BadEncoding:
            raise Refused(Refusal.ENCODING) from None
        if envelope.sender != holder or envelope.receiver != self._number or answer.request != request:
            raise Refused(Refusal.ADDRESS)
        with self._lock:
            member = self._member(holder)
        self._validate_mac(envelope, Purpose.ANSWER, member)
        return answer

    def charge(self, sender: int | None, now_ns: int) -> None:
        """Charge a member for an authenticated message or request that was refused."""
        with self._lock:
            member = None if sender is None else self._members.get(sender)
            if member is not None:
                member.allowance.messages.drain(self._limits.refused_cost, now_ns)
                member.allowance.requests.drain(self._limits.refused_cost, now_ns)

    def charge_aside(self, sender: int, num_asides: int, now_ns: int) -> None:
        """Charge a member for valid messages that are not about the current round."""
        with self._lock:
            member = self._members.get(sender)
            if member is not None:
                member.allowance.messages.drain(num_asides * self._limits.aside_cost, now_ns)

    def serving_wait_ns(self, number: int, size: int, now_ns: int) -> int:
        """Return the wait (ns) until `size` bytes of blobs may be served to a member; 0: counted as served now."""
        with self._lock:
            member = self._members.get(number)
            if member is None:
                return 0
            served = member.allowance.served
            return 0 if served.take(size, now_ns) else max(1, served.wait_ns(size, now_ns))

    def _read(self, data: bytes, max_payload: int, num_macs: int) -> Envelope:
        try:
            return read_envelope(data, max_payload, num_macs)
        except BadEncoding:
            raise Refused(Refusal.ENCODING) from None

    def _validate(self, envelope: Envelope, purpose: Purpose) -> Allowance:
        """Return the sender's budgets; raises unless the MAC is valid and the counter is new."""
        with self._lock:
            member = self._member(envelope.sender)
            if not member.window.is_new(envelope.counter):
                raise Refused(Refusal.REPLAY)
        self._validate_mac(envelope, purpose, member)
        with self._lock:
            if not member.window.note(envelope.counter):
                raise Refused(Refusal.REPLAY)
        return member.allowance

    def _validate_mac(self, envelope: Envelope, purpose: Purpose, member: _Member) -> None:
        if member.key is None or not is_authentic(envelope, purpose, member.key, self._number):
            raise Refused(Refusal.MAC)

    def _spend(self, bucket: Bucket, now_ns: int) -> None:
        with self._lock:
            if not bucket.take(1, now_ns):
                raise Refused(Refusal.RATE, is_proven=True)

    def _line(self, line: Line | None) -> tuple[Line, LineAllowance]:
        """Return a line and its budgets; raises unless the member and any relay are known."""
        if line is None or not (line.relay is None or line.relay == self._number or line.relay in self._members):
            raise Refused(Refusal.STRANGER)
        lines = self._member(line.member).lines
        if line.relay not in lines:
            lines[line.relay] = LineAllowance(self._limits)
        return line, lines[line.relay]

    def _member(self, number: int | None) -> _Member:
        member = None if number is None else self._members.get(number)
        if member is None:
            raise Refused(Refusal.STRANGER)
        return member


_BYTES_PER_COST = 4096
_FORGIVEN_AFTER = 10  # times the last mute; then the next one is short again


class _Penalties:
    """Members under a penalty until a time. Time is the caller's monotonic clock, in ns. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ends_ns: dict[int, int] = {}  # of the last penalty, by member

    def end_ns(self, member: int) -> int:
        """Return the end of a member's last penalty (ns); 0 if there was none."""
        return self._ends_ns.get(member, 0)

    def members(self, now_ns: int) -> frozenset[int]:
        """Return the members that are under the penalty now."""
        return frozenset(member for member, end_ns in self._ends_ns.items() if now_ns < end_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """Return the next end of a penalty (ns); None if there is none now."""
        return min((end_ns for end_ns in self._ends_ns.values() if now_ns < end_ns), default=None)


class MutedSenders(_Penalties):
    """Block list of muted members."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._patience: dict[int, Bucket] = {}
        self._lasts_s: dict[int, float] = {}  # of the last mute

    def note(self, member: int, size: int, now_ns: int) -> bool:
        """Count a refused message of `size` bytes; return whether it mutes the member."""
        limits, end_ns = self._limits, self.end_ns(member)
        if member not in self._patience:
            self._patience[member] = Bucket(limits.patience_per_s, limits.patience)
        if now_ns < end_ns or self._patience[member].take(1 + size // _BYTES_PER_COST, now_ns):
            return False
        last_s = self._lasts_s.get(member, 0.0)
        is_forgiven = not last_s or now_ns - end_ns > _FORGIVEN_AFTER * last_s * NANO
        self._lasts_s[member] = limits.mute_s if is_forgiven else min(2 * last_s, limits.max_mute_s)
        self._ends_ns[member] = now_ns + round(self._lasts_s[member] * NANO)
        return True


class ThrottledSenders(_Penalties):
    """Throttled names: more arrives under them than is checked."""

    def note(self, member: int, now_ns: int) -> bool:
        """Throttle a name for a while; return whether it was not throttled before."""
        is_news = now_ns >= self.end_ns(member)
        self._ends_ns[member] = now_ns + round(self._limits.slow_s * NANO)
        return is_news
