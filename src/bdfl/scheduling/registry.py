"""Schedulers by name and by `name:key=value`, built-in and third-party: the entry points `bdfl.schedulers`.

A scheduler is a function `f(problem, *, parameter: type = default, ...) -> Decision`. Its keyword-only arguments are
its parameters; their annotations (also `Literal`, or `Annotated` with `msgspec.Meta` limits) define the allowed values.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, get_args, get_origin

import msgspec

from bdfl.errors import BadSchedulerParameter, BdflError, UnknownScheduler
from bdfl.scenario import Scenario, SchedulerChoice, override_scenario
from bdfl.scheduling.conformance import CheckReport as CheckReport, check_scheduler as check_scheduler
from bdfl.scheduling.problem import Decision, Scheduler

ENTRY_POINT_GROUP = "bdfl.schedulers"

ParameterValue = bool | int | float | str


def scheduler_names() -> list[str]:
    """Names of all installed schedulers, in alphabetical order."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP).names)


def scheduler_parameters(name: str) -> list[str]:
    """Parameters of the named scheduler, as in its signature with type and default."""
    return [_describe(item) for item in _parameters(_load(_find(name)), name).values()]


def takes_parameter(name: str, parameter: str) -> bool:
    """Return whether the named scheduler is installed and has this parameter."""
    return name in scheduler_names() and parameter in _parameters(_load(_find(name)), name)


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


# Scheduler specifications: `drc`, `exact:tradeoff=50`, `exact:tradeoff=50,target_gap=1e-6`.

# They, `steady` and `battery` are independent of V and transmit with the given power.
BASELINES = (
    "random",
    "round-robin",
    "channel-best",
    "all",
    "fastest-k",
    "energy-greedy",
    "age-of-update",
    "power-of-choice",
    "oort",
)

WITHOUT_TRADEOFF = (*BASELINES, "steady", "battery")


_BEST_FREQUENCIES = "frequencies=best"


def with_best_frequencies(baseline: str) -> str:
    """Return the choice of the same baseline at the best frequencies for the clients that it selects."""
    return f"{baseline}{',' if ':' in baseline else ':'}{_BEST_FREQUENCIES}"


def allocates_best(choice: SchedulerChoice) -> bool:
    """Return whether its frequencies are known to be the best for the clients that it selects, at the given powers."""
    return choice.name in ("exact", "steady") or choice.parameters.get("frequencies") == "best"


class InvalidChoice(BdflError):
    """A choice that cannot be played: a list that is empty or has one twice, or a setting without a value."""


def split_choices(text: str) -> list[str]:
    """Split a comma-separated list of schedulers; a piece `key=value` belongs to the scheduler before it."""
    choices: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        is_setting = "=" in piece.split(":")[0]
        if is_setting and choices:
            choices[-1] += f",{piece}"
        elif piece:
            choices.append(piece)
    validate_choices(choices)
    return choices


def validate_choices(choices: Sequence[str], what: str = "schedulers") -> None:
    """Raise `InvalidChoice` unless there is at least one, and none twice."""
    if not choices:
        raise InvalidChoice(f"{what}: none given, at least one is needed")
    repeated = [choice for choice in choices if choices.count(choice) > 1]
    if repeated:
        raise InvalidChoice(f"{what}: {repeated[0]!r} given twice, once is allowed")


def choose_scheduler(scenario: Scenario, choice: str) -> Scenario:
    """Return the scenario with another scheduler; `tradeoff` is V, any other key a parameter of the scheduler.

    V stays the scenario's unless given; parameters stay only if the scheduler does. Raises if the scheduler or a
    parameter does not exist.
    """
    name, _, settings = choice.partition(":")
    same = name == scenario.scheduler.name
    scheduler = msgspec.structs.replace(
        scenario.scheduler, name=name, parameters=scenario.scheduler.parameters if same else {}
    )
    overrides: list[str] = []
    for setting in settings.split(",") if settings else []:
        key, equals, _ = setting.partition("=")
        if not key or not equals:
            raise InvalidChoice(f"scheduler {choice!r}: {setting!r} given, key=value expected")
        overrides.append(f"scheduler.{setting}" if key == "tradeoff" else f"scheduler.parameters.{setting}")
    chosen = override_scenario(msgspec.structs.replace(scenario, scheduler=scheduler), overrides)
    get_scheduler(chosen.scheduler.name, chosen.scheduler.parameters)  # raises if it does not exist
    return chosen


def find_scheduler(choice: str) -> Scheduler:
    """Return the scheduler of a specification such as `oort:alpha=1`."""
    chosen = choose_scheduler(Scenario(), choice).scheduler
    return get_scheduler(chosen.name, chosen.parameters)


def parse_parameters(settings: Sequence[str]) -> dict[str, ParameterValue]:
    """Parse scheduler parameters of the form `key=value`, with values as in a scenario file."""
    scenario = override_scenario(Scenario(), [f"scheduler.parameters.{setting}" for setting in settings])
    return dict(scenario.scheduler.parameters)


def show_choice(choice: str) -> str:
    """Format a scheduler for tables and figures: `exact:tradeoff=50` becomes `exact V=50`."""
    name, _, settings = choice.partition(":")
    return f"{name} {settings.replace('tradeoff', 'V').replace('frequencies', 'f').replace(',', ' ')}".strip()
