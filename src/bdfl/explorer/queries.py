"""Parse numbers in URLs; all other text is rejected."""

import math
import re
from collections.abc import Mapping

from bdfl.explorer.documents import DeskSettings
from bdfl.explorer.errors import BadRequest, NotHere

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,20}", re.ASCII)
_MAX_SHOWN = 40  # characters of a bad value in an error message

Query = Mapping[str, str]


def path_number(text: str) -> int:
    """Return the number at the end of a path; raise `NotHere` for other text."""
    if _WHOLE.fullmatch(text) is None:
        raise NotHere(f"{text[:_MAX_SHOWN]}: a number expected")
    return int(text)


def whole(query: Query, name: str) -> int | None:
    """Return a parameter that is a whole number; None if not given."""
    text = query.get(name, "")
    if not text:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a whole number expected")
    return int(text)


def number(query: Query, name: str) -> float | None:
    """Return a parameter that is a finite number; None if not given."""
    text = query.get(name, "")
    if not text:
        return None
    value = float(text) if _NUMBER.fullmatch(text) is not None else math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name}: {text[:_MAX_SHOWN]} given, a number expected")
    return value


def desk_settings(query: Query) -> DeskSettings:
    """Return the settings of the what-if page."""
    return DeskSettings(
        tradeoff=number(query, "tradeoff"),
        budget_scale=number(query, "budget_scale"),
        energy_budget_j=number(query, "energy_budget_j"),
        bandwidth_hz=number(query, "bandwidth_hz"),
        work_scale=number(query, "work_scale"),
        client=whole(query, "client"),
        gain_db=number(query, "gain_db"),
    )
