"""What a node keeps for good: the chain with its blobs, and its own part in the height that is not decided.

`Store` is kept in files by `store.ChainStore`, in memory by `memory_store.MemoryStore`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bdfl.errors import BdflError
from bdfl.ledger.block import Block, Certificate, Genesis, SignedReport, SignedUpdate, SignedVote
from bdfl.ledger.merkle import MerkleProof


class StoreError(BdflError):
    """Anything a store cannot do."""


class NotAStore(StoreError):
    """A path where no store is, or where none can be begun."""


class StoreInUse(StoreError):
    """A store that another process writes to."""


class DamagedStore(StoreError):
    """A store that lost or changed something it had kept; says what."""


class NotKept(StoreError):
    """Something that could not be kept: the disk is full or fails, or bytes are not what they are said to be."""


class QuotaExceeded(StoreError):
    """A blob that would make the store larger than it may be."""


class MisplacedBlock(StoreError):
    """A block that is not the next one, or comes before the blobs it rests on."""


@dataclass(frozen=True)
class StoredRound:
    """All that was kept of a height, each in the order in which it was put.

    Candidates and progress are forgotten when a block of the height is appended.
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
    """What pruning dropped; `checkpoint` is the height whose model is the oldest one kept beside the untrained one."""

    checkpoint: int
    num_blocks: int
    num_blobs: int
    num_bytes: int


class Store(Protocol):
    """What a node keeps. Whatever a `put_` or `append` returned from is there after a crash; inside a `batch`, whatever
    that returned from.
    """

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
        """Heights of the blocks that were appended on trust, in order: their models were never recomputed here."""

    def block(self, height: int) -> Block: ...

    def blocks(self, first: int = 1) -> Iterator[Block]:
        """Blocks from height `first` to the last one."""

    def certificate(self, height: int) -> Certificate:
        """The precommits with which the block of a height was appended."""

    def batch(self) -> AbstractContextManager[None]:
        """Inside, what is put or appended is kept together at the end, all or nothing; an error keeps none of it."""

    def append(self, block: Block, certificate: Certificate, *, is_trusted: bool = False) -> None:
        """Keeps the next block for good; the blobs that `rested_on` names must have been put before.

        Others that were put since the last block are dropped: only the decided height could have needed them. On trust
        no blobs are needed. The model of the last block on trust must have been put before the first one that is not,
        which prunes all before it.
        """

    def has_blob(self, blob: bytes) -> bool: ...

    def get_blob(self, blob: bytes) -> bytes | None:
        """The bytes of that digest; none if they are not kept, or no more."""

    def read_unchecked(self, blob: bytes) -> bytes | None:
        """As `get_blob`, for those who compare the digest themselves; from any thread, also several at a time."""

    def put_blob(self, blob: bytes, data: bytes) -> None: ...

    def put_vote(self, height: int, vote: SignedVote) -> None: ...

    def put_update(self, height: int, update: SignedUpdate) -> None: ...

    def put_report(self, height: int, report: SignedReport) -> None: ...

    def put_candidate(self, block: Block) -> None: ...

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None: ...

    def read_round(self, height: int) -> StoredRound: ...

    def prune(self, keep_blocks: int) -> PruneReport:
        """Drops the blobs of all but the newest blocks (at least 1 is kept), except those that verifying these needs.

        Blocks and certificates stay, and so do the blobs of the open height.
        """

    def proof(self, height: int, client: int) -> MerkleProof | None:
        """That the client's update, as `SignedUpdate`, is in the block of a height; none if it is not."""


@dataclass(frozen=True)
class BlobUse:
    """A blob that a block rests on: a client's model, or the global model after it."""

    blob: bytes
    client: int | None

    def describe(self, height: int) -> str:
        if height == 0:
            return f"genesis: the untrained model, blob {self.blob.hex()}"
        who = "the global model" if self.client is None else f"the model of client {self.client}"
        return f"block {height}: {who}, blob {self.blob.hex()}"


def rested_on(block: Block) -> list[BlobUse]:
    """The blobs that a block rests on: its model, and the updates that are aggregated in it."""
    updates = () if block.body.is_empty else [signed.update for signed in block.body.updates]
    aggregated = [BlobUse(update.model, update.client) for update in updates if update.model and update.samples]
    return [BlobUse(block.body.model, None), *aggregated]


def validate_next(
    block: Block, chain: bytes, height: int, tip: bytes, needed: Iterable[BlobUse], has_blob: Callable[[bytes], bool]
) -> None:
    """Raises `MisplacedBlock` unless the block follows `tip` at `height` and the blobs it needs are kept."""
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
    """Raises `QuotaExceeded` if `size` bytes more than those held are too many; no quota: never."""
    if max_bytes is not None and held + size > max_bytes:
        raise QuotaExceeded(f"{size} bytes more than the {held} held would exceed the quota of {max_bytes}")
