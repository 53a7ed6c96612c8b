"""What an operator brings to a federation: a key, the size of its data and what its machine can do, signed."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from bdfl.encoding import Digest, Record, Signature, Whole, encode
from bdfl.errors import BdflError
from bdfl.identity import Meaning, Place, Signer, is_public_key, is_signed, statement_digest
from bdfl.ledger.block import Conditions, Limits, MemberNumber, Text
from bdfl.operation.fingerprint import key_fingerprint
from bdfl.operation.set_up_file import read_record, write_record
from bdfl.transports.live.certificates import make_authority, validate_authority

MAX_LABELS = 65_536
MAX_CERTIFICATE = 4096  # bytes
MAX_NAME = 60  # characters
_MAX_SIZE = 2**20  # bytes

LabelCounts: TypeAlias = Annotated[tuple[Whole, ...], Meta(min_length=1, max_length=MAX_LABELS)]
CertificateBytes: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=MAX_CERTIFICATE)]


class BadCard(BdflError):
    """A card that says what cannot be, or was not signed by whom it names."""


class Card(Record, frozen=True):
    """A future member, in its own words. All of it becomes public, the number of samples of every label too."""

    scenario: Digest  # the agreement that it is for
    client: MemberNumber | None  # which of the scenario's clients it plays; none: any
    name: Text  # how people call it
    public_key: Digest
    authority: CertificateBytes  # X.509 in DER: the key as issuer of its TLS certificates
    label_counts: LabelCounts
    limits: Limits  # with participation rate 0: rates follow from everybody's labels
    conditions: Conditions  # of round 1


class SignedCard(Record, frozen=True):
    """Signed as CARD for the scenario."""

    form: Literal["bdfl card 1"]
    card: Card
    signature: Signature


def make_card(
    signer: Signer,
    scenario: bytes,
    name: str,
    *,
    client: int | None,
    label_counts: tuple[int, ...],
    limits: Limits,
    conditions: Conditions,
) -> SignedCard:
    """The signed card of a member of the federation with that scenario digest; raises `BadCard` if it makes no sense.

    Its certificate is valid from now on, for as long as certificates are.
    """
    card = Card(
        scenario=scenario,
        client=client,
        name=name,
        public_key=signer.public_key,
        authority=make_authority(signer, key_fingerprint(signer.public_key)),
        label_counts=label_counts,
        limits=limits,
        conditions=conditions,
    )
    signed = SignedCard("bdfl card 1", card, signer.sign(Meaning.CARD, _place(card), card))
    validate_card(signed)
    return signed


def validate_card(signed: SignedCard) -> None:
    """Raises `BadCard` unless the card makes sense and is signed by the key that it names."""
    card = signed.card
    if not card.name.isprintable() or not card.name.strip() or len(card.name) > MAX_NAME:
        raise BadCard(f"name: {card.name[:MAX_NAME]!r} given, 1 to {MAX_NAME} characters that can be printed expected")
    if not is_public_key(card.public_key):
        found = f"key {card.public_key.hex()} given"
        raise BadCard(f"card of {card.name!r}: {found}, a canonical point of edwards25519 not of small order expected")
    if not is_signed(card.public_key, signed.signature, statement_digest(Meaning.CARD, _place(card), encode(card))):
        raise BadCard(f"card of {card.name!r}: not signed by the key that it names: changed, or somebody else's")
    try:
        validate_authority(card.authority, card.public_key)
    except ValueError as error:  # what cryptography says of odd certificates
        raise BadCard(f"card of {card.name!r}: certificate: {error}") from None
    if sum(card.label_counts) != card.limits.samples:
        found = f"{sum(card.label_counts)} samples by label and {card.limits.samples} in all"
        raise BadCard(f"card of {card.name!r}: {found}, as many of one as of the other expected")
    if card.limits.rate_nano:
        raise BadCard(f"card of {card.name!r}: rate {card.limits.rate_nano} given, 0 expected: it follows from labels")


def read_card(path: Path) -> SignedCard:
    """The card in a file, checked."""
    signed = read_record(path, SignedCard, "card", _MAX_SIZE)
    try:
        validate_card(signed)
    except BdflError as error:
        raise BadCard(f"{path}: {error}") from None
    return signed


def write_card(path: Path, signed: SignedCard) -> None:
    """Writes a card to a new file."""
    write_record(path, signed)


def _place(card: Card) -> Place:
    return Place(card.scenario, 0, bytes(32))
