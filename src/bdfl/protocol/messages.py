"""Messages between nodes. Every statement in a message carries the signature of the member it binds.

The sender of a message is only the address for answers: it lends no authority to the content.
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

ENVELOPE_SIZE = 4096  # bytes, more than the overhead of a message
MAX_CHANGES = 16  # changes of membership in a message


class Gossip(Record, frozen=True, tag="hearsay"):
    """Gossip of the statements that a node holds of an undecided height, its own and others'.

    New statements are announced this way, and from time to time all are re-broadcast. `attempt` is the sender's.
    """

    attempt: Attempt
    wants_answer: bool = False  # a re-broadcast of all that the sender holds, which requests what it lacks
    updates: Annotated[tuple[SignedUpdate, ...], Meta(max_length=MAX_MEMBERS)] = ()
    reports: Annotated[tuple[SignedReport, ...], Meta(max_length=MAX_MEMBERS)] = ()
    votes: Annotated[tuple[SignedVote, ...], Meta(max_length=8 * MAX_MEMBERS)] = ()
    blocks: Annotated[tuple[Digest, ...], Meta(max_length=8 * MAX_MEMBERS)] = ()  # candidates that the sender can serve
    changes: Annotated[tuple[MembershipChange, ...], Meta(max_length=MAX_CHANGES)] = ()  # in no block yet
    evidence: Annotated[tuple[Evidence, ...], Meta(max_length=MAX_MEMBERS)] = ()  # in no block yet


class Proposal(Record, frozen=True, tag="proposal"):
    """A candidate block for the height."""

    block: Block


class BlockWanted(Record, frozen=True, tag="block-wanted"):
    """Requests a candidate block of the height by its digest."""

    block: Digest


class DecidedWanted(Record, frozen=True, tag="decided-wanted"):
    """Requests the decided block of the message's height and its certificate."""


class Decided(Record, frozen=True, tag="decided"):
    """The decided block of the message's height and the precommits that made it final."""

    block: Block
    certificate: Certificate


Content: TypeAlias = Gossip | Proposal | BlockWanted | DecidedWanted | Decided


@prepared
class Message(Record, frozen=True):
    """A message between nodes of one chain, about one height."""

    chain: Digest
    sender: MemberNumber
    height: Whole
    content: Content


def encode_message(message: Message) -> bytes:
    return encode(message)


def decode_message(data: bytes) -> Message:
    """Decode a message from the network; raises `BadEncoding` if it is too long, malformed or not canonical."""
    return decode(data, Message, MAX_BLOCK_SIZE + ENVELOPE_SIZE)
