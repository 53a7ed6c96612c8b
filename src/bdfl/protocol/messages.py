"""What nodes say to each other. Whatever is claimed in a message is signed inside it by whom it binds.

The sender of a message is only where answers go: nothing is believed because of it.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from bdfl.encoding import Digest, Record, Whole, decode, encode, prepared
from bdfl.ledger.block import (
    MAX_BLOCK_SIZE,
    MAX_MEMBERS,
    Attempt,
    Block,
    Certificate,
    Evidence,
    MemberNumber,
    MembershipChange,
    SignedReport,
    SignedUpdate,
    SignedVote,
)

ENVELOPE_SIZE = 4096  # more than a message adds to what it carries
MAX_CHANGES = 16  # changes of membership in a message


class Hearsay(Record, frozen=True, tag="hearsay"):
    """What a node holds of a height that is not decided: its own statements and others'.

    Everything new is announced this way; from time to time all of it is said again. `attempt` is the sender's.
    """

    attempt: Attempt
    wants_answer: bool = False  # the sender says all it holds and asks for what it lacks
    updates: Annotated[tuple[SignedUpdate, ...], Meta(max_length=MAX_MEMBERS)] = ()
    reports: Annotated[tuple[SignedReport, ...], Meta(max_length=MAX_MEMBERS)] = ()
    votes: Annotated[tuple[SignedVote, ...], Meta(max_length=8 * MAX_MEMBERS)] = ()
    blocks: Annotated[tuple[Digest, ...], Meta(max_length=8 * MAX_MEMBERS)] = ()  # candidates the sender can give
    changes: Annotated[tuple[MembershipChange, ...], Meta(max_length=MAX_CHANGES)] = ()  # that no block has yet
    evidence: Annotated[tuple[Evidence, ...], Meta(max_length=MAX_MEMBERS)] = ()  # likewise


class Proposal(Record, frozen=True, tag="proposal"):
    """A candidate block for the height."""

    block: Block


class BlockWanted(Record, frozen=True, tag="block-wanted"):
    """Asks for a candidate block of the height by its digest."""

    block: Digest


class BlobWanted(Record, frozen=True, tag="blob-wanted"):
    """Asks for a blob by its digest."""

    blob: Digest


class Blob(Record, frozen=True, tag="blob"):
    """A blob that was asked for."""

    data: bytes


class DecidedWanted(Record, frozen=True, tag="decided-wanted"):
    """Asks for the decided block of the message's height and its certificate."""


class Decided(Record, frozen=True, tag="decided"):
    """The decided block of the message's height and the precommits that made it final."""

    block: Block
    certificate: Certificate


Content: TypeAlias = Hearsay | Proposal | BlockWanted | BlobWanted | Blob | DecidedWanted | Decided


@prepared
class Message(Record, frozen=True):
    """One message between nodes of one chain, about one height."""

    chain: Digest
    sender: MemberNumber
    height: Whole
    content: Content


def encode_message(message: Message) -> bytes:
    return encode(message)


def decode_message(data: bytes, max_blob_size: int) -> Message:
    """A message from the network; raises `BadEncoding` if it is too long, malformed or not canonical."""
    return decode(data, Message, max(MAX_BLOCK_SIZE, max_blob_size) + ENVELOPE_SIZE)
