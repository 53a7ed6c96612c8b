"""Strict decoding of a scenario, one-line errors, and its TOML text."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from bdfl.errors import BdflError

# Plain data as TOML text and back: only tables, inline tables, lists and scalars.

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"

MAX_TOML_SIZE = 2**20  # characters
_MAX_DOTS = 2**13  # except those of numbers in lists: parsing a dotted key takes time quadratic in its parts


def parse_toml(text: str) -> dict[str, Plain]:
    """Parse untrusted TOML text; raise `tomllib.TOMLDecodeError`, also if parsing would take too long."""
    if len(text) > MAX_TOML_SIZE:
        raise tomllib.TOMLDecodeError(f"{len(text)} characters, at most {MAX_TOML_SIZE} expected")
    if sum("," not in part or '"' in part or "'" in part for part in text.split(".")) > _MAX_DOTS:
        raise tomllib.TOMLDecodeError(f"more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
    except ValueError as error:  # such as a number with more digits than Python reads
        raise tomllib.TOMLDecodeError(str(error)) from None


def toml_value(value: Plain) -> str:
    """Return `value` on one line as TOML; keys of inline tables that hold None are omitted."""
    if value is None:
        raise ValueError("TOML has no word for None: leave the key out")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _toml_float(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return str(value)  # dates and times: in no valid scenario, but an error message must show them


def _toml_float(value: float) -> str:
    """Return `value` exactly; from a million on as 1.5e9, which is easier to read."""
    if not 1e6 <= abs(value) < math.inf:
        return repr(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short if float(short) == value else repr(value)


def toml_key(key: str) -> str:
    """Return `key` bare if TOML allows it, else quoted."""
    is_bare = key.isascii() and bool(key) and all(letter.isalnum() or letter in "-_" for letter in key)
    return key if is_bare else toml_value(key)


def toml_document(sections: Mapping[str, Plain], inline: Sequence[str] = (), prefix: str = "") -> str:
    """Return a TOML document: scalars, then one [table] per mapping, except those whose dotted key is in `inline`.

    A mapping with a `distribution` is a value, hence written inline too.
    """
    lines: list[str] = []
    tables: list[str] = []
    for key, value in sections.items():
        dotted = prefix + toml_key(key)
        if value is None:
            continue
        if isinstance(value, Mapping) and "distribution" not in value and dotted not in inline:
            tables.append(f"[{dotted}]\n" + toml_document(value, inline, dotted + "."))
        else:
            lines.append(f"{toml_key(key)} = {toml_value(value)}\n")
    return "\n".join(filter(None, ["".join(lines), *tables]))


# Strict conversion of plain data to frozen values, with one-line errors: the key, the value given, those allowed.

Annotation: TypeAlias = Any  # a field's type as written, with its Annotated limits
_Value = TypeVar("_Value")

_GIVEN_LENGTH = 60  # characters of a given value shown in a message


class ScenarioError(BdflError):
    """A scenario that cannot be used: the dotted key, the value found there, and the values allowed."""

    def __init__(self, key: str, found: str, allowed: str) -> None:
        super().__init__(key, found, allowed)
        self.key = key
        self.found = found
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.key}: {self.found}, {self.allowed}"


def refuse_value(key: str, value: Plain, allowed: str) -> ScenarioError:
    """Return the error for a `value` at `key` where only `allowed` is valid."""
    text = "none" if value is None else toml_value(value)
    shown = text if len(text) <= _GIVEN_LENGTH else text[: _GIVEN_LENGTH - 3] + "..."
    return ScenarioError(key, f"{shown} given", f"allowed is {allowed}")


@cache
def type_info(kind: Annotation) -> inspect.Type:
    """Return msgspec's description of a type; cached, since computing it takes longer than checking a scenario."""
    return inspect.type_info(kind)


def convert_strictly(data: Plain, kind: type[_Value], key: str = "") -> _Value:
    """Convert `data` to type `kind`; raise `ScenarioError` for the first wrong key below `key`."""
    annotation: Annotation = kind
    node = type_info(annotation)
    _check_keys(data, node, key)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), data, node, key) from None


def check_value(value: object, annotation: Annotation, key: str) -> None:
    """Raise `ScenarioError` unless `value` matches `annotation`: limits also hold for values made in code."""
    convert_strictly(msgspec.to_builtins(value), annotation, key)


def describe_type(node: inspect.Type) -> str:
    """Describe in words the values that a key of this type accepts."""
    match node:
        case inspect.Metadata(type=inner):
            return describe_type(inner)
        case inspect.FloatType():
            return "a number" + _limits(node)
        case inspect.IntType():
            return "a whole number" + _limits(node)
        case inspect.StrType(min_length=least):
            return "a text that is not empty" if least else "a text"
        case inspect.BoolType():
            return "true or false"
        case inspect.EnumType(cls=cls):
            return "one of " + ", ".join(str(member.value) for member in cls)
        case inspect.UnionType(types=types) if any(isinstance(member, inspect.StructType) for member in types):
            return f"{describe_type(types[0])}, a list with one for each client, or a distribution table"
        case inspect.UnionType(types=types):
            return " or ".join(describe_type(member) for member in types if not isinstance(member, inspect.NoneType))
        case inspect.VarTupleType(item_type=item, min_length=least):
            return f"a list{f' with at least {least} entry' if least else ''}, each {describe_type(item)}"
        case inspect.TupleType(item_types=items):
            return f"a list of {len(items)} numbers"
        case _:
            return "a table"


def unwrap_type(node: inspect.Type) -> inspect.Type:
    """Return the type without its metadata."""
    return unwrap_type(node.type) if isinstance(node, inspect.Metadata) else node


def _limits(node: inspect.IntType | inspect.FloatType) -> str:
    pairs = (("above", node.gt), ("of at least", node.ge), ("below", node.lt), ("of at most", node.le))
    words = [f" {word} {limit:.12g}" for word, limit in pairs if limit is not None]
    return " and".join(words)


def _join(key: str, part: str) -> str:
    return f"{key}.{part}" if key else part


def _check_keys(data: Plain, node: inspect.Type, key: str) -> None:
    """Raise on unknown keys and on numbers that are not finite, anywhere in `data`."""
    node = unwrap_type(node)
    if isinstance(data, float) and not math.isfinite(data):
        raise refuse_value(key, data, "a finite number")
    if isinstance(data, (list, tuple)):
        for index, item in enumerate(data):
            if not isinstance(item, int):  # skipped to keep long lists of integers fast
                _check_keys(item, inspect.AnyType(), f"{key}[{index}]")
    if not isinstance(data, Mapping):
        return
    if isinstance(node, inspect.UnionType):
        node = _choose_table(data, node, key)
    if isinstance(node, inspect.StructType):
        fields = {field.encode_name: field.type for field in node.fields}
        names = [node.tag_field, *fields] if node.tag_field else list(fields)
        for name, value in data.items():
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                raise ScenarioError(_join(key, name), "unknown key", f"{hint}allowed: {', '.join(names)}")
            if name in fields:
                _check_keys(value, fields[name], _join(key, name))
    elif isinstance(node, inspect.DictType):
        kinds = node.value_type.types if isinstance(node.value_type, inspect.UnionType) else ()
        takes_lists = any(isinstance(kind, inspect.VarTupleType) for kind in kinds)
        for name, value in data.items():
            if not isinstance(value, (bool, int, float, str)) and not (takes_lists and _is_numbers(value)):
                allowed = "a number, a text, true or false" + (", or a list of numbers" if takes_lists else "")
                raise refuse_value(_join(key, name), value, allowed)
            _check_keys(value, node.value_type, _join(key, name))


def _is_numbers(value: Plain) -> bool:
    """Return whether this is a list of numbers, or of such lists."""
    return isinstance(value, (list, tuple)) and all(
        _is_numbers(item) if isinstance(item, (list, tuple)) else type(item) in (int, float) for item in value
    )


def _choose_table(data: Mapping[str, Plain], node: inspect.UnionType, key: str) -> inspect.Type:
    """Return the table type of a union that the tag in `data` names, or the union if it has no tables."""
    tables = {member.tag: member for member in node.types if isinstance(member, inspect.StructType)}
    if not tables:
        return node
    tag_field = str(next(iter(tables.values())).tag_field)
    allowed = "one of " + ", ".join(map(str, tables))
    if tag_field not in data:
        raise ScenarioError(_join(key, tag_field), "missing", f"allowed is {allowed}")
    tag = data[tag_field]
    if not isinstance(tag, str) or tag not in tables:
        raise refuse_value(_join(key, tag_field), tag, allowed)
    return tables[tag]


def _explain(message: str, data: Plain, node: inspect.Type, key: str) -> ScenarioError:
    """Translate the converter's error: its path locates the value given and the type allowed."""
    text, _, path = message.partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        part = name or int(index)
        node = _child_type(node, part)
        if isinstance(part, str):
            data, key = data.get(part) if isinstance(data, Mapping) else None, _join(key, part)
        else:
            data, key = data[part] if isinstance(data, (list, tuple)) else None, f"{key}[{part}]"
    if missing := re.search(r"missing required field `(\w+)`", text):
        allowed = describe_type(_child_type(node, missing[1]))
        return ScenarioError(_join(key, missing[1]), "missing", f"allowed is {allowed}")
    return refuse_value(key or "scenario", data, describe_type(node))


def _child_type(node: inspect.Type, part: str | int) -> inspect.Type:
    """Return the type of field `part` of a table, or of entry `part` of a list."""
    match unwrap_type(node), part:
        case inspect.UnionType(types=types), _:
            below = (_child_type(member, part) for member in types)
            return next((found for found in below if not isinstance(found, inspect.AnyType)), inspect.AnyType())
        case inspect.StructType(fields=fields), str():
            return next((field.type for field in fields if field.encode_name == part), inspect.AnyType())
        case inspect.VarTupleType(item_type=item), int():
            return item
        case inspect.TupleType(item_types=items), int():
            return items[part]
        case _:
            return inspect.AnyType()


# Base of all tables of a scenario file.

Text = Annotated[str, Meta(min_length=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a scenario file: unknown keys are rejected."""
