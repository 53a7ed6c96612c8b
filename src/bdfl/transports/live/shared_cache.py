"""Thread-safe verification cache: one thread computes a result, the others find or wait for it."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

from bdfl.learning.weights import Layout, Vector
from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.cache import MAX_BYTES, MAX_ENTRIES, LruCache, VerificationCache
from bdfl.scenario.schema_learning import Aggregation, WorkKind
from bdfl.server_optimizer import ServerSettings

_ROUNDS = 4  # cached
_STATEMENTS = 32  # of one member in a round

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class SharedLruCache(LruCache[_Key, _Value]):
    """A thread-safe LRU cache."""

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_entries, max_bytes)
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            return super().get(key)

    def put(self, key: _Key, value: _Value, size: int = 0) -> _Value:
        with self._lock:
            return super().put(key, value, size)


class SharedVerificationCache(VerificationCache):
    """A thread-safe `VerificationCache` with one lock per key: only threads that need the same result wait.

    A computation may request other results but never its own, so there is no deadlock.
    """

    cache_kind = SharedLruCache

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        own_functions: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(max_entries, max_bytes, own_functions)
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, tuple[threading.Lock, list[None]]] = {}  # with one entry per waiting thread

    @classmethod
    def sized_for(cls, num_members: int, model_size: int, own_functions: frozenset[str] = frozenset()) -> Self:
        """Return a cache for a few rounds of such a chain, so that memory stays bounded."""
        return cls(
            max(1024, _ROUNDS * _STATEMENTS * num_members),
            max(2**20, _ROUNDS * 2 * (num_members + 2) * model_size),
            own_functions,
        )

    def is_worked(self, kind: WorkKind, seal: bytes, nonce: bytes, difficulty: int) -> bool:
        with self._alone(("worked", seal, nonce)):
            return super().is_worked(kind, seal, nonce, difficulty)

    def digest(self, data: bytes) -> bytes:
        with self._alone(("digest", id(data))):
            return super().digest(data)

    def decode_model(self, digest: bytes, data: bytes, layout: Layout) -> Vector:
        with self._alone(("model", digest)):
            return super().decode_model(digest, data, layout)

    def aggregate(
        self, choice: Aggregation, layout: Layout, updates: Sequence[ModelUpdate], blobs: Mapping[bytes, bytes]
    ) -> bytes:
        with self._alone(("aggregate", tuple((one.client, one.model) for one in updates))):
            return super().aggregate(choice, layout, updates, blobs)

    def take_step(self, server: ServerSettings, layout: Layout, parent: bytes, aggregate: bytes) -> bytes:
        with self._alone(("step", id(parent), id(aggregate))):
            return super().take_step(server, layout, parent, aggregate)

    def recall(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        with self._alone(("other", key)):
            return super().recall(key, make)

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key."""
        with self._lock:
            lock, waiting = self._under_way.setdefault(key, (threading.Lock(), []))
            waiting.append(None)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                waiting.pop()
                if not waiting:
                    del self._under_way[key]
