"""Prevalidation: costly events are executed speculatively outside the event loop to warm the verification cache.

Messages are prevalidated in the receiving thread of their sender, the node's own events in threads of their own.

A node's state is frozen and a step is pure, so a step may run anywhere and be discarded. Its verified signatures,
digests, models, aggregates and plans are then cached when the event loop takes the step. Nothing is signed here.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from queue import SimpleQueue

from bdfl.encoding import SIGNATURE_SIZE, Record
from bdfl.identity import Meaning, Place, Signer
from bdfl.protocol.events import BlobArrived, Event, Measured, MessageArrived, Timer, TimerFired, TrainingFinished
from bdfl.protocol.messages import Content, Decided, Gossip, Proposal
from bdfl.protocol.node import step
from bdfl.protocol.state import Context, NodeState, Phase
from bdfl.protocol.votes import key_of

MAX_REHEARSALS = 3  # of one event
_LARGE_MODEL = 2**18  # bytes; hashing and adding smaller ones costs no more than a thread switch
_MANY_STATEMENTS = 4  # verifying so many signatures costs more than a thread switch


@dataclass(frozen=True, eq=False)
class Arrival:
    """An event queued for the node."""

    event: Event
    sender: int | None  # None: the node's own
    weight: int = 1
    num_rehearsals: int = 0
    place: tuple[object, ...] = ()  # `_place_of` the state in the last rehearsal


class _NoSigner(Signer):
    """A signer that returns zeros."""

    def __init__(self, public_key: bytes) -> None:
        self.public_key = public_key

    def sign(self, meaning: Meaning, place: Place, content: Record) -> bytes:
        return bytes(SIGNATURE_SIZE)


@dataclass(eq=False, repr=False)
class Prevalidator:
    """Prevalidation, of at most `num_threads` events at a time; with 0 no event is worth it."""

    context: Context
    num_threads: int
    _: KW_ONLY
    find_state: Callable[[], NodeState]
    clock: Callable[[], int]
    wall_clock: Callable[[], int]
    give: Callable[[Arrival], None]  # receives each event that was `put`

    def __post_init__(self) -> None:
        self.context = replace(self.context, signer=_NoSigner(self.context.signer.public_key))
        self._waiting: SimpleQueue[Arrival | None] = SimpleQueue()
        self._places = threading.Semaphore(self.num_threads)
        names = [f"rehearsal-{self.context.number}-{number}" for number in range(self.num_threads)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]

    def __len__(self) -> int:
        return self._waiting.qsize()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Prevalidate what waits, then end the threads."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def put(self, arrival: Arrival) -> None:
        """Queue an event of the node's own."""
        self._waiting.put(arrival)

    def rehearse(self, arrival: Arrival) -> Arrival:
        """Prevalidate an event in this thread."""
        with self._places:
            state = self.find_state()
            with suppress(BaseException):  # the real step will raise it
                step(self.context, state, arrival.event, self.clock(), self.wall_clock())
        return replace(arrival, num_rehearsals=arrival.num_rehearsals + 1, place=_place_of(state))

    def is_worth_it(self, arrival: Arrival) -> bool:
        """Return whether to prevalidate: the step is costly, and the state changed since the last rehearsal."""
        if not self._threads or arrival.num_rehearsals >= MAX_REHEARSALS:
            return False
        state = self.find_state()
        if arrival.num_rehearsals and arrival.place == _place_of(state):
            return False
        return is_costly(state, arrival.event)

    def _run(self) -> None:
        while arrival := self._waiting.get():
            self.give(self.rehearse(arrival))


def is_costly(state: NodeState, event: Event) -> bool:
    """Return whether a step may be slow: many signatures, proof of work, or large models to hash and aggregate."""
    if state.phase is Phase.DONE:
        return False
    has_large_model = state.chain.genesis.model.size >= _LARGE_MODEL
    match event:
        case MessageArrived(message):
            return message.height == state.chain.height + 1 and _is_costly_content(state, message.content)
        case BlobArrived(_, data):
            return len(data) >= _LARGE_MODEL
        case TrainingFinished() | Measured() | TimerFired(timer=Timer.DEADLINE):
            return has_large_model  # it may end collecting
    return False


def _is_costly_content(state: NodeState, content: Content) -> bool:
    match content:
        case Proposal(block) | Decided(block):
            return block.digest not in state.candidates
        case Gossip():
            num_new = sum(key_of(vote) not in state.votes for vote in content.votes)
            num_new += sum(signed.update.client not in state.updates for signed in content.updates)
            num_new += sum(signed.report.client not in state.reports for signed in content.reports)
            has_large_model = state.chain.genesis.model.size >= _LARGE_MODEL
            is_collecting = state.phase is Phase.COLLECTING and bool(content.updates or content.reports)
            return num_new >= _MANY_STATEMENTS or (has_large_model and is_collecting and num_new > 0)
    return False


def _place_of(state: NodeState) -> tuple[object, ...]:
    """Return the part of the state that determines the cost of a step."""
    held = len(state.updates), len(state.reports), len(state.blobs), len(state.candidates)
    return state.chain.tip, state.phase, state.attempt, held
