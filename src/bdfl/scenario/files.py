"""Scenario files: load, override, write, digest, the shipped ones, and the table of keys."""

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import inspect

from bdfl.errors import BdflError, one_line, other_format
from bdfl.scenario.distributions import Source
from bdfl.scenario.schema import Availability, Energy, Radio, Scenario, walk_keys
from bdfl.scenario.schema_learning import HUB_PREFIX, OPTIMIZATION_KEYS, DataChoice, Learning, is_function, is_path
from bdfl.scenario.validation import (
    MAX_TOML_SIZE,
    Plain,
    ScenarioError,
    convert_strictly,
    parse_toml,
    refuse_value,
    toml_document,
    toml_value,
)
from bdfl.storage import read_regular

# Scenario files: load them with overrides, write them, and identify them by a digest.

FORMAT = 1  # of scenario files; the default of a file without the key
_FORMAT_KEY = "format"
_Table: TypeAlias = dict[str, Plain]
_YOUNGER_KEYS = {  # left out of the digest where they have their default, so older scenarios keep theirs
    "": ("availability",),
    "radio": ("sharing",),
    "data": ("inputs", "input_range", "validation_samples"),
    "learning": OPTIMIZATION_KEYS,
    "learning.aggregation": ("server", "server_rate", "server_betas", "server_epsilon"),
    "energy": ("horizon", "trace", "charge_j", "capacity_j", "price"),
}
_TRACED = ("radio", "energy", "availability")  # tables whose `trace` names a file
_INLINE = (
    "scheduler.parameters",
    "partition.parameters",
    "learning.flower_config",
)  # tables of a few values, whose keys are user-defined


_MAX_TRACE = 2**30  # bytes
_MAX_FOREIGN = 2**24  # clients times rounds of a run from an untrusted source


class NotAllowed(BdflError):
    """An untrusted scenario that names a function or a size its reader does not allow."""


def parse_scenario(data: dict[str, Plain]) -> Scenario:
    """Return the scenario described by plain data; the format is checked first, then every value."""
    validate_format(data.get(_FORMAT_KEY, FORMAT))
    return convert_strictly({key: value for key, value in data.items() if key != _FORMAT_KEY}, Scenario)


def validate_format(found: Plain) -> None:
    """Raise `ScenarioError` for a scenario in a format that this version cannot read."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise refuse_value(_FORMAT_KEY, found, f"{FORMAT}, or no such key")
    if found != FORMAT:
        raise ScenarioError("scenario", *other_format(found, FORMAT).split(", ", 1))


def load_scenario(source: Path | str, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario from its TOML file, with "key=value" overrides applied before validation.

    A text is the path of a file or the name of a shipped scenario, see `find_scenario`.

    The name defaults to the file's. A `trace` and a `data.source` that is a path are relative to the file; a source
    not found there is relative to the working folder. Raises `ScenarioError`.
    """
    path = find_scenario(source) if isinstance(source, str) else source
    try:
        data = read_toml(path, "expected a scenario in TOML")
    except FileNotFoundError:
        raise ScenarioError(str(path), "no such file", "expected a scenario in TOML") from None
    except OSError as error:
        raise ScenarioError(str(path), str(error.strerror), "expected a readable scenario in TOML") from None
    try:
        scenario = parse_scenario({"name": path.stem} | _apply_overrides(data, overrides))
    except RecursionError:
        raise ScenarioError(str(path), "nested too deeply", "expected a scenario in TOML") from None
    for table, trace in named_traces(scenario).items():
        scenario = _replace_trace(scenario, table, str((path.parent / trace).absolute()))
    if is_path(scenario.data.source):
        beside = (path.parent / scenario.data.source).absolute()
        source = str(beside if beside.exists() else Path(scenario.data.source).absolute())
        scenario = msgspec.structs.replace(scenario, data=msgspec.structs.replace(scenario.data, source=source))
    return scenario


def read_toml(path: Path, expected: str) -> dict[str, Plain]:
    """Read an untrusted TOML file; raise `OSError`, or `ScenarioError` if it is no TOML."""
    try:
        return parse_toml(read_regular(path, 4 * MAX_TOML_SIZE).decode())
    except UnicodeDecodeError:
        raise ScenarioError(str(path), "not UTF-8 text", expected) from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(str(path), f"not TOML: {one_line(error)}", expected) from None


def load_foreign_scenario(path: Path, allowed: frozenset[str] | None = None) -> Scenario:
    """Load a scenario from an untrusted folder, limited in size and checked by `validate_allowed`.

    None `allowed`: the caller never calls the functions that the scenario names.
    """
    scenario = load_scenario(path)
    size = scenario.clients.count * scenario.rounds
    if size > _MAX_FOREIGN:
        raise NotAllowed(f"{path}: {size} clients times rounds, at most {_MAX_FOREIGN} expected of a stored run")
    if allowed is not None:
        validate_allowed(scenario, allowed)
    return scenario


def validate_allowed(scenario: Scenario, allowed: frozenset[str]) -> None:
    """Raise `NotAllowed` if the scenario names a function that is not in `allowed`.

    Applies to all untrusted scenarios: of a genesis, a draft, and the folder of a run, a sweep or a network.
    """
    for key, value in named_functions(scenario).items():
        refuse_function(key, value, allowed)


def refuse_function(key: str, name: str, allowed: frozenset[str]) -> None:
    """Raise `NotAllowed` unless the function is `allowed`."""
    if name not in allowed:
        raise NotAllowed(f"{key}: {name} would run here; if you know what it does, --allow {name}")


def named_traces(scenario: Scenario) -> dict[str, str]:
    """Files of recorded rounds that the scenario names, by table."""
    traces = {table: getattr(scenario, table).trace for table in _TRACED}
    return {table: trace for table, trace in traces.items() if trace is not None}


def _replace_trace(scenario: Scenario, table: str, trace: str) -> Scenario:
    section = msgspec.structs.replace(getattr(scenario, table), trace=trace)
    return msgspec.structs.replace(scenario, **{table: section})


def named_functions(scenario: Scenario) -> dict[str, str]:
    """User functions that the scenario names, by key."""
    learning, source = scenario.learning, scenario.data.source
    named = {
        "data.source": None if source.startswith(HUB_PREFIX) else source,
        "learning.model": learning.model,
        "learning.flower": learning.flower,
        "learning.flower_model": learning.flower_model,
        "learning.aggregation.rule": learning.aggregation.rule,
    }
    return {key: value for key, value in named.items() if value is not None and is_function(value)}


def override_scenario(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """Return a copy of `scenario` with "key=value" overrides, validated again."""
    return parse_scenario(_apply_overrides(msgspec.to_builtins(scenario), overrides))


def dump_scenario(scenario: Scenario) -> str:
    """TOML text with every value, which loads as an equal scenario."""
    return toml_document({_FORMAT_KEY: FORMAT} | msgspec.to_builtins(scenario), inline=_INLINE)


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 (hex) of the scenario's canonical form: JSON with sorted keys.

    A trace is represented by the digest of its content, not by its path; a missing one raises `ScenarioError`.
    """
    for table, trace in named_traces(scenario).items():
        try:
            content = hashlib.sha256(read_regular(Path(trace), _MAX_TRACE)).hexdigest()
        except OSError as error:
            raise ScenarioError(f"{table}.trace", f"{trace}: {error.strerror}", "expected a readable file") from None
        scenario = _replace_trace(scenario, table, content)
    plain = msgspec.to_builtins(scenario)
    sections = {
        "data": DataChoice(),
        "learning": Learning(),
        "availability": Availability(),
        "radio": Radio(),
        "energy": Energy(),
    }
    usual = msgspec.to_builtins(sections)
    for table, keys in _YOUNGER_KEYS.items():
        given, default = (reduce(getitem, filter(None, table.split(".")), tables) for tables in (plain, usual))
        for key in keys:
            if given[key] == default[key]:
                del given[key]
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def _apply_overrides(data: _Table, overrides: Sequence[str]) -> _Table:
    """Return a copy of `data` with every "key=value" set; values are TOML, or else bare text."""
    result = data
    for override in overrides:
        key, equals, text = override.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ScenarioError(override, "not an override", 'expected key=value, such as "radio.bandwidth_hz=360e3"')
        result = _set_key(result, parts, _parse_value(text.strip(), key.strip()), key.strip())
    return result


def _set_key(table: _Table, parts: list[str], value: Plain, key: str) -> _Table:
    name, *rest = parts
    if not rest:
        return table | {name: value}
    below = table.get(name)
    if below is not None and not isinstance(below, dict):
        above = key.removesuffix("." + ".".join(rest))
        raise ScenarioError(key, "no such key", f"{above} is a value, not a table")
    return table | {name: _set_key(below or {}, rest, value, key)}


def _parse_value(text: str, key: str) -> Plain:
    """Parse `text` as a TOML value, or as bare text; a bare "unset" clears an optional value."""
    if text == "unset":
        return None
    try:
        parsed: _Table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if text[:1] in {"{", "[", '"', "'"}:
            raise ScenarioError(key, f"{text!r} given", "which is not a TOML value") from None
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


# Scenarios shipped with the package, by name.


def find_scenario(name_or_path: str) -> Path:
    """Return the path of a scenario file: as given, or the shipped scenario of that name, such as `paper-cifar10`.

    A folder of that name does not hide a shipped scenario. Raises `ScenarioError` with the names available.
    """
    path = Path(name_or_path)
    shipped = shipped_scenarios()
    if path.exists() and not (path.is_dir() and name_or_path in shipped):
        return path
    if name_or_path not in shipped:
        allowed = f"expected a file, or one of {', '.join(shipped) or 'none'}"
        raise ScenarioError("scenario", f"{name_or_path} not found", allowed)
    return shipped[name_or_path]


def shipped_scenarios() -> dict[str, Path]:
    """Files of all shipped scenarios by name, in alphabetical order."""
    return {path.stem: path for path in sorted(scenario_folder().glob("*.toml"))}


def scenario_folder() -> Path:
    """Folder of the shipped scenarios."""
    package = Path(__file__).parents[1]
    inside, beside = package / "scenarios", package.parents[1] / "scenarios"  # installed, or in a source tree
    return inside if inside.is_dir() else beside


# A scenario as table rows: every key with its value, unit, default, source and meaning.

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
