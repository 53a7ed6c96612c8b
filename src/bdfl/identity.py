"""Keys, signing and verifying: the only place that touches signatures.

What is signed is never the statement alone, but the statement in its place: which chain, which height, on which parent,
and as what. So no signature can be replayed in another chain or round, on another branch or as something else.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from bdfl.encoding import Digest, Record, Whole, digest, encode, record_digest

# What signs and verifies is imported where that is done: whoever only reads chains saves the 15 MB.
if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateBuilder

PUBLIC_KEY_SIZE = 32
SECRET_SIZE = 32
_DOMAIN = "bdfl/1"


class Meaning(StrEnum):
    """As what something is signed."""

    REPORT = "report"
    UPDATE = "update"
    BLOCK = "block"
    VOTE = "vote"
    MEMBERSHIP = "membership"  # agreement to a change of the members
    CARD = "card"  # what a future member says of itself
    GENESIS = "genesis"  # agreement to begin a chain
    MESSAGE = "message"  # anything said on a live network


class Place(Record, frozen=True):
    """Where a statement belongs: a chain, the height of the block it is for, and that block's parent."""

    chain: Digest
    height: Whole
    parent: Digest


class _Statement(Record, frozen=True):
    domain: str
    meaning: str
    place: Place
    content: Digest


def statement_digest(meaning: Meaning, place: Place, content: bytes) -> bytes:
    """What is really signed, 32 bytes: a digest of the content's bytes together with their place and meaning."""
    return record_digest(_Statement(_DOMAIN, meaning.value, place, digest(content)))


class Signer:
    """A member's private key; it never leaves this object."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, meaning: Meaning, place: Place, content: Record) -> bytes:
        """The Ed25519 signature of a record in its place, 64 bytes; the same for the same record."""
        return self._key.sign(statement_digest(meaning, place, encode(content)))

    def sign_certificate(self, draft: "CertificateBuilder") -> "Certificate":
        """An X.509 certificate issued by this key. What is signed there is never as short as a statement's digest."""
        return draft.sign(self._key, None)


def is_signed(public_key: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether `signature` is that key's for a `statement_digest`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
