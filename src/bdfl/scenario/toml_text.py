"""Plain data as TOML text and back: only tables, inline tables, lists and scalars."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

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
