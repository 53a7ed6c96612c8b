"""A scenario as table rows: every key with its value, unit, default, source and meaning."""

from dataclasses import dataclass

import msgspec
from msgspec import inspect

from bdfl.scenario.model import Scenario, walk_keys
from bdfl.scenario.toml_text import Plain, toml_value
from bdfl.scenario.values import Source

_LONGEST_LIST = 8  # entries shown in full


@dataclass(frozen=True)
class ScenarioRow:
    """One key of a scenario; `source` is the origin of its default."""

    key: str
    value: Plain
    unit: str
    default: Plain
    source: Source
    meaning: str

    @property
    def value_text(self) -> str:
        """The value on one line, as TOML; long lists are truncated."""
        return _text(self.value)

    @property
    def default_text(self) -> str:
        """The default on one line, as TOML."""
        return _text(self.default)

    @property
    def is_default(self) -> bool:
        """True if the scenario keeps the default of this key."""
        return self.value == self.default


def describe_scenario(scenario: Scenario) -> list[ScenarioRow]:
    """Return one row per key, in the order of a scenario file."""
    defaults = {key: value for key, _, value in walk_keys(Scenario())}
    return [_row(key, field, value, defaults[key]) for key, field, value in walk_keys(scenario)]


def _row(key: str, field: inspect.Field, value: object, default: object) -> ScenarioRow:
    node = field.type
    if not isinstance(node, inspect.Metadata) or node.extra is None or node.extra_json_schema is None:
        raise TypeError(f"{key} does not say what it is about")
    return ScenarioRow(
        key=key,
        value=msgspec.to_builtins(value),
        unit=node.extra["unit"],
        default=msgspec.to_builtins(default),
        source=node.extra["source"],
        meaning=node.extra_json_schema["description"],
    )


def _text(value: Plain) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)) and len(value) > _LONGEST_LIST:
        shown = ", ".join(toml_value(item) for item in value[:3])
        return f"[{shown}, ... {len(value)} values]"
    return toml_value(value)
