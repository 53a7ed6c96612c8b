"""A copy-on-write map for append-mostly data that every event copies into a new state."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from itertools import islice
from typing import Self, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Growing(MutableMapping[_Key, _Value]):
    """A copy-on-write map whose copies share one dict as long as entries are only appended.

    The dict is insertion-ordered: a copy with n entries is its first n. A copy that overwrites, deletes, or is used
    after another copy grew gets a dict of its own. Copying costs the same for any number of entries. With `may_share`
    false nothing is shared, as two threads must not write to one dict.
    """

    __slots__ = ("_entries", "_length", "_may_share")

    def __init__(self, entries: Mapping[_Key, _Value], *, may_share: bool) -> None:
        """Make a map with a dict of its own."""
        self._entries: dict[_Key, _Value] = dict(entries.items())
        self._length = len(self._entries)
        self._may_share = may_share

    @classmethod
    def copy_of(cls, held: Mapping[_Key, _Value], *, may_share: bool) -> Self:
        """A copy of `held`, which changes to the copy do not affect."""
        if not (may_share and isinstance(held, cls) and held._may_share):
            return cls(held, may_share=may_share)
        copy = cls.__new__(cls)
        copy._entries, copy._length, copy._may_share = held._entries, held._length, True
        return copy

    def _held(self) -> dict[_Key, _Value]:
        """The dict with exactly the entries of this map."""
        if len(self._entries) != self._length:  # a copy grew
            self._entries = dict(islice(self._entries.items(), self._length))
        return self._entries

    def __getitem__(self, key: _Key) -> _Value:
        return self._held()[key]

    def __setitem__(self, key: _Key, value: _Value) -> None:
        held = self._held()
        if key in held:
            self._entries = held = dict(held)
        held[key] = value
        self._length = len(held)

    def __delitem__(self, key: _Key) -> None:
        self._entries = held = dict(self._held())
        del held[key]
        self._length = len(held)

    def __contains__(self, key: object) -> bool:
        return key in self._held()

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._held())

    def __len__(self) -> int:
        return self._length

    def keys(self) -> KeysView[_Key]:
        return self._held().keys()

    def values(self) -> ValuesView[_Value]:
        return self._held().values()

    def items(self) -> ItemsView[_Key, _Value]:
        return self._held().items()
