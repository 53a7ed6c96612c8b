"""Records of a chain as plain JSON values with field names."""

from enum import Enum
from typing import TypeAlias

from bdfl.encoding import Record

Plain: TypeAlias = "bool | int | str | list[Plain] | dict[str, Plain] | None"


def to_plain(value: object) -> Plain:
    """Return a record as a dictionary of its fields, bytes as hexadecimal text; a tagged record has a `kind`."""
    if isinstance(value, Record):
        tag = value.__struct_config__.tag
        kind: dict[str, Plain] = {} if tag is None else {"kind": str(tag)}
        return kind | {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return str(value.value)
    assert value is None or isinstance(value, bool | int | str), type(value)
    return value
