"""Carries out a node's effects in order; nothing is sent before all that precedes it is durable.

All waiting writes share one transaction: one fsync for any number of votes and blocks.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from bdfl.ledger.block import SignedUpdate
from bdfl.ledger.chain import ChainState
from bdfl.ledger.chain_params import blob_limit, weights_file
from bdfl.ledger.store import Store
from bdfl.protocol.events import (
    Commit,
    Effect,
    Event,
    FetchBlob,
    KeptBlob,
    KeptStatement,
    Measure,
    Measured,
    Mine,
    NonceFound,
    Refused,
    Send,
    ServeDecided,
    SetTimer,
    StopMining,
    Store as Keep,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import Content, Decided, Gossip, Message
from bdfl.transports.interfaces import Link, LiveObserver, Work, keep
from bdfl.transports.live.blob_client import BlobCache

MAX_WAITING = 4096  # effects; back-pressure: beyond this the event loop waits for the disk

_Due: TypeAlias = tuple[Effect, ChainState]  # with the chain after the event that caused it


@dataclass(eq=False, repr=False)
class Effects:
    """The only thread that writes to the store, sends, and starts work."""

    number: int
    store: Store
    link: Link
    work: Work
    blob_cache: BlobCache
    _: KW_ONLY
    give: Callable[[Event], None]  # queues an event
    find_chain: Callable[[], ChainState]  # the node's current chain
    clock: Callable[[], int]
    observers: Sequence[LiveObserver]
    before_keeping: Callable[[], None]
    on_failure: Callable[[BaseException], None]
    keep_blocks: int = 0

    def __post_init__(self) -> None:
        self._waiting: deque[_Due] = deque()
        self._news = threading.Condition()
        self._num_under_way = 0
        self._is_ending = self._has_failed = False
        self._training: bytes | None = None  # tip of the training in progress
        self._public_keys: list[bytes | None] = []
        self._thread = threading.Thread(target=self._run, name=f"effects-{self.number}", daemon=True)

    def __len__(self) -> int:
        return len(self._waiting) + self._num_under_way

    def start(self, chain: ChainState, own_update: bytes | None) -> None:
        """Start the thread; `own_update` is the node's recovered update of the current round, if any."""
        self.blob_cache.withhold(own_update)
        self._set_members(chain)
        self._thread.start()

    def put(self, effects: Sequence[Effect], chain: ChainState) -> None:
        """Queue the effects of one event; blocks while more than `MAX_WAITING` are pending."""
        with self._news:
            while len(self._waiting) > MAX_WAITING and not self._has_failed:
                self._news.wait()
            if self._has_failed or self._is_ending:
                return
            self._waiting.extend((effect, chain) for effect in effects)
            self._news.notify_all()

    def wait_done(self) -> bool:
        """Wait until no effect is pending; return False after a failure."""
        with self._news:
            while len(self) and not self._has_failed:
                self._news.wait()
            return not self._has_failed

    def end(self) -> None:
        """Carry out pending effects, then end the thread."""
        with self._news:
            self._is_ending = True
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while due := self._take_all():
                self._do_all(due)
                with self._news:
                    self._num_under_way = 0
                    self._news.notify_all()
        except BaseException as error:
            with self._news:
                self._has_failed = True
                self._waiting.clear()
                self._num_under_way = 0
                self._news.notify_all()
            self.on_failure(error)

    def _take_all(self) -> list[_Due]:
        """Wait for effects and take all of them; empty once ended."""
        with self._news:
            while not self._waiting and not self._is_ending:
                self._news.wait()
            due = list(self._waiting)
            self._waiting.clear()
            self._num_under_way = len(due)
            self._news.notify_all()
            return due

    def _do_all(self, due: Sequence[_Due]) -> None:
        kept = [effect for effect, _ in due if isinstance(effect, (Keep, Commit))]
        if kept:
            self.before_keeping()
            self._keep(kept)
        for effect, chain in due:
            self._do(effect, chain)

    def _keep(self, effects: Sequence[Keep | Commit]) -> None:
        with self.store.batch():
            for effect in effects:
                if isinstance(effect, Commit):
                    self.store.append(effect.block, effect.certificate, is_trusted=effect.is_trusted)
                else:
                    keep(self.store, effect.kept)

    def _do(self, effect: Effect, chain: ChainState) -> None:
        """Carry out the part of an effect that is not a write to the store."""
        match effect:
            case Keep(KeptBlob(blob, data)):
                self.blob_cache.put(blob, data)
            case Keep(KeptStatement(height, SignedUpdate() as signed)):
                if height == chain.height + 1:
                    self.blob_cache.withhold(signed.update.model if signed.update.samples else None)
            case Commit():
                self._finish_height(effect, chain)
            case Send():
                self._send(effect, chain)
            case FetchBlob():
                if chain.tip == self.find_chain().tip:
                    self.link.fetch(effect.blob, _size_of(effect.blob, chain), (effect.holder,))
            case ServeDecided():
                self._serve_decided(effect, chain)
            case Train():
                self._train(effect, chain)
            case Measure():
                self._measure(effect, chain)
            case Mine():
                self._mine(effect, chain)
            case StopMining():
                self.work.stop_mining()
            case Refused():
                for observer in self.observers:
                    observer.refused(effect.sender, effect.reason)
            case Keep() | SetTimer():
                pass  # already durable; done by the event loop

    def _finish_height(self, effect: Commit, chain: ChainState) -> None:
        self.link.forget_fetches()
        self.blob_cache.withhold(None)
        if self._training is not None:
            self._training = None
            self.work.stop_training()
        self._set_members(chain)
        if self.keep_blocks:
            self.store.prune(self.keep_blocks)
        for observer in self.observers:
            observer.committed(effect.block, effect.certificate, chain)

    def _set_members(self, chain: ChainState) -> None:
        public_keys = list(chain.public_keys)
        if public_keys != self._public_keys:
            self._public_keys = public_keys
            self.link.set_members(public_keys)

    def _send(self, effect: Send, chain: ChainState) -> None:
        message, content = effect.message, effect.message.content
        if self.blob_cache.is_withholding and message.height == chain.height + 1 and self._is_announcement(content):
            now_ns = self.clock()
            self.blob_cache.upload(now_ns, now_ns + self.work.upload(chain))
        self.link.send(effect.to, message)

    def _is_announcement(self, content: Content) -> bool:
        """Return whether a message announces the node's own update."""
        return isinstance(content, Gossip) and any(signed.update.client == self.number for signed in content.updates)

    def _serve_decided(self, effect: ServeDecided, chain: ChainState) -> None:
        if 1 <= effect.height <= self.store.height:
            decided = Decided(self.store.block(effect.height), self.store.certificate(effect.height))
            self.link.send(effect.to, Message(chain.chain, self.number, effect.height, decided))

    def _train(self, effect: Train, chain: ChainState) -> None:
        if effect.parent != chain.tip or effect.parent != self.find_chain().tip:
            return  # outdated
        model = self.blob_cache.get(effect.model)
        if model is None:
            raise RuntimeError(f"the model {effect.model.hex()} of round {effect.height} is gone")

        def finish(trained: bytes | None) -> None:
            if self._training == effect.parent:
                self._training = None
            self.give(TrainingFinished(effect.height, effect.parent, trained, self.work.spent_micro(chain)))

        self._training = effect.parent
        self.work.train(chain, weights_file(chain.genesis, model), finish)

    def _measure(self, effect: Measure, chain: ChainState) -> None:
        if effect.round != chain.height + 2 or chain.tip != self.find_chain().tip:
            return
        found = self.work.measure(chain, self.store.block(chain.height) if chain.height else None)
        if found is not None:
            self.give(Measured(effect.round, *found))

    def _mine(self, effect: Mine, chain: ChainState) -> None:
        if effect.header.parent == chain.tip:
            self.work.mine(chain, effect.header, lambda nonce: self.give(NonceFound(effect.header, nonce)))


def _size_of(blob: bytes, chain: ChainState) -> int:
    """Return the size of a blob to fetch: an update, or the global model with its moments."""
    genesis = chain.genesis
    return blob_limit(genesis) if blob == chain.model != genesis.model.initial else genesis.model.size
