"""Live driver: runs the pure protocol core on a real clock, with real messages, files and work.

The event loop thread only waits for the next event and steps. Costly events are prevalidated before. One thread
carries out effects. Times are monotonic; the wall clock is used only to stamp and judge blocks.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bdfl.encoding import Record
from bdfl.errors import one_line
from bdfl.identity import Meaning, Place, Signer
from bdfl.ledger.block import MAX_TIME_MS, MembershipChange
from bdfl.ledger.costs import NANO
from bdfl.ledger.store import Store, StoreError
from bdfl.protocol.events import (
    BlobArrived,
    ChangeOffered,
    Commit,
    Event,
    FetchBlob,
    MessageArrived,
    PeersAppeared,
    Send,
    ServeDecided,
    SetTimer,
    Started,
)
from bdfl.protocol.messages import Decided, Gossip, Message, Proposal
from bdfl.protocol.node import begin, step
from bdfl.protocol.state import Context, NodeState, Phase, clock_offset_ms, is_same
from bdfl.transports.interfaces import (
    Link,
    LiveObserver,
    Offer,
    Transition,
    Work,
    read_recovered,
    recover_chain,
)
from bdfl.transports.live.blob_client import BlobCache
from bdfl.transports.live.effects import Effects
from bdfl.transports.live.event_log import EVENTS_FILE, MAX_BYTES, EventLog, log_beginning, log_event
from bdfl.transports.live.prevalidation import Arrival, Prevalidator
from bdfl.transports.live.queues import FairQueue, Timers

NUM_THREADS = 2
_INBOX_WEIGHT = 8192  # of all members' messages together
_LEAST_SHARE = 64  # of one member
_BLOCK_WEIGHT = 16  # of a message with a block in it
_STATEMENTS_PER_WEIGHT = 16
_CACHED_MODELS = 4  # cached blobs beside one per member
_LONGEST_WAIT_S = 1.0
_BARRIER_POLL_S = 0.05
_MAX_REASONS = 64  # kinds of refusal counted separately
_SAYING = (Send, FetchBlob, ServeDecided, SetTimer)  # effects without a durable result


@dataclass(frozen=True)
class NodeStatus:
    """Status of a node, for operators and monitoring."""

    present: frozenset[int]  # other members
    num_waiting: int  # events
    num_rehearsing: int
    num_effects: int  # pending
    num_dropped: int  # messages, for lack of queue space
    num_trusted: int  # blocks on its chain whose model it did not recompute
    refused: Mapping[str, int]  # by kind of refusal
    clock_offset_ms: int | None  # lead of its wall clock over the members' median; None: unknown
    turned_ns: int  # last turn of the event loop, on the node's clock
    is_recording: bool  # events are logged
    stopped_by: str | None  # the error that ended the node


@dataclass(frozen=True)
class Barrier:
    """Start barrier: waits for all members, or for `patience_s` after a quorum is present."""

    num_others: int
    num_enough: int  # others needed for a quorum with this node
    patience_s: float = 30.0  # for the last members, after a quorum

    def wait(self, link: Link, is_over: threading.Event) -> None:
        """Block until the barrier is passed or `is_over` is set."""
        enough_s: float | None = None  # time of the quorum
        while len(link.present) < self.num_others and not is_over.wait(_BARRIER_POLL_S):
            if len(link.present) < self.num_enough:
                enough_s = None
            elif enough_s is None:
                enough_s = time.monotonic()
            elif time.monotonic() - enough_s >= self.patience_s:
                return


class LiveNode:
    """A member of a live network, and the `Receiver` of its link. `run` it once.

    It closes the link and the work at the end, but not the store.
    """

    def __init__(
        self,
        context: Context,
        store: Store,
        link: Link,
        work: Work,
        *,
        folder: Path | None = None,
        observers: Sequence[LiveObserver] = (),
        clock: Callable[[], int] = time.monotonic_ns,
        num_threads: int = NUM_THREADS,
        max_log_bytes: int = MAX_BYTES,
        stops_when_done: bool = False,
        barrier: Barrier | None = None,
    ) -> None:
        """`folder` holds the event log; without it, or with `max_log_bytes` 0, events are not logged.

        The cache must be a `SharedVerificationCache` unless `num_threads` is 0. A node that is done keeps serving the
        others unless it `stops_when_done`.
        """
        self._signer = _RecordingSigner(context.signer)
        self._context = replace(context, signer=self._signer)
        self._store = store
        self._link = link
        self._work = work
        self._clock = clock
        self._stops_when_done = stops_when_done
        self._barrier = barrier
        self._counts = _Counts()
        self._observers = (self._counts, *observers)
        self._last_ns = 0
        self._num_trusted = len(store.trusted)
        self._turned_ns = clock()
        chain = recover_chain(store, context.cache)
        recovered = read_recovered(store, chain)
        self._state = begin(self._context, chain, recovered)
        self._log: EventLog | None = None
        if folder is not None and max_log_bytes > 0:
            self._log = EventLog(folder / EVENTS_FILE, max_bytes=max_log_bytes)
            self._log.begin(log_beginning(context, chain, recovered))
        num_members, size = chain.num_members, chain.genesis.model.size
        share = max(_LEAST_SHARE, _INBOX_WEIGHT // num_members)
        self._inbox: FairQueue[Arrival] = FairQueue(share)
        self._prevalidator = Prevalidator(
            self._context,
            num_threads,
            find_state=lambda: self._state,
            clock=clock,
            wall_clock=_read_wall_clock,
            give=self._put,
        )
        self._blob_cache = BlobCache(store, (num_members + _CACHED_MODELS) * size)
        self._effects = Effects(
            context.number,
            store,
            link,
            work,
            self._blob_cache,
            give=self._give_own,
            find_chain=lambda: self._state.chain,
            clock=clock,
            observers=self._observers,
            before_keeping=self._flush_log,
            on_failure=self.fail,
            keep_blocks=context.keep_blocks,
        )
        self._timers = Timers()
        self._present: frozenset[int] = frozenset()
        self._has_newcomers = False
        self._is_stopping = threading.Event()
        self._failure: BaseException | None = None

    # For the owner

    @property
    def state(self) -> NodeState:
        return self._state

    def run(self) -> None:
        """Run the event loop until `stop`; raise the error that ended it otherwise, such as `NotKept`."""
        chain = self._state.chain
        own = self._state.updates.get(self._context.number)
        try:
            self._effects.start(chain, own.update.model if own is not None and own.update.samples else None)
            self._prevalidator.start()
            self._link.open(self)
            if self._barrier is not None:
                self._barrier.wait(self._link, self._is_stopping)
            self._turned_ns = self._clock()
            self._take_in(Started())
            while not self._is_stopping.is_set():
                self._take_next()
        except BaseException as error:
            self.fail(error)
        finally:
            self.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make `run` return after all effects are carried out. Thread-safe."""
        self._is_stopping.set()
        self._inbox.wake()

    def fail(self, error: BaseException) -> None:
        """Make `run` raise this error; the first one counts. Thread-safe."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def offer_change(self, change: MembershipChange) -> None:
        """Submit a membership change signed by a quorum for inclusion in a block. Thread-safe."""
        self._give_own(ChangeOffered(change))

    def status(self) -> NodeStatus:
        """Return the current status. Thread-safe."""
        state, counts, failure = self._state, self._counts, self._failure
        offsets_ms = state.clock_offsets_ms
        return NodeStatus(
            present=self._present,
            num_waiting=len(self._inbox),
            num_rehearsing=len(self._prevalidator),
            num_effects=len(self._effects),
            num_dropped=counts.num_dropped,
            num_trusted=self._num_trusted,
            refused=counts.read_refused(),
            clock_offset_ms=clock_offset_ms(offsets_ms, state.chain.active) if offsets_ms else None,
            turned_ns=self._turned_ns,
            is_recording=self._log is not None and self._log.is_writing,
            stopped_by=None if failure is None else one_line(failure) or type(failure).__name__,
        )

    # For the link

    def receive(self, message: Message) -> None:
        arrival = Arrival(MessageArrived(message), message.sender, _weigh(message))
        self._put(self._prevalidator.rehearse(arrival) if self._prevalidator.is_worth_it(arrival) else arrival)

    def receive_blob(self, holder: int, data: bytes) -> None:
        self._give_own(BlobArrived(holder, data))  # it was requested: never dropped

    def offer(self, to: int, blob: bytes) -> Offer | None:
        try:
            return self._blob_cache.offer(blob)
        except StoreError as error:
            self.refuse(None, f"store: {error}")
            return None

    def notice(self, present: frozenset[int]) -> None:
        if present - self._present:
            self._has_newcomers = True
            self._inbox.wake()
        self._present = present

    def refuse(self, sender: int | None, reason: str) -> None:
        for observer in self._observers:
            observer.refused(sender, reason)

    # Events in

    def _give_own(self, event: Event) -> None:
        """Queue a costly event for prevalidation, any other for the event loop."""
        arrival = Arrival(event, None)
        if self._prevalidator.is_worth_it(arrival):
            self._prevalidator.put(arrival)
        else:
            self._put(arrival)

    def _put(self, arrival: Arrival) -> None:
        if not self._inbox.put(arrival.sender, arrival, arrival.weight) and not self._is_stopping.is_set():
            self._counts.num_dropped += 1

    def _take_next(self) -> None:
        """Wait for the next event or timer and handle it."""
        self._turned_ns = self._clock()
        if self._has_newcomers:  # they missed earlier messages
            self._has_newcomers = False
            self._take_in(PeersAppeared())
        arrival = self._inbox.take(self._wait_s())
        for fired in self._timers.pop_due(self._clock()):
            self._give_own(fired)
        if arrival is None:
            return
        if arrival.sender is None and self._prevalidator.is_worth_it(arrival):  # the state has changed since
            self._prevalidator.put(arrival)
        else:
            self._take_in(arrival.event)

    def _wait_s(self) -> float:
        next_ns = self._timers.next_ns
        if next_ns is None:
            return _LONGEST_WAIT_S
        return min(max(0, next_ns - self._clock()) / NANO, _LONGEST_WAIT_S)

    def _take_in(self, event: Event) -> None:
        before, now_ns = self._state, max(self._last_ns, self._clock())
        self._last_ns, utc_ms = now_ns, _read_wall_clock()
        after, effects = step(self._context, before, event, now_ns, utc_ms)
        signatures = self._signer.pop()
        is_news = bool(signatures) or not is_same(before, after) or not all(isinstance(one, _SAYING) for one in effects)
        if self._log is not None and is_news:  # a replay does not need the others
            self._log.append(now_ns, utc_ms, log_event(event, after, self._context.cache), signatures)
        self._state = after
        self._num_trusted += sum(isinstance(effect, Commit) and effect.is_trusted for effect in effects)
        for observer in self._observers:
            observer.stepped(now_ns, Transition(before, event, after, effects))
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._timers.set(effect, now_ns)
        is_higher = after.chain is not before.chain
        self._effects.put([effect for effect in effects if not isinstance(effect, SetTimer)], after.chain)
        if is_higher and after.phase is Phase.DONE and self._stops_when_done:
            self.stop()
        elif is_higher and self._log is not None and self._log.is_full:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Restart the core from the store, as after a process restart, so that a new log can begin."""
        if self._log is None or not self._effects.wait_done():
            return
        recovered = read_recovered(self._store, self._state.chain)
        self._log.begin(log_beginning(self._context, self._state.chain, recovered))
        self._state = begin(self._context, self._state.chain, recovered)
        self._timers.clear()
        self._take_in(Started())

    # The end

    def _flush_log(self) -> None:
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """Close everything, as a run does at its end; pending effects are carried out before the link is closed."""
        with ExitStack() as steps:  # in reverse order, each even if another raises
            if self._log is not None:
                steps.callback(self._log.close)
            steps.callback(self._work.close)
            steps.callback(self._link.close)
            steps.callback(self._effects.end)
            steps.callback(self._work.stop_training)
            steps.callback(self._work.stop_mining)
            steps.callback(self._prevalidator.end)
            steps.callback(self._inbox.close)


class _RecordingSigner(Signer):
    """A signer that records its signatures."""

    def __init__(self, signer: Signer) -> None:
        self.public_key = signer.public_key
        self._signer = signer
        self._signatures: list[bytes] = []

    def sign(self, meaning: Meaning, place: Place, content: Record) -> bytes:
        signature = self._signer.sign(meaning, place, content)
        self._signatures.append(signature)
        return signature

    def pop(self) -> list[bytes]:
        """Return and clear the signatures since the last call."""
        signatures, self._signatures = self._signatures, []
        return signatures


class _Counts(LiveObserver):
    """Counters of a node's status."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    def refused(self, sender: int | None, reason: str) -> None:
        kind = reason.partition(":")[0].split(" ")[0]
        with self._lock:
            is_known = kind in self._refused or len(self._refused) < _MAX_REASONS
            self._refused[kind if is_known else "other"] += 1

    def read_refused(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._refused)


def _read_wall_clock() -> int:
    """Return UTC in milliseconds since 1970, clamped to the range of a block's time."""
    return min(max(1, int(time.time() * 1000)), MAX_TIME_MS)


def _weigh(message: Message) -> int:
    """Return the weight of a message in its sender's queue quota."""
    content = message.content
    if isinstance(content, (Proposal, Decided)):
        return _BLOCK_WEIGHT
    if isinstance(content, Gossip):
        return 1 + (len(content.votes) + len(content.updates) + len(content.reports)) // _STATEMENTS_PER_WEIGHT
    return 1
