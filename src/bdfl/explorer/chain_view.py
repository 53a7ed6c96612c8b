"""Blocks of a chain, read and checked one by one.

The checks find a changed block at its own height: its row, its encoding, its parent, the root of its body, its proof
of work if cheap to check, and the block its certificate's votes are for. A separate process checks its signature, see
`signature_check`. `bdfl chain verify` checks all other rules.
"""

from dataclasses import dataclass
from typing import Protocol

from bdfl.encoding import BadEncoding, encode
from bdfl.errors import one_line
from bdfl.identity import Meaning, is_signed, statement_digest
from bdfl.ledger.block import Block, Certificate, Genesis, Seal, body_root, chain_id, header_seal
from bdfl.ledger.chain_rows import decode_certificate, decode_stored
from bdfl.ledger.keeping import StoreError
from bdfl.ledger.roll import Roll
from bdfl.ledger.work import is_worked
from bdfl.scenario.ledger import WorkKind


@dataclass(frozen=True)
class Stored:
    """Bytes of a block and its certificate; `damage` describes damage to their row in the store."""

    block: bytes
    certificate: bytes
    damage: str | None = None


class BlockSource(Protocol):
    """A source of blocks."""

    @property
    def genesis(self) -> Genesis: ...

    def height(self) -> int:
        """Return the height of the newest block; raise `StoreError` if the chain cannot be read any more."""
        ...

    def read(self, height: int) -> Stored:
        """Read a block; raise `StoreError` if it cannot be read."""
        ...


@dataclass(frozen=True)
class Found:
    """A block as read; `problem` is the reason why it is invalid."""

    height: int
    block: Block | None  # none: it cannot be read
    certificate: Certificate
    problem: str | None
    size_bytes: int | None


def find_block(source: BlockSource, height: int) -> Found:
    """Read and decode the block at a height."""
    try:
        stored = source.read(height)
    except StoreError as error:
        return Found(height, None, (), one_line(error), None)
    size_bytes = len(stored.block)
    try:
        block = decode_stored(stored.block, Block)
    except BadEncoding as error:
        return Found(height, None, (), stored.damage or one_line(error), size_bytes)
    try:
        certificate = decode_certificate(stored.certificate)
    except BadEncoding as error:
        return Found(height, block, (), stored.damage or f"its certificate: {one_line(error)}", size_bytes)
    return Found(height, block, certificate, stored.damage, size_bytes)


def find_problem(found: Found, genesis: Genesis, roll: Roll, parent: bytes | None) -> str | None:
    """Return a block's problem, signature aside; `parent` is the digest of the block before, None if it is invalid."""
    block = found.block
    if found.problem is not None or block is None:
        return found.problem
    header, chain = block.header, chain_id(genesis)
    if header.chain != chain:
        return f"it belongs to chain {header.chain.hex()[:12]}, {chain.hex()[:12]} expected"
    if header.height != found.height:
        return f"it says that it is block {header.height}"
    if parent is not None and header.parent != parent:
        return f"its parent is {header.parent.hex()[:12]}, but the block before it is {parent.hex()[:12]}"
    if header.body != body_root(block.body):
        return "its body is not the one that its header names: something in it was changed"
    if not header.proposer < len(roll.members):
        return f"its proposer, {header.proposer}, is no member"
    kind = genesis.law.work
    if kind is WorkKind.SHA256 and not is_worked(kind, header_seal(header), block.nonce, header.difficulty):
        return "its proof of work is false: the hash is above the target"
    digest = block.digest
    if any(signed.vote.block != digest for signed in found.certificate):
        return "its certificate has votes for another block"
    return None


def find_forgery(found: Found, roll: Roll) -> str | None:
    """Return a problem unless a block is signed by its proposer; the signature covers all of its contents."""
    block = found.block
    if block is None or not block.header.proposer < len(roll.members):
        return None
    header = block.header
    statement = statement_digest(Meaning.BLOCK, header.place, encode(Seal(header, block.nonce)))
    if is_signed(roll.members[header.proposer].public_key, block.signature, statement):
        return None
    return f"its signature is not that of its proposer, client {header.proposer}"
