"""An observer that records measured and modelled times of a node's rounds."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import msgspec

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.chain import ChainState
from bdfl.protocol.events import Commit, Effect, Event, Started, Train, TrainingFinished
from bdfl.protocol.state import NodeState, Phase
from bdfl.records.files import RoundTimes
from bdfl.storage import append_line
from bdfl.transports.interfaces import LiveObserver, Transition
from bdfl.transports.live.work import WorkProcesses

MAX_BYTES = 64 * 2**20  # of a file of rounds
_MAX_PENDING = 64  # rounds whose block is not yet durable


@dataclass(eq=False)
class _Watch:
    """A round in progress."""

    chain: ChainState
    begun_ns: int
    is_whole: bool
    training_since_ns: int | None = None
    training_ns: int | None = None
    heard_ns: dict[int, int] = field(default_factory=dict)
    upload_ns: dict[int, int] = field(default_factory=dict)
    closed_ns: int | None = None
    found_ns: int | None = None

    @property
    def height(self) -> int:
        return self.chain.height + 1


class RoundClock(LiveObserver):
    """Times a node's rounds and appends them to a file, which is rotated when full; one former file is kept.

    A write error does not stop the node: lost lines are counted.
    """

    def __init__(self, number: int, work: WorkProcesses, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """A torn last line, left by a crash, is truncated."""
        self.num_lost = 0
        self._number = number
        self._work = work
        self._path = path
        self._max_bytes = max_bytes
        self._watch: _Watch | None = None
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[_Watch, int]] = {}  # by height: a finished round and its end
        _drop_torn_line(path)

    def stepped(self, now_ns: int, done: Transition) -> None:
        event, after = done.event, done.after
        if isinstance(event, Started) or self._watch is None:
            self._watch = _Watch(done.before.chain, now_ns, is_whole=False)
        commits = [effect for effect in done.effects if isinstance(effect, Commit)]
        self._note_training(now_ns, event, done.effects)
        if not commits:
            _note_progress(self._watch, now_ns, self._number, after)
            return
        if commits[0].block.header.height == self._watch.height:
            with self._lock:
                self._pending[self._watch.height] = self._watch, now_ns
                if len(self._pending) > _MAX_PENDING:
                    self._pending.pop(next(iter(self._pending)))
        is_next = len(commits) == 1
        self._watch = _Watch(after.chain, now_ns, is_whole=is_next)
        self._note_training(now_ns, event, done.effects)
        _note_progress(self._watch, now_ns, self._number, after)

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        with self._lock:
            found = self._pending.pop(block.header.height, None)
        if found is None:
            return
        line = msgspec.json.encode(self._record(*found, block)) + b"\n"
        try:
            append_line(self._path, line, self._max_bytes, num_old=1)
        except OSError:
            self.num_lost += 1

    def _note_training(self, now_ns: int, event: Event, effects: Sequence[Effect]) -> None:
        watch = self._watch
        assert watch is not None
        if isinstance(event, TrainingFinished) and event.parent == watch.chain.tip:
            since_ns = now_ns if watch.training_since_ns is None else watch.training_since_ns
            watch.training_ns = now_ns - since_ns
        if any(isinstance(effect, Train) and effect.parent == watch.chain.tip for effect in effects):
            watch.training_since_ns = now_ns

    def _record(self, watch: _Watch, ended_ns: int, block: Block) -> RoundTimes:
        scale, spent = self._work.time_scale, self._work.spent(watch.height)
        found_ns = ended_ns if watch.found_ns is None else watch.found_ns
        closed_ns = ended_ns if watch.closed_ns is None else watch.closed_ns
        if self._number in watch.heard_ns:  # the last uploader has all updates before the others do
            closed_ns = min(max(closed_ns, watch.heard_ns[self._number] + spent.upload_ns), max(closed_ns, found_ns))
        found_ns = max(found_ns, closed_ns)
        return RoundTimes(
            node=self._number,
            round=watch.height,
            attempt=block.header.attempt,
            num_updates=len(block.body.updates),
            is_whole=watch.is_whole and watch.closed_ns is not None,
            time_scale=scale,
            modelled=self._work.modelled(watch.chain).scaled(scale),
            training_ns=watch.training_ns,
            computing_ns=spent.training_ns,
            hashing_ns=spent.hashing_ns,
            upload_ns=watch.upload_ns,
            exchange_ns=closed_ns - watch.begun_ns,
            mining_ns=found_ns - closed_ns,
            voting_ns=ended_ns - found_ns,
            delay_ns=ended_ns - watch.begun_ns,
        )


def _note_progress(watch: _Watch, now_ns: int, number: int, state: NodeState) -> None:
    """Record the times of a round's progress so far."""
    if len(watch.upload_ns) + (number in watch.heard_ns) < len(state.updates):
        for client, signed in state.updates.items():
            heard_ns = watch.heard_ns.setdefault(client, now_ns)
            if client != number and client not in watch.upload_ns and signed.update.model in state.blobs:
                watch.upload_ns[client] = now_ns - heard_ns
    if watch.closed_ns is None and state.phase is not Phase.COLLECTING:
        watch.closed_ns = now_ns
    if watch.found_ns is None and any(candidate.is_valid for candidate in state.candidates.values()):
        watch.found_ns = now_ns


def _drop_torn_line(path: Path) -> None:
    """Truncate a file after its last whole line."""
    with suppress(OSError, ValueError):  # no file yet, or an empty one; one that is not writable shows later
        with path.open("r+b") as file, mmap(file.fileno(), 0) as content:
            kept, size = content.rfind(b"\n") + 1, len(content)
        if kept < size:
            os.truncate(path, kept)
