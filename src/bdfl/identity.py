"""Keys, signatures and MACs: the only module that signs and verifies.

A signature covers a statement together with its context: chain, height, parent block and meaning. So it cannot be
replayed in another chain or round, on another branch or with another meaning.

Data for one other member only carries a MAC instead, under a key that these two alone can compute. A MAC costs a
fortieth of a signature to verify, and proves nothing to third parties.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import TYPE_CHECKING

from bdfl.encoding import Digest, Record, Whole, digest, encode, record_digest

# `cryptography` is imported where it is used: a process that only reads chains saves its 15 MB.
if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateBuilder

PUBLIC_KEY_SIZE = 32
MAC_SIZE = 16
_DOMAIN = "bdfl/1"
_FIELD = 2**255 - 19  # of Curve25519 and edwards25519
_D = -121665 * pow(121666, -1, _FIELD) % _FIELD  # -x^2 + y^2 = 1 + d x^2 y^2
_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# y of the eight points whose order divides the cofactor, with the non-canonical encodings p and p + 1 of 0 and 1.
_SMALL_ORDER = frozenset([0, 1, _FIELD - 1, _OF_ORDER_8, _FIELD - _OF_ORDER_8, _FIELD, _FIELD + 1])


class Meaning(StrEnum):
    """The domain of a signature: the kind of statement that is signed."""

    REPORT = "report"
    UPDATE = "update"
    BLOCK = "block"
    VOTE = "vote"
    MEMBERSHIP = "membership"  # agreement to a change of the members
    CARD = "card"  # a future member's description of itself
    GENESIS = "genesis"  # agreement to begin a chain
    AUDIT = "audit"  # an auditor's report on a chain


class Place(Record, frozen=True):
    """The context of a statement: a chain, the height of the block it is for, and that block's parent."""

    chain: Digest
    height: Whole
    parent: Digest


class _Statement(Record, frozen=True):
    domain: str
    meaning: str
    place: Place
    content: Digest


def statement_digest(meaning: Meaning, place: Place, content: bytes) -> bytes:
    """The message that is signed, 32 bytes: a digest of the content's bytes with their place and meaning."""
    return record_digest(_Statement(_DOMAIN, meaning.value, place, digest(content)))


class Signer:
    """A member's private key, which never leaves this object."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, meaning: Meaning, place: Place, content: Record) -> bytes:
        """The deterministic Ed25519 signature of a record in its place, 64 bytes."""
        return self._key.sign(statement_digest(meaning, place, encode(content)))

    def agree(self, public_key: bytes, salt: bytes, purpose: str) -> bytes | None:
        """The shared key (32 bytes) of this member and the one with that public key, by Diffie-Hellman.

        X25519 on the signing keys of both, then HKDF over the salt, the purpose and both public keys. None for a public
        key of small order, with which any node could compute the shared key.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        own = X25519PrivateKey.from_private_bytes(hashlib.sha512(self._key.private_bytes_raw()).digest()[:32])
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(_montgomery(public_key)))
        except ValueError:
            return None
        both = b"".join(sorted((self.public_key, public_key)))
        return HKDF(SHA256(), 32, salt, f"{_DOMAIN} {purpose} ".encode() + both).derive(shared)

    def sign_certificate(self, draft: "CertificateBuilder") -> "Certificate":
        """An X.509 certificate issued by this key; its signed bytes are always longer than a statement's digest."""
        return draft.sign(self._key, None)


def is_public_key(data: bytes) -> bool:
    """Return whether a member may have this key: a point of edwards25519, canonical and not of small order.

    With a key of small order any node could forge the member's signature. A second encoding of a point would pass as
    another member's key.
    """
    y = _read_y(data)
    if len(data) != PUBLIC_KEY_SIZE or y >= _FIELD or y in _SMALL_ORDER:
        return False
    return pow((y * y - 1) * (_D * y * y + 1), (_FIELD - 1) // 2, _FIELD) == 1  # else no x solves the curve equation


def is_signed(public_key: bytes, signature: bytes, statement: bytes) -> bool:
    """Return whether `signature` is that key's for a `statement_digest`.

    Ed25519 as OpenSSL verifies it: cofactorless and with S below the group's order; in addition neither key nor R may
    be of small order. So all verifiers agree: see FORMAT.md, section 4.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if _read_y(public_key) in _SMALL_ORDER or _read_y(signature[:PUBLIC_KEY_SIZE]) in _SMALL_ORDER:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def make_mac(key: bytes, statement: bytes) -> bytes:
    """MAC of a statement, 16 bytes: keyed BLAKE2b."""
    return hashlib.blake2b(statement, key=key, digest_size=MAC_SIZE).digest()


def is_mac(key: bytes, mac: bytes, statement: bytes) -> bool:
    """Return whether the MAC is that of the statement under this key; in constant time."""
    return hmac.compare_digest(make_mac(key, statement), mac)


def _read_y(point: bytes) -> int:
    """The y of an encoded point, not reduced; the topmost bit, the sign of x, is masked out."""
    return int.from_bytes(point, "little") % 2**255


def _montgomery(public_key: bytes) -> bytes:
    """An Ed25519 public key as one of X25519: u = (1 + y) / (1 - y) [RFC 7748, section 4.1]."""
    y = _read_y(public_key)
    return ((1 + y) * pow(1 - y, -1, _FIELD) % _FIELD).to_bytes(32, "little")
