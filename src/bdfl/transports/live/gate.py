"""Who may come in: what arrives is judged in the order of what it costs to judge, and only a member's own counts.

Until its seal is found right, anybody may have sent it: then it is refused at nobody's cost.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bdfl.encoding import BadEncoding, decode
from bdfl.errors import BdflError
from bdfl.protocol.messages import Message, decode_message
from bdfl.transports.live.connections import Heard
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
    """Why something that arrived was dropped."""

    SIZE = "size"  # too many bytes
    STRANGER = "stranger"  # not of a member
    RATE = "rate"  # over what one member may send, or what is looked into in its name
    QUEUE = "queue"  # too much of it waits to be read already
    REPLAY = "replay"  # came before
    SEAL = "seal"  # not made by whom it names
    ENCODING = "encoding"
    ADDRESS = "address"  # of another sender, receiver or chain than it came as


class Refused(BdflError):
    """Something from the network that is not let in."""

    def __init__(self, reason: Refusal, *, is_proven: bool = False) -> None:
        """`is_proven`: its sender sealed it, nobody else can have made it."""
        super().__init__(reason.value)
        self.reason, self.is_proven = reason, is_proven


@dataclass
class _Member:
    public_key: bytes
    key: bytes | None  # shared with this node; none: nothing of it can be believed
    allowance: Allowance
    lines: dict[int | None, LineAllowance] = field(default_factory=dict)  # by relay
    window: CounterWindow = field(default_factory=CounterWindow)
    heard: Heard | None = None  # over which session it spoke to this node last
    heard_counter: int = -1


class Gate:
    """Knows the members, what each of them may still send, and what of theirs came already. For any thread."""

    def __init__(self, keyring: Keyring, number: int, limits: Limits) -> None:
        self._keyring, self._number, self._limits = keyring, number, limits
        self._members: dict[int, _Member] = {}
        self._num_seals = 0  # of what is to all
        self._lock = threading.Lock()

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Who may speak, by number; who stays the same keeps its budgets."""
        with self._lock:
            members: dict[int, _Member] = {}
            for number, public_key in enumerate(public_keys):
                if public_key is None or number == self._number:
                    continue
                member = self._members.get(number)
                if member is None or member.public_key != public_key:
                    member = _Member(public_key, self._keyring.key_with(public_key), Allowance(self._limits))
                members[number] = member
            self._members, self._num_seals = members, len(public_keys)  # at once: some look without the lock

    @property
    def members(self) -> frozenset[int]:
        """All others."""
        return frozenset(self._members)

    def is_member(self, number: int | None) -> bool:
        """Whether that is another member."""
        return number in self._members

    def heard_of(self, number: int) -> Heard | None:
        """Over which session that member said last to this node alone that it speaks; none: it was not heard yet.

        What is to all does not count: whoever hears it can pass it on, and would be taken for the member.
        """
        member = self._members.get(number)
        return None if member is None else member.heard

    def admit(self, line: Line | None, size: int, now_ns: int) -> Line:
        """The line, if a message of so many bytes on it may be looked into; raises `Refused`."""
        if size > self._limits.max_message_size + overhead(self._num_seals):
            raise Refused(Refusal.SIZE)
        with self._lock:
            known, allowance = self._line(line)
            if not allowance.checks.take(1, now_ns) or not allowance.bytes.take(size, now_ns):
                raise Refused(Refusal.RATE)
        return known

    def open_message(self, sender: int, receiver: int | None, data: bytes, now_ns: int) -> bytes:
        """What is in an envelope that came as of that sender, to all or to this node; raises `Refused`.

        It waits to be read from then on: once it is, it is to be `dismissed`.
        """
        envelope = self._read(data, self._limits.max_message_size, self._num_seals)
        if envelope.sender != sender or envelope.receiver != receiver:
            raise Refused(Refusal.ADDRESS)
        allowance = self._validate(envelope, Purpose.MESSAGE, now_ns)
        self._spend(allowance.messages, now_ns)
        with self._lock:
            if allowance.num_pending >= self._limits.pending:
                raise Refused(Refusal.QUEUE)
            allowance.num_pending += 1
        return envelope.payload

    def dismiss(self, sender: int) -> None:
        """A message that was opened no longer waits."""
        with self._lock:
            member = self._members.get(sender)
            if member is not None:
                member.allowance.num_pending = max(0, member.allowance.num_pending - 1)

    def read_message(self, sender: int, payload: bytes) -> Message:
        """The message that a sender's envelope held; raises `Refused`."""
        try:
            message = decode_message(payload, self._limits.max_message_size)
        except BadEncoding:
            raise Refused(Refusal.ENCODING, is_proven=True) from None
        if message.sender != sender or message.chain != self._keyring.chain:
            raise Refused(Refusal.ADDRESS, is_proven=True)
        return message

    def admit_request(self, line: Line | None, size: int, now_ns: int) -> Line:
        """The line, if a request of so many bytes on it may be checked; raises `Refused`."""
        if size > MAX_REQUEST_SIZE + overhead(1):
            raise Refused(Refusal.SIZE)
        with self._lock:
            known, allowance = self._line(line)
            if not allowance.request_checks.take(1, now_ns):
                raise Refused(Refusal.RATE)
        return known

    def read_request(self, sender: int, data: bytes, now_ns: int) -> PieceRequest:
        """What is asked for in an envelope that came as of that sender; raises `Refused`."""
        envelope = self._read(data, MAX_REQUEST_SIZE, 1)
        if envelope.sender != sender or envelope.receiver != self._number:
            raise Refused(Refusal.ADDRESS)
        self._spend(self._validate(envelope, Purpose.REQUEST, now_ns).requests, now_ns)
        try:
            return decode(envelope.payload, PieceRequest, MAX_REQUEST_SIZE)
        except BadEncoding:
            raise Refused(Refusal.ENCODING, is_proven=True) from None

    def read_answer(self, holder: int, request: bytes, data: bytes) -> PieceAnswer:
        """What a holder says to the request with that digest; raises `Refused`, at nobody's cost."""
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
        """What a member sealed and was refused costs it more of what it may send."""
        with self._lock:
            member = None if sender is None else self._members.get(sender)
            if member is not None:
                member.allowance.messages.drain(self._limits.refused_cost, now_ns)
                member.allowance.requests.drain(self._limits.refused_cost, now_ns)

    def charge_aside(self, sender: int, num_asides: int, now_ns: int) -> None:
        """What a member said was in order, but not what the node works on: it costs more of what it may say."""
        with self._lock:
            member = self._members.get(sender)
            if member is not None:
                member.allowance.messages.drain(num_asides * self._limits.aside_cost, now_ns)

    def serving_wait_ns(self, number: int, size: int, now_ns: int) -> int:
        """How long a member waits for so many bytes of blobs; 0: they are counted as served now."""
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

    def _validate(self, envelope: Envelope, purpose: Purpose, now_ns: int) -> Allowance:
        """What is left to the sender; raises unless it sealed the envelope, and for the first time."""
        with self._lock:
            member = self._member(envelope.sender)
            if not member.window.is_new(envelope.counter):
                raise Refused(Refusal.REPLAY)
        self._validate_seal(envelope, purpose, member)
        with self._lock:
            if not member.window.note(envelope.counter):
                raise Refused(Refusal.REPLAY)
            if envelope.receiver is not None and envelope.counter > member.heard_counter:
                member.heard, member.heard_counter = Heard(envelope.session, now_ns / 1e9), envelope.counter
        return member.allowance

    def _validate_seal(self, envelope: Envelope, purpose: Purpose, member: _Member) -> None:
        if member.key is None or not is_sealed(envelope, purpose, member.key, self._number):
            raise Refused(Refusal.SEAL)

    def _spend(self, bucket: Bucket, now_ns: int) -> None:
        with self._lock:
            if not bucket.take(1, now_ns):
                raise Refused(Refusal.RATE, is_proven=True)

    def _line(self, line: Line | None) -> tuple[Line, LineAllowance]:
        """A line of a member, by way of a member if it is relayed, and what is left to it."""
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
