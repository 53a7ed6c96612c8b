"""Scenario of a live network: its defaults, and limits on scenarios that come from other members."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from bdfl.errors import BdflError, one_line
from bdfl.scenario import LiveMode, Scenario, dump_scenario, load_scenario, parse_scenario
from bdfl.scenario.files import validate_allowed
from bdfl.scenario.validation import MAX_TOML_SIZE, parse_toml
from bdfl.storage import read_regular

MAX_SCENARIO_SIZE = 2**20  # characters
_AMONG_MACHINES = ("ledger.quorum=bft", "ledger.work=argon2id")  # machines may be malicious, and mine on any hardware
_MEASURED = "radio.bandwidth_hz=1e9"  # enough for any network card


class BadAgreement(BdflError):
    """A scenario that cannot found a live network."""


def load_live_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario as `load_scenario` does, with defaults for a network of real machines.

    They are `ledger.quorum = "bft"` and `ledger.work = "argon2id"`. In measured mode `radio.bandwidth_hz` is 1 GHz, so
    that the modelled uplink can be as fast as the real one.
    """
    defaults = [default for default in _AMONG_MACHINES if not _is_set(path, default)]
    scenario = load_scenario(path, [*defaults, *overrides])
    if scenario.live.mode is LiveMode.MEASURED and not _is_set(path, _MEASURED):
        return load_scenario(path, [*defaults, _MEASURED, *overrides])
    return scenario


def write_scenario(scenario: Scenario) -> str:
    """Encode the scenario as all members store it; raises `BadAgreement` if it uses files others do not have."""
    if scenario.radio.trace is not None:
        raise BadAgreement(f"radio.trace: {scenario.radio.trace} given, which the others do not have; none expected")
    return dump_scenario(scenario)


def read_scenario(text: str, allowed: frozenset[str] = frozenset()) -> Scenario:
    """Parse an untrusted scenario, which must be encoded as by `write_scenario`.

    Functions that it names would run here, so each must be `allowed`.
    """
    try:
        scenario = parse_scenario(parse_toml(text))
    except tomllib.TOMLDecodeError as error:
        raise BadAgreement(f"scenario: not TOML: {one_line(error)}") from None
    except RecursionError:
        raise BadAgreement("scenario: nested too deeply, a scenario in TOML expected") from None
    if write_scenario(scenario) != text:
        raise BadAgreement("scenario: not in the form that bdfl genesis new writes")
    learning = scenario.learning
    for shown in (
        scenario.name,
        scenario.data.source,
        learning.model,
        learning.aggregation.rule,
        scenario.scheduler.name,
    ):
        if not shown.isprintable():
            raise BadAgreement(f"scenario: {shown!r} in it, names that can be printed expected")
    validate_allowed(scenario, allowed)
    return scenario


def mining_target_ms(scenario: Scenario) -> int:
    """Return the target time to mine a block (ms); 0 if mining is modelled at constant difficulty."""
    return 0 if scenario.live.mode is LiveMode.EMULATE else max(1, round(scenario.live.block_s * 1000))


def _is_set(path: Path, override: str) -> bool:
    """Return whether a file sets the key of an override; False for an invalid file, which `load_scenario` reports."""
    section, _, key = override.partition("=")[0].partition(".")
    try:
        table = parse_toml(read_regular(path, 4 * MAX_TOML_SIZE).decode()).get(section)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return isinstance(table, dict) and key in table
