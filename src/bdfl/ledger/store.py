"""The protocol of a node's durable store, a store in memory, an overlay, and pruning.

A store holds the chain, its blobs, and the node's own statements of the open height. The one in memory, for simulated
networks, survives a simulated crash of its node and hashes nothing: bytes must have the digest they are put under.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from bdfl.errors import BdflError
from bdfl.ledger.block import (
    Block,
    Certificate,
    Genesis,
    OwnStatement,
    SignedReport,
    SignedUpdate,
    SignedVote,
    body_leaves,
    chain_id,
)
from bdfl.ledger.merkle import MerkleProof, prove_leaves


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
class KnownHeight:
    """A height that a chain is known to have reached, and the file that proves it."""

    height: int
    source: str


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

    def put_statement(self, height: int, statement: OwnStatement) -> None: ...

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
    return [BlobUse(block.body.model, None), *(BlobUse(one.model, one.client) for one in block.body.aggregated)]


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


# Pruning of blobs: those that may be dropped, and Merkle proofs that keep the updates verifiable.


def last_pruned(height: int, keep_blocks: int) -> int:
    """The last block to prune so that the `keep_blocks` newest of `height` blocks stay whole; 0: none."""
    if keep_blocks < 1:
        raise ValueError(f"keep_blocks is {keep_blocks}, at least 1 expected")
    return max(height - keep_blocks, 0)


def prove_updates(block: Block) -> dict[int, MerkleProof]:
    """Inclusion proofs by client, from its `SignedUpdate` to the header's `body`."""
    proofs = prove_leaves(body_leaves(block.body))[1:]  # the first leaf is the rest of the body
    return {signed.update.client: proof for signed, proof in zip(block.body.updates, proofs, strict=True)}


def open_blobs(open_round: StoredRound) -> set[bytes]:
    """Digests that the open height may need: own models, and blobs that its candidates reference."""
    own = {signed.update.model for signed in open_round.updates}
    return own | {use.blob for block in open_round.candidates for use in rested_on(block)}


_Item = TypeVar("_Item")


class MemoryStore:
    """A `Store` in memory."""

    def __init__(self, genesis: Genesis, initial_model: bytes, *, max_bytes: int | None = None) -> None:
        self.genesis = genesis
        self.checkpoint = 0
        self.trusted: list[int] = []
        self._chain = chain_id(genesis)
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._blocks: list[Block] = []
        self._certificates: list[Certificate] = []
        self._blobs: dict[bytes, bytes] = {}
        self._put_at: dict[bytes, int] = {}  # the height that was open when a blob was last put
        self._recent: set[bytes] = set()  # blobs that no decided block references
        self._rounds: dict[int, StoredRound] = {}
        self.put_blob(genesis.model.initial, initial_model)
        self._recent.clear()

    @property
    def height(self) -> int:
        return len(self._blocks)

    def block(self, height: int) -> Block:
        return self._blocks[self._index(height)]

    def blocks(self, first: int = 1) -> Iterator[Block]:
        height = first
        while height <= self.height:
            yield self.block(height)
            height += 1

    def certificate(self, height: int) -> Certificate:
        return self._certificates[self._index(height)]

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append(self, block: Block, certificate: Certificate, *, is_trusted: bool = False) -> None:
        tip = self.block(self.height) if self.height else None
        needed = [] if is_trusted else rested_on(block)
        if tip is not None and self._is_on_trust and not is_trusted:
            needed.append(BlobUse(tip.body.model, None))
        validate_next(block, self._chain, self.height, tip.digest if tip else self._chain, needed, self.has_blob)
        if is_trusted:
            self.trusted.append(self.height + 1)
        elif self._is_on_trust:
            self._prune_to(self.height)
        self._blocks.append(block)
        self._certificates.append(certificate)
        self._drop((self._recent & self._blobs.keys()) - {use.blob for use in needed})
        self._recent.clear()
        decided = self.read_round(self.height)
        self._rounds[self.height] = replace(decided, candidates=(), attempt=0, lock=())

    def has_blob(self, blob: bytes) -> bool:
        return blob in self._blobs

    def get_blob(self, blob: bytes) -> bytes | None:
        return self._blobs.get(blob)

    def read_unchecked(self, blob: bytes) -> bytes | None:
        return self._blobs.get(blob)

    def put_blob(self, blob: bytes, data: bytes) -> None:
        if blob not in self._blobs:
            validate_quota(self._num_bytes, len(data), self._max_bytes)
            self._blobs[blob] = data
            self._num_bytes += len(data)
            self._recent.add(blob)
        self._put_at[blob] = self.height + 1

    def put_statement(self, height: int, statement: OwnStatement) -> None:
        kept = self.read_round(height)
        match statement:
            case SignedVote():
                kept = replace(kept, votes=_with(kept.votes, statement))
            case SignedUpdate():
                kept = replace(kept, updates=_with(kept.updates, statement))
            case SignedReport():
                kept = replace(kept, reports=_with(kept.reports, statement))
            case Block():
                kept = replace(kept, candidates=_with(kept.candidates, statement))
        self._rounds[height] = kept

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None:
        self._rounds[height] = replace(self.read_round(height), attempt=attempt, lock=lock)

    def read_round(self, height: int) -> StoredRound:
        return self._rounds.get(height) or StoredRound(height)

    def prune(self, keep_blocks: int) -> PruneReport:
        last = last_pruned(self.height, keep_blocks)
        if last <= self.checkpoint or self._is_on_trust:
            return PruneReport(self.checkpoint, 0, 0, 0)
        return self._prune_to(last)

    @property
    def _is_on_trust(self) -> bool:
        """True if the last block was appended on trust."""
        return self.trusted[-1:] == [self.height]

    def _prune_to(self, last: int) -> PruneReport:
        num_blocks = last - self.checkpoint
        needed = {self.genesis.model.initial, self.block(last).body.model}
        needed |= {use.blob for block in self.blocks(last + 1) for use in rested_on(block)}
        needed |= open_blobs(self.read_round(self.height + 1))
        dropped = [blob for blob, height in self._put_at.items() if height <= last and blob not in needed]
        self.checkpoint = last
        return PruneReport(last, num_blocks, len(dropped), self._drop(dropped))

    def _drop(self, blobs: Collection[bytes]) -> int:
        """Delete blobs and return the number of bytes freed."""
        num_bytes = sum(len(self._blobs[blob]) for blob in blobs)
        for blob in blobs:
            del self._blobs[blob], self._put_at[blob]
        self._num_bytes -= num_bytes
        return num_bytes

    def proof(self, height: int, client: int) -> MerkleProof | None:
        return prove_updates(self.block(height)).get(client)

    def _index(self, height: int) -> int:
        if not 1 <= height <= self.height:
            raise IndexError(f"block {height} of 1..{self.height}")
        return height - 1


def _with(kept: tuple[_Item, ...], item: _Item) -> tuple[_Item, ...]:
    return kept if item in kept else (*kept, item)


# An in-memory overlay over a stored chain, for a node that continues it.


class OverlayStore(MemoryStore):
    """An overlay `Store`: the first blocks, and blobs that it does not hold itself, are read from `past`."""

    def __init__(self, past: Store, height: int) -> None:
        """Continue the chain after block `height` of `past`, which may have more."""
        initial = past.get_blob(past.genesis.model.initial)
        if initial is None or height > past.height:
            raise MisplacedBlock(f"a chain of {past.height} blocks, one of {height} and the untrained model expected")
        self._past = past
        self._first = height
        super().__init__(past.genesis, initial)

    @property
    def height(self) -> int:
        return self._first + len(self._blocks)

    def block(self, height: int) -> Block:
        return self._past.block(height) if height <= self._first else super().block(height)

    def certificate(self, height: int) -> Certificate:
        return self._past.certificate(height) if height <= self._first else super().certificate(height)

    def has_blob(self, blob: bytes) -> bool:
        return super().has_blob(blob) or self._past.has_blob(blob)

    def get_blob(self, blob: bytes) -> bytes | None:
        own = super().get_blob(blob)
        return self._past.get_blob(blob) if own is None else own

    def _index(self, height: int) -> int:
        return super()._index(height) - self._first
