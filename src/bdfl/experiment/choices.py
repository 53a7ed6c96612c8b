"""Scheduler specifications: `drc`, `exact:tradeoff=50`, `exact:tradeoff=50,target_gap=1e-6`."""

from collections.abc import Sequence

import msgspec

from bdfl.errors import BdflError
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.registry import ParameterValue, get_scheduler

# Independent of V; they transmit with the given power.
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


class InvalidChoice(BdflError):
    """An invalid list of schedulers: empty, with one twice, or with a setting without a value."""


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


def validate_choices(choices: Sequence[str]) -> None:
    """Raise `InvalidChoice` unless there is at least one scheduler, and none twice."""
    if not choices:
        raise InvalidChoice("schedulers: none given, at least one is needed")
    repeated = [choice for choice in choices if choices.count(choice) > 1]
    if repeated:
        raise InvalidChoice(f"schedulers: {repeated[0]!r} given twice, once is allowed")


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


def parse_parameters(settings: Sequence[str]) -> dict[str, ParameterValue]:
    """Parse scheduler parameters of the form `key=value`, with values as in a scenario file."""
    scenario = override_scenario(Scenario(), [f"scheduler.parameters.{setting}" for setting in settings])
    return dict(scenario.scheduler.parameters)


def show_choice(choice: str) -> str:
    """Format a scheduler for tables and figures: `exact:tradeoff=50` becomes `exact V=50`."""
    name, _, settings = choice.partition(":")
    return f"{name} {settings.replace('tradeoff', 'V').replace(',', ' ')}".strip()
