"""Maps that mostly grow: what a node holds of a height, when every event makes a new state of it."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from itertools import islice
from typing import Self, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Growing(MutableMapping[_Key, _Value]):
    """A map whose copies share their entries as long as these are only added to.

    Entries keep the order in which they came, so the first ones of the map that grew furthest are all there is to those
    it was copied from; a copy that is changed otherwise, or after another copy grew, gets entries of its own. A copy
    thus costs nothing, whatever it holds, and looks as if nothing was shared. With `may_share` false nothing is: two
    threads must not add to the same entries.
    """

    __slots__ = ("_entries", "_length", "_may_share")

    def __init__(self, entries: Mapping[_Key, _Value], *, may_share: bool) -> None:
        """A map of its own with these entries."""
        self._entries: dict[_Key, _Value] = dict(entries.items())
        self._length = len(self._entries)
        self._may_share = may_share

    @classmethod
    def copy_of(cls, held: Mapping[_Key, _Value], *, may_share: bool) -> Self:
        """A map with the same entries, to be changed without changing `held`."""
        if not (may_share and isinstance(held, cls) and held._may_share):
            return cls(held, may_share=may_share)
        copy = cls.__new__(cls)
        copy._entries, copy._length, copy._may_share = held._entries, held._length, True
        return copy

    def _held(self) -> dict[_Key, _Value]:
        """The entries of this map and no others."""
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
