"""Scenario files: load them with overrides, write them, name them by a digest."""

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from bdfl.errors import one_line, other_format
from bdfl.scenario.checking import ScenarioError, convert_strictly, refuse_value
from bdfl.scenario.learning import is_path
from bdfl.scenario.model import Scenario
from bdfl.scenario.toml_text import Plain, toml_document

FORMAT = 1  # of scenario files; a file that does not say which it has is of this one
_FORMAT_KEY = "format"
_Table: TypeAlias = dict[str, Plain]
_YOUNGER_KEYS = ("inputs", "input_range")  # of data: without them a scenario keeps the digest that it always had
_INLINE = (
    "scheduler.parameters",
    "partition.parameters",
    "learning.flower_config",
)  # tables of a few values, whose keys are not ours


def parse_scenario(data: dict[str, Plain]) -> Scenario:
    """The scenario that plain data describes, every value checked, that of the format first."""
    validate_format(data.get(_FORMAT_KEY, FORMAT))
    return convert_strictly({key: value for key, value in data.items() if key != _FORMAT_KEY}, Scenario)


def validate_format(found: Plain) -> None:
    """Raises `ScenarioError` for a scenario in another format than this bdfl reads."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise refuse_value(_FORMAT_KEY, found, f"{FORMAT}, or no such key")
    if found != FORMAT:
        raise ScenarioError("scenario", *other_format(found, FORMAT).split(", ", 1))


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in the TOML file `path`, with "key=value" overrides applied before anything is checked.

    Named after the file unless it names itself. `radio.trace` and a `data.source` that is a path are taken relative to
    the file; a source that is not there, relative to the working folder. Raises `ScenarioError`.
    """
    try:
        data: _Table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioError(str(path), "no such file", "expected a scenario in TOML") from None
    except OSError as error:
        raise ScenarioError(str(path), str(error.strerror), "expected a readable scenario in TOML") from None
    except UnicodeDecodeError:
        raise ScenarioError(str(path), "not UTF-8 text", "expected a scenario in TOML") from None
    except tomllib.TOMLDecodeError as error:
        reason = one_line(error)
        raise ScenarioError(str(path), f"not TOML: {reason}", "expected a scenario in TOML") from None
    data = {"name": path.stem} | _apply_overrides(data, overrides)
    scenario = parse_scenario(data)
    if scenario.radio.trace is not None:
        trace = str((path.parent / scenario.radio.trace).absolute())
        scenario = msgspec.structs.replace(scenario, radio=msgspec.structs.replace(scenario.radio, trace=trace))
    if is_path(scenario.data.source):
        beside = (path.parent / scenario.data.source).absolute()
        source = str(beside if beside.exists() else Path(scenario.data.source).absolute())
        scenario = msgspec.structs.replace(scenario, data=msgspec.structs.replace(scenario.data, source=source))
    return scenario


def override_scenario(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """`scenario` with "key=value" overrides, checked again; the one given stays as it is."""
    return parse_scenario(_apply_overrides(msgspec.to_builtins(scenario), overrides))


def dump_scenario(scenario: Scenario) -> str:
    """TOML text with every value, which loads back to an equal scenario."""
    return toml_document({_FORMAT_KEY: FORMAT} | msgspec.to_builtins(scenario), inline=_INLINE)


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 (hex) of the scenario's canonical form: JSON with sorted keys.

    A trace counts by its content, wherever it lies; a missing one raises `ScenarioError`.
    """
    radio = scenario.radio
    if radio.trace is not None:
        try:
            content = hashlib.sha256(Path(radio.trace).read_bytes()).hexdigest()
        except OSError as error:
            raise ScenarioError("radio.trace", f"{radio.trace}: {error.strerror}", "expected a readable file") from None
        scenario = msgspec.structs.replace(scenario, radio=msgspec.structs.replace(radio, trace=content))
    plain: dict[str, dict[str, Plain]] = msgspec.to_builtins(scenario)
    for key in _YOUNGER_KEYS:
        if plain["data"][key] is None:
            del plain["data"][key]
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def _apply_overrides(data: _Table, overrides: Sequence[str]) -> _Table:
    """A copy of `data` with every "key=value" set; values are TOML, or bare text where they are not."""
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
    """`text` as a TOML value, or as it stands if it is a bare word; a bare "unset" takes an optional value away."""
    if text == "unset":
        return None
    try:
        parsed: _Table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if text[:1] in {"{", "[", '"', "'"}:
            raise ScenarioError(key, f"{text!r} given", "which is not a TOML value") from None
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text
