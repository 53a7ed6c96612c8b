"""What nodes put on the wire: every message, request and answer in a signed envelope that counts only once.

Signed are chain, sender, receiver, counter and content, so no envelope can be played again: not to another receiver,
not on another chain, not later.
"""

from enum import StrEnum
from threading import Lock
from typing import Annotated

from msgspec import Meta

from bdfl.encoding import DIGEST_SIZE, Digest, Record, Signature, Whole, decode, digest, encode, prepared
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest
from bdfl.ledger.block import MemberNumber

OVERHEAD = 160  # more than an envelope adds to what it carries
MAX_LIFE = 2**31 - 1
_SEQUENCE_BITS = 32
_WINDOW = 4096  # how far behind the newest counter an envelope may still come
_NOWHERE = bytes(DIGEST_SIZE)


class Purpose(StrEnum):
    """What an envelope is for; part of what is signed."""

    MESSAGE = "message"
    REQUEST = "request"  # for a piece of a blob
    ANSWER = "answer"  # to such a request


@prepared
class Envelope(Record, frozen=True):
    """Something that a member says to one other, or to all."""

    sender: MemberNumber
    receiver: MemberNumber | None
    counter: Whole  # life << 32 | sequence
    payload: bytes
    signature: Signature


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
    payload: Digest


class Sealer:
    """Makes one member's envelopes: signs and counts, from any thread."""

    def __init__(self, signer: Signer, chain: bytes, number: int, life: int) -> None:
        if not 0 <= life <= MAX_LIFE:
            raise ValueError(f"life {life} given, 0 to {MAX_LIFE} expected")
        self._signer, self._chain, self._number = signer, chain, number
        self._counter = life << _SEQUENCE_BITS
        self._lock = Lock()

    def seal(self, purpose: Purpose, receiver: int | None, payload: bytes) -> bytes:
        """The bytes of an envelope with the next counter."""
        with self._lock:
            self._counter += 1
            counter = self._counter
        said = _Said(purpose.value, self._number, receiver, digest(payload))
        signature = self._signer.sign(Meaning.MESSAGE, Place(self._chain, counter, _NOWHERE), said)
        return encode(Envelope(self._number, receiver, counter, payload, signature))


def read_envelope(data: bytes, max_payload: int) -> Envelope:
    """The envelope in bytes from anywhere, its signature not checked; raises `BadEncoding`."""
    return decode(data, Envelope, max_payload + OVERHEAD)


def is_sealed(envelope: Envelope, purpose: Purpose, chain: bytes, public_key: bytes) -> bool:
    """Whether the envelope is signed with that key, for that purpose and chain."""
    said = _Said(purpose.value, envelope.sender, envelope.receiver, digest(envelope.payload))
    statement = statement_digest(Meaning.MESSAGE, Place(chain, envelope.counter, _NOWHERE), encode(said))
    return is_signed(public_key, envelope.signature, statement)


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
        """Takes a counter whose signature is right; whether it is new."""
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
