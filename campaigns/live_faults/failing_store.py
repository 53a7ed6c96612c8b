"""Store with fault injection: its disk fails, or its process is killed, at a chosen write, to test recovery.

A fault point is `write:number` or `write:number:kind`, such as `append:3` for the third appended block. The kinds are
`kill` (the process kills itself shortly after the write begins), `full` and `read-only` (the disk).
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from bdfl.errors import BdflError
from bdfl.ledger.block import Block, Certificate, Genesis, OwnStatement, SignedReport, SignedUpdate, SignedVote
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.store import NotKept, PruneReport, Store, StoredRound

FAULT_VARIABLE = "BDFL_FAULT"
WRITES = (
    "append",
    "put_blob",
    "put_vote",
    "put_update",
    "put_report",
    "put_candidate",
    "put_progress",
    "batch",
    "prune",
)
_LONGEST_DELAY_S = 0.003
_WRITES_OF: Mapping[type[OwnStatement], str] = {
    SignedVote: "put_vote",
    SignedUpdate: "put_update",
    SignedReport: "put_report",
    Block: "put_candidate",
}


class BadFaultPoint(BdflError):
    """An invalid fault point."""


class FaultKind(StrEnum):
    """Kind of fault."""

    KILL = "kill"
    FULL = "full"
    READ_ONLY = "read-only"


_REASONS = {FaultKind.FULL: "No space left on device", FaultKind.READ_ONLY: "Read-only file system"}


@dataclass(frozen=True)
class FaultPoint:
    """A fault at the n-th write of a kind, counted from 1."""

    write: str
    number: int
    kind: FaultKind = FaultKind.KILL


def read_fault_point(text: str) -> FaultPoint:
    """Parse a fault point; raises `BadFaultPoint`."""
    write, _, rest = text.partition(":")
    number, _, kind = rest.partition(":")
    if write not in WRITES or not number.isascii() or not number.isdigit() or int(number) < 1:
        raise BadFaultPoint(f"fault point {text!r}: one of {', '.join(WRITES)}, a colon and a number expected")
    if kind and kind not in list(FaultKind):
        raise BadFaultPoint(f"fault point {text!r}: kind {kind!r}, one of {', '.join(FaultKind)} expected")
    return FaultPoint(write, int(number), FaultKind(kind) if kind else FaultKind.KILL)


def with_fault_point(store: Store, environment: Mapping[str, str]) -> Store:
    """Wrap the store if the environment names a fault point; otherwise return it unchanged."""
    text = environment.get(FAULT_VARIABLE, "")
    return FailingStore(store, read_fault_point(text)) if text else store


def kill_soon() -> None:
    """Kill this process with SIGKILL within a few milliseconds, during a write."""
    delay_s = random.uniform(0.0, _LONGEST_DELAY_S)
    threading.Thread(target=_kill_after, args=(delay_s,), daemon=True).start()


def _kill_after(delay_s: float) -> None:
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


class FailingStore:
    """A `Store` that fails at its fault point and from then on.

    Writes inside a batch reach the disk at its end, so that is when the process is killed.
    """

    def __init__(self, store: Store, point: FaultPoint, kill: Callable[[], None] = kill_soon) -> None:
        self._store = store
        self._point = point
        self._kill = kill
        self._num_writes = 0
        self._is_in_batch = self._is_due = False

    @property
    def genesis(self) -> Genesis:
        return self._store.genesis

    @property
    def height(self) -> int:
        return self._store.height

    @property
    def checkpoint(self) -> int:
        return self._store.checkpoint

    @property
    def trusted(self) -> Sequence[int]:
        return self._store.trusted

    def block(self, height: int) -> Block:
        return self._store.block(height)

    def blocks(self, first: int = 1) -> Iterator[Block]:
        return self._store.blocks(first)

    def certificate(self, height: int) -> Certificate:
        return self._store.certificate(height)

    @contextmanager
    def batch(self) -> Iterator[None]:
        with self._store.batch():
            self._is_in_batch = True
            try:
                self._reach("batch")
                yield
            finally:
                self._is_in_batch = False
            self._kill_if_due()

    def append(self, block: Block, certificate: Certificate, *, is_trusted: bool = False) -> None:
        self._reach("append")
        self._store.append(block, certificate, is_trusted=is_trusted)

    def has_blob(self, blob: bytes) -> bool:
        return self._store.has_blob(blob)

    def get_blob(self, blob: bytes) -> bytes | None:
        return self._store.get_blob(blob)

    def read_unchecked(self, blob: bytes) -> bytes | None:
        return self._store.read_unchecked(blob)

    def put_blob(self, blob: bytes, data: bytes) -> None:
        self._reach("put_blob")
        self._store.put_blob(blob, data)

    def put_statement(self, height: int, statement: OwnStatement) -> None:
        self._reach(_WRITES_OF[type(statement)])
        self._store.put_statement(height, statement)

    def put_progress(self, height: int, attempt: int, lock: Certificate) -> None:
        self._reach("put_progress")
        self._store.put_progress(height, attempt, lock)

    def read_round(self, height: int) -> StoredRound:
        return self._store.read_round(height)

    def prune(self, keep_blocks: int) -> PruneReport:
        self._reach("prune")
        return self._store.prune(keep_blocks)

    def proof(self, height: int, client: int) -> MerkleProof | None:
        return self._store.proof(height, client)

    def _reach(self, write: str) -> None:
        """Count a write that is about to begin, and fail it at the fault point."""
        point = self._point
        self._num_writes += write == point.write
        if self._num_writes < point.number:
            return
        if point.kind is FaultKind.KILL:
            self._is_due = True
            if not self._is_in_batch:
                self._kill_if_due()
        else:
            raise NotKept(f"{write}: {_REASONS[point.kind]} (a fault point); nothing was changed")

    def _kill_if_due(self) -> None:
        if self._is_due:
            self._is_due = False
            self._kill()
