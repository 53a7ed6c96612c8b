"""Pure work that nodes of one process share: whoever does it first does it for all.

Every result is a function of what names it (a digest, or the values themselves), so remembering changes no answer; a
toolbox of no entries remembers nothing and gives the same ones. What is remembered longest ago and not asked for since
is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from bdfl import encoding, identity
from bdfl.aggregation import InvalidAggregation, Update, aggregate, get_aggregator
from bdfl.learning.weights import InvalidWeights, Layout, Vector, decode_weights, encode_weights
from bdfl.ledger import work
from bdfl.ledger.block import Header, ModelUpdate, header_seal
from bdfl.ledger.errors import InvalidUpdate, MissingBlob
from bdfl.scenario.learning import Aggregation
from bdfl.scenario.ledger import WorkKind

MAX_ENTRIES = 2**16
MAX_BYTES = 2**28
_DEAR = 16  # entries of larger values: one for so many small ones

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Memo(Generic[_Key, _Value]):
    """Values by key: the newest, at most `max_entries` and `max_bytes` of them."""

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
        if size > self._max_bytes:  # it would only drive out all others
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
    """The weights in bytes that should be a blob and have the digest `found`; `out` as for `decode_weights`.

    Raises `InvalidUpdate` if they are not that blob, or no model of this layout with finite weights.
    """
    if found != blob:
        raise InvalidUpdate("blob-digest", blob, found)
    try:
        return decode_weights(data, layout, out)
    except InvalidWeights as error:
        raise InvalidUpdate("blob-model", "finite weights of the chain's model", error) from None


class Toolbox:
    """Signatures, work, models, plans and aggregates, each worked out once.

    Of models it remembers `max_bytes` with their weights, digests of as many, and half as many aggregates.
    `own_functions` are the aggregation rules of the form module:function that may be called: a genesis from elsewhere
    must not choose what code runs here.
    """

    memo_kind: ClassVar[type[Memo[Any, Any]]] = Memo

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        own_functions: frozenset[str] = frozenset(),
    ) -> None:
        dear = (max_entries + _DEAR - 1) // _DEAR
        self.own_functions = own_functions
        self._signed: Memo[tuple[bytes, bytes, bytes], bool] = self.memo_kind(max_entries)
        self._worked: Memo[tuple[WorkKind, bytes, bytes, int], bool] = self.memo_kind(max_entries)
        self._digests: Memo[int, tuple[bytes, bytes]] = self.memo_kind(max_entries, max_bytes // 2)
        self._models: Memo[tuple[bytes, Layout], tuple[bytes, Vector]] = self.memo_kind(dear, max_bytes)
        self._aggregates: Memo[Hashable, bytes] = self.memo_kind(dear, max_bytes // 4)
        self._others: Memo[Hashable, object] = self.memo_kind(dear)
        self._same: Memo[tuple[int, ...], tuple[tuple[object, ...], object]] = self.memo_kind(dear)

    def is_signed(self, public_key: bytes, signature: bytes, statement: bytes) -> bool:
        """Whether `signature` is that key's for a `statement_digest`."""
        key = public_key, signature, statement
        known = self._signed.get(key)
        return self._signed.put(key, identity.is_signed(*key)) if known is None else known

    def is_worked(self, kind: WorkKind, seal: bytes, nonce: bytes, difficulty: int) -> bool:
        """Whether the nonce is a proof of work for the seal."""
        key = kind, seal, nonce, difficulty
        known = self._worked.get(key)
        return self._worked.put(key, work.is_worked(*key)) if known is None else known

    def work_hash(self, kind: WorkKind, header: Header, nonce: bytes) -> bytes:
        """The proof-of-work hash of a header with its nonce, 32 bytes."""
        return self.recall(("work", kind, header, nonce), lambda: work.work_hash(kind, header_seal(header), nonce))

    def digest(self, data: bytes) -> bytes:
        """SHA-256 of a blob, 32 bytes; the same object is hashed once."""
        known = self._digests.get(id(data))  # the object is kept with it, so no other can have its id
        if known is None:
            known = self._digests.put(id(data), (data, encoding.digest(data)), len(data))
        return known[1]

    def note_digest(self, data: bytes, digest: bytes) -> None:
        """Remembers a digest that the caller computed of this very object."""
        self._digests.put(id(data), (data, digest), len(data))

    def decode_model(self, digest: bytes, data: bytes, layout: Layout) -> Vector:
        """The weights in a blob of that digest, read-only; raises `InvalidUpdate` if the bytes are not that blob, or no
        model of this layout with finite weights.
        """
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
        """The bytes of the global model that the rule makes of these updates.

        Raises `MissingBlob` or `InvalidUpdate` for the first update whose bytes are not there or are no model.
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

    def recall(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """What `make` gives, made once for this key, which begins with what kind of thing it is."""
        known = self._others.get(key)
        return cast(_Value, self._others.put(key, make()) if known is None else known)

    def once(self, about: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """What `make` gives, made once for these very objects, none of which ever changes.

        Members of a simulated network are handed the same objects, and naming them costs nothing; what is equal but
        came by itself, as on a live network, is worked out for itself.
        """
        name = tuple(map(id, about))
        known = self._same.get(name)  # the objects are kept with it, so no others can have their ids
        if known is None:
            known = self._same.put(name, (about, make()))
        return cast(_Value, known[1])
