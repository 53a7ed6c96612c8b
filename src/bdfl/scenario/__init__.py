"""Everything a run depends on: frozen, strict, from TOML, named by a digest."""

from bdfl.scenario.checking import ScenarioError
from bdfl.scenario.describing import ScenarioRow, describe_scenario
from bdfl.scenario.files import dump_scenario, load_scenario, override_scenario, parse_scenario, scenario_digest
from bdfl.scenario.model import (
    Clients,
    Compute,
    Energy,
    Fading,
    FadingKind,
    Geometry,
    Mining,
    MiningMode,
    Mobility,
    MobilityModel,
    Participation,
    Placement,
    Preference,
    Radio,
    Scenario,
    SchedulerChoice,
    validate_scenario,
)
from bdfl.scenario.values import Choice, Distribution, Lognormal, Normal, PerClientValue, Uniform

__all__ = [
    "Choice",
    "Clients",
    "Compute",
    "Distribution",
    "Energy",
    "Fading",
    "FadingKind",
    "Geometry",
    "Lognormal",
    "Mining",
    "MiningMode",
    "Mobility",
    "MobilityModel",
    "Normal",
    "Participation",
    "PerClientValue",
    "Placement",
    "Preference",
    "Radio",
    "Scenario",
    "ScenarioError",
    "ScenarioRow",
    "SchedulerChoice",
    "Uniform",
    "describe_scenario",
    "dump_scenario",
    "load_scenario",
    "override_scenario",
    "parse_scenario",
    "scenario_digest",
    "validate_scenario",
]
