"""Registry of schedulers, built-in and third-party: the entry points `bdfl.schedulers`.

A scheduler is a function `f(problem, *, parameter: type = default, ...) -> Decision`. Its keyword-only arguments are
its parameters; their annotations (also `Literal`, or `Annotated` with `msgspec.Meta` limits) define the allowed values.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, get_args, get_origin

import msgspec

from bdfl.errors import BadSchedulerParameter, UnknownScheduler
from bdfl.scheduling.conformance import CheckReport, check_scheduler
from bdfl.scheduling.problem import Decision, Scheduler

__all__ = [
    "ENTRY_POINT_GROUP",
    "CheckReport",
    "ParameterValue",
    "check_scheduler",
    "get_scheduler",
    "scheduler_names",
    "scheduler_parameters",
]

ENTRY_POINT_GROUP = "bdfl.schedulers"

ParameterValue = bool | int | float | str


def scheduler_names() -> list[str]:
    """Names of all installed schedulers, in alphabetical order."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP).names)


def scheduler_parameters(name: str) -> list[str]:
    """Parameters of the named scheduler, as in its signature with type and default."""
    return [_describe(item) for item in _parameters(_load(_find(name)), name).values()]


def get_scheduler(name: str, parameters: Mapping[str, ParameterValue] | None = None) -> Scheduler:
    """Return the named scheduler with its parameters bound.

    Raises `UnknownScheduler` or `BadSchedulerParameter`, with a one-line message of the allowed values.
    """
    scheduler = _load(_find(name))
    allowed = _parameters(scheduler, name)
    given = parameters or {}
    for key in given:
        if key not in allowed:
            choice = ", ".join(map(_describe, allowed.values())) or "none"
            raise BadSchedulerParameter(f"scheduler {name!r} has no parameter {key!r}; it has: {choice}")
    for key, item in allowed.items():
        if item.default is item.empty and key not in given:
            raise BadSchedulerParameter(f"scheduler {name!r} needs its parameter {_describe(item)}")
    bound = {key: _convert(value, allowed[key], name) for key, value in given.items()}
    return partial(scheduler, **bound) if bound else scheduler


def _find(name: str) -> EntryPoint:
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    targets = sorted({point.value for point in found})
    if not targets:
        raise UnknownScheduler(f"no scheduler {name!r}; installed: {', '.join(scheduler_names()) or 'none'}")
    if len(targets) > 1:
        raise UnknownScheduler(f"scheduler {name!r} is claimed by several packages: {', '.join(targets)}")
    return next(iter(found))


def _load(point: EntryPoint) -> Callable[..., Decision]:
    try:
        scheduler = point.load()
    except (ImportError, AttributeError) as error:
        raise UnknownScheduler(f"scheduler {point.name!r} cannot be loaded from {point.value}: {error}") from error
    if not callable(scheduler):
        raise UnknownScheduler(f"scheduler {point.name!r}: {point.value} is not a function")
    loaded: Callable[..., Decision] = scheduler
    return loaded


def _parameters(scheduler: Callable[..., Decision], name: str) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(scheduler, eval_str=True)
    except (NameError, TypeError, ValueError) as error:
        raise UnknownScheduler(f"scheduler {name!r} has no readable signature: {error}") from error
    return {key: item for key, item in signature.parameters.items() if item.kind is item.KEYWORD_ONLY}


def _convert(value: ParameterValue, parameter: inspect.Parameter, name: str) -> object:
    allowed = object if parameter.annotation is parameter.empty else parameter.annotation
    try:
        converted: object = msgspec.convert(value, allowed)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadSchedulerParameter(f"scheduler {name!r}, {_describe(parameter)}: {value!r} given. {error}") from error
    return converted


def _describe(parameter: inspect.Parameter) -> str:
    """Name, type and default; the error message itself names a violated limit."""
    if get_origin(parameter.annotation) is Annotated:
        parameter = parameter.replace(annotation=get_args(parameter.annotation)[0])
    return str(parameter)
