"""LRU caches of verifications and other pure results, shared by the nodes of one process.

Every result is a function of its key (a digest, or the values themselves), so caching changes no answer: a cache of
no entries gives the same ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, TypeVarTuple, cast

from bdfl import encoding, identity
from bdfl.aggregation import InvalidAggregation, Update, aggregate, get_aggregator
from bdfl.learning.weights import InvalidWeights, Layout, Vector, decode_weights, encode_weights
from bdfl.ledger import proof_of_work
from bdfl.ledger.block import Header, ModelUpdate, header_seal
from bdfl.ledger.errors import InvalidUpdate, MissingBlob, WrongModel
from bdfl.scenario.schema_learning import Aggregation, WorkKind
from bdfl.server_optimizer import ModelState, ServerSettings, decode_state, encode_state, take_step

MAX_ENTRIES = 2**16
MAX_BYTES = 2**28
_DEAR = 16  # caches of large values have this many times fewer entries

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_Given = TypeVarTuple("_Given")


class LruCache(Generic[_Key, _Value]):
    """An LRU cache of at most `max_entries` entries and `max_bytes` bytes."""

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: _Key) -> _Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: _Key, value: _Value, size: int = 0) -> _Value:
        if size > self._max_bytes:  # it would only evict all others
            return value
        previous = self._entries.pop(key, None)
        if previous is not None:
            self._num_bytes -= previous[1]
        self._entries[key] = value, size
        self._num_bytes += size
        while len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1][1]
        return value


def decode_blob(blob: bytes, found: bytes, data: bytes, layout: Layout, out: Vector | None = None) -> Vector:
    """Decode the weights of a blob from bytes of the digest `found`; `out` as for `decode_weights`.

    Raises `InvalidUpdate` if the digests differ, or the bytes are no model of this layout with finite weights.
    """
    if found != blob:
        raise InvalidUpdate("blob-digest", blob, found)
    try:
        return decode_weights(data, layout, out)
    except InvalidWeights as error:
        raise InvalidUpdate("blob-model", "finite weights of the chain's model", error) from None


def decode_parent(server: ServerSettings, data: bytes, layout: Layout) -> ModelState:
    """Decode a global model with its moments; raises `WrongModel` if the bytes are none."""
    try:
        return decode_state(server, data, layout)
    except InvalidWeights as error:
        raise WrongModel("model-parent", "a global model of this chain with its moments", error) from None


class VerificationCache:
    """Caches of signatures, proofs of work, models, plans and aggregates.

    Models with their weights are cached up to `max_bytes`, digests with their blobs up to half of that, aggregates up
    to a quarter. `own_functions` are the aggregation rules of the form module:function that may be called: a genesis
    from elsewhere must not choose the code that runs here.
    """

    cache_kind: ClassVar[type[LruCache[Any, Any]]] = LruCache

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        own_functions: frozenset[str] = frozenset(),
    ) -> None:
        dear = (max_entries + _DEAR - 1) // _DEAR
        self.own_functions = own_functions
        self._signed: LruCache[tuple[bytes, bytes, bytes], bool] = self.cache_kind(max_entries)
        self._worked: LruCache[tuple[WorkKind, bytes, bytes, int], bool] = self.cache_kind(max_entries)
        self._digests: LruCache[int, tuple[bytes, bytes]] = self.cache_kind(max_entries, max_bytes // 2)
        self._models: LruCache[tuple[bytes, Layout], tuple[bytes, Vector]] = self.cache_kind(dear, max_bytes)
        self._aggregates: LruCache[Hashable, bytes] = self.cache_kind(dear, max_bytes // 4)
        self._others: LruCache[Hashable, object] = self.cache_kind(dear)
        self._same: LruCache[tuple[int, ...], tuple[tuple[object, ...], object]] = self.cache_kind(dear)

    def is_signed(self, public_key: bytes, signature: bytes, statement: bytes) -> bool:
        """Return whether `signature` is that key's for a `statement_digest`."""
        key = public_key, signature, statement
        known = self._signed.get(key)
        return self._signed.put(key, identity.is_signed(*key)) if known is None else known

    def is_worked(self, kind: WorkKind, seal: bytes, nonce: bytes, difficulty: int) -> bool:
        """Return whether the nonce is a proof of work for the header's digest `seal`."""
        key = kind, seal, nonce, difficulty
        known = self._worked.get(key)
        return self._worked.put(key, proof_of_work.is_worked(*key)) if known is None else known

    def work_hash(self, kind: WorkKind, header: Header, nonce: bytes) -> bytes:
        """The proof-of-work hash of a header with its nonce, 32 bytes."""
        return self.recall(
            ("work", kind, header, nonce), lambda: proof_of_work.work_hash(kind, header_seal(header), nonce)
        )

    def digest(self, data: bytes) -> bytes:
        """SHA-256 of a blob, 32 bytes; the same object is hashed once."""
        known = self._digests.get(id(data))  # the object is kept with it, so no other can have its id
        if known is None:
            known = self._digests.put(id(data), (data, encoding.digest(data)), len(data))
        return known[1]

    def decode_model(self, digest: bytes, data: bytes, layout: Layout) -> Vector:
        """The weights in a blob of that digest, read-only; raises as `decode_blob`."""
        key = digest, layout
        known = self._models.get(key)
        if known is not None and (known[0] is data or known[0] == data):
            return known[1]
        weights = decode_blob(digest, self.digest(data), data, layout)
        weights.setflags(write=False)
        return self._models.put(key, (data, weights), 2 * len(data))[1]

    def aggregate(
        self, choice: Aggregation, layout: Layout, updates: Sequence[ModelUpdate], blobs: Mapping[bytes, bytes]
    ) -> bytes:
        """The bytes of the global model that the rule aggregates from these updates.

        Raises `MissingBlob` or `InvalidUpdate` for the first update whose bytes are missing or are no model.
        """
        weights: list[Vector] = []
        for update in updates:
            data = blobs.get(update.model)
            if data is None:
                raise MissingBlob(update.model)
            weights.append(self.decode_model(update.model, data, layout))
        key = choice.rule, choice.faulty, layout, tuple((one.client, one.samples, one.model) for one in updates)
        known = self._aggregates.get(key)
        if known is None:
            given = [Update(one.client, vector, one.samples) for one, vector in zip(updates, weights, strict=True)]
            try:
                known = encode_weights(aggregate(get_aggregator(choice), given), layout)
            except (InvalidAggregation, InvalidWeights) as error:
                raise InvalidUpdate("aggregate", f"updates that {choice.rule} can aggregate", error) from None
            self._aggregates.put(key, known, len(known))
        return known

    def take_step(self, server: ServerSettings, layout: Layout, parent: bytes, aggregate: bytes) -> bytes:
        """The bytes of the global model after the server's step from the model `parent` towards an aggregate.

        Raises `WrongModel` if `parent` is no global model of this layout.
        """
        key = server, layout, self.digest(parent), self.digest(aggregate)
        known = self._aggregates.get(key)
        if known is None:
            state = decode_parent(server, parent, layout)
            known = encode_state(take_step(server, state, decode_weights(aggregate, layout)), layout)
            self._aggregates.put(key, known, len(known))
        return known

    def recall(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The result of `make`, cached by value under this key, whose first item is its kind."""
        known = self._others.get(key)
        return cast(_Value, self._others.put(key, make()) if known is None else known)

    def once(self, rule: Callable[[*_Given, Self], _Value], *given: *_Given) -> _Value:
        """The result of a rule for these values and this cache, cached by their identity; they must be immutable.

        Members of a simulated network share the values, so that a key costs nothing. Equal values received
        separately, as in a live network, are computed separately.
        """
        about: tuple[object, ...] = (rule, *given)
        name = tuple(map(id, about))
        known = self._same.get(name)  # rule and values are kept with it, so no others can have their ids
        if known is None:
            known = self._same.put(name, (about, rule(*given, self)))
        return cast(_Value, known[1])
