"""Wire envelopes: each message, request and answer carries a MAC per receiver and a replay counter.

A MAC uses the pairwise key of sender and receiver on one chain. It covers purpose, sender, receiver, counter, session
and payload; a broadcast carries one MAC per member. So an envelope cannot be replayed: not to another receiver, on
another chain, or later. A forgery costs a node one hash. Statements that third parties must verify are signed inside.
"""

from collections.abc import Sequence
from enum import StrEnum
from threading import Lock
from typing import Annotated, TypeAlias

from msgspec import Meta

from bdfl.encoding import Digest, Record, Whole, decode, digest, encode, prepared
from bdfl.identity import MAC_SIZE, Signer, is_mac, make_mac
from bdfl.ledger.block import MAX_MEMBERS, MemberNumber

MAX_INCARNATION = 2**31 - 1
_HEAD_SIZE = 72  # upper bound of an envelope's other fields
_SEQUENCE_BITS = 32
_WINDOW = 4096  # replay window: how far a counter may lag behind the newest
_NO_MAC = bytes(MAC_SIZE)


SessionName: TypeAlias = Annotated[str, Meta(max_length=32)]  # zenoh's id of a session, hexadecimal


class Purpose(StrEnum):
    """Purpose of an envelope, covered by its MAC."""

    MESSAGE = "message"
    REQUEST = "request"  # for a piece of a blob
    ANSWER = "answer"  # to such a request


@prepared
class Envelope(Record, frozen=True):
    """A payload from one member to another, or to all (`receiver` None)."""

    sender: MemberNumber
    receiver: MemberNumber | None
    counter: Whole  # incarnation << 32 | sequence
    session: SessionName  # the sender's; receivers do not use it
    payload: bytes
    macs: Annotated[bytes, Meta(max_length=MAC_SIZE * MAX_MEMBERS)]  # one MAC; of a broadcast one per member


def overhead(num_macs: int) -> int:
    """Return an upper bound of an envelope's size beyond its payload (bytes)."""
    return _HEAD_SIZE + MAC_SIZE * num_macs


@prepared
class PieceRequest(Record, frozen=True):
    """A request for `length` bytes of a blob from `offset` on."""

    blob: Digest
    offset: Whole
    length: Annotated[int, Meta(ge=1, le=2**24)]


@prepared
class PieceAnswer(Record, frozen=True):
    """A holder's answer to one request; the piece itself is sent beside it.

    With neither a piece nor a wait, the holder does not have the blob.
    """

    request: Digest  # of the request's envelope, which is unique and covers both members, blob, offset and length
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
    """Pairwise MAC keys of a member with each other member on a chain, cached."""

    def __init__(self, signer: Signer, chain: bytes) -> None:
        self.chain = chain
        self._signer = signer
        self._keys: dict[bytes, bytes | None] = {}

    def key_with(self, public_key: bytes) -> bytes | None:
        """Return the key shared with that public key; None if key agreement fails."""
        if public_key not in self._keys:
            self._keys[public_key] = self._signer.agree(public_key, self.chain, "envelope")
        return self._keys[public_key]


class EnvelopeWriter:
    """Builds one member's envelopes with counters and MACs. Thread-safe."""

    def __init__(self, keyring: Keyring, number: int, incarnation: int, public_keys: Sequence[bytes | None]) -> None:
        """`incarnation` is the restart counter, the high bits of each counter; `public_keys` as in `set_members`."""
        if not 0 <= incarnation <= MAX_INCARNATION:
            raise ValueError(f"incarnation {incarnation} given, 0 to {MAX_INCARNATION} expected")
        self._keyring, self._number = keyring, number
        self._counter = incarnation << _SEQUENCE_BITS
        self._lock = Lock()
        self.session = ""  # current zenoh session; set by the link
        self.set_members(public_keys)

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Set the receivers by member number; None: no longer a member."""
        self._keys = [
            None if number == self._number or public_key is None else self._keyring.key_with(public_key)
            for number, public_key in enumerate(public_keys)
        ]

    def write(self, purpose: Purpose, receiver: int | None, payload: bytes) -> bytes:
        """Return an encoded envelope with the next counter."""
        with self._lock:
            self._counter += 1
            counter = self._counter
        session, keys = self.session, self._keys
        statement = _statement(purpose, self._number, receiver, counter, session, payload)
        chosen = keys if receiver is None else keys[receiver : receiver + 1] or [None]
        macs = b"".join(_NO_MAC if key is None else make_mac(key, statement) for key in chosen)
        return encode(Envelope(self._number, receiver, counter, session, payload, macs))


def read_envelope(data: bytes, max_payload: int, num_macs: int) -> Envelope:
    """Decode an untrusted envelope without checking its MACs; raises `BadEncoding`."""
    return decode(data, Envelope, max_payload + overhead(num_macs))


def is_authentic(envelope: Envelope, purpose: Purpose, key: bytes, number: int) -> bool:
    """Return whether the envelope's MAC for member `number` and this purpose verifies under the shared key."""
    own = slice(MAC_SIZE * number, MAC_SIZE * (number + 1))
    mac = envelope.macs[own] if envelope.receiver is None else envelope.macs
    said = (envelope.sender, envelope.receiver, envelope.counter, envelope.session, envelope.payload)
    return is_mac(key, mac, _statement(purpose, *said))


def _statement(
    purpose: Purpose, sender: int, receiver: int | None, counter: int, session: str, payload: bytes
) -> bytes:
    return encode(_Said(purpose.value, sender, receiver, counter, session, digest(payload)))


class CounterWindow:
    """Replay window of one sender: counters of an earlier restart or far behind the newest count as seen."""

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0  # bit i: newest - i was seen

    def is_new(self, counter: int) -> bool:
        behind = self._newest - counter
        if behind < 0:
            return True
        if counter >> _SEQUENCE_BITS != self._newest >> _SEQUENCE_BITS:
            return False
        return behind < _WINDOW and not self._seen >> behind & 1

    def note(self, counter: int) -> bool:
        """Mark an authenticated counter as seen; return whether it was new."""
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
