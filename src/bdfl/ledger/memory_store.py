"""A store in memory, for simulated networks: it survives a simulated crash of its node.

It hashes nothing: the caller guarantees that bytes have the digest they are put under.
"""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

from bdfl.ledger.block import Block, Certificate, Genesis, SignedReport, SignedUpdate, SignedVote, chain_id
from bdfl.ledger.keeping import BlobUse, PruneReport, StoredRound, rested_on, validate_next, validate_quota
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.pruning import last_pruned, needed_blobs, open_blobs, prove_update

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

    def put_vote(self, height: int, vote: SignedVote) -> None:
        kept = self.read_round(height)
        self._rounds[height] = replace(kept, votes=_with(kept.votes, vote))

    def put_update(self, height: int, update: SignedUpdate) -> None:
        kept = self.read_round(height)
        self._rounds[height] = replace(kept, updates=_with(kept.updates, update))

    def put_report(self, height: int, report: SignedReport) -> None:
        kept = self.read_round(height)
        self._rounds[height] = replace(kept, reports=_with(kept.reports, report))

    def put_candidate(self, block: Block) -> None:
        kept = self.read_round(block.header.height)
        self._rounds[kept.height] = replace(kept, candidates=_with(kept.candidates, block))

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
        needed = needed_blobs(self.genesis, self.block(last), self.blocks(last + 1))
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
        return prove_update(self.block(height), client)

    def _index(self, height: int) -> int:
        if not 1 <= height <= self.height:
            raise IndexError(f"block {height} of 1..{self.height}")
        return height - 1


def _with(kept: tuple[_Item, ...], item: _Item) -> tuple[_Item, ...]:
    return kept if item in kept else (*kept, item)
