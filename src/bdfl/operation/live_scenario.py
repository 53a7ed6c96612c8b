"""The scenario that the members of a live network agree on: its own defaults, and what others' scenarios may not do."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from bdfl.errors import BdflError, one_line
from bdfl.foreign_files import read_regular
from bdfl.scenario import LiveMode, Scenario, dump_scenario, load_scenario, parse_scenario
from bdfl.scenario.files import validate_allowed
from bdfl.scenario.toml_text import MAX_TOML_SIZE, parse_toml

MAX_SCENARIO_SIZE = 2**20  # characters
_AMONG_MACHINES = ("ledger.quorum=bft", "ledger.work=argon2id")  # which may lie, and mine with what they have
_MEASURED = "radio.bandwidth_hz=1e9"  # room for the speed of any network card


class BadAgreement(BdflError):
    """A scenario that no live network can be founded on."""


def load_live_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """As `load_scenario`, but what the file leaves open suits a network of real machines.

    That is `ledger.quorum = "bft"` and `ledger.work = "argon2id"`; where machines are measured, `radio.bandwidth_hz` is
    1 GHz, so that the model's uplink can be as fast as the real one.
    """
    defaults = [default for default in _AMONG_MACHINES if not _is_set(path, default)]
    scenario = load_scenario(path, [*defaults, *overrides])
    if scenario.live.mode is LiveMode.MEASURED and not _is_set(path, _MEASURED):
        return load_scenario(path, [*defaults, _MEASURED, *overrides])
    return scenario


def write_scenario(scenario: Scenario) -> str:
    """The scenario as all members have it; raises `BadAgreement` for one that cannot be agreed on."""
    if scenario.radio.trace is not None:
        raise BadAgreement(f"radio.trace: {scenario.radio.trace} given, which the others do not have; none expected")
    return dump_scenario(scenario)


def read_scenario(text: str, allowed: frozenset[str] = frozenset()) -> Scenario:
    """The scenario in somebody's text, which must be as `write_scenario` writes it.

    Functions that it names would run here, so each must be among those `allowed`.
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
    """How long mining a block should take (ms); 0 where mining is modelled and its difficulty stays."""
    return 0 if scenario.live.mode is LiveMode.EMULATE else max(1, round(scenario.live.block_s * 1000))


def _is_set(path: Path, override: str) -> bool:
    """Whether a file sets the key of an override; what is wrong with the file is for `load_scenario` to say."""
    section, _, key = override.partition("=")[0].partition(".")
    try:
        table = parse_toml(read_regular(path, 4 * MAX_TOML_SIZE).decode()).get(section)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return isinstance(table, dict) and key in table
