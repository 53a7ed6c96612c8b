"""Ingress checks, cheapest first: size, membership, rate limits, replay window, MAC, encoding.

Before the MAC is verified the sender is unauthenticated, so rejections are not charged to any member.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bdfl.encoding import BadEncoding, decode
from bdfl.errors import BdflError
from bdfl.protocol.messages import Message, decode_message
from bdfl.transports.live.envelope import (
    CounterWindow,
    Envelope,
    Keyring,
    PieceAnswer,
    PieceRequest,
    Purpose,
    is_sealed,
    overhead,
    read_envelope,
)
from bdfl.transports.live.limits import Allowance, Bucket, Limits, LineAllowance
from bdfl.transports.live.zenoh_config import Line

MAX_REQUEST_SIZE = 64  # of an encoded request for a piece
MAX_ANSWER_SIZE = 96  # of an encoded answer, without the piece


class Refusal(StrEnum):
    """Reason for dropping an incoming message or request."""

    SIZE = "size"  # too many bytes
    STRANGER = "stranger"  # sender or relay is no member
    RATE = "rate"  # over a member's rate limit, or the check limit of its line
    QUEUE = "queue"  # too many messages pending
    REPLAY = "replay"  # counter already seen
    SEAL = "seal"  # wrong MAC
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


class Gate:
    """Members with their rate limits, MAC keys and replay windows. Thread-safe."""

    def __init__(self, keyring: Keyring, number: int, limits: Limits) -> None:
        self._keyring, self._number, self._limits = keyring, number, limits
        self._members: dict[int, _Member] = {}
        self._num_seals = 0  # of a broadcast
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
            self._members, self._num_seals = members, len(public_keys)  # atomic: some readers take no lock

    @property
    def members(self) -> frozenset[int]:
        """Numbers of all other members."""
        return frozenset(self._members)

    def is_member(self, number: int | None) -> bool:
        """Return whether that is another member."""
        return number in self._members

    def admit(self, line: Line | None, size: int, now_ns: int) -> Line:
        """Return the line if a message of `size` bytes on it may be checked; raises `Refused`."""
        if size > self._limits.max_message_size + overhead(self._num_seals):
            raise Refused(Refusal.SIZE)
        with self._lock:
            known, allowance = self._line(line)
            if not allowance.checks.take(1, now_ns) or not allowance.bytes.take(size, now_ns):
                raise Refused(Refusal.RATE)
        return known

    def open_message(self, sender: int, receiver: int | None, data: bytes, now_ns: int) -> bytes:
        """Authenticate an envelope under a sender's key expression and return its payload; raises `Refused`.

        The message then counts as pending until `dismiss`.
        """
        envelope = self._read(data, self._limits.max_message_size, self._num_seals)
        if envelope.sender != sender or envelope.receiver != receiver:
            raise Refused(Refusal.ADDRESS)
        allowance = self._validate(envelope, Purpose.MESSAGE)
        self._spend(allowance.messages, now_ns)
        with self._lock:
            if allowance.num_pending >= self._limits.pending:
                raise Refused(Refusal.QUEUE)
            allowance.num_pending += 1
        return envelope.payload

    def dismiss(self, sender: int) -> None:
        """Release the pending slot of an opened message."""
        with self._lock:
            member = self._members.get(sender)
            if member is not None:
                member.allowance.num_pending = max(0, member.allowance.num_pending - 1)

    def read_message(self, sender: int, payload: bytes) -> Message:
        """Decode the message in a sender's payload; raises `Refused`."""
        try:
            message = decode_message(payload, self._limits.max_message_size)
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
        self._validate_seal(envelope, Purpose.ANSWER, member)
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

    def _read(self, data: bytes, max_payload: int, num_seals: int) -> Envelope:
        try:
            return read_envelope(data, max_payload, num_seals)
        except BadEncoding:
            raise Refused(Refusal.ENCODING) from None

    def _validate(self, envelope: Envelope, purpose: Purpose) -> Allowance:
        """Return the sender's budgets; raises unless the MAC is valid and the counter is new."""
        with self._lock:
            member = self._member(envelope.sender)
            if not member.window.is_new(envelope.counter):
                raise Refused(Refusal.REPLAY)
        self._validate_seal(envelope, purpose, member)
        with self._lock:
            if not member.window.note(envelope.counter):
                raise Refused(Refusal.REPLAY)
        return member.allowance

    def _validate_seal(self, envelope: Envelope, purpose: Purpose, member: _Member) -> None:
        if member.key is None or not is_sealed(envelope, purpose, member.key, self._number):
            raise Refused(Refusal.SEAL)

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
