"""Numbers in addresses: anything else than a plain number in its range is refused before it is used."""

import math
import re
from collections.abc import Mapping

from bdfl.explorer.documents import DeskSettings
from bdfl.explorer.errors import BadRequest, NotHere

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,20}", re.ASCII)
_MAX_SHOWN = 40  # characters of a bad value that its refusal repeats

Query = Mapping[str, str]


def path_number(text: str) -> int:
    """The number that a path ends with; raises `NotHere`: no other address names anything."""
    if _WHOLE.fullmatch(text) is None:
        raise NotHere(f"{text[:_MAX_SHOWN]}: a number expected")
    return int(text)


def whole(query: Query, name: str) -> int | None:
    """A parameter that is a whole number; none: not given."""
    text = query.get(name, "")
    if not text:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a whole number expected")
    return int(text)


def number(query: Query, name: str) -> float | None:
    """A parameter that is a finite number; none: not given."""
    text = query.get(name, "")
    if not text:
        return None
    value = float(text) if _NUMBER.fullmatch(text) is not None else math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a number expected")
    return value


def desk_settings(query: Query) -> DeskSettings:
    """What the desk's controls are set to."""
    return DeskSettings(
        tradeoff=number(query, "tradeoff"),
        budget_scale=number(query, "budget_scale"),
        energy_budget_j=number(query, "energy_budget_j"),
        bandwidth_hz=number(query, "bandwidth_hz"),
        work_scale=number(query, "work_scale"),
        client=whole(query, "client"),
        gain_db=number(query, "gain_db"),
    )
