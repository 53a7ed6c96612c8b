"""Random values for the points of a sweep, each determined by the sweep's seed, the draw's number and the key."""

import hashlib
import math
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from bdfl.environment import Purpose, stream
from bdfl.scenario.checking import ScenarioError, convert_strictly, refuse_value
from bdfl.scenario.toml_text import Plain
from bdfl.scenario.values import Positive

_Scalar: TypeAlias = bool | int | float | str


class _Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="distribution"):
    """A distribution of a key's values."""


class Uniform(_Drawn, frozen=True, kw_only=True, tag="uniform"):
    """Uniform distribution from `low` to `high`."""

    low: float
    high: float


class LogUniform(_Drawn, frozen=True, kw_only=True, tag="log-uniform"):
    """Log-uniform distribution from `low` to `high`."""

    low: Positive
    high: Positive


class Integers(_Drawn, frozen=True, kw_only=True, tag="integers"):
    """Uniform distribution of whole numbers from `low` to `high`, both included."""

    low: int
    high: int


class Choice(_Drawn, frozen=True, kw_only=True, tag="choice"):
    """Uniform distribution over `values`."""

    values: Annotated[tuple[_Scalar, ...], Meta(min_length=1)]


Drawing: TypeAlias = Uniform | LogUniform | Integers | Choice


class _Holder(msgspec.Struct, frozen=True):
    """Wrapper of a distribution, so that its errors read like those of a scenario."""

    value: Drawing


def validate_drawing(data: Plain, key: str) -> Drawing:
    """Return the distribution at `key`; raise `ScenarioError` if it is not one."""
    if not isinstance(data, dict):
        raise refuse_value(key, data, 'a table such as {distribution = "uniform", low = 0.2, high = 0.8}')
    try:
        drawing = convert_strictly({"value": data}, _Holder).value
    except ScenarioError as error:
        raise ScenarioError(error.key.replace("value", key, 1), error.found, error.allowed) from None
    if not isinstance(drawing, Choice) and drawing.low > drawing.high:
        raise refuse_value(f"{key}.low", drawing.low, f"at most high, which is {drawing.high!r}")
    return drawing


def draw_value(drawing: Drawing, seed: int, number: int, key: str) -> Plain:
    """Draw the value of `key` in draw `number`: independent of other draws and keys."""
    rng = stream(seed, Purpose.SWEEP, number, int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]))
    match drawing:
        case Uniform(low=low, high=high):
            return float(low + (high - low) * rng.random())
        case LogUniform(low=low, high=high):
            return float(math.exp(math.log(low) + (math.log(high) - math.log(low)) * rng.random()))
        case Integers(low=low, high=high):
            return int(rng.integers(low, high, endpoint=True))
        case Choice(values=values):
            return values[int(rng.integers(len(values)))]
