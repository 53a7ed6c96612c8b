"""Deterministic replay: a node's logged events through the pure core give its stored blocks, byte for byte.

No private key is needed. Where the core signs, the logged signature is used and must be valid for the core's statement.
So every signed statement of the node is shown to follow from its events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bdfl.encoding import Record, encode
from bdfl.errors import BdflError, other_format
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block, start_chain
from bdfl.ledger.store import Store
from bdfl.protocol.events import (
    BlobArrived,
    Commit,
    Event,
    KeptProgress,
    TrainingFinished,
)
from bdfl.protocol.node import begin, step
from bdfl.protocol.state import Context, NodeState, Recovered, Timing
from bdfl.transports.interfaces import Observer, Transition
from bdfl.transports.live.event_log import (
    EVENTS_FILE,
    FORMAT,
    BrokenLog,
    LoggedBlob,
    LoggedEvent,
    LoggedStep,
    LoggedTraining,
    LogHeader,
    former_log,
    read_entries,
)


class ReplayDiffers(BdflError):
    """The replay differs from the log or the store."""


@dataclass(frozen=True)
class ReplayedIncarnation:
    """One incarnation of a node: from a start to its end, or to the end of its log."""

    first_height: int  # first height it worked on
    last_height: int  # last block it decided; below `first_height`: none
    num_events: int
    num_signatures: int
    is_whole: bool  # False: the node ended before it stored what comes next


@dataclass(frozen=True)
class ReplayResult:
    """All incarnations, and the blocks they reproduce."""

    number: int
    incarnations: tuple[ReplayedIncarnation, ...]
    num_blocks: int  # stored blocks reproduced byte for byte
    not_recorded: tuple[int, ...]  # heights whose decision is not or only partly logged


class _Tape(Signer):
    """A signer that returns logged signatures after verifying them against their statements."""

    def __init__(self, public_key: bytes) -> None:
        self.public_key = public_key
        self._signatures: list[bytes] = []
        self.num_given = 0

    def load(self, signatures: tuple[bytes, ...]) -> None:
        self._signatures = list(signatures)

    def validate_end(self) -> None:
        if self._signatures:
            raise ReplayDiffers(f"{len(self._signatures)} recorded signatures that nothing needs")

    def sign(self, meaning: Meaning, place: Place, content: Record) -> bytes:
        what = f"{meaning} for height {place.height}"
        if not self._signatures:
            raise ReplayDiffers(f"a {what} is signed, none is recorded")
        signature = self._signatures.pop(0)
        if not is_signed(self.public_key, signature, statement_digest(meaning, place, encode(content))):
            raise ReplayDiffers(f"another {what} is signed than the one recorded")
        self.num_given += 1
        return signature


def replay(
    log: Path, store: Store, cache: VerificationCache | None = None, observer: Observer | None = None
) -> ReplayResult:
    """Replay a log and the rotated one before it against the node's `store`, which may be read-only.

    Raises `ReplayDiffers` if the core decides or signs differently, `BrokenLog` if the log is empty or invalid.
    """
    shared = VerificationCache() if cache is None else cache
    player: _Player | None = None
    incarnations: list[ReplayedIncarnation] = []
    decided: set[int] = set()
    chain = start_chain(store.genesis, shared)
    for entry in _entries_of(log):
        if isinstance(entry, LogHeader):
            if player is not None:
                incarnations.append(player.end())
            chain = _advance(chain, entry.height, store, shared)
            player = _Player(entry, chain, store, shared, decided, observer or Observer())
        elif player is None:
            raise BrokenLog(f"{log}: an event before any beginning")
        else:
            player.play(entry)
    if player is None:
        raise BrokenLog(f"{log}: empty, the log of a node expected")
    incarnations.append(player.end())
    missing = tuple(height for height in range(1, store.height + 1) if height not in decided)
    return ReplayResult(player.number, tuple(incarnations), len(decided), missing)


def _entries_of(log: Path) -> Iterator[LogHeader | LoggedStep]:
    for path in (former_log(log), log):
        if path == log or path.exists():
            yield from read_entries(path)


def _advance(chain: ChainState, height: int, store: Store, cache: VerificationCache) -> ChainState:
    """Return the chain at that height."""
    if height > store.height:
        raise ReplayDiffers(f"an incarnation began at block {height}, the store has {store.height}")
    if height < chain.height:
        chain = start_chain(store.genesis, cache)
    for block in store.blocks(chain.height + 1):
        if chain.height == height:
            break
        chain = apply_block(chain, block, cache)
    return chain


class _Player:
    """Replays one incarnation."""

    def __init__(
        self,
        began: LogHeader,
        chain: ChainState,
        store: Store,
        cache: VerificationCache,
        decided: set[int],
        observer: Observer,
    ) -> None:
        if began.format != FORMAT:
            raise BrokenLog(f"{EVENTS_FILE}: {other_format(began.format, FORMAT)}")
        if began.chain != chain.chain:
            raise BrokenLog(f"{EVENTS_FILE}: of another chain, {chain.chain.hex()[:16]} expected")
        self.number = began.number
        self._store = store
        self._decided = decided
        self._observer = observer
        self._first_height = self._last_height = began.height
        self._num_events = 0
        self._is_whole = True
        self._tape = _Tape(began.public_key)
        timing = Timing(began.grace_ns, began.attempt_ns, began.resend_ns, float.fromhex(began.time_scale))
        self._context = Context(
            began.number, self._tape, timing, cache, began.last_height, keep_blocks=began.keep_blocks
        )
        self._state: NodeState = begin(self._context, chain, self._recovered(began, chain))

    def play(self, entry: LoggedStep) -> None:
        if not self._is_whole:
            return
        event = self._event_of(entry.event)
        if event is None:
            self._is_whole = False
            return
        self._num_events += 1
        before = self._state
        self._tape.load(entry.signatures)
        try:
            self._state, effects = step(self._context, self._state, event, entry.now_ns, entry.utc_ms)
            self._tape.validate_end()
        except ReplayDiffers as error:
            where = f"event {self._num_events} of the incarnation from block {self._first_height}"
            raise ReplayDiffers(f"{where}: {error}") from None
        self._observer.stepped(entry.now_ns, self.number, Transition(before, event, self._state, effects))
        for effect in effects:
            self._observer.did(entry.now_ns, self.number, effect)
            if isinstance(effect, Commit):
                self._compare(effect)

    def end(self) -> ReplayedIncarnation:
        return ReplayedIncarnation(
            self._first_height + 1, self._last_height, self._num_events, self._tape.num_given, self._is_whole
        )

    def _compare(self, effect: Commit) -> None:
        height = effect.block.header.height
        if height > self._store.height:  # the node ended before storing it
            self._is_whole = False
            return
        if encode(self._store.block(height)) != encode(effect.block):
            raise ReplayDiffers(f"block {height}: {effect.block.digest.hex()[:16]} is decided, the store has another")
        if self._last_height < height and self._store.certificate(height) != effect.certificate:
            raise ReplayDiffers(f"block {height}: decided by other votes than those in the store")
        self._last_height = height
        self._decided.add(height)

    def _recovered(self, began: LogHeader, chain: ChainState) -> Recovered:
        blobs = {blob: self._store.get_blob(blob) for blob in began.blobs}
        kept = began.progress
        goes_on = chain.params.server is not None and not began.lacks_model
        return Recovered(
            certificate=began.certificate,
            update=began.update,
            report=began.report,
            blocks=began.blocks,
            votes=began.votes,
            progress=None if kept is None else KeptProgress(began.height + 1, kept.attempt, kept.lock),
            blobs={blob: self._needed(blob, data) for blob, data in blobs.items()},
            lacks_model=began.lacks_model,
            model=self._needed(chain.model, self._store.get_blob(chain.model)) if goes_on else b"",
        )

    def _needed(self, blob: bytes, data: bytes | None) -> bytes:
        if data is None:
            raise ReplayDiffers(f"blob {blob.hex()[:16]}: no longer in the store, needed to play an incarnation again")
        return data

    def _event_of(self, logged: LoggedEvent) -> Event | None:
        """Return the logged event; None if a blob it needs was never stored."""
        match logged:
            case LoggedBlob(holder, blob, data):
                return self._blob_arrived(holder, blob, data)
            case LoggedTraining(height, parent, model, epsilon_micro):
                return self._training_finished(height, parent, model, epsilon_micro)
            case _:
                return logged

    def _blob_arrived(self, holder: int, blob: bytes, data: bytes) -> Event | None:
        given: bytes | None = data or self._store.get_blob(blob)
        if given is None:
            if blob in self._state.wanted_blobs:
                return None
            given = b""  # no longer wanted: it changed nothing
        return BlobArrived(holder, given)

    def _training_finished(self, height: int, parent: bytes, model: bytes, epsilon_micro: int) -> Event | None:
        if not model:
            return TrainingFinished(height, parent, None, epsilon_micro)
        data = self._store.get_blob(model)
        if data is None:
            is_late = height != self._state.chain.height + 1 or self.number in self._state.updates
            return TrainingFinished(height, parent, b"") if is_late else None
        return TrainingFinished(height, parent, data, epsilon_micro)
