"""Any record of any kind with random content, made from the types of its fields; also which kinds there are."""

import types
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from bdfl.encoding import INT_LIMIT, Record
from bdfl.identity import Place
from bdfl.ledger import block, merkle
from bdfl.protocol import messages

_MODULES = (block, merkle, messages)
_INTERESTING = (0, 1, 2, 127, 128, 255, 256, 2**16, 2**32, 2**53, INT_LIMIT)


def record_kinds() -> list[type[Record]]:
    """Every kind of record that stands on a chain or in a message, by name."""
    found = {value for module in _MODULES for value in vars(module).values() if _is_kind(value)}
    return sorted(found | {Place}, key=lambda kind: kind.__name__)


def draw_record(kind: type[Record], random: Random) -> Record:
    """A record whose fields have any values that their types allow."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(*(_draw(hints[name], random) for name in kind.__struct_fields__))


def _is_kind(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Record) and value is not Record


def _draw(hint: Any, random: Random, meta: Sequence[msgspec.Meta] = ()) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *limits = get_args(hint)
        return _draw(inner, random, [*meta, *(limit for limit in limits if isinstance(limit, msgspec.Meta))])
    if origin in (Union, types.UnionType):
        return _draw(random.choice(get_args(hint)), random)
    if origin is tuple:
        return _draw_tuple(get_args(hint), random, meta)
    if hint is type(None):
        return None
    if hint is bool:
        return random.random() < 0.5
    if isinstance(hint, type) and issubclass(hint, Enum):
        return random.choice(list(hint))
    if isinstance(hint, type) and issubclass(hint, Record):
        return draw_record(hint, random)
    if hint is int:
        return _draw_integer(random, meta)
    length = random.randint(_limit(meta, "min_length", 0), min(_limit(meta, "max_length", 40), 64))
    if hint is bytes:
        return random.randbytes(length)
    assert hint is str, hint
    return "".join(random.choice("abcxyz-0é") for _ in range(min(length, 12)))


def _draw_tuple(inner: Sequence[Any], random: Random, meta: Sequence[msgspec.Meta]) -> tuple[Any, ...]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        least = _limit(meta, "min_length", 0)
        return tuple(_draw(inner[0], random) for _ in range(random.randint(least, least + 3)))
    return tuple(_draw(hint, random) for hint in inner)


def _draw_integer(random: Random, meta: Sequence[msgspec.Meta]) -> int:
    low = _limit(meta, "ge", -INT_LIMIT)
    high = min(_limit(meta, "le", INT_LIMIT), _limit(meta, "lt", INT_LIMIT + 1) - 1)
    candidates = [value for value in (*_INTERESTING, low, high) if low <= value <= high]
    return random.choice(candidates) if random.random() < 0.5 else random.randint(low, high)


def _limit(meta: Sequence[msgspec.Meta], name: str, default: int) -> int:
    found = [getattr(item, name) for item in meta if getattr(item, name) is not None]
    return int(found[0]) if found else default
