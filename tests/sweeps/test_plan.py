"""Sweep files: strict, in one order, and the same wherever they are read."""

import math

import pytest

from bdfl.errors import BdflError
from bdfl.scenario import ScenarioError, dump_scenario
from bdfl.sweeps.plan import (
    MEASURES,
    SCENARIO_FILE,
    Choice,
    Integers,
    LogUniform,
    Mode,
    Uniform,
    draw_value,
    dump_sweep,
    load_sweep,
)
from bdfl.sweeps.points import group_points, list_points
from bdfl.sweeps.results import SWEEP_FILE

RANDOM = """
scenario = "minimal"
seeds = [4, 2]

[grid]
clients.min_selected = [1, 2]

[random]
count = 5
seed = 3

[random.draw]
"energy.budget_j" = {distribution = "log-uniform", low = 0.2, high = 2.0}
"radio.fading.kind" = {distribution = "choice", values = ["rayleigh", "rician"]}
"""


def test_the_last_key_of_the_grid_changes_fastest_then_schedulers_then_seeds(make_sweep):
    points = list_points(make_sweep())
    places = [(*(value for _, value in point.settings), point.choice, point.seed) for point in points]
    assert places == [
        (bandwidth_hz, tradeoff, choice, seed)
        for bandwidth_hz in (90e3, 180e3)
        for tradeoff in (10, 100)
        for choice in ("drc", "random")
        for seed in (0, 1, 2)
    ]
    assert points[0].entrant.scenario.radio.bandwidth_hz == 90e3
    assert points[-1].entrant.scenario.scheduler.tradeoff == 100
    assert len({point.id for point in points}) == len(points)


def test_points_that_differ_in_their_scheduler_alone_share_their_draws(make_sweep):
    sweep = make_sweep()
    groups = group_points(sweep, list_points(sweep))
    assert [len(group.ids) for group in groups] == [4] * 6  # two tradeoffs times two schedulers
    assert all(len({entrant.scenario.radio for entrant in group.entrants}) == 1 for group in groups)


def test_a_points_name_is_what_it_computes_and_nothing_else(make_sweep):
    text = 'scenario = "minimal"\nseeds = {}\n[grid]\nrounds = {}\n'
    few, more = (list_points(make_sweep(text.format(seeds, rounds))) for seeds, rounds in ((1, "[2]"), (2, "[3, 2]")))
    assert few[0].id == more[2].id
    assert few[0].id not in {point.id for point in more[:2]}


def test_a_sweep_loads_back_from_its_folder_wherever_that_is(make_sweep, tmp_path):
    for text in (RANDOM, 'scenario = "minimal"\nrounds = 2\nset.clients.samples = 7\nmeasures = ["mean_delay_s"]\n'):
        sweep = make_sweep(text)
        (tmp_path / SCENARIO_FILE).write_text(dump_scenario(sweep.base))
        (tmp_path / SWEEP_FILE).write_text(dump_sweep(sweep))
        assert load_sweep(tmp_path / SWEEP_FILE) == sweep
        assert load_sweep(tmp_path / SWEEP_FILE).digest() == sweep.digest()


def test_keys_may_be_dotted_or_quoted(make_sweep):
    quoted, dotted = (
        make_sweep(f'scenario = "minimal"\n[grid]\n{key} = [1, 2]\n')
        for key in ('"clients.min_selected"', "clients.min_selected")
    )
    assert quoted.digest() == dotted.digest()


def test_a_draw_belongs_to_its_number_and_key(make_sweep):
    few, more = make_sweep(RANDOM), make_sweep(RANDOM.replace("count = 5", "count = 9"))
    drawn = [dict(settings)["energy.budget_j"] for settings in few.settings()]
    again = [dict(settings)["energy.budget_j"] for settings in more.settings()]
    assert drawn[:5] == drawn[5:] == again[:5]  # at both places of the grid
    assert len(set(drawn)) == 5
    assert all(0.2 <= value <= 2.0 for value in drawn)


def test_settings_drawn_twice_count_once(make_sweep):
    text = RANDOM.replace("count = 5", "count = 40").replace(
        '"energy.budget_j" = {distribution = "log-uniform", low = 0.2, high = 2.0}\n', ""
    )
    assert len(list_points(make_sweep(text))) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("drawing", "mean", "least", "greatest"),
    [
        (Uniform(low=2.0, high=4.0), 3.0, 2.0, 4.0),
        (LogUniform(low=1.0, high=math.e**2), (math.e**2 - 1) / 2, 1.0, math.e**2),
        (Integers(low=1, high=6), 3.5, 1, 6),
        (Choice(values=(0, 1)), 0.5, 0, 1),
    ],
)
def test_draws_have_the_mean_and_the_limits_of_their_law(drawing, mean, least, greatest):
    values = [draw_value(drawing, 0, number, "key") for number in range(2000)]
    assert least <= min(values) <= max(values) <= greatest
    assert sum(values) / len(values) == pytest.approx(mean, rel=0.05)
    if not isinstance(drawing, (Uniform, LogUniform)):
        assert {least, greatest} <= set(values)


def test_every_measure_of_a_mode_is_known_by_name(make_sweep):
    assert make_sweep().measures == tuple(MEASURES[Mode.SIMULATE])
    assert make_sweep('scenario = "minimal"\nmode = "run"\n').measures == tuple(MEASURES[Mode.RUN])


BASE = 'scenario = "minimal"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "scenario: missing, allowed is a text that is not empty"),
        (BASE + "grids = 1\n", "grids: unknown key, did you mean grid?"),
        (BASE + "seeds = 0\n", "seeds: 0 given, allowed is a whole number of at least 1 or a list"),
        (BASE + "seeds = [1, 1]\n", "seeds: one given twice"),
        (BASE + 'mode = "play"\n', 'mode: "play" given, allowed is one of simulate, run'),
        (BASE + 'schedulers = ["drc", "drc"]\n', "schedulers: 'drc' given twice"),
        (BASE + 'schedulers = ["nobody"]\n', "no scheduler 'nobody'"),
        (
            BASE + 'measures = ["final_accuracy"]\n',
            'measures: "final_accuracy" given, allowed is some of total_delay_s',
        ),
        (BASE + '[grid]\n"radio.bandwith_hz" = [1.0]\n', "radio.bandwith_hz: unknown key, did you mean bandwidth_hz?"),
        (BASE + '[grid]\n"radio.bandwidth_hz" = 1.0\n', "grid.radio.bandwidth_hz: 1.0 given, allowed is a list"),
        (BASE + '[grid]\n"radio.bandwidth_hz" = [1.0, 1.0]\n', "grid.radio.bandwidth_hz: 1.0 given 2 times"),
        (BASE + "[grid]\nseed = [1]\n", "grid.seed: cannot vary, expected seeds = 20"),
        (BASE + '[grid]\n"scheduler.name" = ["drc"]\n', "grid.scheduler.name: cannot vary, expected schedulers ="),
        (BASE + "[random]\ncount = 3\n", "random.draw: missing"),
        (BASE + '[random.draw]\nrounds = {distribution = "integers", low = 1, high = 2}\n', "random.count: missing"),
        (BASE + "random = {count = 1, draw = {rounds = 3}}\n", "random.draw.rounds: 3 given, allowed is a table"),
        (
            BASE + 'random = {count = 1, draw = {rounds = {distribution = "normal"}}}\n',
            'random.draw.rounds.distribution: "normal" given, allowed is one of uniform, log-uniform, integers, choice',
        ),
        (
            BASE + 'random = {count = 1, draw = {rounds = {distribution = "integers", low = 3, high = 2}}}\n',
            "random.draw.rounds.low: 3 given, allowed is at most high, which is 2",
        ),
        (
            BASE + 'schedulers = ["exact:tradeoff=5"]\n[grid]\n"scheduler.tradeoff" = [1.0]\n',
            "scheduler.tradeoff: varies, and 'exact:tradeoff=5' sets it",
        ),
        (BASE + f"seeds = 1000\n[grid]\nrounds = {list(range(1, 202))}\n", "sweep: 201,000 points, at most 100,000"),
        ('scenario = "nowhere"\n', "scenario: nowhere not found, expected a file, or one of"),
        ("scenario = ", "not TOML"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(make_sweep, text, expected):
    with pytest.raises(BdflError) as caught:
        make_sweep(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_outside_its_limits_is_told_before_any_point_is_computed(make_sweep):
    sweep = make_sweep(BASE + "[grid]\nrounds = [1, -1]\n")
    with pytest.raises(ScenarioError, match=r"rounds: -1 given, allowed is a whole number of at least 1"):
        list_points(sweep)


def test_a_base_beside_the_sweep_file_goes_before_a_shipped_one(make_sweep, tmp_path):
    (tmp_path / "minimal").write_text('name = "mine"\nrounds = 7\n')
    assert make_sweep(BASE).base.name == "mine"
