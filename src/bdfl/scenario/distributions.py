"""Values per client: one number for all, a list with one each, or a distribution to draw from."""

import math
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, inspect

from bdfl.scenario.validation import ScenarioError, refuse_value, unwrap_type

Source: TypeAlias = Literal["paper", "calibrated", "ours"]

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Probability = Annotated[float, Meta(gt=0, lt=1)]
WholePositive = Annotated[int, Meta(ge=1)]
Parameter: TypeAlias = bool | int | float | str  # of a plug-in, validated by the plug-in
Point = tuple[float, float]  # x, y in m
Sides = tuple[Positive, Positive]  # width, height in m


class Drawn(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="distribution",
    tag=str.lower,
):
    """Base of all distributions: drawn once for the run, or in every round if the key allows it."""

    each_round: bool = False


class Uniform(Drawn, frozen=True, kw_only=True):
    """Every value from `low` to `high` is equally likely."""

    low: float
    high: float


class Lognormal(Drawn, frozen=True, kw_only=True):
    """`median` times e to the power of a normal draw with standard deviation `sigma`."""

    median: Positive
    sigma: Annotated[float, Meta(ge=0, le=10)]  # above, draws exceed the range of floats


class Normal(Drawn, frozen=True, kw_only=True):
    """Normal draws, clipped to `low` to `high`."""

    mean: float
    std: NotNegative
    low: float
    high: float


class Choice(Drawn, frozen=True, kw_only=True):
    """One of `values`, with probability proportional to `weights` (equal if not given)."""

    values: Annotated[tuple[float, ...], Meta(min_length=1)]
    weights: tuple[NotNegative, ...] | None = None


Distribution: TypeAlias = Uniform | Lognormal | Normal | Choice
PerClientPositive: TypeAlias = Positive | tuple[Positive, ...] | Distribution
PerClientNotNegative: TypeAlias = NotNegative | tuple[NotNegative, ...] | Distribution
PerClientFraction: TypeAlias = Fraction | tuple[Fraction, ...] | Distribution
PerClientWhole: TypeAlias = WholePositive | tuple[WholePositive, ...] | Distribution  # draws rounded, at least 1
PerClientValue: TypeAlias = float | tuple[float, ...] | Distribution  # any of the above


def about(meaning: str, unit: str = "", *, source: Source = "ours") -> Meta:
    """Metadata of a key: a one-line meaning, its unit ("" if none), and the source of its default."""
    return Meta(description=meaning, extra={"unit": unit, "source": source})


def is_per_client(node: inspect.Type) -> bool:
    """Return whether a key of this type takes a distribution, hence one value per client."""
    union = unwrap_type(node)
    return isinstance(union, inspect.UnionType) and any(isinstance(kind, inspect.StructType) for kind in union.types)


def check_per_client(value: object, node: inspect.Type, key: str, num_clients: int) -> None:
    """Raise `ScenarioError` if a list has not one entry per client, or a draw could leave the limits of `node`."""
    if isinstance(value, tuple) and len(value) != num_clients:
        allowed = f"allowed is one entry for each of the {num_clients} clients"
        raise ScenarioError(key, f"a list of {len(value)} given", allowed)
    if isinstance(value, (Uniform, Normal)) and value.low > value.high:
        raise refuse_value(f"{key}.low", value.low, f"at most high, which is {value.high!r}")
    if isinstance(value, Choice) and value.weights is not None:
        if len(value.weights) != len(value.values):
            allowed = f"allowed is one for each of the {len(value.values)} values"
            raise ScenarioError(f"{key}.weights", f"a list of {len(value.weights)} given", allowed)
        if sum(value.weights) <= 0:
            raise refuse_value(f"{key}.weights", value.weights, "a list with at least one weight above 0")
    if isinstance(value, (Uniform, Lognormal, Normal, Choice)):
        _check_support(value, node, key)


def _check_support(value: Distribution, node: inspect.Type, key: str) -> None:
    """Raise if a draw could violate the limits of a plain number at this key."""
    union = unwrap_type(node)
    kinds = union.types if isinstance(union, inspect.UnionType) else (union,)
    number = next(kind for kind in kinds if isinstance(kind, (inspect.FloatType, inspect.IntType)))
    # A whole number is rounded and raised to 1 after the draw, so a log-normal data set size is allowed.
    above, least = (0, None) if isinstance(number, inspect.IntType) else (number.gt, number.ge)
    low, high = _support(value)
    if above is not None and low <= above:
        raise ScenarioError(key, f"values from {low!r} given", f"allowed are values above {above:g}")
    if least is not None and low < least:
        raise ScenarioError(key, f"values from {low!r} given", f"allowed are values of at least {least:g}")
    if number.le is not None and high > number.le:
        raise ScenarioError(key, f"values up to {high!r} given", f"allowed are values of at most {number.le:g}")


def _support(value: Distribution) -> tuple[float, float]:
    """Least and greatest value that can be drawn."""
    match value:
        case Lognormal():
            return math.ulp(0.0), math.inf
        case Choice(values=values):
            return min(values), max(values)
        case Uniform(low=low, high=high) | Normal(low=low, high=high):
            return low, high
