"""What nodes put on the wire: every message, request and answer in a sealed envelope that counts only once.

A seal is for one receiver, made with the key that sender and receiver share, over chain, sender, receiver, counter and
content; what is to all carries a seal for each. So no envelope can be played again: not to another receiver, not on
another chain, not later. And whoever sends in another's name costs a node no more than a hash. Sealed is also over
which zenoh session the sender speaks, so that others connected in its name can be told from it. What others than the
receiver must believe later is signed inside.
"""

from collections.abc import Sequence
from enum import StrEnum
from threading import Lock
from typing import Annotated, TypeAlias

from msgspec import Meta

from bdfl.encoding import Digest, Record, Whole, decode, digest, encode, prepared
from bdfl.identity import SEAL_SIZE, Signer, is_seal, make_seal
from bdfl.ledger.block import MAX_MEMBERS, MemberNumber

MAX_LIFE = 2**31 - 1
_HEAD_SIZE = 72  # more than the other fields of an envelope take
_SEQUENCE_BITS = 32
_WINDOW = 4096  # how far behind the newest counter an envelope may still come
_NO_SEAL = bytes(SEAL_SIZE)


SessionName: TypeAlias = Annotated[str, Meta(max_length=32)]  # zenoh's id of a session, hexadecimal


class Purpose(StrEnum):
    """What an envelope is for; part of what is sealed."""

    MESSAGE = "message"
    REQUEST = "request"  # for a piece of a blob
    ANSWER = "answer"  # to such a request


@prepared
class Envelope(Record, frozen=True):
    """Something that a member says to one other, or to all."""

    sender: MemberNumber
    receiver: MemberNumber | None
    counter: Whole  # life << 32 | sequence
    session: SessionName
    payload: bytes
    seals: Annotated[bytes, Meta(max_length=SEAL_SIZE * MAX_MEMBERS)]  # the receiver's; to all: of each by its number


def overhead(num_seals: int) -> int:
    """More than an envelope with so many seals adds to what it carries (bytes)."""
    return _HEAD_SIZE + SEAL_SIZE * num_seals


@prepared
class PieceRequest(Record, frozen=True):
    """Asks for `length` bytes of a blob from `offset` on."""

    blob: Digest
    offset: Whole
    length: Annotated[int, Meta(ge=1, le=2**24)]


@prepared
class PieceAnswer(Record, frozen=True):
    """What a holder says to one request and to no other; the piece itself comes beside it.

    Neither a piece nor a wait: it does not have the blob.
    """

    request: Digest  # of the envelope that asked: it names both, blob, offset and length, and is never the same
    piece: Digest | None
    wait_ns: Annotated[int, Meta(ge=0, le=2**62)] | None  # until it has the piece


class _Said(Record, frozen=True):
    purpose: str
    sender: MemberNumber
    receiver: MemberNumber | None
    counter: Whole
    session: SessionName
    payload: Digest


class Keyring:
    """The keys that a member shares with each other one on a chain."""

    def __init__(self, signer: Signer, chain: bytes) -> None:
        self.chain = chain
        self._signer = signer
        self._keys: dict[bytes, bytes | None] = {}

    def key_with(self, public_key: bytes) -> bytes | None:
        """The key shared with the member of that public key; none: it is one with which nothing can be sealed."""
        if public_key not in self._keys:
            self._keys[public_key] = self._signer.agree(public_key, self.chain, "envelope")
        return self._keys[public_key]


class Sealer:
    """Makes one member's envelopes: seals and counts, from any thread."""

    def __init__(self, keyring: Keyring, number: int, life: int, public_keys: Sequence[bytes | None]) -> None:
        """`public_keys` are those of `set_members`."""
        if not 0 <= life <= MAX_LIFE:
            raise ValueError(f"life {life} given, 0 to {MAX_LIFE} expected")
        self._keyring, self._number = keyring, number
        self._counter = life << _SEQUENCE_BITS
        self._lock = Lock()
        self.session = ""  # over which it speaks now; set by whoever opens it
        self.set_members(public_keys)

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """For whom there are seals from now on, by number; none: no longer a member."""
        self._keys = [
            None if number == self._number or public_key is None else self._keyring.key_with(public_key)
            for number, public_key in enumerate(public_keys)
        ]

    def seal(self, purpose: Purpose, receiver: int | None, payload: bytes) -> bytes:
        """The bytes of an envelope with the next counter."""
        with self._lock:
            self._counter += 1
            counter = self._counter
        session, keys = self.session, self._keys
        statement = _statement(purpose, self._number, receiver, counter, session, payload)
        chosen = keys if receiver is None else keys[receiver : receiver + 1] or [None]
        seals = b"".join(_NO_SEAL if key is None else make_seal(key, statement) for key in chosen)
        return encode(Envelope(self._number, receiver, counter, session, payload, seals))


def read_envelope(data: bytes, max_payload: int, num_seals: int) -> Envelope:
    """The envelope in bytes from anywhere, its seals not checked; raises `BadEncoding`."""
    return decode(data, Envelope, max_payload + overhead(num_seals))


def is_sealed(envelope: Envelope, purpose: Purpose, key: bytes, number: int) -> bool:
    """Whether whoever shares that key with this member sealed the envelope for it and for that purpose."""
    own = slice(SEAL_SIZE * number, SEAL_SIZE * (number + 1))
    seal = envelope.seals[own] if envelope.receiver is None else envelope.seals
    said = (envelope.sender, envelope.receiver, envelope.counter, envelope.session, envelope.payload)
    return is_seal(key, seal, _statement(purpose, *said))


def _statement(
    purpose: Purpose, sender: int, receiver: int | None, counter: int, session: str, payload: bytes
) -> bytes:
    return encode(_Said(purpose.value, sender, receiver, counter, session, digest(payload)))


class CounterWindow:
    """Which of a sender's counters came already; those far behind the newest, or of an earlier life, count as come."""

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0  # bit i: newest - i came

    def is_new(self, counter: int) -> bool:
        behind = self._newest - counter
        if behind < 0:
            return True
        if counter >> _SEQUENCE_BITS != self._newest >> _SEQUENCE_BITS:
            return False
        return behind < _WINDOW and not self._seen >> behind & 1

    def note(self, counter: int) -> bool:
        """Takes a counter whose seal is right; whether it is new."""
        if not self.is_new(counter):
            return False
        ahead = counter - self._newest
        if ahead > 0:
            is_far = ahead >= _WINDOW or counter >> _SEQUENCE_BITS != self._newest >> _SEQUENCE_BITS
            self._seen = 1 if is_far else (self._seen << ahead | 1) & ((1 << _WINDOW) - 1)
            self._newest = counter
        else:
            self._seen |= 1 << -ahead
        return True
