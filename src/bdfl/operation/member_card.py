"""Member card: a future member's key, label counts and machine limits, signed by its operator."""

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
    """A card that is inconsistent, or not signed by the key it names."""


class Card(Record, frozen=True):
    """A future member's self-description. All of it becomes public, including the number of samples of each label."""

    scenario: Digest  # for which it was made
    client: MemberNumber | None  # the scenario's client that it emulates; none: any
    name: Text  # for display
    public_key: Digest
    authority: CertificateBytes  # X.509 in DER: the member's CA, which issues its TLS certificates
    label_counts: LabelCounts
    limits: Limits  # with participation rate 0: rates follow from all members' labels
    conditions: Conditions  # of round 1


class SignedCard(Record, frozen=True):
    """A card, signed as CARD in the context of the scenario."""

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
    """Make a signed card for the federation with that scenario digest; raises `BadCard` if it is inconsistent.

    Its CA certificate is valid from now on.
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
    """Raise `BadCard` unless the card is consistent and signed by the key it names."""
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
    except ValueError as error:  # cryptography's message on a malformed certificate
        raise BadCard(f"card of {card.name!r}: certificate: {error}") from None
    if sum(card.label_counts) != card.limits.samples:
        found = f"{sum(card.label_counts)} samples by label and {card.limits.samples} in all"
        raise BadCard(f"card of {card.name!r}: {found}, as many of one as of the other expected")
    if card.limits.rate_nano:
        raise BadCard(f"card of {card.name!r}: rate {card.limits.rate_nano} given, 0 expected: it follows from labels")


def read_card(path: Path) -> SignedCard:
    """Read and validate a card."""
    signed = read_record(path, SignedCard, "card", _MAX_SIZE)
    try:
        validate_card(signed)
    except BdflError as error:
        raise BadCard(f"{path}: {error}") from None
    return signed


def write_card(path: Path, signed: SignedCard) -> None:
    """Write a card to a new file."""
    write_record(path, signed)


def _place(card: Card) -> Place:
    return Place(card.scenario, 0, bytes(32))
