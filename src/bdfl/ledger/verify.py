"""Verification of a stored chain from genesis to tip, by the rules and its bytes alone.

Every link, proof of work, signature and certificate is checked, queues, receipts and schedules are recomputed, and
every global model is aggregated again, bit for bit. Threads read and hash each file once meanwhile.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue
from types import MappingProxyType

import numpy as np

from bdfl.encoding import digest, encode
from bdfl.learning.weights import Layout, Vector
from bdfl.ledger.block import Block, Certificate, FalseWork, chain_id
from bdfl.ledger.cache import VerificationCache, decode_blob
from bdfl.ledger.chain import apply_block, plan_after, settle_round, start_chain
from bdfl.ledger.chain_params import read_layout
from bdfl.ledger.errors import BadLink, MissingBlob, NotVotable, RuleBroken, WrongModel
from bdfl.ledger.genesis import validate_initial_model
from bdfl.ledger.member_set import find_change, find_evidence
from bdfl.ledger.merkle import proven_root
from bdfl.ledger.rules import judge_schedule, validate_model, validate_proposal
from bdfl.ledger.statements import validate_certificate
from bdfl.ledger.store import KnownHeight, Store, StoreError, rested_on

_AHEAD = 1  # blocks whose files are read ahead
_MAX_THREADS = 4
_MAX_REMEMBERED = 2**20  # bytes cached: models are needed once, and reused memory is fast


class Agreement(StrEnum):
    """Result of comparing a block's next schedule with the one that the chain's scheduler gives here."""

    SAME = "same"
    WITHIN_TOLERANCE = "within-tolerance"  # that of voters: floats of another processor
    DIFFERENT = "different"  # valid, but by another version, in a later attempt, or by a Byzantine proposer


class ModelCheck(StrEnum):
    """The check that was made of a block's global model."""

    RECOMPUTED = "recomputed"  # from the stored updates, and equal in every bit
    UNCHANGED = "unchanged"  # an empty block: that of its parent
    PRUNED = "pruned"  # its updates were pruned: their Merkle proofs hold, and a quorum voted for the model
    TRUSTED = "trusted"  # as pruned, and the storing node never had the updates: it returned or joined by state sync


@dataclass(frozen=True)
class BlockVerdict:
    """A valid block."""

    height: int
    agreement: Agreement
    model: ModelCheck
    num_signatures: int
    num_bytes: int  # of updates that were read and aggregated


@dataclass(frozen=True)
class Failure:
    """The first rule that was broken."""

    block: int  # 0: the genesis
    rule: str
    message: str  # both of these in a line
    expected: str  # by the rules
    found: str  # in the block or the file

    def __str__(self) -> str:
        return f"{'genesis' if self.block == 0 else f'block {self.block}'}, rule {self.rule}: {self.message}"


def store_failure(height: int, error: StoreError) -> Failure:
    """The failure of a store with missing or changed data."""
    return Failure(height, "store", str(error), "rows and files as they were written", str(error))


@dataclass(frozen=True)
class Verification:
    """The result of verifying a chain up to its end or the first failure."""

    chain: str  # the chain's id
    height: int  # number of stored blocks
    checkpoint: int  # last block whose updates were pruned; 0: none
    blocks: tuple[BlockVerdict, ...]  # found valid
    failure: Failure | None

    @property
    def is_valid(self) -> bool:
        return self.failure is None

    @property
    def num_signatures(self) -> int:
        return sum(block.num_signatures for block in self.blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes of the updates read, hashed and aggregated."""
        return sum(block.num_bytes for block in self.blocks)

    def count_models(self, check: ModelCheck) -> int:
        """Number of blocks whose model was checked in that way."""
        return sum(block.model is check for block in self.blocks)

    @property
    def trusted(self) -> list[int]:
        """Heights of the blocks whose model was never recomputed for this store."""
        return [block.height for block in self.blocks if block.model is ModelCheck.TRUSTED]

    def count_schedules(self, agreement: Agreement) -> int:
        """Number of blocks whose next schedule compares like that."""
        return sum(block.agreement is agreement for block in self.blocks)


def verify_chain(
    store: Store,
    *,
    own_functions: frozenset[str] = frozenset(),
    known: KnownHeight | None = None,
    on_block: Callable[[BlockVerdict], None] | None = None,
) -> Verification:
    """Verify that everything in the store follows from its genesis by the rules; stop at the first violation.

    `own_functions` are aggregation rules of the form module:function that may be run, see `VerificationCache`. A chain
    shorter than the `known` height fails as cut short. `on_block` is called for every valid block.
    """
    verdicts: list[BlockVerdict] = []
    height = 0  # of the block being read or verified
    last, checkpoint = store.height, store.checkpoint  # another process may append and prune meanwhile

    def conclude(failure: Failure | None) -> Verification:
        pruned = [verdict.height for verdict in verdicts if verdict.model is ModelCheck.PRUNED]
        return Verification(chain_id(store.genesis).hex(), last, max([checkpoint, *pruned]), tuple(verdicts), failure)

    try:
        verifier = _Verifier(store, own_functions)
        reader = _Reader(store)
        with _open_pool() as pool:
            height = 1
            for stage in _read_stages(store, last, reader, pool):
                verdicts.append(verifier.verify(stage))
                height += 1
                reader.reuse(stage.updates.values())
                if on_block is not None:
                    on_block(verdicts[-1])
    except RuleBroken as error:
        message = str(error).removeprefix(f"{error.rule}: ")
        return conclude(Failure(height, error.rule, message, *error.difference))
    except MissingBlob as error:
        expected = f"the bytes of blob {error.digest.hex()[:16]}"
        return conclude(Failure(height, "blob-stored", str(error), expected, "none"))
    except StoreError as error:
        return conclude(store_failure(height, error))
    if known is not None and known.height > last:
        expected = f"{known.height} blocks, as {known.source} says"
        message = f"{last} blocks found, {expected}, expected: the chain was cut short"
        return conclude(Failure(last + 1, "height", message, expected, f"{last} blocks"))
    return conclude(None)


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stored block, and its files being read."""

    block: Block
    certificate: Certificate
    updates: Mapping[bytes, "Future[Vector | None]"]  # by digest; raises `InvalidUpdate` if the bytes are no model
    model: "Future[bytes | None] | None"  # the global model; none: not stored, or that of the block before


class _HandedCache(VerificationCache):
    """A cache given models that threads have already read, hashed and decoded."""

    handed: Mapping[bytes, Vector] = MappingProxyType({})

    def decode_model(self, digest: bytes, data: bytes, layout: Layout) -> Vector:
        known = self.handed.get(digest)
        return super().decode_model(digest, data, layout) if known is None else known


class _Verifier:
    """Verifies block after block, and holds the chain state verified so far."""

    def __init__(self, store: Store, own_functions: frozenset[str]) -> None:
        genesis = store.genesis
        self._cache = _HandedCache(max_bytes=_MAX_REMEMBERED, own_functions=own_functions)
        self._store = store
        self._trusted = frozenset(store.trusted)
        self._state = start_chain(genesis, self._cache)
        self._certificate: Certificate = ()  # the tip's own
        initial = store.get_blob(genesis.model.initial)
        if initial is None:
            raise MissingBlob(genesis.model.initial)
        validate_initial_model(genesis, initial, self._cache)
        self._model = genesis.model.initial, initial  # the newest global model at hand: its digest and bytes

    def verify(self, stage: _Stage) -> BlockVerdict:
        """Verify the next block; raises `RuleBroken` if it is not valid."""
        block, certificate = stage.block, stage.certificate
        state, cache = self._state, self._cache
        validate_proposal(state, block, cache)
        validate_certificate(state, block.digest, certificate, cache)
        check, num_bytes = self._verify_model(block, stage)
        verdict = BlockVerdict(
            height=block.header.height,
            agreement=self._compare_schedule(block),
            model=check,
            num_signatures=_count_signatures(block) + len(certificate) + self._count_other_votes(block),
            num_bytes=num_bytes,
        )
        self._state, self._certificate = apply_block(state, block, cache), certificate
        return verdict

    def _count_other_votes(self, block: Block) -> int:
        """Number of votes for the parent that the block carries and the parent's stored certificate lacks."""
        return len(set(block.body.parent_certificate) - set(self._certificate))

    def _verify_model(self, block: Block, stage: _Stage) -> tuple[ModelCheck, int]:
        """Aggregate the model again, unless its updates are gone; another process may prune them meanwhile."""
        if not self._is_gone(block.header.height):
            try:
                return self._recompute_model(block, stage)
            except MissingBlob:
                if not self._is_gone(block.header.height):
                    raise
        self._verify_proofs(block)
        self._verify_checkpoint(block)
        gone = ModelCheck.TRUSTED if block.header.height in self._trusted else ModelCheck.PRUNED
        return (ModelCheck.UNCHANGED if block.body.is_empty else gone), 0

    def _is_gone(self, height: int) -> bool:
        return height <= self._store.checkpoint or height in self._trusted

    def _recompute_model(self, block: Block, stage: _Stage) -> tuple[ModelCheck, int]:
        if block.body.is_empty:
            return ModelCheck.UNCHANGED, 0
        found = {blob: future.result() for blob, future in stage.updates.items()}
        self._cache.handed = {blob: model for blob, model in found.items() if model is not None}
        try:
            blobs = dict.fromkeys(self._cache.handed, b"") | self._read_parent()
            model = validate_model(self._state, block, blobs, self._cache)
        finally:
            self._cache.handed = {}
        self._model = block.body.model, model
        stored = None if stage.model is None else stage.model.result()
        if stored is None:
            raise MissingBlob(block.body.model)
        if stored != model:  # the aggregate has the digest that the block names, so other bytes have another one
            raise WrongModel("model-stored", block.body.model, digest(stored))
        return ModelCheck.RECOMPUTED, len(found) * self._store.genesis.model.size

    def _read_parent(self) -> dict[bytes, bytes]:
        """The model that a server's optimizer goes on from, by digest; nothing where there is none."""
        wanted = self._state.model
        if self._state.params.server is None:
            return {}
        name, data = self._model
        found = data if name == wanted else self._store.get_blob(wanted)
        return {} if found is None else {wanted: found}

    def _verify_proofs(self, block: Block) -> None:
        """Check that the kept Merkle proofs lead from every update to the block."""
        height = block.header.height
        for signed in block.body.updates:
            proof = self._store.proof(height, signed.update.client)
            if proof is None or proven_root(encode(signed), proof) != block.header.body:
                raise BadLink("merkle-proof", f"a proof of the update of client {signed.update.client}", "none")

    def _verify_checkpoint(self, block: Block) -> None:
        """Check that the checkpoint's model, the oldest kept, is stored and has its digest."""

        def is_checkpoint() -> bool:
            return block.header.height == self._store.checkpoint

        if is_checkpoint() and self._store.get_blob(block.body.model) is None and is_checkpoint():
            raise MissingBlob(block.body.model)

    def _compare_schedule(self, block: Block) -> Agreement:
        body = block.body
        settled = settle_round(self._state, body.updates, body.reports, body.entries)
        if plan_after(self._state, settled, self._cache).schedule == body.next_schedule:
            return Agreement.SAME
        try:
            judge_schedule(self._state, block, self._cache)
        except NotVotable:
            return Agreement.DIFFERENT
        return Agreement.WITHIN_TOLERANCE


def _count_signatures(block: Block) -> int:
    """Number of signatures in a block, without those of certificates."""
    body = block.body
    evidence = sum(1 if isinstance(entry, FalseWork) else 2 for entry in find_evidence(body.entries))
    change = find_change(body.entries)
    return 1 + len(body.updates) + len(body.reports) + evidence + (0 if change is None else len(change.assents))


@contextmanager
def _open_pool() -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads that read and hash; tasks not started at the end are cancelled."""
    pool = ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="verify")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read_stages(store: Store, last: int, reader: "_Reader", pool: ThreadPoolExecutor) -> Iterator[_Stage]:
    """Yield block after block, while the files of the next ones are read and hashed."""
    waiting: deque[_Stage] = deque()
    for height in range(1, last + 1):
        try:
            waiting.append(_read_stage(store, height, reader, pool))
        except StoreError:
            yield from waiting
            raise
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    yield from waiting


def _read_stage(store: Store, height: int, reader: "_Reader", pool: ThreadPoolExecutor) -> _Stage:
    block, certificate = store.block(height), store.certificate(height)
    if height <= store.checkpoint or block.body.is_empty:
        return _Stage(block, certificate, {}, None)
    wanted = [use.blob for use in rested_on(block) if use.client is not None]
    updates = {blob: pool.submit(reader.read_update, blob) for blob in dict.fromkeys(wanted)}
    return _Stage(block, certificate, updates, pool.submit(store.read_unchecked, block.body.model))


class _Reader:
    """Reads the files of a store from several threads into reused vectors."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._layout = read_layout(store.genesis.model)
        self._spare: SimpleQueue[Vector] = SimpleQueue()

    def read_update(self, blob: bytes) -> Vector | None:
        """The weights in a file, checked against its digest; none if there is no file."""
        data = self._store.read_unchecked(blob)
        return None if data is None else decode_blob(blob, digest(data), data, self._layout, self._take())

    def reuse(self, updates: Iterable["Future[Vector | None]"]) -> None:
        """Take back the vectors of a verified block."""
        for weights in (future.result() for future in updates):
            if weights is not None:
                self._spare.put(weights)

    def _take(self) -> Vector:
        try:
            return self._spare.get_nowait()
        except Empty:
            return np.empty(self._layout.num_parameters, np.float32)
