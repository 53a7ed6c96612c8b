"""Scenarios: what they accept, what they refuse and how, and that writing loses nothing."""

import copy
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from bdfl.errors import BdflError
from bdfl.scenario import (
    Choice,
    Clients,
    Energy,
    FadingKind,
    Lognormal,
    Normal,
    Radio,
    Scenario,
    ScenarioError,
    Uniform,
    describe_scenario,
    dump_scenario,
    load_scenario,
    override_scenario,
    parse_scenario,
    scenario_digest,
)

SCENARIOS = Path(__file__).parents[1] / "scenarios"
UNIFORM = "{distribution = 'uniform', low = %s, high = %s}"


def reload(scenario):
    return parse_scenario(tomllib.loads(dump_scenario(scenario)))


def test_defaults_are_the_papers_table_one():
    scenario = Scenario()
    assert (scenario.clients.count, scenario.clients.min_selected, scenario.rounds) == (8, 3, 100)
    assert (scenario.radio.bandwidth_hz, scenario.radio.noise_w_per_hz) == (180e3, 1e-16)
    assert (scenario.mining.difficulty, scenario.mining.miss_probability) == (3e7, 1e-10)
    assert (scenario.compute.local_updates, scenario.energy.budget_j) == (20, 0.4)


def test_the_shipped_paper_scenario_changes_no_default_but_what_is_learned():
    rows = describe_scenario(load_scenario(SCENARIOS / "paper-cifar10.toml"))
    learned = {"data.source", "learning.model", "learning.unit", "learning.momentum"}
    assert {row.key for row in rows if not row.is_default} == {"name", "description", *learned}


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_loads_is_named_after_its_file_and_survives_writing(path):
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.description
    assert reload(scenario) == scenario


def test_every_curve_of_figures_two_to_four_has_its_scenario():
    names = {path.stem for path in SCENARIOS.glob("*.toml")}
    data_sets = ("cifar10", "svhn")
    assert {f"fig2-{data}-v{v}" for data in data_sets for v in (1, 10, 100, 1000)} <= names
    assert {f"fig3a-e{budget}" for budget in ("0.4", "0.6", "0.8", "1.0")} | {"fig3b-e0.8"} <= names
    algorithms = ("random", "round-robin", "channel-best", "drc")
    assert {f"fig4-{data}-{algorithm}" for data in data_sets for algorithm in algorithms} <= names


def test_every_key_says_its_unit_source_and_meaning():
    rows = describe_scenario(Scenario())
    assert len({row.key for row in rows}) == len(rows) > 50
    for row in rows:
        assert row.meaning, row.key
        assert row.source in {"paper", "calibrated", "ours"}
        suffix = row.key.rsplit("_", 1)[-1]
        if suffix in {"hz", "w", "j", "m", "db"} and not row.key.endswith("w_per_hz"):
            assert row.unit.lower() == suffix


def test_rows_show_value_beside_default():
    rows = {row.key: row for row in describe_scenario(Scenario(energy=Energy(budget_j=Uniform(low=0.2, high=0.6))))}
    row = rows["energy.budget_j"]
    assert (row.value_text, row.default_text, row.unit, row.source, row.is_default) == (
        '{distribution = "uniform", low = 0.2, high = 0.6}', "0.4", "J", "paper", False,
    )  # fmt: skip
    assert rows["compute.max_hz"].value_text == "none"
    assert rows["mining.initial_hz"].value_text == "1.5e9"


def test_rows_cut_long_lists():
    scenario = Scenario(clients=Clients(count=9, samples=tuple(range(1, 10))))
    rows = {row.key: row for row in describe_scenario(scenario)}
    assert rows["clients.samples"].value_text == "[1, 2, 3, ... 9 values]"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("radio.bandwidth_hz=360e3", lambda s: s.radio.bandwidth_hz == 360e3),
        ("radio.bandwidth_hz=360000", lambda s: s.radio.bandwidth_hz == 360e3),
        ("scheduler.name=exact", lambda s: s.scheduler.name == "exact"),
        (" scheduler.name = 'exact-power' ", lambda s: s.scheduler.name == "exact-power"),
        ("scheduler.parameters.x=1", lambda s: s.scheduler.parameters == {"x": 1}),
        ("scheduler.parameters={x = 1.5, y = true}", lambda s: s.scheduler.parameters == {"x": 1.5, "y": True}),
        ("radio.fading.kind=none", lambda s: s.radio.fading.kind is FadingKind.NONE),
        ("radio.fading={kind = 'rayleigh'}", lambda s: s.radio.fading.kind is FadingKind.RAYLEIGH),
        ("clients.samples=[1, 2, 3, 4, 5, 6, 7, 8]", lambda s: s.clients.samples == (1, 2, 3, 4, 5, 6, 7, 8)),
        ("energy.budget_j=" + UNIFORM % (0.1, 1), lambda s: s.energy.budget_j == Uniform(low=0.1, high=1)),
        ("description=a = b", lambda s: s.description == "a = b"),
        ("seed=0x10", lambda s: s.seed == 16),
    ],
)
def test_an_override_sets_its_key_and_nothing_else(override, expected):
    scenario = override_scenario(Scenario(), [override])
    assert expected(scenario)
    key = override.partition("=")[0].strip()
    changed = {row.key for row in describe_scenario(scenario) if not row.is_default} - {"radio.bandwidth_hz"}
    assert all(name.startswith(key) or key.startswith(name) for name in changed)


def test_later_overrides_win_and_the_base_stays():
    base = Scenario()
    assert override_scenario(base, ["rounds=3", "rounds=4"]).rounds == 4
    assert base == Scenario()


def test_an_optional_value_can_be_unset():
    capped = override_scenario(Scenario(), ["compute.max_hz=2e9"])
    assert capped.compute.max_hz == 2e9
    assert override_scenario(capped, ["compute.max_hz=unset"]) == Scenario()


def test_overrides_apply_before_the_file_is_checked(tmp_path):
    path = tmp_path / "few.toml"
    path.write_text("[clients]\ncount = 2\n")
    with pytest.raises(ScenarioError, match=r"clients.min_selected: 3 given, allowed is at most clients.count"):
        load_scenario(path)
    assert load_scenario(path, ["clients.min_selected=1"]).clients.count == 2


REFUSED = {
    "radio.bandwith_hz=1": "radio.bandwith_hz: unknown key, did you mean bandwidth_hz? allowed: bandwidth_hz, shari",
    "radioo.x=1": "radioo: unknown key, did you mean radio? allowed: name, description, rounds, seed, clients",
    "zzz=1": "zzz: unknown key, allowed: name, ",
    "radio.bandwidth_hz=-1": "radio.bandwidth_hz: -1 given, allowed is a number above 0",
    "radio.bandwidth_hz=wide": 'radio.bandwidth_hz: "wide" given, allowed is a number above 0',
    "radio.bandwidth_hz=true": "radio.bandwidth_hz: true given, allowed is a number above 0",
    "radio.bandwidth_hz=nan": "radio.bandwidth_hz: nan given, allowed is a finite number",
    "energy.budget_j=inf": "energy.budget_j: inf given, allowed is a finite number",
    "energy.budget_j=[1, 2, 3, 4, 5, 6, 7, inf]": "energy.budget_j[7]: inf given, allowed is a finite number",
    "clients.min_selected=9": "clients.min_selected: 9 given, allowed is at most clients.count, which is 8",
    "clients.count=0": "clients.count: 0 given, allowed is a whole number of at least 1 and of at most 10000000",
    "clients.samples=[1, 2]": "clients.samples: a list of 2 given, allowed is one entry for each of the 8 clients",
    "clients.samples=[1,2,3,4,5,6,7,0]": "clients.samples[7]: 0 given, allowed is a whole number of at least 1",
    "clients.samples=many": 'clients.samples: "many" given, allowed is a whole number of at least 1, a list with one',
    "rounds=1.5": "rounds: 1.5 given, allowed is a whole number of at least 1",
    "rounds=2024-01-01": "rounds: 2024-01-01 given, allowed is a whole number",
    "rounds=unset": "rounds: none given, allowed is a whole number",
    "rounds.x=1": "rounds.x: no such key, rounds is a value, not a table",
    "seed=-1": "seed: -1 given, allowed is a whole number of at least 0",
    "radio=3": "radio: 3 given, allowed is a table",
    "radio.trace=": 'radio.trace: "" given, allowed is a text that is not empty',
    "availability={leave_probability = 0.1, trace = 'there.csv'}": 'availability.trace: "there.csv" given, allowed is',
    "availability.leave_probability=1.5": "availability.leave_probability: 1.5 given, allowed is a number",
    "radio.fading.kind=weibull": 'radio.fading.kind: "weibull" given, allowed is one of none, rayleigh, rician, nakag',
    "mining.miss_probability=1": "mining.miss_probability: 1 given, allowed is a number above 0 and below 1",
    "energy.budget_j={low = 1, high = 2}": "energy.budget_j.distribution: missing, allowed is one of uniform, logno",
    "energy.budget_j={distribution = 'beta'}": 'energy.budget_j.distribution: "beta" given, allowed is one of uniform',
    "energy.budget_j={distribution = 'uniform', low = 1}": "energy.budget_j.high: missing, allowed is a number",
    "energy.budget_j={distribution = 'uniform', hihg = 1}": "energy.budget_j.hihg: unknown key, did you mean high?",
    "energy.budget_j=" + UNIFORM % ("'a'", 1): 'energy.budget_j.low: "a" given, allowed is a number',
    "energy.budget_j=" + UNIFORM % (2, 1): "energy.budget_j.low: 2.0 given, allowed is at most high, which is 1.0",
    "energy.budget_j=" + UNIFORM % (-1, 1): "energy.budget_j: values from -1.0 given, allowed are values of at least 0",
    "radio.power_w=" + UNIFORM % (0, 1): "radio.power_w: values from 0.0 given, allowed are values above 0",
    "participation.rates=" + UNIFORM % (0, 2): "participation.rates: values up to 2.0 given, allowed are values of at",
    "energy.budget_j={distribution = 'choice', values = []}": "energy.budget_j.values: [] given, allowed is a list",
    "energy.budget_j={distribution = 'choice', values = [1], weights = [1, 2]}": "energy.budget_j.weights: a list of 2",
    "energy.budget_j={distribution = 'choice', values = [1], weights = [0]}": "energy.budget_j.weights: [0.0] given",
    "radio.power_w={distribution = 'choice', values = [1], each_round = true}": "radio.power_w.each_round: true given",
    "scheduler.parameters.x=[1]": "scheduler.parameters.x: [1] given, allowed is a number, a text, true or false",
    "scheduler.parameters.x=nan": "scheduler.parameters.x: nan given, allowed is a finite number",
    "geometry.access_points_m=[]": "geometry.access_points_m: [] given, allowed is a list with at least 1 entry",
    "geometry.access_points_m=[[1]]": "geometry.access_points_m[0]: [1] given, allowed is a list of 2 numbers",
    "geometry.access_points_m=[[1, 'a']]": 'geometry.access_points_m[0][1]: "a" given, allowed is a number',
    "geometry.placement=listed": "geometry.client_positions_m: missing, allowed is one [x, y] for each of the 8 cl",
    "geometry.client_positions_m=[[1, 2]]": "geometry.client_positions_m: positions given with placement ring, allowed",
    "geometry.mobility.min_speed_m_per_s=3": "geometry.mobility.min_speed_m_per_s: 3.0 given, allowed is at most max",
    "radio.power_w={a": "radio.power_w: '{a' given, which is not a TOML value",
    "radio.power_w=1\nrounds=2": 'radio.power_w: "1\\nrounds=2" given, allowed is a number above 0',
    "rounds": 'rounds: not an override, expected key=value, such as "radio.bandwidth_hz=360e3"',
    "=3": "=3: not an override, expected key=value",
    "radio..x=3": "radio..x=3: not an override, expected key=value",
}


@pytest.mark.parametrize("override", REFUSED, ids=lambda text: text.split("\n")[0])
def test_what_is_refused_is_refused_in_one_line_naming_key_given_and_allowed(override):
    with pytest.raises(ScenarioError) as caught:
        override_scenario(Scenario(), [override])
    line = str(caught.value)
    assert line.startswith(REFUSED[override])
    assert "\n" not in line
    assert isinstance(caught.value, BdflError)


def test_redrawing_listed_positions_is_refused():
    positions = "[" + ", ".join(["[1, 2]"] * 8) + "]"
    overrides = ["geometry.placement=listed", f"geometry.client_positions_m={positions}"]
    assert override_scenario(Scenario(), overrides).geometry.client_positions_m == ((1.0, 2.0),) * 8
    with pytest.raises(ScenarioError, match=r"geometry.mobility.model: \"redrawn\" given"):
        override_scenario(Scenario(), [*overrides, "geometry.mobility.model=redrawn"])


def test_limits_hold_for_values_made_in_code_too():
    with pytest.raises(ScenarioError, match=r"radio.bandwidth_hz: -1.0 given"):
        Scenario(radio=Radio(bandwidth_hz=-1.0))
    with pytest.raises(ScenarioError, match=r"clients.min_selected: 3 given"):
        msgspec.structs.replace(Scenario(), clients=Clients(count=2))


def test_a_scenario_cannot_be_changed():
    with pytest.raises(AttributeError):
        Scenario().rounds = 3


def test_an_error_survives_the_way_between_processes():
    error = ScenarioError("rounds", "0 given", "allowed is more")
    assert str(copy.copy(error)) == str(error)  # takes the same road as pickling


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no such file, expected a scenario in TOML"),
        (b"rounds = ", "not TOML: Invalid value (at end of document), expected a scenario in TOML"),
        (b"name = '\xff'", "not UTF-8 text, expected a scenario in TOML"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_in_one_line(tmp_path, content, line):
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value) == f"{path}: {line}"


def test_a_folder_is_no_scenario(tmp_path):
    with pytest.raises(ScenarioError, match="expected a readable scenario in TOML"):
        load_scenario(tmp_path)


@pytest.mark.parametrize("table", ["radio", "availability"])
def test_a_trace_lies_beside_its_scenario_and_counts_by_content(tmp_path, table):
    digests = []
    for folder, content in (("one", "a"), ("two", "a"), ("three", "b")):
        path = tmp_path / folder / "traced.toml"
        path.parent.mkdir()
        path.write_text(f'[{table}]\ntrace = "gains.csv"\n')
        path.with_name("gains.csv").write_text(content)
        scenario = load_scenario(path)
        assert getattr(scenario, table).trace == str(path.with_name("gains.csv"))
        digests.append(scenario_digest(scenario))
    assert digests[0] == digests[1] != digests[2]
    path.with_name("gains.csv").unlink()
    with pytest.raises(ScenarioError, match=rf"{table}.trace: .* No such file or directory, expected a readable file"):
        scenario_digest(scenario)


def test_the_digest_names_the_scenario_and_not_its_layout():
    assert scenario_digest(Scenario()) == scenario_digest(parse_scenario({"rounds": 100, "clients": {"count": 8}}))
    assert scenario_digest(Scenario()) != scenario_digest(Scenario(seed=1))


positive = st.floats(1e-30, 1e30)
per_client = st.one_of(
    positive,
    st.lists(positive, min_size=4, max_size=4).map(tuple),
    st.tuples(positive, positive).map(lambda ends: Uniform(low=min(ends), high=max(ends), each_round=True)),
    st.builds(Lognormal, median=positive, sigma=st.floats(0, 10)),
    st.builds(Normal, mean=st.floats(-1e9, 1e9), std=positive, low=st.just(0.0), high=positive),
    st.lists(positive, min_size=1, max_size=3).map(lambda values: Choice(values=tuple(values))),
)
parameters = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.text()),
)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), budget_j=per_client, parameters=parameters,
    corner=st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)),
)  # fmt: skip
def test_what_is_written_loads_back_equal(name, budget_j, parameters, corner):
    base = Scenario(name=name, clients=Clients(count=4), energy=Energy(budget_j=budget_j))
    scenario = msgspec.structs.replace(
        base,
        scheduler=msgspec.structs.replace(base.scheduler, parameters=parameters),
        geometry=msgspec.structs.replace(base.geometry, access_points_m=(corner, (0.0, 0.0))),
    )
    again = reload(scenario)
    assert again == scenario
    assert scenario_digest(again) == scenario_digest(scenario)
