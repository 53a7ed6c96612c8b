"""The interface of a node's durable store: the chain, its blobs, and the node's own statements of the open height.

`store.ChainStore` keeps it in files, `memory_store.MemoryStore` in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bdfl.errors import BdflError
from bdfl.ledger.block import Block, Certificate, Genesis, SignedReport, SignedUpdate, SignedVote
from bdfl.ledger.merkle import MerkleProof


class StoreError(BdflError):
    """Base of all errors of a store."""


class NotAStore(StoreError):
    """A path that holds no store, or where none can be created."""


class StoreInUse(StoreError):
    """A store that another process writes to."""


class DamagedStore(StoreError):
    """A store with missing or changed data; the message names them."""


class NotKept(StoreError):
    """A failed write: the disk is full or fails, or the bytes do not have the digest given."""


class QuotaExceeded(StoreError):
    """A blob that would exceed the store's quota."""


class MisplacedBlock(StoreError):
    """A block that is not the next one, or whose referenced blobs are not stored yet."""


@dataclass(frozen=True)
class StoredRound:
    """A node's own statements of a height, each in the order in which it was put.

    Candidates and progress are deleted when a block of the height is appended.
    """

    height: int
    votes: tuple[SignedVote, ...] = ()
    updates: tuple[SignedUpdate, ...] = ()
    reports: tuple[SignedReport, ...] = ()
    candidates: tuple[Block, ...] = ()
    attempt: int = 0  # 0: none put
    lock: Certificate = ()


@dataclass(frozen=True)
class PruneReport:
    """The result of pruning; `checkpoint` is the height whose model is the oldest kept beside the untrained one."""

    checkpoint: int
    num_blocks: int
    num_blobs: int
    num_bytes: int


class Store(Protocol):
    """A node's durable store. Data are durable once `put_` or `append` returns; inside a `batch`, once that returns."""

    @property
    def genesis(self) -> Genesis: ...

    @property
    def height(self) -> int:
        """Number of blocks; 0: only genesis."""

    @property
    def checkpoint(self) -> int:
        """The last block whose updates were pruned; its model is kept. 0: nothing was pruned."""

    @property
    def trusted(self) -> Sequence[int]:
        """Heights of the blocks appended on trust, in order: their models were never recomputed here."""

    def block(self, height: int) -> Block: ...

    def blocks(self, first: int = 1) -> Iterator[Block]:
        """Blocks from height `first` to the last one."""

    def certificate(self, height: int) -> Certificate:
        """The precommits that the block of a height was appended with."""

    def batch(self) -> AbstractContextManager[None]:
        """Group all writes inside into one atomic write at the end; an error discards them."""

    def append(self, block: Block, certificate: Certificate, *, is_trusted: bool = False) -> None:
        """Append the next block durably; the blobs that `rested_on` names must have been put before.

        Other blobs put since the last block are dropped: only the decided height could have needed them. On trust no
        blobs are needed. The model of the last block on trust must be put before the first block that is not on trust,
        and that block prunes all before it.
        """

    def has_blob(self, blob: bytes) -> bool: ...

    def get_blob(self, blob: bytes) -> bytes | None:
        """The bytes of that digest; none if they are not, or no longer, stored."""

    def read_unchecked(self, blob: bytes) -> bytes | None:
        """Read a blob without checking its digest, which the caller does; safe from several threads at once."""

    def put_blob(self, blob: bytes, data: bytes) -> None: ...

    def put_vote(self, height: int, vote: SignedVote) -> None: ...

    def put_update(self, height: int, update: SignedUpdate) -> None: ...

    def put_report(self, height: int, report: SignedReport) -> None: ...

    def put_candidate(self, block: Block) -> None: ...

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None: ...

    def read_round(self, height: int) -> StoredRound: ...

    def prune(self, keep_blocks: int) -> PruneReport:
        """Drop the blobs of all but the newest blocks (at least 1 is kept), except those needed to verify these.

        Blocks, certificates and the blobs of the open height stay.
        """

    def proof(self, height: int, client: int) -> MerkleProof | None:
        """The proof that the client's `SignedUpdate` is in the block of a height; none if it is not."""


@dataclass(frozen=True)
class BlobUse:
    """A blob that a block references: a client's model, or the global model after the block."""

    blob: bytes
    client: int | None

    def describe(self, height: int) -> str:
        if height == 0:
            return f"genesis: the untrained model, blob {self.blob.hex()}"
        who = "the global model" if self.client is None else f"the model of client {self.client}"
        return f"block {height}: {who}, blob {self.blob.hex()}"


def rested_on(block: Block) -> list[BlobUse]:
    """The blobs that a block references: its model, and the updates aggregated in it."""
    updates = () if block.body.is_empty else [signed.update for signed in block.body.updates]
    aggregated = [BlobUse(update.model, update.client) for update in updates if update.model and update.samples]
    return [BlobUse(block.body.model, None), *aggregated]


def validate_next(
    block: Block, chain: bytes, height: int, tip: bytes, needed: Iterable[BlobUse], has_blob: Callable[[bytes], bool]
) -> None:
    """Raise `MisplacedBlock` unless the block follows `tip` at `height` and the blobs it needs are stored."""
    header = block.header
    if header.chain != chain:
        raise MisplacedBlock(f"block of chain {header.chain.hex()}, this is chain {chain.hex()}")
    if header.height != height + 1:
        raise MisplacedBlock(f"block {header.height}, block {height + 1} is the next")
    if header.parent != tip:
        raise MisplacedBlock(f"block {header.height}: its parent is {header.parent.hex()}, the tip {tip.hex()}")
    for use in needed:
        if not has_blob(use.blob):
            raise MisplacedBlock(f"{use.describe(header.height)}: not kept, and must be before the block is")


def validate_quota(held: int, size: int, max_bytes: int | None) -> None:
    """Raise `QuotaExceeded` if `size` more bytes exceed the quota; none: no quota."""
    if max_bytes is not None and held + size > max_bytes:
        raise QuotaExceeded(f"{size} bytes more than the {held} held would exceed the quota of {max_bytes}")
